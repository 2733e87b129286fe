"""Which data nodes get themselves, what goes through this machine, and what was lost meanwhile."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.cluster.node_files import data as node_data
from trainmaster.cluster.node_files import data_wanted
from trainmaster.cluster.node_files.data import NodeData
from trainmaster.cluster.node_files.files import NodePaths
from trainmaster.cluster.node_files.store_reach import AGAIN_S, StoreAwayError
from trainmaster.cluster.node_files.worker_client import OrderError, StoreRefusedError
from trainmaster.control.task.job_context import RelayError, TaskContext
from trainmaster.control.task.layout import Home
from trainmaster.objects.delegated_credentials import (
    EXPIRES_VARIABLE,
    WHOLE_KEYS_VARIABLE,
    DelegatedCredentials,
)
from trainmaster.objects.errors import ObjectStoreError, RefusingStoreError, UnreachableStoreError
from trainmaster.objects.narrowing import Grant, TooWideKeysError
from trainmaster.spec import DataSource
from trainmaster.spec.errors import ProviderError, PublishError, UsageError
from trainmaster.transport.base import CommandError, Result, Target, UnreachableError

AWAY = {"AWS_ENDPOINT_URL": "http://10.0.0.9:1", "AWS_ACCESS_KEY_ID": "id"}
MODELS = [(0, "s3://b/store/models/r1/e/0"), (1, "s3://b/store/models/r1/e/1")]


ERRORS = {"refused": "NoWayError", "failed": "PublishError"}


class Nodes:
    """Answers of nodes: what the program says there, and what is lost."""

    def __init__(self, home: Home) -> None:
        self.answers: dict[str, list[str]] = {}
        self.orders: list[tuple[str, dict[str, Any]]] = []
        self.lost: set[str] = set()
        self.had: set[str] = set()
        self.words = ""
        self.refusing: set[str] = set()
        self.trouble = ""
        self.reached: list[str] = []
        self.silent: set[str] = set()
        self.told: list[str] = []
        self.now_s = 0.0
        self.during: Callable[[Any], None] = lambda _: None
        paths = NodePaths(home, "r1", "/tm")
        self.data = NodeData(self, paths, DelegatedCredentials(), self.told.append, lambda: self.now_s)  # type: ignore[arg-type]
        self.home = home

    def node(self, number: int) -> Any:
        name = f"n{number}"
        return SimpleNamespace(
            id=name, seat=f"worker-{number}", target=Target(name, f"10.0.0.{number}"), python="py"
        )

    def reach(self, node: Any, uri: str, credentials: object) -> None:
        self.reached.append(f"{node.id} {uri}")
        if node.id in self.refusing:
            raise StoreRefusedError(node, "no way", self.trouble)

    def worker(self, node: Any) -> Any:
        return contextlib.nullcontext(SimpleNamespace(provide=partial(self._provide, node)))

    def _provide(self, node: Any, order: Any, environment: Any, hear: Any) -> str:
        self.orders.append((node.id, {**order, "environment": dict(environment)}))
        self.during(hear)
        trouble = url = ""
        for line in self.answers.get(node.id, ["done fetched"]):
            verb, _, words = line.partition(" ")
            if verb == "done":
                return words
            if verb == "note":
                hear({"note": words})
            elif verb == "trouble":
                trouble, _, url = words.partition(" ")
            elif verb in ERRORS:
                raise OrderError(node, words, ERRORS[verb], trouble, url)
        raise OrderError(node, "it was killed")

    def shell(self, node: Any, command: str, _timeout_s: float) -> Result:
        if node.id in self.silent:
            raise UnreachableError("no answer")
        is_there = node.id in self.had or node.id in {asked for asked, _ in self.orders}
        said = "@@lost\n" if node.id in self.lost or not is_there else ""
        return Result(0, f"{said}error: {self.words}\n" if self.words else said, "")

    def push(self, *_: object, **__: object) -> None: ...

    def context(self, **data: DataSource) -> Any:
        experiment = SimpleNamespace(name="train", data=data, container=None)
        found: Any = SimpleNamespace(home=self.home, run="r1", experiment=experiment, variables={})
        found.is_foreign = False
        found.data_path = partial(TaskContext.data_path, found)
        return found

    def provide(self, context: Any, name: str, attempt: str = "1", count: int = 2) -> None:
        self.data.provide(attempt, [self.node(n) for n in range(count)], context, name, MODELS)


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    for name, value in AWAY.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TRAINMASTER_CACHE_BYTES", "20GB")
    monkeypatch.setenv(WHOLE_KEYS_VARIABLE, "true")  # nobody is there who would make narrower ones
    environ = {"TRAINMASTER_HOME": str(tmp_path / "h"), "TRAINMASTER_STORE": "s3://b/store"}
    return Nodes(Home.from_environment(environ))


def test_each_node_is_asked_once_and_lent_what_it_needs(nodes: Nodes) -> None:
    context = nodes.context(all=DataSource(experiment="e"), best=DataSource(experiment="e", best="loss"))
    for _ in range(2):
        nodes.provide(context, "all")
    nodes.provide(context, "best")
    asked = ["n0 s3://b/store/models/r1", "n1 s3://b/store/models/r1"]
    assert sorted(nodes.reached) == asked, "one question for a bucket"
    assert [node for node, _ in nodes.orders].count("n0") == 2
    orders = [order for node, order in nodes.orders if node == "n0"]
    assert [order["is_single"] for order in orders] == [False, True]
    assert orders[0]["directory"] == "/tm/runs/r1/inputs/e"
    cached = {"TRAINMASTER_CACHE": "/tm/cache", "TRAINMASTER_CACHE_BYTES": "20GB"}
    assert orders[0]["environment"].items() >= (cached | AWAY).items()
    assert nodes.data.environment() == cached
    assert nodes.data.has(nodes.node(1), "/tm/runs/r1/inputs/e")
    assert not nodes.data.has(nodes.node(2), "/tm/runs/r1/inputs/e")
    assert nodes.told == []


@pytest.mark.parametrize("url", ["file:///data", "https://localhost/x", "s3://b/x"])
def test_what_leads_nowhere_from_a_node_goes_through_this_machine(
    nodes: Nodes, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:8333")
    for _ in range(2):
        with pytest.raises(RelayError):
            nodes.provide(nodes.context(x=DataSource(url=url)), "x")
    assert nodes.orders == nodes.reached == []
    assert len(nodes.told) == (0 if url.startswith("file") else 1), "a directory is somebody's choice"


def test_only_a_node_that_refuses_gets_it_from_here(nodes: Nodes) -> None:
    context = nodes.context(x=DataSource(url="s3://b/x"))
    there = "/tm/data"
    nodes.refusing = {"n1"}
    for _ in range(2):
        with pytest.raises(RelayError, match="no way"):
            nodes.provide(context, "x")
    assert [node for node, _ in nodes.orders] == ["n0"]
    assert nodes.reached.count("n1 s3://b/x") == 2, "once more at once, and then not soon"
    there = nodes.orders[0][1]["directory"]
    assert nodes.data.has(nodes.node(0), there)
    assert not nodes.data.has(nodes.node(1), there)
    assert nodes.told == ["note: data.x goes to the nodes through this machine: n1 (10.0.0.1): no way"]
    nodes.now_s, nodes.refusing = AGAIN_S + 1, set()
    nodes.provide(context, "x")
    assert [node for node, _ in nodes.orders] == ["n0", "n1"]


def test_what_a_node_has_is_not_sent_to_it(nodes: Nodes) -> None:
    """Another driver brought it, at a time when the node had a way to the store."""
    nodes.refusing = nodes.had = {"n1"}
    nodes.provide(nodes.context(x=DataSource(url="s3://b/x")), "x")
    assert [node for node, _ in nodes.orders] == ["n0"]
    assert nodes.told == []
    assert nodes.data.has(nodes.node(1), nodes.orders[0][1]["directory"])


def test_the_web_is_tried_where_it_is_needed(nodes: Nodes) -> None:
    context = nodes.context(x=DataSource(url="https://example.org/x.tar"))
    nodes.answers["n1"] = ["refused https://example.org/x.tar: timed out"]
    with pytest.raises(RelayError, match="timed out"):
        nodes.provide(context, "x")
    assert nodes.reached == []
    assert all("AWS_ACCESS_KEY_ID" not in order["environment"] for _, order in nodes.orders)


def test_what_others_named_is_not_asked_for_here(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine may reach what they may not."""
    asked: list[str] = []
    monkeypatch.setattr(node_data, "trouble_from_here", asked.append)
    context = nodes.context(x=DataSource(url="https://10.0.0.1/secret"))
    nodes.answers["n0"] = ["trouble unreachable", "refused https://10.0.0.1/secret: timed out"]
    for is_foreign, told in ((True, []), (False, ["https://10.0.0.1/secret"])):
        context.is_foreign = is_foreign
        with pytest.raises(RelayError, match="timed out"):
            nodes.provide(context, "x")
        assert asked == told


