"""`RayProvider` without a Ray: what fits, what is lost with a keeper, what differs in versions."""

from __future__ import annotations

import itertools
import socket
import sys
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from trainmaster.providers.base import NoCapacityError, NodeRequest, NodeState, ProviderPlace
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.providers.ray.guest.proxy_program import Guest, Keeper, Seat, _actor, _connect
from trainmaster.providers.ray.provider import RayProvider, look_findings
from trainmaster.providers.ray.proxy import _BOOT, GoneError, RayProxy, said_by
from trainmaster.providers.ray.settings import RAY, RaySettings
from trainmaster.providers.ray.sharing import Lending, _told, borrowed
from trainmaster.spec.errors import MissingPartError, ProviderError, RecipeError, UsageError
from trainmaster.testing.waits import until

SETTINGS = """\
address: ray://head:10001
machines:
  small: {cpus: 1, memory: 1GB}
  rack: {cpus: 1, memory: 1GB, gpus: 1, gpu: A100, labels: {rack: "7"}, resources: {scanner: 1}}
"""
NODES = [
    {"address": "10.0.0.1", "has": {"CPU": 4.0, "memory": 8e9}, "labels": {}},
    {
        "address": "10.0.0.2",
        "has": {"CPU": 4.0, "memory": 8e9, "GPU": 2.0, "scanner": 1.0, "accelerator_type:A100": 1.0},
        "labels": {"rack": "7"},
    },
]


class Proxy(RayProxy):
    """A Ray of two nodes, with a keeper that gives at once what it is asked for."""

    def __init__(self) -> None:
        self.seats: list[dict[str, Any]] | None = None
        self.taken: list[dict[str, Any]] = []
        self.numbers = itertools.count()
        self.unfit: list[str] = []

    def lend(self) -> None:
        """See `RayProxy`."""

    def ask(self, do: str, *args: object) -> Any:
        """See `RayProxy`."""
        if do == "keep":
            self.seats = self.seats or []
        return {"facts": NODES, "free": {"CPU": 1.0, "memory": 16e9}, "names": []}.get(do)

    def call(self, namespace: str, actor: str, do: str, *args: Any) -> Any:
        """See `RayProxy`."""
        assert namespace == "trainmaster-0123456789ab"
        if self.seats is None:
            raise GoneError("there is no actor", "")
        if do == "take":
            self.taken = args[0]
            self.seats += [
                {
                    "id": f"{actor}-5f.{next(self.numbers)}", "token": part["token"], "state": "READY",
                    "reason": "", "about": {"address": "10.0.0.1", "user": "ray"}, "leaves_s": None,
                    "started_s": 1.0, "ended_s": None,
                }
                for part in args[0]
                for _ in range(part["count"])
            ]  # fmt: skip
        return {"until": 0.0, "seats": self.seats, "unfit": self.unfit}


def provider(tmp_path: Path, proxy: RayProxy, text: str = SETTINGS) -> RayProvider:
    """Of a home."""
    (tmp_path / "ray.yaml").write_text(text)
    place = ProviderPlace(tmp_path, "0123456789abcdef", {})
    return RayProvider(RAY.read(tmp_path, {}), place, proxy)


def test_what_could_never_be_placed_is_refused(tmp_path: Path) -> None:
    """One machine per node, by resources and labels; not where nodes come when they are asked for."""
    proxy = Proxy()
    asked = provider(tmp_path, proxy)
    with pytest.raises(UsageError, match=r"can never have 3 x CPU=1 memory=1[.]0 GB: 2 of its 2 nodes could"):
        asked.preflight([NodeRequest("worker", 3, "small")])
    with pytest.raises(UsageError, match=r"2 x CPU=1 .* scanner=1 .* rack=7: 1 of"):
        asked.preflight([NodeRequest("worker", 2, "rack")])
    with pytest.raises(NoCapacityError):
        asked.acquire("c", NodeRequest("worker", 3, "small", token="t"))
    assert asked.preflight([NodeRequest("ps", 1, "small"), NodeRequest("worker", 1, "rack")]) != []
    grows = provider(tmp_path, proxy, SETTINGS + "grows: true\n")
    grows.preflight([NodeRequest("worker", 3, "small")])


