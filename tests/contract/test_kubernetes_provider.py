"""The provider `kubernetes` keeps what every provider promises: on a double, and on a real Kubernetes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("websockets", reason="websockets is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")

from trainmaster.providers.base import NoCapacityError, NodeRequest, NodeState, ProviderPlace
from trainmaster.providers.capabilities import BUILT_IN
from trainmaster.providers.kubernetes.manifests import DIRECTORY
from trainmaster.providers.kubernetes.provider import KubernetesProvider
from trainmaster.providers.kubernetes.settings import KUBERNETES
from trainmaster.spec.clocks import steady_s
from trainmaster.spec.errors import ProviderError, UsageError
from trainmaster.testing.kubernetes_double import KubernetesDouble
from trainmaster.testing.provider_contract import ProviderContract
from trainmaster.testing.transport_contract import TransportContract
from trainmaster.transport.base import Connection, Target, Transport, UnreachableError
from trainmaster.transport.http_calls import HttpAnswer, sender
from trainmaster.transport.kubernetes.api import KubeApi, KubeRefusedError
from trainmaster.transport.kubernetes.exec_process import ExecProcess
from trainmaster.transport.kubernetes.login import read_login
from trainmaster.transport.kubernetes.pods import CLIENT, Pods, way_of

SETTINGS = """\
image: work:lab
wait: {wait}
grace: 5s
machines:
  small: {{cpus: 0.1, memory: 50MB, usd_per_hour: 0.25}}
  gpu: {{cpus: 0.1, memory: 50MB, gpus: 1}}
  large: {{cpus: 500, memory: 50MB}}
"""
VOLUMES = 'volumes: {/usr: "/usr:ro", /tmp: /tmp}\n'


@pytest.fixture(scope="module", params=["double", pytest.param("real", marks=pytest.mark.places)])
def kubernetes(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One for all tests of this file."""
    if request.param == "double":
        with KubernetesDouble() as double:
            yield double
        return
    from trainmaster.testing.private_kubernetes import NoKubernetesError, PrivateKubernetes

    try:
        real = PrivateKubernetes.installed()
    except NoKubernetesError as error:
        pytest.skip(str(error))
    with real:
        yield real


class KubernetesBench:
    """The provider on a Kubernetes."""

    def __init__(self, kubernetes: Any, root: Path) -> None:
        self.kubernetes, self.root, self.ahead_s = kubernetes, root, 0.0
        self.names = {name: uuid.uuid4().hex for name in ("home", "neighbour")}
        self.environ = {"KUBECONFIG": str(kubernetes.kubeconfig)}
        self.asked: list[tuple[str, str, Any]] = []

    def home(self, name: str, wait: str = "5m", more: str = "", volumes: str = VOLUMES) -> KubernetesProvider:
        """A provider of another process, for a home."""
        place = ProviderPlace(self.root / name, self.names[name], self.environ)
        place.root.mkdir(exist_ok=True)
        (place.root / "kubernetes.yaml").write_text(SETTINGS.format(wait=wait) + volumes + more)
        login = read_login("", self.environ)
        send = sender(context=_context(login))

        def watched(method: str, address: str, headers: Any, data: Any, timeout_s: float) -> HttpAnswer:
            self.asked.append((method, address, data))
            return send(method, address, headers, data, timeout_s)

        settings = KUBERNETES.read(place.root, {})
        return KubernetesProvider(
            settings, login, place, send=watched, clock=lambda: steady_s() + self.ahead_s
        )

    def provider(self) -> KubernetesProvider:
        """See `ProviderBench`."""
        return self.home("home")

    def neighbour(self) -> KubernetesProvider:
        """See `ProviderBench`."""
        return self.home("neighbour")

    def request(self, role: str = "worker", **changes: Any) -> NodeRequest:
        """See `ProviderBench`."""
        return replace(NodeRequest(role, 1, "small", token="t"), **changes)

    def _changes(self) -> list[tuple[str, str, Any]]:
        asked, self.asked = self.asked, []
        return [
            each
            for each in asked
            if each[0] != "GET" and "dryRun" not in each[1] and "accessreview" not in each[1]
        ]

    def sent(self) -> list[dict[str, Any]]:
        """See `ProviderBench`."""
        import json

        return [
            {"service": "kubernetes", "operation": "create pod", "parameters": json.loads(data)}
            for method, _, data in self._changes()
            if method == "POST"
        ]

    def changed(self) -> list[str]:
        """See `ProviderBench`."""
        return [method for method, _, _ in self._changes()]

    def without_capacity(self) -> contextlib.AbstractContextManager[None]:
        """See `ProviderBench`: all or none also if two of three may be had."""
        return self.quota(2)

    @contextlib.contextmanager
    def quota(self, pods: int) -> Iterator[None]:
        """So many pods may be there."""
        self.kubernetes.pod_limit = pods
        yield
        self.kubernetes.pod_limit = None

    @contextlib.contextmanager
    def without_permission(self) -> Iterator[None]:
        """See `ProviderBench`."""
        self.kubernetes.forbidden = {"create"}
        yield
        self.kubernetes.forbidden = set()

    @contextlib.contextmanager
    def restricted(self) -> Iterator[None]:
        """Pods of the namespace may do no more than they need."""
        self.kubernetes.restrict(is_restricted=True)
        yield
        self.kubernetes.restrict(is_restricted=False)

    def later(self, seconds: float) -> None:
        """See `ProviderBench`."""
        self.ahead_s += seconds

    def left(self) -> list[str]:
        """See `ProviderBench`."""
        left: list[str] = self.kubernetes.left()
        return left