def test_what_fails_there_does_not_come_here(nodes: Nodes) -> None:
    """A laptop is not to fetch what was too large for a node."""
    context = nodes.context(x=DataSource(url="s3://b/x"))
    nodes.answers["n0"] = ["at 1 2", "failed it is damaged"]
    with pytest.raises(CommandError, match=r"n0 .*: data.x: it is damaged"):
        nodes.provide(context, "x")
    nodes.answers["n0"] = ["at 1 2"]
    with pytest.raises(CommandError, match="it was killed"):
        nodes.provide(context, "x")


@pytest.mark.parametrize(
    "words",
    [
        "[Errno 28] No space left on device: '/tm/cache/volumes/x'",
        "s3://b/v cannot be mounted here, and its 9,000 bytes do not fit into /tm, where 10 are. Take more.",
    ],
)
def test_a_full_disk_is_for_the_user_to_mend(nodes: Nodes, words: str) -> None:
    nodes.answers["n0"] = ["trouble full", f"failed {words}"]
    with pytest.raises(UsageError) as caught:
        nodes.provide(nodes.context(x=DataSource(url="s3://b/x")), "x")
    assert caught.value.args[0] == f"n0 (10.0.0.0): {words}"
    assert caught.value.hint or words.endswith(".")


@pytest.mark.parametrize(
    "words", ["[Errno 28] No space left on device: '/tm/x'", "Cannot read s3://b/x/k: Connection refused."]
)
@pytest.mark.parametrize("kind", [[], ["trouble melted"]])
def test_nothing_is_decided_by_words(nodes: Nodes, kind: list[str], words: str) -> None:
    """A runtime of an earlier version tells no kind: what fails there is tried again a few times."""
    nodes.answers["n0"] = [*kind, f"failed {words}"]
    with pytest.raises(CommandError, match=r"n0 .*: data.x: "):
        nodes.provide(nodes.context(x=DataSource(url="s3://b/x")), "x")