def test_without_its_keeper_a_cluster_is_gone(tmp_path: Path) -> None:
    """Another one is made for what is asked for next; silence means nothing."""
    proxy = Proxy()
    asked = provider(tmp_path, proxy)
    (node,) = asked.acquire("c", NodeRequest("worker", 1, "rack", token="t", labels={"a": "b"}))
    assert (node.state, node.labels["a"], node.private_address) == (NodeState.READY, "b", "10.0.0.1")
    assert proxy.taken[0]["kind"]["resources"]["accelerator_type:A100"] == 0.001
    proxy.seats = None
    (lost,) = provider(tmp_path, proxy).nodes("c")
    assert (lost.id, lost.state) == (node.id, NodeState.GONE)
    assert "head was started again" in lost.reason
    assert lost.ended_at is not None
    again = asked.acquire("c", NodeRequest("worker", 1, "small", token="u"))
    assert [each.state for each in again] == [NodeState.READY]
    asked.release("c")
    assert asked.nodes("c") == []


def test_what_waits_for_room_is_queued(tmp_path: Path) -> None:
    """So `budget.wait` counts, and its wait is no part of how long machines take to start."""
    proxy = Proxy()
    asked = provider(tmp_path, proxy)
    (node,) = asked.acquire("c", NodeRequest("worker", 1, "small", token="t"))
    assert not node.is_queued
    assert proxy.seats is not None
    proxy.seats[0] |= {"state": "STARTING", "started_s": None}
    (node,) = asked.nodes("c")
    assert (node.is_queued, node.reason) == (True, "it waits for room in Ray")
    assert capabilities_of("ray").queues
    assert capabilities_of("kubernetes").queues


def test_who_is_killed_before_the_answer_finds_or_gives_back_what_was_asked_for(tmp_path: Path) -> None:
    """What is asked for is written down first."""
    told: list[str] = []

    class Killing(Proxy):
        def call(self, namespace: str, actor: str, do: str, *args: Any) -> Any:
            told.append(do)
            said = super().call(namespace, actor, do, *args)
            if told == ["take"]:
                raise KeyboardInterrupt
            return said

    proxy, request = Killing(), NodeRequest("worker", 1, "small", token="t")
    with pytest.raises(KeyboardInterrupt):
        provider(tmp_path, proxy).acquire("c", request)
    assert len(provider(tmp_path, proxy).nodes("c")) == 1
    assert len(provider(tmp_path, proxy).acquire("c", request)) == 1
    provider(tmp_path, proxy).release("c")
    assert told == ["take", "look", "look", "end"]


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
        said_by(Guest("").call("n", "a", "take"))
    with pytest.raises(RuntimeError, match="no such label"):
        Guest("").call("n", "a", "look")