def _context(login: Any) -> Any:
    from trainmaster.transport.kubernetes.login import KubeCredentials

    return KubeCredentials(login).context()


@pytest.fixture
def bench(kubernetes: Any, tmp_path: Path) -> Iterator[KubernetesBench]:
    """A Kubernetes without pods of ours."""
    made = KubernetesBench(kubernetes, tmp_path)
    yield made
    made.later(10_000_000.0)
    for home in (made.provider(), made.neighbour()):
        home.reap([])


class TestKubernetes(ProviderContract):
    """Every promise."""

    capabilities = BUILT_IN["kubernetes"]

    @pytest.fixture
    def bench(self, bench: KubernetesBench) -> KubernetesBench:
        """See `ProviderContract`."""
        return bench


def test_what_no_node_has_is_given_back_together(bench: KubernetesBench) -> None:
    """With the scheduler's words: at once, or after as long as it may wait; the part that has a node, too."""
    both = (bench.request(token="a"), bench.request("ps", token="b", instance_type="large"))
    with pytest.raises(NoCapacityError, match="Insufficient cpu"):
        bench.home("home", "0s").acquire("one", replace(both[0], beside=(both[1],)))
    patient = bench.home("home", "6s")
    patient.acquire("one", replace(both[0], beside=(both[1],)))
    (waiting,) = patient.acquire("one", replace(both[1], beside=(both[0],)))
    assert waiting.state is NodeState.STARTING
    told = _until(lambda: [each for each in patient.nodes("one") if each.state is NodeState.GONE])
    reason = next(each for each in told if each.role == "ps").reason
    assert reason.endswith(" nodes are available: 1 Insufficient cpu.")


def test_a_pod_that_has_to_go_may_save(bench: KubernetesBench) -> None:
    """It leaves, with the time that it has; then it is gone."""
    provider = bench.provider()
    provider.acquire("one", bench.request())
    (node,) = _until(lambda: [each for each in provider.nodes("one") if each.state is NodeState.READY])
    bench.kubernetes.evict(node.id)
    (leaving,) = provider.nodes("one")
    assert leaving.state is NodeState.LEAVING
    assert leaving.leaves_at is not None
    (gone,) = _until(lambda: [each for each in provider.nodes("one") if each.state is NodeState.GONE])
    assert gone.reason


@pytest.mark.skipif(os.geteuid() != 0, reason="pods of the double have processes of their own as root only")
def test_what_has_saved_gives_its_place_back(bench: KubernetesBench) -> None:
    """Kubelets from 1.22 on make no shorter the time that a pod has, though they are asked to."""
    provider = bench.provider()
    provider.acquire("one", bench.request())
    (node,) = _until(lambda: [each for each in provider.nodes("one") if each.state is NodeState.READY])
    with Pods().connect(Target(node.id, node.address, way=way_of("", node.zone, bench.environ))) as pod:
        _until(lambda: not pod.run(f"test -f {DIRECTORY}/deadman.pid").code)
        bench.kubernetes.evict(node.id, grace_s=300)
        saving = f"sh -c 'while [ ! -f {DIRECTORY}/leaving ]; do sleep 1; done; sleep 15; echo saved'"
        assert pod.run(saving, timeout_s=60.0).out == "saved\n"
    provider.release("one", [node.id])
    api = KubeApi(read_login("", bench.environ), "research")
    _until(lambda: node.id not in {each["metadata"]["name"] for each in api.all("pods")}, 60.0)