SENT = "Cannot read s3://b/x/k: HTTP error: error sending request: ConnectionRefused."
SILENT = ["trouble unreachable s3://b/x/k", f"failed {SENT}"]
AWAY_ERROR = UnreachableStoreError(SENT)


def test_a_store_that_is_away_is_asked_again_later(nodes: Nodes) -> None:
    """It says which store, and since when; the next try that works ends the outage."""
    context = nodes.context(x=DataSource(url="s3://b/x"))
    times = [1000.0]
    nodes.data._outages._clock = lambda: times[0]
    at = time.strftime("%H:%M:%S", time.localtime(1000))
    nodes.answers["n0"] = SILENT
    for after_s in (0, 75):
        times[0] = 1000.0 + after_s
        with pytest.raises(StoreAwayError) as caught:
            nodes.provide(context, "x")
        since = f"data.x: s3://b has not answered since {at}{f' ({after_s} s)' if after_s else ''}: "
        assert caught.value.args[0] == f"{since}n0 (10.0.0.0): {SENT}"
    nodes.answers.clear()
    nodes.now_s += 3
    nodes.provide(context, "x", attempt="2")
    nodes.answers["n0"] = SILENT
    nodes.lost, nodes.now_s, times[0] = {"n0"}, nodes.now_s + 3, 5000.0
    with pytest.raises(StoreAwayError, match=r"\d\d:\d\d:\d\d: "):
        nodes.provide(context, "x", attempt="3")


