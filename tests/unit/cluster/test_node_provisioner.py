"""What is kept here of a cluster: where its head is, and its keys until it is given back."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainmaster.cluster import node_links
from trainmaster.cluster.bootstrap.bootstrap import Bootstrap
from trainmaster.cluster.node_files import files
from trainmaster.cluster.node_ledger import NodeLedger
from trainmaster.cluster.node_provisioner import NodeProvisioner
from trainmaster.cluster.record import ClusterRecord, ClusterState, Machine, new_record
from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan
from trainmaster.control.task.layout import Home
from trainmaster.executors.gangs.engine import ClusterNode
from trainmaster.executors.ray import cluster as ray_cluster
from trainmaster.executors.ssh.cluster import SshCluster
from trainmaster.providers.base import Node, NodeState
from trainmaster.spec.errors import ProviderError
from trainmaster.transport.base import Target
from trainmaster.transport.host_keys import HostKeys


def record(rental: Rental, *names: str) -> ClusterRecord:
    plan = ClusterPlan("train", ("train",), "lab", (RolePlan("worker", len(names), (rental,)),))
    machines = tuple(Machine(f"worker-{n}", "worker", "t", rental, name) for n, name in enumerate(names))
    return replace(new_record("run", plan, "home"), state=ClusterState.ACTIVE, machines=machines)


RENTED = record(Rental("m4.large", "us"), "i-0", "i-1")
OWN = record(Rental(slots=2, is_rented=False), "gpu1.lab", "gpu2.lab")
NODES = {
    f"gpu{n}.lab": ClusterNode(f"gpu{n}-lab", "10.0.0.1", 2, f"/d/gpu{n}-lab", f"/d/gpu{n}-lab/node", {})
    for n in (1, 2)
}


@pytest.fixture
def provisioner(tmp_path: Path) -> NodeProvisioner:
    home = Home.from_environment({"TRAINMASTER_HOME": str(tmp_path / "home")})
    transport = SimpleNamespace(forget=HostKeys(home.root / "known_hosts").forget)
    return NodeProvisioner(home, "run", cast("Any", transport), tmp_path / "code", 900.0)


def noted(provisioner: NodeProvisioner, *keys: str, number: int = 0) -> Path:
    """As `RayCluster` notes down what it starts."""
    directory = provisioner.home.root / "clusters" / "run.train" / str(number)
    directory.mkdir(parents=True)
    nodes = [ClusterNode(key, "10.0.0.1", 2, f"/d/{key}", f"/d/{key}/node", {}) for key in keys]
    (directory / "cluster.json").write_text(json.dumps({"nodes": [asdict(node) for node in nodes]}))
    (directory / "token").write_text("secret")
    return directory


def test_where_the_head_of_an_earlier_process_is(provisioner: NodeProvisioner) -> None:
    assert provisioner.head_of(RENTED) == ""
    noted(provisioner, "i-1", "i-0")
    assert provisioner.head_of(RENTED) == "i-1"
    gone = RENTED.changed([replace(RENTED.machines[1], is_over=True)])
    assert provisioner.head_of(gone) == "", "it is rented no more"
    assert provisioner.head_of(replace(RENTED, formed=1)) == "", "that one was dissolved"
    directory = noted(provisioner, "gpu1-lab", number=2)
    assert provisioner.head_of(replace(OWN, formed=2)) == "gpu1.lab"
    (directory / "cluster.json").write_text("{")
    assert provisioner.head_of(replace(OWN, formed=2)) == ""


def test_the_key_that_a_rented_machine_has_shown_is_written_down_if_there_is_room(
    provisioner: NodeProvisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node("i-0", "run.train", "worker", NodeState.READY, "10.0.0.1")
    target = Target("i-0", "10.0.0.1", pin_as="i-0")
    known = provisioner.home.root / "clusters" / "run.train" / "known-i-0"
    provisioner._note_host_key(replace(node, is_rented=False), target, "ssh-ed25519 AAAA")
    provisioner._note_host_key(node, replace(target, host_key="ssh-ed25519 AAAA"), "ssh-ed25519 AAAA")
    provisioner._note_host_key(node, target, "")
    assert not known.exists()
    provisioner._note_host_key(node, target, "ssh-ed25519 AAAA")
    assert known.read_text() == "i-0 ssh-ed25519 AAAA\n"

    provisioner._note_host_key(replace(node, id="x/../../../escaped"), target, "ssh-ed25519 AAAA")
    assert not (provisioner.home.root / "escaped").exists()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trainmaster.cluster.node_provisioner.write_private", full)
    provisioner._note_host_key(node, target, "ssh-ed25519 BBBB")
    assert known.read_text() == "i-0 ssh-ed25519 AAAA\n"


def test_nothing_secret_outlives_a_cluster(provisioner: NodeProvisioner) -> None:
    directory = noted(provisioner, "i-0")
    target = Target("i-0", "10.0.0.1", pin_as="i-0")
    keys = HostKeys(provisioner.home.root / "known_hosts")
    keys.accept(target, "ssh-ed25519 AAAA")
    provisioner.forget(RENTED, [cast("Any", SimpleNamespace(target=target))])
    assert not directory.parent.exists()
    assert not keys.pins(target), "its address comes back with another machine"


def test_hosts_of_ones_own_stay_known(provisioner: NodeProvisioner) -> None:
    target = Target("gpu1.lab", "gpu1.lab")
    keys = HostKeys(provisioner.home.root / "known_hosts")
    keys.accept(target, "ssh-ed25519 AAAA")
    provisioner.forget(OWN, [cast("Any", SimpleNamespace(target=target))])
    assert keys.pins(target)


@pytest.mark.parametrize("is_claimed_again", [True, False])
def test_what_runs_on_a_host_that_was_given_up_and_claimed_again_is_ended(
    provisioner: NodeProvisioner, monkeypatch: pytest.MonkeyPatch, is_claimed_again: bool
) -> None:
    """Agents of another version would be asked, and refuse; and it would run beside what begins there."""
    noted(provisioner, "gpu1-lab", "gpu2-lab")
    done: list[tuple[str, object]] = []

    def remove(self: SshCluster, key: str, *, is_gone: bool = False) -> None:
        done.append((key, is_gone))

    monkeypatch.setattr(SshCluster, "end", lambda _, nodes: done.extend(("end", n.key) for n in nodes))
    monkeypatch.setattr(SshCluster, "remove", remove)
    monkeypatch.setattr(SshCluster, "add", lambda _, nodes: done.append(("add", [n.key for n in nodes])))
    monkeypatch.setattr(provisioner, "_cluster_node", lambda _, machine, __: NODES[machine.id])
    machines = OWN.machines
    if is_claimed_again:
        machines = (replace(machines[0], is_over=True, has_joined=True), *machines)
    own = replace(OWN, plan=replace(OWN.plan, engine="ssh"), machines=machines)
    access = cast("Any", SimpleNamespace(target=Target("gpu1.lab", "gpu1.lab")))
    provisioner.form(own, [(machine, access) for machine in own.rented])
    assert done == (
        [("end", "gpu1-lab"), ("gpu1-lab", True), ("add", ["gpu1-lab"])] if is_claimed_again else []
    )
    done.clear()
    provisioner.join(
        own, SshCluster(Path(), (), cast("Any", None), cast("Any", None)), [(machines[0], access)]
    )
    assert done == [("end", "gpu1-lab")] * is_claimed_again + [("add", ["gpu1-lab"])]


@pytest.mark.parametrize("given_up", [(), (0,), (1,), (0, 1)])
def test_a_head_on_a_host_that_was_given_up_and_claimed_again_is_ended_with_its_cluster(
    provisioner: NodeProvisioner, monkeypatch: pytest.MonkeyPatch, given_up: tuple[int, ...]
) -> None:
    """It would be found, and asked for ever, also where it is of another version."""
    noted(provisioner, "gpu1-lab", "gpu2-lab")
    done: list[tuple[str, object]] = []
    kind = ray_cluster.RayCluster

    def stop(self: ray_cluster.RayCluster, gone: Any = ()) -> None:
        done.append(("stop", {node.key for node in self.nodes} - set(gone)))
        shutil.rmtree(self.directory)

    monkeypatch.setattr(kind, "end", lambda _, nodes: done.extend(("end", n.key) for n in nodes))
    monkeypatch.setattr(kind, "stop", stop)
    monkeypatch.setattr(kind, "is_up", lambda _: True)
    monkeypatch.setattr(kind, "remove", lambda _, key, **how: done.append((key, how["is_gone"])))
    monkeypatch.setattr(kind, "add", lambda _, nodes: done.append(("add", {n.key for n in nodes})))
    monkeypatch.setattr(kind, "start", lambda _, nodes, *__: done.append(("start", {n.key for n in nodes})))
    monkeypatch.setattr(provisioner, "_cluster_node", lambda _, machine, __: NODES[machine.id])
    over = tuple(replace(OWN.machines[n], is_over=True, has_joined=True) for n in given_up)
    own = replace(OWN, machines=(*over, *OWN.machines))
    access = cast("Any", SimpleNamespace(target=Target("gpu1.lab", "gpu1.lab")))
    provisioner.form(own, [(machine, access) for machine in own.rented])
    both, ended = {"gpu1-lab", "gpu2-lab"}, [("end", f"gpu{n + 1}-lab") for n in given_up]
    if 0 in given_up:
        assert done == [*ended, ("stop", both), ("start", both)]
    else:
        assert done == [*ended, *([("gpu2-lab", True), ("add", {"gpu2-lab"})] if given_up else [])]


def test_what_an_earlier_process_had_started_on_own_hosts_is_ended(
    provisioner: NodeProvisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by one that never reached them itself."""
    noted(provisioner, "gpu1-lab", "gpu2-lab", "gpu3-lab")
    stopped = []
    monkeypatch.setattr(
        ray_cluster.RayCluster,
        "stop",
        lambda self, gone=(): stopped.append(({node.key for node in self.nodes}, set(gone))),
    )
    machines = {
        m.id: Node(m.id, "run.train", "worker", NodeState.READY, m.id, is_rented=False) for m in OWN.machines
    }
    provisioner.take_back(OWN, None, [], machines)
    assert stopped == [({"gpu1-lab", "gpu2-lab", "gpu3-lab"}, {"gpu3-lab"})]


