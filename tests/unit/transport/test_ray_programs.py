"""What runs inside a Ray, without one: what a keeper does, and how what speaks with Ray begins."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from trainmaster.spec.errors import UsageError
from trainmaster.testing.waits import until
from trainmaster.transport.ray.programs import node_process
from trainmaster.transport.ray.programs.node_process import NodeProcess
from trainmaster.transport.ray.programs.proxy_program import BundleActor, ClusterActor, RayProxyServer, _actor
from trainmaster.transport.ray.programs.ray_connection import dial
from trainmaster.transport.ray.proxy import said_by


def test_what_ray_refuses_is_no_actor_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray raises what is a RayTaskError and of the class of its cause, too."""

    class RayTaskError(Exception):
        cause: Exception

    class Raised(RayTaskError, ValueError):
        def __init__(self, cause: Exception) -> None:
            super().__init__(str(cause))
            self.cause = cause

    def get(_: object) -> object:
        raise Raised(ValueError("no such label"))

    ray: Any = ModuleType("ray")
    ray.get, ray.get_actor = get, lambda *_, **__: MagicMock()
    ray.exceptions = SimpleNamespace(RayTaskError=RayTaskError, ActorDiedError=type("Died", (Exception,), {}))
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(UsageError, match="Ray refuses such a machine: no such label"):
        said_by(RayProxyServer("").call("n", "a", "take"))
    with pytest.raises(RuntimeError, match="no such label"):
        RayProxyServer("").call("n", "a", "look")


def test_a_client_starts_no_task_to_ask_which_methods_an_actor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are known by its name: a machine's or a keeper's."""

    class ClientActorHandle:
        def __init__(self, actor_ref: str, actor_class: Any = None) -> None:
            self.actor_ref, self.actor_class = actor_ref, actor_class

    ray, common = MagicMock(), ModuleType("ray.util.client.common")
    ray.get_actor.return_value = ClientActorHandle("ref")
    common.ClientActorHandle = ClientActorHandle  # type: ignore[attr-defined]
    for name in ("ray", "ray.util", "ray.util.client"):
        monkeypatch.setitem(sys.modules, name, ray)
    monkeypatch.setitem(sys.modules, "ray.util.client.common", common)
    found = [_actor("n", name) for name in ("home-r-5f3a9c-1a2b3c.0", "home-r.2-5f3a9c")]
    assert [(each.actor_ref, each.actor_class.actor_cls) for each in found] == [
        ("ref", BundleActor),
        ("ref", ClusterActor),
    ]
    ray.get_actor.return_value = other = object()
    assert _actor("n", "home-r-5f3a9c") is other


def test_a_head_that_fails_is_tried_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time leaves it a thread for 41 s; others share it."""
    ray: Any = ModuleType("ray")
    ray.init = MagicMock(side_effect=[ConnectionError("ZombieProcess")] * 8 + [None])
    slept = list[float]()
    monkeypatch.setitem(sys.modules, "ray", ray)
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=slept.append)
    monkeypatch.setattr("trainmaster.transport.ray.programs.ray_connection.time", clock)
    dial("auto")
    assert slept == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 8.0, 8.0])