def test_of_several_stores_the_one_that_was_asked_is_told_of(nodes: Nodes) -> None:
    context = nodes.context(v=DataSource(volume="images"))
    there = nodes.data._paths.there(context.data_path("v"))
    both = ("s3://b/v", "s3://source/x")
    nodes.data._volumes[there] = data_wanted.Wanted("v", there, {"do": "volume"}, both)
    nodes.answers["n0"] = ["trouble unreachable s3://source/x/k", "failed s3://b/v: it timed out"]
    with pytest.raises(StoreAwayError, match=r"data\.v: s3://source has not answered since"):
        nodes.provide(context, "v")


@pytest.mark.parametrize("here", [AWAY_ERROR, None, RefusingStoreError("Cannot read s3://b: 403 Forbidden.")])
def test_only_what_answers_here_goes_through_this_machine(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, here: ObjectStoreError | None
) -> None:
    asked = []

    def trouble(uri: str) -> ObjectStoreError | None:
        asked.append(uri)
        return here

    monkeypatch.setattr(node_data, "trouble_from_here", trouble)
    context = nodes.context(x=DataSource(url="s3://b/x"))
    nodes.refusing, nodes.trouble = {"n0", "n1"}, "unreachable"
    with pytest.raises(StoreAwayError if here is AWAY_ERROR else RelayError):
        nodes.provide(context, "x")
    assert asked == ["s3://b/x"]
    if here is AWAY_ERROR:  # it is back: nobody is known to have refused
        nodes.refusing = set()
        nodes.provide(context, "x")
        assert {node for node, _ in nodes.orders} == {"n0", "n1"}
        assert nodes.told == []