def test_why_a_pod_goes_is_known_to_its_end(bench: KubernetesBench, monkeypatch: Any) -> None:
    """Events are forgotten before the pod of a lost node is, of which nothing but its deletion is told."""
    provider, all_of = bench.provider(), KubeApi.all
    provider.acquire("one", bench.request())
    (node,) = _until(lambda: [each for each in provider.nodes("one") if each.state is NodeState.READY])
    events = [{"reason": "NodeNotReady", "message": "Node is not ready"}]

    def told(api: KubeApi, what: str, **more: Any) -> Any:
        if what == "events":
            return events
        pods = all_of(api, what, **more)
        for each in pods:
            each["metadata"]["deletionTimestamp"] = leaves_at
        return pods

    leaves_at = datetime.fromtimestamp(time.time(), UTC).isoformat()
    monkeypatch.setattr(KubeApi, "all", told)
    (leaving,) = provider.nodes("one")
    assert (leaving.state, leaving.reason) == (NodeState.LEAVING, "Node is not ready")
    events, leaves_at = [], datetime.fromtimestamp(time.time() - 60, UTC).isoformat()
    (gone,) = provider.nodes("one")
    assert (gone.state, gone.reason) == (NodeState.GONE, "Node is not ready")
    monkeypatch.undo()
    provider.release("one", [node.id])


def test_a_quota_that_never_suffices_is_refused(bench: KubernetesBench) -> None:
    """And one that is used up is told."""
    provider = bench.provider()
    with bench.quota(2):
        with pytest.raises(UsageError, match="of pods"):
            provider.preflight([bench.request(count=3)])
        provider.acquire("one", bench.request(count=1))
        _until(lambda: provider.preflight([bench.request(count=2)]))


def test_a_restricted_namespace_takes_pods_of_a_user_that_may_do_nothing_else(bench: KubernetesBench) -> None:
    """And it says before anything is made what others may do too much."""
    if not bench.kubernetes.has_levels:
        pytest.skip("this version of Kubernetes has no levels of security")
    with bench.restricted():
        for more, volumes in (("", ""), ("run_as: 1000\n", VOLUMES)):
            provider = bench.home("home", more=more, volumes=volumes)
            with pytest.raises(UsageError, match='violates PodSecurity "restricted:latest"'):
                provider.preflight([bench.request()])
        allowed = bench.home("home", more="run_as: 1000\n", volumes="")
        allowed.preflight([bench.request()])
        allowed.release("one", [node.id for node in allowed.acquire("one", bench.request())])


def test_pods_are_not_looked_for_in_another_namespace(bench: KubernetesBench) -> None:
    """They would be taken for deleted, and be forgotten."""
    bench.provider().acquire("one", bench.request())
    other = bench.home("home", more="namespace: elsewhere\n")
    for use in (other.nodes, other.release, lambda name: other.renew(name, 60.0)):
        with pytest.raises(UsageError, match="elsewhere"):
            use("one")
    (node,) = bench.provider().nodes("one")
    assert node.state is not NodeState.GONE


def test_a_pod_that_a_list_lacks_is_looked_for(bench: KubernetesBench, monkeypatch: Any) -> None:
    """It is gone when it is not there; what is written down as ended would stay so."""
    provider = bench.provider()
    provider.acquire("one", bench.request())
    with monkeypatch.context() as patch:
        patch.setattr(KubeApi, "all", lambda *_, **__: [])
        (node,) = provider.nodes("one")
    assert node.state is not NodeState.GONE
    provider.release("one", [node.id])


def test_what_may_have_been_made_is_not_forgotten(bench: KubernetesBench, monkeypatch: Any) -> None:
    """The same token finds it; and its cluster's end deletes it, also where nothing is written down."""
    provider, call = bench.provider(), KubeApi.call

    def late(api: KubeApi, method: str, path: str, *body: Any, **more: Any) -> Any:
        answer = call(api, method, path, *body, **more)
        if method == "POST":
            raise KubeRefusedError(504, "request did not complete")
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(KubeApi, "call", late)
        with pytest.raises(ProviderError, match="did not complete"):
            provider.acquire("one", bench.request())
    (node,) = provider.acquire("one", bench.request())
    assert bench.left() == [node.id]
    for file in bench.root.rglob("cluster-*.json"):
        file.unlink()
    provider.release("one")
    assert bench.left() == []


def test_what_ran_between_two_looks_has_cost(bench: KubernetesBench, monkeypatch: Any) -> None:
    """From its start to its end."""
    ended = {"exitCode": 42, "finishedAt": "2026-01-01T00:15:00Z"}
    over = {
        "phase": "Failed", "startTime": "2026-01-01T00:00:00Z", "podIP": "10.0.0.1",
        "containerStatuses": [{"name": "node", "state": {"terminated": ended}}],
    }  # fmt: skip
    fetches = {"name": "node", "state": {"waiting": {"reason": "ContainerCreating"}}}
    statuses = [{"phase": "Pending", "containerStatuses": [fetches]}, over]
    every, provider = KubeApi.all, bench.provider()

    def told(api: KubeApi, path: str, **query: str) -> list[dict[str, Any]]:
        status = statuses.pop(0)
        return [each | {"status": status, "spec": {"nodeName": "n"}} for each in every(api, path, **query)]

    with monkeypatch.context() as patch:
        patch.setattr(KubeApi, "all", told)
        (node,) = provider.acquire("one", bench.request())
        assert (node.state, node.started_at) == (NodeState.STARTING, 0.0)
        assert node.reason == "ContainerCreating"
        assert not node.is_queued
        (node,) = provider.nodes("one")
    assert node.state is NodeState.GONE
    assert node.ended_at is not None
    assert node.ended_at - node.started_at == pytest.approx(900.0)
    assert node.private_address == "10.0.0.1"