@pytest.mark.parametrize(
    ("program", "kind", "words"),
    [
        ("import nothing_that_is_there", MissingPartError, "has no Ray"),
        (
            "raise RuntimeError('Version mismatch: The cluster was started with: Ray: 2.9.0')",
            UsageError,
            "of another version: .*2.9.0",
        ),
        ("raise OSError('refused')", ProviderError, "does not answer: refused"),
        (
            "raise type('AuthenticationError', (Exception,), {})('no token')",
            UsageError,
            "does not know us: no token",
        ),
        ("import os; os._exit(1)", ProviderError, "does not start what speaks with Ray"),
    ],
)
def test_what_is_said_when_it_cannot_begin(
    tmp_path: Path, program: str, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything starts, with what to do."""
    (tmp_path / "ray.py").write_text(f"def init(*_, **__):\n    {program}\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec python3 "$@"\n')
    python.chmod(0o755)
    text = SETTINGS.replace("ray://head:10001", "auto") + f"python: {python}\n"
    (tmp_path / "ray.yaml").write_text(text)
    proxy = RayProxy(RAY.read(tmp_path, {}), tmp_path)
    with pytest.raises(kind, match=words) as caught:
        provider(tmp_path, proxy, text).check_up()
    assert str(tmp_path / "ray.yaml") in str(getattr(caught.value, "hint", "")) or kind is ProviderError


def test_what_speaks_with_a_ray_begins_early_and_ends_when_nobody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next question begins a new one."""
    (tmp_path / "ray.py").write_text("__version__ = '9'\ndef init(*_, **__):\n    pass\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho >> {tmp_path}/begun\nPYTHONPATH={tmp_path} exec python3 "$@"\n')
    python.chmod(0o755)
    text = SETTINGS.replace("ray://head:10001", "auto") + f"python: {python}\n"
    (tmp_path / "ray.yaml").write_text(text)
    proxy = RayProxy(RAY.read(tmp_path, {}), tmp_path)
    provider(tmp_path, proxy, text).check_up()
    assert (tmp_path / "begun").read_text() == "\n"
    monkeypatch.setattr("trainmaster.providers.ray.proxy._IDLE_S", 0.02)
    line = proxy._line
    assert line is not None
    until(lambda: line.idle_s > 0, "an answer")
    proxy._end_idle(line)
    assert line.is_over
    assert proxy.ask("versions")[0] == "9"
    assert (tmp_path / "begun").read_text() == "\n\n"
    proxy.close()


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
        ("ref", Seat),
        ("ref", Keeper),
    ]
    ray.get_actor.return_value = other = object()
    assert _actor("n", "home-r-5f3a9c") is other


def test_a_run_lends_what_speaks_with_its_ray(tmp_path: Path) -> None:
    """Others of the home begin no process of their own while it goes on; errors are as they are without."""
    (tmp_path / "ray.py").write_text("__version__ = '9'\ndef init(*_, **__):\n    pass\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho >> {tmp_path}/begun\nPYTHONPATH={tmp_path} exec python3 "$@"\n')
    python.chmod(0o755)
    (tmp_path / "ray.yaml").write_text(SETTINGS.replace("ray://head:10001", "auto") + f"python: {python}\n")
    settings = RAY.read(tmp_path, {})
    (running, beside), next_run = (
        (RayProxy(settings, tmp_path) for _ in range(2)),
        RayProxy(settings, tmp_path),
    )
    running.lend()
    assert [proxy.ask("versions")[0] for proxy in (running, beside)] == ["9", "9"]
    with pytest.raises(ProviderError, match=r"^Ray: AttributeError: 'Guest' object has no attribute 'fly'"):
        beside.ask("fly")
    assert (tmp_path / "begun").read_text() == "\n"
    assert (tmp_path / ".ray").stat().st_mode & 0o777 == 0o700
    running.close()
    next_run.lend()
    until(lambda: beside._line is None or beside._line.is_over, "the end of that run")
    assert beside.ask("versions")[0] == "9"  # the next one lends, which has to begin
    next_run.close()
    assert list((tmp_path / ".ray").iterdir()) == []
    until(lambda: beside._line is None or beside._line.is_over, "the end of the next run")
    assert beside.ask("versions")[0] == "9"
    beside.close()
    assert (tmp_path / "begun").read_text() == "\n" * 3


def fake_ray(tmp_path: Path, init: str = "pass") -> RaySettings:
    """Settings of a Ray whose library does so when it begins; each process that does is a line of `begun`."""
    (tmp_path / "ray.py").write_text(f"__version__ = '9'\ndef init(*_, **__):\n    {init}\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho >> {tmp_path}/begun\nPYTHONPATH={tmp_path} exec python3 "$@"\n')
    python.chmod(0o755)
    (tmp_path / "ray.yaml").write_text(SETTINGS.replace("ray://head:10001", "auto") + f"python: {python}\n")
    return RAY.read(tmp_path, {})


def test_who_checks_a_ray_takes_nothing_from_a_run(tmp_path: Path) -> None:
    """It asks through nobody, and lends only when it goes on; the run before lends as long as it does."""
    settings = fake_ray(tmp_path)
    running, doctor, beside = (RayProxy(settings, tmp_path) for _ in range(3))
    running.lend()
    (file,) = (tmp_path / ".ray").iterdir()
    inode = file.stat().st_ino
    doctor.ask("versions")
    line = doctor._line
    assert line is not None
    assert line.is_borrowed
    provider(tmp_path, doctor, (tmp_path / "ray.yaml").read_text()).check_up()
    assert line.is_over
    assert doctor._line is not None
    assert not doctor._line.is_borrowed
    doctor.lend()
    assert file.stat().st_ino == inode
    doctor.close()
    assert beside.ask("versions")[0] == "9"
    assert beside._line is not None
    assert beside._line.is_borrowed
    file.unlink()
    running.lend()
    assert file.exists()
    running.close()
    assert not file.exists()
    beside.close()


def test_a_run_that_is_gone_without_a_word_is_followed(tmp_path: Path) -> None:
    """Its file stays, and nobody answers there."""
    file = tmp_path / "ray" / "file"
    file.parent.mkdir()
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(file))
    dead.close()
    lending = Lending(file, MagicMock())
    lending.offer()
    found = borrowed(file)
    assert found is not None
    found.close()
    lending.close()


def test_a_run_that_is_stopped_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system takes connections for it, and nobody answers."""
    monkeypatch.setattr("trainmaster.providers.ray.proxy._LENT_S", 0.05)
    proxy = RayProxy(fake_ray(tmp_path), tmp_path)
    proxy._file.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(proxy._file))
        stopped.listen(1)
        assert proxy.ask("versions")[0] == "9"
    proxy.close()


def test_a_line_of_another_run_that_is_silent_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked next goes another way."""
    running, beside = (RayProxy(fake_ray(tmp_path), tmp_path) for _ in range(2))
    running.lend()
    beside.ask("versions")
    line = beside._line
    assert line is not None
    monkeypatch.setattr(line, "send", lambda *_: Future[Any]())
    monkeypatch.setattr("trainmaster.providers.ray.proxy._ANSWER_S", 0.01)
    with pytest.raises(ProviderError, match="has not answered"):
        beside.ask("versions")
    assert line.is_over
    running.close()


def test_an_error_that_is_the_users_is_heard_as_it_is(tmp_path: Path) -> None:
    """Who may ask through a run that cannot begin dials itself."""
    settings = fake_ray(tmp_path, "raise RuntimeError('Version mismatch: Ray: 2.9.0')")
    running, beside = (RayProxy(settings, tmp_path) for _ in range(2))
    running.lend()
    with pytest.raises(UsageError, match="of another version") as caught:
        beside.ask("versions")
    assert "Name a Python that has its version of Ray" in str(caught.value.hint)
    running.close()


def test_what_fails_in_any_way_is_answered() -> None:
    """Else who asked would wait."""
    failed = Future[Any]()
    failed.set_exception(KeyError("x"))
    assert _told(failed) == {"error": "KeyError: 'x'"}


def test_a_head_that_fails_is_tried_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time leaves it a thread for 41 s; others share it."""
    ray: Any = ModuleType("ray")
    ray.init = MagicMock(side_effect=[ConnectionError("ZombieProcess")] * 8 + [None])
    slept = list[float]()
    monkeypatch.setitem(sys.modules, "ray", ray)
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=slept.append)
    monkeypatch.setattr("trainmaster.providers.ray.guest.proxy_program.time", clock)
    _connect("auto")
    assert slept == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 8.0, 8.0])


def test_ray_finds_the_variables_of_the_settings(tmp_path: Path) -> None:
    """Not in a command line, which others see."""
    settings = fake_ray(tmp_path, "import os; raise RuntimeError(os.environ['RAY_AUTH_TOKEN'])")
    with (tmp_path / "ray.yaml").open("a") as file:
        file.write("variables: {RAY_AUTH_TOKEN: hush}\n")
    with pytest.raises(UsageError, match="refuses: hush"):
        RayProxy(RAY.read(tmp_path, {}), tmp_path).ask("versions")
    assert settings.variables == {}


def test_a_node_that_does_not_suit_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bundle is used no more, and another group is elsewhere; nobody waits where none is left."""
    ray, groups = MagicMock(), list[dict[str, Any]]()
    nodes, over = iter(["n1", "n2", "n3"]), list[str]()
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
    monkeypatch.setattr("trainmaster.providers.ray.guest.proxy_program._leaving", dict)
    keeper = Keeper("k", "n", "", "", "")
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
    assert [seat["state"] for seat in said["seats"]] == ["GONE", "READY"]
    assert said["unfit"] == ["10.0.0.1"]
    assert groups == [{}, {"bundle_label_selector": [{"ray.io/node-id": "!in(n1)"}]}]


def test_where_the_other_nodes_do_not_suit_nobody_waits(tmp_path: Path) -> None:
    """It is said which ones."""
    proxy = Proxy()
    asked = provider(tmp_path, proxy)
    asked.acquire("c", NodeRequest("worker", 1, "small", token="t"))
    proxy.unfit = ["10.0.0.2"]
    asked.nodes("c")
    with pytest.raises(NoCapacityError, match=r"0 of its 0 nodes could.*; 10[.]0[.]0[.]2 did not suit"):
        asked.acquire("c", NodeRequest("worker", 1, "small", token="u"))


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
    seen = Guest("").looks(["a", "b", "c"], "true", "/tmp")["nodes"]
    assert (seen["a"]["error"], seen["a"]["run"]) == ("", [0, "", ""])
    assert "ahead_s" in seen["a"]
    assert (seen["b"]["error"], seen["c"]["error"]) == ("no answer in time", "it is gone")
    assert ray.kill.call_count == 2


def test_a_refusal_is_remembered_for_some_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan dials early, in a thread: who needs it next hears the same without another dial."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho >> {tmp_path}/begun\nexit 1\n")
    python.chmod(0o755)
    text = SETTINGS.replace("ray://head:10001", "auto") + f"python: {python}\n"
    (tmp_path / "ray.yaml").write_text(text)
    proxy = RayProxy(RAY.read(tmp_path, {}), tmp_path)
    for dials in (1, 1):
        with pytest.raises(ProviderError, match=r"^Ray at auto|does not start"):
            proxy.ask("versions")
        assert (tmp_path / "begun").read_text() == "\n" * dials
    monkeypatch.setattr("trainmaster.providers.ray.proxy._REFUSED_S", 0.0)
    with pytest.raises(ProviderError, match=r"^Ray at auto|does not start"):
        proxy.ask("versions")
    assert (tmp_path / "begun").read_text() == "\n\n"


def test_a_doctor_says_what_is_seen_on_nodes() -> None:
    """Rights, clock, network and driver of each that starts something, with what to do."""
    said = '@@trainmaster-probe {"met": [], "why": {}, "builds": {}, "driver": "470.57.02"}\n'
    node = {"error": "", "about": {"user": "ray", "writes": True}, "ahead_s": 0.1, "run": [0, said, ""]}
    seen = {"a": node, "b": {**node, "about": {"user": "ray", "writes": False}, "ahead_s": -400.0}}
    found = look_findings({"nodes": {**seen, "c": {"error": "no answer"}}}, 0.0, "/tmp/x", {"torch": "12.4"})
    wrong = [f"{each.what}: {each.found}" for each in found if not each.ok]
    assert wrong == [
        "network: a does not reach b: no answer",
        "driver: a: driver 470.57.02 is too old for torch, which is built for CUDA 12.4",
        "node: b: ray may not write below /tmp/x",
        "clock: b: 6 min 40 s behind ours",
        "network: b does not reach a: no answer",
        "driver: b: driver 470.57.02 is too old for torch, which is built for CUDA 12.4",
        "c: Ray starts nothing there: no answer",
    ]
    assert all(each.ok or each.advice for each in found)
    (only, _, *_) = look_findings({"nodes": {"b": seen["b"]}}, 0.0, "/tmp/x", {})
    assert (only.what, only.ok) == ("rights", False)


def test_a_login_shell_of_any_kind_takes_the_command() -> None:
    """A csh takes no line break within quotes."""
    assert "\n" not in _BOOT


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("via: kubectl exec\nlogin: a@b", "both a way"),
        ("address: http://x", "write ray://"),
        ("sprade: 1", "unknown"),
    ],
)
def test_mistakes_in_settings(tmp_path: Path, line: str, words: str) -> None:
    """With the place in the file."""
    text = SETTINGS if "address" not in line else SETTINGS.replace("address: ray://head:10001\n", "")
    (tmp_path / "ray.yaml").write_text(f"{text}{line}\n")
    with pytest.raises(RecipeError, match=words):
        RAY.read(tmp_path, {})