def test_a_volume_whose_store_does_not_answer_here_is_asked_for_later(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [AWAY_ERROR, PublishError("s3://b/x is damaged.")]

    def fails(*_: object) -> Any:
        raise errors[0]

    here = [AWAY_ERROR, None, None]
    monkeypatch.setattr(node_data, "trouble_from_here", lambda _: here.pop(0))
    monkeypatch.setattr(nodes.data, "_volume", fails)
    context = nodes.context(v=DataSource(volume="images"))
    with pytest.raises(StoreAwayError, match=r"data\.v: s3://b has not answered since"):
        nodes.provide(context, "v")
    with pytest.raises(StoreAwayError, match=r"data\.v: s3://b has not answered since"):
        nodes.provide(context, "v")
    errors.pop(0)
    with pytest.raises(PublishError):
        nodes.provide(context, "v")
    monkeypatch.undo()
    there = nodes.data._paths.there(context.data_path("v"))
    errors.insert(0, AWAY_ERROR)
    nodes.data._volumes[there] = data_wanted.Wanted("v", there, {"do": "volume"}, ("s3://b/v",), tables=fails)
    for name, value in {**AWAY, WHOLE_KEYS_VARIABLE: "true"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreAwayError, match=r"data\.v: s3://b has not answered since"):
        nodes.provide(context, "v")


@pytest.mark.parametrize(("unit", "name"), [(10**9, "GB"), (10**6, "MB")])
def test_what_takes_long_is_told_now_and_then(nodes: Nodes, unit: int, name: str) -> None:
    def during(hear: Callable[[Any], None]) -> None:
        for second in range(0, 120, 5):
            nodes.now_s = second
            hear({"at": [second * unit, 200 * unit]})

    nodes.during = during
    nodes.provide(nodes.context(x=DataSource(url="s3://b/x")), "x", count=1)
    assert nodes.told == [
        f"note: n0: data.x: fetching for {after} s, {after}.0 of 200.0 {name}" for after in (20, 80)
    ]


def wanted(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A volume, as if it had been looked for."""
    context = nodes.context(v=DataSource(volume="images"))
    there = nodes.data._paths.there(context.data_path("v"))
    order = {"do": "volume", "directory": there}
    monkeypatch.setattr(nodes.data, "_wanted", lambda *_: data_wanted.Wanted("v", there, order))
    return context


def test_a_mount_that_is_gone_is_nobodys_fault(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    context = wanted(nodes, monkeypatch)
    both = [nodes.node(0), nodes.node(1)]
    nodes.provide(context, "v", attempt="1")
    assert nodes.data.lost("1", both, context) == (False, "")
    nodes.lost = {"n1"}
    assert nodes.data.lost("1", both, context) == (True, "data.v was no longer there on n1 (10.0.0.1)")
    nodes.words = "killed"
    assert nodes.data.lost("adopted", both, context)[1].endswith("n1 (10.0.0.1): killed"), (
        "also to another driver"
    )

    # the next attempt gets it anew; the first one has lost it though it is there
    nodes.words, begun = "", len(nodes.orders)
    nodes.provide(context, "v", attempt="2")
    assert [node for node, _ in nodes.orders[begun:]] == ["n1"]
    nodes.lost = set()
    assert nodes.data.lost("1", both, context)[0]
    assert not nodes.data.lost("2", both, context)[0]
    nodes.data.forget("1")
    assert not nodes.data.lost("1", both, context)[0]


def test_a_node_that_refuses_once_is_asked_once_more(nodes: Nodes) -> None:
    nodes.refusing, reach = {"n0"}, nodes.reach

    def moody(node: Any, uri: str, credentials: object) -> None:
        try:
            reach(node, uri, credentials)
        finally:
            nodes.refusing = set()

    nodes.data._reach._files = SimpleNamespace(reach=moody)  # type: ignore[assignment]
    nodes.provide(nodes.context(x=DataSource(url="s3://b/x")), "x")
    assert [node for node, _ in nodes.orders] in (["n0", "n1"], ["n1", "n0"])


def test_what_is_large_does_not_come_through_this_machine(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = nodes.context(v=DataSource(volume="images"))
    large = data_wanted.Wanted("v", "/tm/v", {"do": "volume"}, ("s3://b/v",), size_bytes=2 * 10**12)
    monkeypatch.setattr(nodes.data, "_wanted", lambda *_: large)
    nodes.refusing = {"n1"}
    with pytest.raises(ProviderError, match=r"data.v: 2000\.0 GB do not go .*: n1 .*: no way"):
        nodes.provide(context, "v")
    small = replace(large, size_bytes=3 * 10**9)
    monkeypatch.setattr(nodes.data, "_wanted", lambda *_: small)
    with pytest.raises(RelayError):
        nodes.provide(context, "v")
    (told,) = nodes.told
    assert told.startswith("note: data.v (3.0 GB) goes to the nodes through this machine: n1 ")


def test_what_a_node_remarks_is_told_once(nodes: Nodes) -> None:
    nodes.answers = {n: ["note it is fetched: no /dev/fuse", "done fetched"] for n in ("n0", "n1")}
    nodes.provide(nodes.context(x=DataSource(url="s3://b/x")), "x")
    assert nodes.told == ["note: data.x: it is fetched: no /dev/fuse"]


def test_nodes_are_lent_what_is_there_now(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    context = nodes.context(v=DataSource(volume="images"))
    there = nodes.data._paths.there(context.data_path("v"))
    nodes.data._volumes[there] = data_wanted.Wanted("v", there, {"do": "volume"}, ("s3://b/v",), {})
    for key in ("old", "new"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        credentials = data_wanted.with_keys(
            DelegatedCredentials(), nodes.data._wanted(context, "v", [])
        ).credentials
        assert credentials["AWS_ACCESS_KEY_ID"] == key


def test_nodes_get_no_keys_that_are_good_for_more_than_they_need(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody makes narrower ones: data come through this machine, and how to change that is told."""
    monkeypatch.delenv(WHOLE_KEYS_VARIABLE)
    monkeypatch.setattr(DelegatedCredentials, "environment", refuse)
    with pytest.raises(RelayError, match="no keys for it: the service said no"):
        nodes.provide(nodes.context(e=DataSource(experiment="e")), "e")
    assert not nodes.reached
    assert "--lend-keys" in nodes.told[0]


def refuse(_self: DelegatedCredentials, grants: Sequence[Grant]) -> None:
    assert not any(grant.writes for grant in grants)
    raise TooWideKeysError("the service said no", "Or else: --lend-keys.")


def test_mounts_of_runs_that_are_over_are_ended_by_the_next_one(nodes: Nodes, tmp_path: Path) -> None:
    asked: list[str] = []
    shell = nodes.shell

    def heard(node: Any, command: str, timeout_s: float) -> Result:
        asked.append(command)
        if "@@run" in command:
            return Result(0, "@@run r1\n@@run dead-1\n@@run dead-1\n@@run alive-2\n", "")
        return shell(node, command, timeout_s)

    nodes.shell = heard  # type: ignore[method-assign]
    nodes.data._mounts._is_over = lambda run: run in ("dead-1", "r1")
    context = nodes.context(v=DataSource(volume="images"))
    there = nodes.data._paths.there(context.data_path("v"))
    columns = tmp_path / "columns"
    nodes.data._volumes[there] = data_wanted.Wanted(
        "v", there, {"do": "volume"}, ("s3://b/v",), tables=lambda: columns
    )
    for attempt in ("1", "2"):
        nodes.provide(context, "v", attempt=attempt, count=1)
    ended = [command for command in asked if "umount" in command]
    assert len(ended) == 1
    assert "/tm/runs/dead-1 " in ended[0]


def test_what_was_there_all_the_time_was_not_lost(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    context = wanted(nodes, monkeypatch)
    nodes.provide(context, "v", attempt="1", count=1)
    nodes.words, nodes.answers["n0"] = "503 once", ["done kept"]
    nodes.now_s += 3
    nodes.provide(context, "v", attempt="2", count=1)
    assert len(nodes.orders) == 2
    nodes.words = ""
    assert nodes.data.lost("1", [nodes.node(0)], context) == (False, "")


def test_a_run_that_ends_waits_for_what_is_being_mounted(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, order = wanted(nodes, monkeypatch), []
    begun, ends = threading.Event(), threading.Event()

    def during(_: object) -> None:
        begun.set()
        ends.wait(5)
        order.append("mounted")

    nodes.during = during
    bringing = threading.Thread(target=nodes.provide, args=(context, "v", "1", 1))
    bringing.start()
    assert begun.wait(5)
    shell = nodes.shell

    def swept(node: Any, command: str, timeout_s: float) -> Result:
        order.append("swept")
        return shell(node, command, timeout_s)

    nodes.shell = swept  # type: ignore[method-assign]
    threading.Timer(0.05, ends.set).start()
    nodes.data.withdraw([nodes.node(0)])
    bringing.join(5)
    assert order == ["mounted", "swept"]
    with pytest.raises(CommandError, match="the run is over"):
        nodes.provide(context, "v", attempt="2")


def test_a_node_that_hangs_does_not_keep_a_run_from_its_end(nodes: Nodes) -> None:
    ended, shell, wakes = [], nodes.shell, threading.Event()

    def hangs(node: Any, command: str, timeout_s: float) -> Result:
        if node.id in ("n0", "n3"):
            wakes.wait(50)
            raise UnreachableError("no answer")
        ended.append(node.id)
        return shell(node, command, timeout_s)

    nodes.shell = hangs  # type: ignore[method-assign]
    nodes.data._mounts.end([nodes.node(number) for number in range(5)], first_s=60, next_s=0.05)
    assert not wakes.is_set(), "nobody has waited for those that hang"
    assert sorted(ended) == ["n1", "n2", "n4"]
    wakes.set()


def test_while_it_is_brought_again_it_is_not_sent_from_here(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another task of the node may be past the question, and about to send what is missing."""
    context = wanted(nodes, monkeypatch)
    nodes.provide(context, "v", attempt="1")
    there = nodes.orders[0][1]["directory"]
    nodes.lost, seen = {"n0"}, []
    nodes.now_s += 3
    nodes.during = lambda _: seen.append(nodes.data.has(nodes.node(0), there))
    nodes.provide(context, "v", attempt="2")
    assert seen == [True]
    nodes.now_s += 3
    nodes.answers["n0"] = ["refused no way any more"]
    with pytest.raises(RelayError):
        nodes.provide(context, "v", attempt="3")
    assert not nodes.data.has(nodes.node(0), there), "it comes from here"


def test_a_container_of_the_run_decides_for_all_that_use_the_volume() -> None:
    plain = SimpleNamespace(container=None, data={"v": DataSource(volume="images")})
    contained = SimpleNamespace(container="python:3.12", data={"w": DataSource(volume="images")})
    context: Any = SimpleNamespace(recipe=SimpleNamespace(experiments={"a": plain, "b": contained}))
    assert data_wanted.is_contained(context, "images")
    assert not data_wanted.is_contained(context, "others")


def test_what_the_store_does_wrong_is_told_and_mended(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    context = wanted(nodes, monkeypatch)
    nodes.provide(context, "v")
    nodes.words = "403 ExpiredToken"
    assert nodes.data.lost("1", [nodes.node(0)], context) == (
        False,
        "data.v on n0 (10.0.0.0): 403 ExpiredToken",
    )
    begun = len(nodes.orders)
    nodes.now_s += 3
    nodes.provide(context, "v", attempt="2")
    assert len(nodes.orders) == begun + 2


def test_tasks_that_begin_together_look_once(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    context = wanted(nodes, monkeypatch)
    nodes.provide(context, "v", attempt="1")
    nodes.lost, begun = {"n1"}, len(nodes.orders)
    nodes.provide(context, "v", attempt="2")
    assert len(nodes.orders) == begun, "it was there a moment ago"
    nodes.now_s += 3
    nodes.provide(context, "v", attempt="3")
    assert len(nodes.orders) == begun + 1


def test_a_node_that_does_not_answer_has_lost_nothing(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    context = wanted(nodes, monkeypatch)
    nodes.provide(context, "v")
    nodes.silent = {"n0", "n1"}
    assert nodes.data.lost("1", [nodes.node(0)], context) == (False, "")
    nodes.data.withdraw([nodes.node(0), nodes.node(1)])
    assert not nodes.data.has(nodes.node(0), nodes.orders[0][1]["directory"])


def test_who_takes_over_renews_the_keys_of_mounts_that_are_there(nodes: Nodes) -> None:
    """The second driver of a run has brought nothing; it is told that all is there."""
    context = nodes.context(v=DataSource(volume="images"))
    there = nodes.data._paths.there(context.data_path("v"))
    nodes.data._volumes[there] = data_wanted.Wanted("v", there, {"do": "volume"}, ("s3://b/v",))
    credentials = {"AWS_SESSION_TOKEN": "t", EXPIRES_VARIABLE: "2000000000"}
    nodes.data._credentials = SimpleNamespace(environment=lambda _: credentials)  # type: ignore[assignment]
    nodes.answers = {"n0": ["done kept"], "n1": ["done kept"]}
    nodes.provide(context, "v")
    assert sorted(nodes.data._renewal._mounts) == [("n0", there), ("n1", there)]
    assert nodes.data.lost("1", [nodes.node(0)], context) == (False, "")
