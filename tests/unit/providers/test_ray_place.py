"""`RayProvider` without a Ray: what fits, what is lost with a keeper, what nodes are like."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, call

import pytest

from trainmaster.providers.base import NoCapacityError, NodeRequest, NodeState, ProviderPlace
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.providers.ray.provider import RayProvider, look_findings
from trainmaster.providers.ray.reaching import proxy_at, way_of
from trainmaster.providers.ray.settings import RAY
from trainmaster.spec.errors import ProviderError, RecipeError, UsageError
from trainmaster.transport.ray.proxy import GoneError, RayProxy, proxy_of

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
                    "started_s": 1.0, "ended_s": None, "placed": True,
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
    proxy.seats[0] |= {"state": "STARTING", "started_s": None, "placed": False}
    (node,) = asked.nodes("c")
    assert (node.is_queued, node.reason) == (True, "it waits for room in Ray")
    proxy.seats[0] |= {"placed": True}
    (node,) = asked.nodes("c")
    assert (node.is_queued, node.reason) == (False, "Ray has room for it, and begins it")
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


def test_where_the_other_nodes_do_not_suit_nobody_waits(tmp_path: Path) -> None:
    """It is said which ones."""
    proxy = Proxy()
    asked = provider(tmp_path, proxy)
    asked.acquire("c", NodeRequest("worker", 1, "small", token="t"))
    proxy.unfit = ["10.0.0.2"]
    asked.nodes("c")
    with pytest.raises(NoCapacityError, match=r"0 of its 0 nodes could.*; 10[.]0[.]0[.]2 did not suit"):
        asked.acquire("c", NodeRequest("worker", 1, "small", token="u"))


def test_who_checks_a_ray_asks_through_no_run(tmp_path: Path) -> None:
    """That one may end before."""
    proxy = MagicMock()
    provider(tmp_path, proxy).check_up()
    assert proxy.mock_calls == [call.go_alone(), call.ask("versions")]


def test_settings_say_how_to_begin(tmp_path: Path) -> None:
    """They are what `RayProxy` wants to know, by the way of a node, too."""
    (tmp_path / "ray.yaml").write_text(SETTINGS + "variables: {RAY_AUTH_TOKEN: hush}\nkey: id\n")
    settings = RAY.read(tmp_path, {})
    assert (settings.variables, settings.key_file) == ({"RAY_AUTH_TOKEN": "hush"}, tmp_path / "id")
    place = ProviderPlace(tmp_path, "home")
    assert proxy_at(way_of(settings, place)) is proxy_of(settings, tmp_path)


def test_a_login_of_a_team_leads_not_to_the_server_by_the_way_of_a_node_either(tmp_path: Path) -> None:
    (tmp_path / "ray.yaml").write_text(
        SETTINGS.replace("\n", f"\nlogin: me@localhost:1\nkey: {tmp_path}/id\n", 1)
    )
    settings = RAY.read(tmp_path, {})
    way = way_of(settings, ProviderPlace(tmp_path, "home", team="red"))
    with pytest.raises(ProviderError, match="which this server does not connect to for its users"):
        proxy_at(way).ask("versions")


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