def test_the_key_of_a_cluster_is_for_its_user_only(provisioner: NodeProvisioner) -> None:
    pytest.importorskip("asyncssh")
    pair = provisioner._pair(RENTED)
    path = provisioner.home.root / "clusters" / "run.train" / "key.pair"
    assert path.stat().st_mode & 0o077 == 0
    assert provisioner._pair(RENTED) == pair, "found again"


def test_a_machine_that_is_known_is_granted_its_lease_while_it_is_asked_what_it_has(
    provisioner: NodeProvisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run on warm machines waits for each question; to one that is not known nothing is done before.

    Neither waits for the other's login.
    """
    granted, asked = threading.Event(), list[bool]()

    def grant(_: object, over: object) -> None:
        assert over == ("another" if known else login)
        assert not known or asking.wait(30)
        granted.set()

    def one(*given: object) -> Any:
        assert given[-1] is login
        asking.set()
        asked.append(granted.is_set())
        return SimpleNamespace(ok=False, failed="PROBE", reason="it is broken", hint="")

    login = object()
    logins = SimpleNamespace(connection=lambda _: contextlib.nullcontext(login))
    monkeypatch.setattr(provisioner, "transport", logins)
    monkeypatch.setattr(provisioner.connections, "use", lambda _, work: work("another"))
    monkeypatch.setattr(provisioner, "_packed", lambda: ((), None))
    monkeypatch.setattr(provisioner, "_grant", grant)
    monkeypatch.setattr(Bootstrap, "one", one)
    for known in (None, "facts"):
        asking = threading.Event()
        granted.clear()
        monkeypatch.setattr(NodeLedger, "facts", lambda *_, known=known: known)
        node = Node("i-0", "run.train", "worker", NodeState.READY, "10.0.0.1")
        with pytest.raises(ProviderError, match="it is broken"):
            provisioner.prepare(RENTED.machines[0], node)
        assert granted.is_set()
    assert asked == [True, False]


@pytest.mark.parametrize("answers", [False, True])
@pytest.mark.parametrize("has_joined", [False, True])
def test_whether_a_machine_that_had_joined_was_silent_is_told(
    provisioner: NodeProvisioner, monkeypatch: pytest.MonkeyPatch, answers: bool, has_joined: bool
) -> None:
    """One that boots is silent, too, and nothing was there that could have failed because of that."""
    result = SimpleNamespace(ok=True, plan="plan", host_key="", known=None)
    logins = SimpleNamespace(connection=lambda _: contextlib.nullcontext(object()))
    monkeypatch.setattr(provisioner, "transport", logins)
    monkeypatch.setattr(provisioner, "_packed", lambda: ((), None))
    monkeypatch.setattr(provisioner, "_grant", lambda *_: None)
    monkeypatch.setattr(Bootstrap, "one", lambda *_: result)
    monkeypatch.setattr(files, "prepare_node", lambda *_: None)
    monkeypatch.setattr(node_links, "greets", lambda *_: answers)
    machine = replace(RENTED.machines[0], has_joined=has_joined)
    access = provisioner.prepare(machine, Node("i-0", "run.train", "worker", NodeState.READY, "10.0.0.1"))
    assert access.was_silent == (has_joined and not answers)