def test_rights_that_were_there_are_asked_for_again(bench: KubernetesBench) -> None:
    """A server that has just started knows of none for some seconds."""
    alone = {"KUBECONFIG": "/nowhere"}  # where no other token would be found
    api = KubeApi(replace(read_login("", bench.environ), user={"token": "wrong"}, environ=alone), "research")
    with pytest.raises(UsageError, match="may not run commands"):
        asyncio.run(ExecProcess.start(api, "p", "true", "p"))
    api.is_exec_known = True
    with pytest.raises(UnreachableError):
        asyncio.run(ExecProcess.start(api, "p", "true", "p"))


def _until(look: Any, patience_s: float = 90.0) -> Any:
    import time

    deadline = time.monotonic() + patience_s
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


_ECHO = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    print("listens %5d" % server.getsockname()[1], flush=True)
    client, _ = server.accept()
    client.sendall(client.recv(4) + b"!")
"""


def _port_of(stream: socket.socket) -> int:
    """The port that the program behind it listens on."""
    said = stream.recv(13)
    assert said.startswith(b"listens ")
    return int(said[8:])


class TestPods(TransportContract):
    """Commands in pods."""

    def test_ports_lead_to_the_other_end(self, connection: Connection) -> None:
        """A pod has a network of its own."""
        with connection.stream(f"exec /usr/bin/python3 -c {shlex.quote(_ECHO)}") as stream:
            stream.settimeout(60.0)
            there = _port_of(stream)
            with (
                connection.forward("127.0.0.1", there) as port,
                socket.create_connection(("127.0.0.1", port), 60.0) as client,
            ):
                client.sendall(b"ping")
                assert b"".join(iter(lambda: client.recv(100), b"")) == b"ping!"

    def test_who_has_said_all_hears_all(
        self, connection: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However long the answer takes."""
        monkeypatch.setattr("trainmaster.transport.process_connection.PARTING_S", 0.05)
        late = _ECHO.replace("client.recv(4)", "client.recv(4) + client.recv(1)")
        late = late.replace('+ b"!"', '+ (time.sleep(0.5) or b"!")').replace("socket\n", "socket, time\n", 1)
        with connection.stream(f"exec /usr/bin/python3 -c {shlex.quote(late)}") as stream:
            stream.settimeout(60.0)
            there = _port_of(stream)
            with (
                connection.forward("127.0.0.1", there) as port,
                socket.create_connection(("127.0.0.1", port), 60.0) as client,
            ):
                client.sendall(b"ping")
                client.shutdown(socket.SHUT_WR)
                assert b"".join(iter(lambda: client.recv(100), b"")) == b"ping!"

    def test_a_client_is_called_as_ssh_is(self, target: Target, tmp_path: Path) -> None:
        """What it is given goes there; it ends as the command does, and the command with it."""
        client = [sys.executable, "-m", CLIENT, target.way]
        command = [*client, target.address, "cat; echo told >&2; exit 3"]
        done = subprocess.run(command, input=b"said" * 100_000, capture_output=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (3, b"said" * 100_000, b"told\n")
        echo = f"exec /usr/bin/python3 -c {shlex.quote(_ECHO)}"
        with subprocess.Popen([*client, target.address, echo], stdout=subprocess.PIPE) as serving:
            assert serving.stdout is not None
            there, file = int(serving.stdout.readline().split()[1]), tmp_path / "socket"
            forward = [*client, "-L", f"{file}:127.0.0.1:{there}", target.address, "echo up; cat"]
            with subprocess.Popen(forward, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as leading:
                assert leading.stdout is not None
                assert leading.stdout.readline() == b"up\n"
                with socket.socket(socket.AF_UNIX) as line:
                    line.connect(os.fspath(file))
                    line.sendall(b"ping")
                    assert b"".join(iter(lambda: line.recv(100), b"")) == b"ping!"
                leading.terminate()
            assert leading.returncode == 128 + signal.SIGTERM
        assert serving.returncode == 0

    @pytest.fixture
    def transport(self) -> Transport:
        """See `TransportContract`."""
        return Pods()

    @pytest.fixture
    def target(self, bench: KubernetesBench) -> Target:
        """See `TransportContract`."""
        provider = bench.provider()
        provider.acquire("one", bench.request())
        (node,) = _until(lambda: [each for each in provider.nodes("one") if each.state is NodeState.READY])
        return Target(node.id, node.address, way=way_of("", node.zone, bench.environ))
