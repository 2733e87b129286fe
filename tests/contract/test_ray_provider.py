"""The provider `ray` keeps what every provider and every transport promises, in a Ray of three nodes."""

from __future__ import annotations

import contextlib
import shlex
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainmaster.providers.base import Node, NodeRequest, NodeState, ProviderPlace
from trainmaster.providers.capabilities import BUILT_IN
from trainmaster.providers.hosts_over_ssh import target_of
from trainmaster.providers.ray.provider import RayProvider
from trainmaster.providers.ray.settings import RAY
from trainmaster.spec.clocks import steady_s
from trainmaster.testing.private_network import NoNetworkError
from trainmaster.testing.private_ray import PrivateRay, check_installed
from trainmaster.testing.provider_contract import ProviderContract
from trainmaster.testing.transport_contract import TransportContract
from trainmaster.transport.base import Connection, Target
from trainmaster.transport.ray.bundles import RayTransport
from trainmaster.transport.ray.proxy import RayProxy

pytestmark = [pytest.mark.timeout(600), pytest.mark.places]

SETTINGS = """\
{way}scratch: {scratch}
machines:
  small: {{cpus: 1, memory: 100MB, usd_per_hour: 0.25}}
"""
#: What a Python of another version looks like to Ray.
OLD = "import ray\nray.__version__ = '2.9.0'\n"


@pytest.fixture(scope="module")
def ray() -> Iterator[PrivateRay]:
    """One for all tests of this file."""
    try:
        check_installed()
    except NoNetworkError as error:
        pytest.skip(str(error))
    with PrivateRay(3) as running:
        yield running


class WatchedProxy(RayProxy):
    """Keeps what it was told."""

    told: list[tuple[Any, ...]]

    def ask(self, do: str, *args: Any) -> Any:
        """See `RayProxy`."""
        self.told.append((do, *args))
        return super().ask(do, *args)


class RayBench:
    """The provider in a real Ray."""

    def __init__(self, ray: PrivateRay, proxy: WatchedProxy, root: Path) -> None:
        self.ray, self.proxy, self.root, self.ahead_s = ray, proxy, root, 0.0
        self.told = proxy.told = list[tuple[Any, ...]]()
        self.names = {name: uuid.uuid4().hex for name in ("home", "neighbour")}
        self.is_old = False

    def home(self, name: str) -> RayProvider:
        """A provider of another process, for a home."""
        place = ProviderPlace(self.root / name, self.names[name], {})
        place.root.mkdir(exist_ok=True)
        way = self.ray.way
        if self.is_old:
            (self.root / "sitecustomize.py").write_text(OLD)
            python = self.root / "python"
            python.write_text(f'#!/bin/sh\nPYTHONPATH={self.root} exec {sys.executable} "$@"\n')
            python.chmod(0o755)
            way = way.replace(f"python: {sys.executable}", f"python: {python}")
        text = SETTINGS.format(way=way, scratch=self.ray.scratch)
        (place.root / "ray.yaml").write_text(text)
        settings = RAY.read(place.root, {})
        proxy = RayProxy(settings, place.root) if self.is_old else self.proxy
        return RayProvider(settings, place, proxy, clock=lambda: steady_s() + self.ahead_s)

    def provider(self) -> RayProvider:
        """See `ProviderBench`."""
        return self.home("home")

    def neighbour(self) -> RayProvider:
        """See `ProviderBench`."""
        return self.home("neighbour")

    def request(self, role: str = "worker", **changes: Any) -> NodeRequest:
        """See `ProviderBench`."""
        return replace(NodeRequest(role, 1, "small", token="t"), **changes)

    def sent(self) -> list[dict[str, Any]]:
        """See `ProviderBench`."""
        taken = [args[4] for args in self.told if args[0] == "call" and args[3] == "take"]
        self.told.clear()
        kinds = [[part["kind"] for part in parts for _ in range(part["count"])] for parts in taken]
        return [
            {
                "service": "ray",
                "operation": "placement_group",
                "parameters": {
                    "strategy": "STRICT_SPREAD",
                    "bundles": [kind["resources"] for kind in group],
                    "labels": [kind["labels"] for kind in group],
                },
            }
            for group in kinds
        ]

    def changed(self) -> list[str]:
        """See `ProviderBench`."""
        words = [args[0] for args in self.told if args[0] == "keep"]
        return words + [each["operation"] for each in self.sent()]

    @contextlib.contextmanager
    def without_capacity(self) -> Iterator[None]:
        """See `ProviderBench`: a node is away."""
        self.ray.kill(self.ray.names[-1])
        until(lambda: len(self.proxy.ask("facts")) < len(self.ray.names))
        yield
        self.ray.boot(self.ray.names[-1])
        until(lambda: len(self.proxy.ask("facts")) == len(self.ray.names))

    @contextlib.contextmanager
    def without_permission(self) -> Iterator[None]:
        """See `ProviderBench`: of another version."""
        self.is_old = True
        yield
        self.is_old = False

    def later(self, seconds: float) -> None:
        """See `ProviderBench`."""
        self.ahead_s += seconds

    def left(self) -> list[str]:
        """See `ProviderBench`. What has ended is gone from Ray's lists a moment later."""
        deadline = time.monotonic() + 60
        while (found := self.ray.others() + [str(path) for path in self.ray.files()]) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.2)
        return found