def test_a_node_that_does_not_suit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bundle goes back, another group is elsewhere; after a while it is asked for again."""
    ray, groups = MagicMock(), list[dict[str, Any]]()
    nodes, over, ahead_s = iter(["n1", "n2", "n3"]), list[str](), [0.0]
    ray.wait.side_effect = lambda asked, **_: (asked if over or asked == ["about"] else [], [])

    def about(_: object) -> dict[str, str]:
        node = next(nodes)
        over[:] = [node] * (node == "n1")  # nothing of ours is there
        return {"node": node, "address": f"10.0.0.{node[1]}", "unfit": "a full disk" * (node == "n1")}

    ray.get.side_effect = about
    ray.exceptions.RayError = OSError
    ray.remote.return_value.options.return_value.remote.side_effect = lambda *_: SimpleNamespace(
        about=SimpleNamespace(remote=lambda: "about"), stay=SimpleNamespace(remote=lambda: "stay")
    )

    def placement_group(bundles: list[Any], *_: str, **more: Any) -> object:
        groups.append(more)
        return object()

    ray.util.placement_group.placement_group = placement_group
    for name in ("ray", "ray.util", "ray.util.placement_group", "ray.util.scheduling_strategies"):
        monkeypatch.setitem(
            sys.modules, name, ray.util.placement_group if name[9:] == "placement_group" else ray
        )
    monkeypatch.setattr("trainmaster.transport.ray.programs.proxy_program._leaving", dict)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead_s[0], sleep=time.sleep)
    monkeypatch.setattr("trainmaster.transport.ray.programs.proxy_program.time", clock)
    keeper = ClusterActor("k", "n", "", "", "", float("inf"))
    part = {
        "token": "t",
        "role": "worker",
        "count": 1,
        "kind": {"resources": {}, "labels": {}},
        "scratch": "/t",
    }
    part["lease_s"] = 60.0
    (first,) = keeper.take([part], 0.0, 1e6)["seats"]
    assert (first["state"], first["started_s"]) == ("GONE", None)
    assert first["reason"] == "10.0.0.1 does not suit, and is left out: a full disk"
    said = keeper.take([{**part, "token": "u"}], 0.0, 1e6)
    assert [bundle["state"] for bundle in said["seats"]] == ["GONE", "READY"]
    assert said["unfit"] == ["10.0.0.1"]
    assert groups == [{}, {"bundle_label_selector": [{"ray.io/node-id": "!in(n1)"}]}]
    assert ray.remove_placement_group.call_count == 1
    ahead_s[0] = 601.0
    said = keeper.take([{**part, "token": "v"}], 0.0, 1e6)
    assert said["unfit"] == []
    assert groups[2:] == [{"bundle_label_selector": [{"ray.io/node-id": "!in(n2)"}]}]


def test_what_has_room_and_does_not_begin_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would try for ever; until it has room it is waited for."""
    ray, state, ahead_s = MagicMock(), ["PENDING"], [0.0]
    ray.wait.return_value = ([], [])
    ray.exceptions.RayError = OSError
    ray.util.placement_group_table.side_effect = lambda _: {"state": state[0]}
    for name in ("ray", "ray.util", "ray.util.placement_group", "ray.util.scheduling_strategies"):
        monkeypatch.setitem(sys.modules, name, ray)
    monkeypatch.setattr("trainmaster.transport.ray.programs.proxy_program._leaving", dict)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead_s[0], sleep=time.sleep)
    monkeypatch.setattr("trainmaster.transport.ray.programs.proxy_program.time", clock)
    keeper = ClusterActor("k", "n", "", "", "", float("inf"))
    part = {"token": "t", "role": "worker", "count": 1, "kind": {"resources": {}, "labels": {}}}
    keeper.take([{**part, "scratch": "/t", "lease_s": 60.0}], 1e6, 1e6)
    seen = []
    for ahead_s[0], state[0] in (
        (700.0, "PENDING"),
        (1400.0, "CREATED"),
        (1900.0, "CREATED"),
        (2100.0, "CREATED"),
    ):
        (bundle,) = keeper.look()["seats"]
        seen.append((bundle["state"], bundle["placed"]))
    assert seen == [("STARTING", False), ("STARTING", True), ("STARTING", True), ("GONE", True)]
    assert "has begun nothing there for 600 s" in bundle["reason"]


def test_a_node_that_does_not_say_its_time_is_told_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends no look at all of them."""

    class Look:
        def __init__(self, node: str) -> None:
            self.about, self.now, self.run = (
                SimpleNamespace(remote=lambda *_, do=do: (node, do)) for do in ("about", "now", "run")
            )

    def get(asked: tuple[str, str], timeout: float) -> object:
        if asked == ("B", "now"):
            raise TimeoutError
        return {"about": {}, "now": 0.0, "run": [0, "", ""]}[asked[1]]

    def options(scheduling_strategy: Any, **_: Any) -> Any:
        return SimpleNamespace(remote=lambda: Look(scheduling_strategy))

    ray: Any = ModuleType("ray")
    nodes = [{"NodeManagerAddress": each.lower(), "NodeID": each, "Alive": True} for each in "AB"]
    ray.nodes, ray.get, ray.wait, ray.kill = lambda: nodes, get, lambda *_, **__: None, MagicMock()
    ray.remote = lambda _: SimpleNamespace(options=options)
    strategies: Any = ModuleType("ray.util.scheduling_strategies")
    strategies.NodeAffinitySchedulingStrategy = lambda node, soft: node
    names = {"ray": ray, "ray.util": ModuleType("ray.util"), "ray.util.scheduling_strategies": strategies}
    for name, module in names.items():
        monkeypatch.setitem(sys.modules, name, module)
    seen = RayProxyServer("").looks(["a", "b", "c"], "true", "/tmp")["nodes"]
    assert (seen["a"]["error"], seen["a"]["run"]) == ("", [0, "", ""])
    assert "ahead_s" in seen["a"]
    assert (seen["b"]["error"], seen["c"]["error"]) == ("no answer in time", "it is gone")
    assert ray.kill.call_count == 2


def test_what_cannot_begin_on_a_node_leaves_nothing_there(tmp_path: Path) -> None:
    """It says so before it is a process of its own: the node is left out, and not asked for again."""
    words = ["trainmaster-deadman", str(tmp_path / "scratch" / "m"), "60", "PATH", "/nowhere/of/ours", "a:1"]
    done = subprocess.run(
        [sys.executable, "-IS", "-c", Path(node_process.__file__).read_text(), *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode
    assert "/nowhere/of/ours.held" in done.stderr.splitlines()[-1]
    assert not list((tmp_path / "scratch").iterdir())


def test_nothing_stays_of_a_node_process_that_is_killed(tmp_path: Path) -> None:
    """As by who is short of memory: what it has started ends, too, and only then its actor hears of it."""
    directory, (ours, theirs) = tmp_path / "scratch" / "m", socket.socketpair()
    words = ["trainmaster-deadman", str(directory), "60", "PATH", str(tmp_path / "shared"), "a:1"]
    source = Path(node_process.__file__).read_text()
    subprocess.run([sys.executable, "-IS", "-c", source, *words], stdin=theirs, check=True)
    theirs.close()
    call, line = socket.socketpair()
    with line:
        socket.send_fds(ours, [b"."], [line.fileno()])
    command = f"(setsid sleep 1000 & echo $! > {tmp_path}/pid; wait) & wait"
    with call, call.makefile("rb") as heard:
        call.sendall(json.dumps({"do": "start", "args": ["k", command]}).encode() + b"\n")
        assert json.loads(heard.readline()) == {"result": None}
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "what it has started")
    os.kill(int((directory / "deadman.pid").read_text()), signal.SIGKILL)
    with ours:
        ours.settimeout(30)
        assert ours.recv(1) == b""
    assert int((tmp_path / "pid").read_text()) not in node_process.processes()
    assert {path.name for path in tmp_path.iterdir()} == {"scratch", "pid"}
    assert not directory.exists()


def test_nothing_stays_of_a_node_process_that_ray_ends_while_it_begins(tmp_path: Path) -> None:
    """With its actor, at any moment: what has written something is not Ray's to end any more."""
    directory, (ours, theirs) = tmp_path / "scratch" / "m", socket.socketpair()
    words = ["trainmaster-deadman", str(directory), "60", "PATH", str(tmp_path / "shared"), "a:1"]
    source = Path(node_process.__file__).read_text()
    with (tmp_path / "shared.held").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # it waits there
        with theirs, subprocess.Popen([sys.executable, "-IS", "-c", source, *words], stdin=theirs) as begun:
            until(directory.exists, "its directory")
            begun.kill()
        ours.close()
    until(lambda: [path.name for path in tmp_path.iterdir()] == ["scratch"], "that it has tidied up")
    assert not directory.exists()


def test_a_node_with_too_many_files_open_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel brings a call no line; what runs there is ended in order, later."""
    monkeypatch.setattr("socket.recv_fds", MagicMock(side_effect=[(b".", []), (b"", [])]))
    process = MagicMock()
    NodeProcess.serve(process, MagicMock())
    process.end.assert_called_once_with()


def test_what_was_closed_before_it_begins_does_not(tmp_path: Path) -> None:
    """Who has given a call up says so by another one, which may come first."""
    process = NodeProcess(tmp_path, {"HOME": str(tmp_path)}, str(tmp_path / "shared"))
    for key in ("command", "port"):
        process.close(key)
    process.start("command", "echo > begun")
    with socket.create_server(("127.0.0.1", 0)) as server:
        process.connect("port", *server.getsockname())
        with server.accept()[0] as line:
            assert line.recv(1) == b""
    process.start("other", "echo here")
    assert set(process._work) == {"other"}
    process._work["other"].process.wait()  # type: ignore[union-attr]
    process._work["other"].close()
    process._held.close()
    assert not (tmp_path / "begun").exists()


def test_a_short_command_is_heard_in_two_answers(tmp_path: Path) -> None:
    """What it says, and how it ended: each answer goes through Ray, and a run waits for it."""
    process = NodeProcess(tmp_path, {"HOME": str(tmp_path)}, str(tmp_path / "shared"))
    process.start("command", "echo here; exit 3")
    command = process._work["command"].process
    assert command is not None
    process._ended[command.pid] = command.wait()  # as `reap` does
    heard = [process.hear("command"), process.hear("command")]
    process.close("command")
    process._held.close()
    assert heard == [["aGVyZQo=", "", None], ["", "", 3]]


def test_processes_of_actors_import_no_more_of_ray_than_they_need() -> None:
    """Those of a class are told so before their first call."""
    ray = pytest.importorskip("ray", reason="ray is not installed")
    sent = ray.cloudpickle.dumps([ClusterActor.light, BundleActor.light])
    program = "import pickle, sys; from ray.util import serialization_addons as it\n"
    program += "pickle.load(sys.stdin.buffer); print(it.apply(None), 'pydantic' in sys.modules)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, input=sent, capture_output=True, check=True)
    assert done.stdout == b"None False\n"


def test_a_keeper_that_holds_nothing_yet_has_the_lease_of_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver may be killed before it asks it for machines."""
    ray = MagicMock()
    monkeypatch.setitem(sys.modules, "ray", ray)
    RayProxyServer("").keep("k", "n", "", "", 30.0)
    actor = ray.remote.return_value.options.return_value.remote.return_value
    actor.renew.remote.assert_called_once_with(0.0, 30.0)