def until(condition: Callable[[], Any], patience_s: float = 120.0) -> None:
    """Ask again and again."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture(scope="module")
def proxy(ray: PrivateRay, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedProxy]:
    """One for all tests: to start it takes seconds."""
    root = tmp_path_factory.mktemp("home")
    (root / "ray.yaml").write_text(SETTINGS.format(way=ray.way, scratch=ray.scratch))
    made = WatchedProxy(RAY.read(root, {}), root)
    made.told = []
    yield made
    made.close()


@pytest.fixture
def bench(ray: PrivateRay, proxy: WatchedProxy, tmp_path: Path) -> Iterator[RayBench]:
    """A Ray without anything of ours."""
    made = RayBench(ray, proxy, tmp_path)
    yield made
    made.later(10**6)
    for provider in (made.provider(), made.neighbour()):
        provider.reap([])


class TestRay(ProviderContract):
    """Every promise."""

    capabilities = BUILT_IN["ray"]

    @pytest.fixture
    def bench(self, bench: RayBench) -> RayBench:
        """See `ProviderContract`."""
        return bench


def ready(provider: RayProvider, cluster: str = "c") -> list[Node]:
    """Those that are there, when all are."""
    until(lambda: {node.state for node in provider.nodes(cluster)} == {NodeState.READY})
    return provider.nodes(cluster)


@pytest.fixture(scope="module")
def machine(ray: PrivateRay, proxy: WatchedProxy, tmp_path_factory: Any) -> Iterator[Target]:
    """One for all tests of the way there."""
    bench = RayBench(ray, proxy, tmp_path_factory.mktemp("way"))
    provider = bench.provider()
    provider.acquire("c", bench.request())
    yield target_of(ready(provider)[0])
    provider.release("c")
    assert bench.left() == []


class TestWayThere(TransportContract):
    """Every promise of a transport, through an actor."""

    @pytest.fixture
    def transport(self, proxy: WatchedProxy) -> RayTransport:
        """See `TransportContract`."""
        return RayTransport(proxy)

    @pytest.fixture
    def target(self, machine: Target) -> Target:
        """See `TransportContract`."""
        return machine

    def test_ports_lead_to_the_other_end(self, connection: Connection) -> None:
        """Of the node, which is in another network than this machine."""
        program = (
            "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)"
            "; c, _ = s.accept(); c.sendall(c.recv(4)[::-1])"
        )
        with connection.stream(f"exec {sys.executable} -c {shlex.quote(program)}") as stream:
            port = int(stream.recv(10))
            with (
                connection.forward("127.0.0.1", port) as entrance,
                socket.create_connection(("127.0.0.1", entrance), 60) as client,
            ):
                client.sendall(b"ping")
                assert client.recv(4) == b"gnip"
