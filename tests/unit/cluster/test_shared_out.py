"""`SharedOut`: tasks of one experiment spread over clusters in several places; each gang is in one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainmaster.cluster.shared_out import SharedOut
from trainmaster.executors.base import GangRequest, GangStatus, MemberRequest, MemberStatus, Phase
from trainmaster.spec.errors import ProviderError, UsageError


class FakeConnection:
    """To a cluster of some nodes, two slots each."""

    def __init__(self, provider: str, nodes: int, *, is_up: bool = True) -> None:
        self.taken: list[str] = []
        self.waiting: dict[str, GangRequest] = {}
        self.wanted = 0
        plan = SimpleNamespace(name="train", slots=2 * nodes, nodes=nodes)
        machines = (SimpleNamespace(id=f"{provider}-1"),)
        record = SimpleNamespace(plan=plan, provider=provider, machines=machines)
        self.loop = SimpleNamespace(record=record, want=self._want)
        self.there = nodes
        self.executor = SimpleNamespace(nodes=lambda: range(self.there)) if is_up else None

    def _want(self) -> None:
        self.wanted += 1

    def take(self, gang: GangRequest) -> None:
        """A gang is its."""
        self.taken.append(gang.attempt)


class FakeMemberPlaces:
    """What earlier drivers have written down."""

    def __init__(self) -> None:
        self.written: dict[str, str] = {}

    def machines(self, attempt: str, _nodes: object) -> list[tuple[str, str]]:
        """Members with their machines."""
        return [("worker-0", self.written[attempt])] if attempt in self.written else []


class Spread:
    """A sweep over own hosts and rented machines."""

    def __init__(self, *, hosts_up: bool = True) -> None:
        self.hosts, self.rented = FakeConnection("hosts", 1, is_up=hosts_up), FakeConnection("aws", 2)
        self.member_places = FakeMemberPlaces()
        places = {"train": (self.hosts, self.rented), "alone": (self.rented,)}
        self.shared = SharedOut(cast("Any", places), cast("Any", self.member_places))

    def submit(self, *tasks: int, slots: int = 1) -> None:
        """Gangs of so many slots each."""
        for task in tasks:
            assert self.shared.take(gang(task, slots))
        self.shared.send()

    def ends(self, task: int, phase: Phase = Phase.EXITED) -> None:
        """What its cluster says of it."""
        self.shared.noted(GangStatus(attempt(task), phase))
        self.shared.send()


def attempt(task: int) -> str:
    """The first at a task."""
    return f"run/train/{task}/1"


def gang(task: int, slots: int = 1) -> GangRequest:
    """Of one member."""
    return GangRequest(attempt(task), "/d", (MemberRequest("worker-0", "true", "/"),), slots, "g", 9)


def test_the_first_place_is_filled_first_and_what_has_no_room_waits() -> None:
    it = Spread()
    it.submit(*range(7))
    assert it.hosts.taken == [attempt(0), attempt(1)]
    assert it.rented.taken == [attempt(task) for task in (2, 3, 4, 5)]
    assert list(it.shared.waiting) == [attempt(6)]
    it.ends(1)
    assert it.hosts.taken[-1] == attempt(6)
    assert it.shared.slots == 6
    assert it.shared.connection(attempt(6)) is it.hosts


def test_a_place_without_machines_holds_nothing_up() -> None:
    it = Spread(hosts_up=False)
    it.submit(0, 1)
    assert it.rented.taken == [attempt(0), attempt(1)]
    assert it.hosts.wanted == 2, "its machines are looked for all the same"


def test_a_gang_is_in_one_place_and_one_that_is_too_large_has_a_place_alone() -> None:
    it = Spread()
    it.submit(0, 1, slots=3)
    assert it.hosts.taken == [attempt(0)]
    assert it.rented.taken == [attempt(1)]


def test_of_nodes_that_are_missing_no_room_is_counted() -> None:
    it = Spread(hosts_up=False)
    it.rented.there = 1
    it.submit(0, 1, 2)
    assert it.rented.taken == [attempt(0), attempt(1)]
    assert list(it.shared.waiting) == [attempt(2)]


def test_what_never_ran_may_go_elsewhere() -> None:
    it = Spread()
    it.submit(0)
    it.ends(0, Phase.UNKNOWN)
    it.hosts.executor = None
    it.submit(0)
    assert it.rented.taken == [attempt(0)]


def test_a_next_driver_asks_all_places_where_an_attempt_is() -> None:
    it = Spread()
    assert tuple(it.shared.candidates(attempt(0))) == (it.hosts, it.rented)
    assert not it.shared.heard(GangStatus(attempt(0), Phase.UNKNOWN), cast("Any", it.hosts))
    running = GangStatus(attempt(0), Phase.RUNNING, (MemberStatus("worker-0"),))
    assert it.shared.heard(running, cast("Any", it.rented))
    assert tuple(it.shared.candidates(attempt(0))) == (it.rented,)
    assert not it.shared.take(gang(0)), "it is there"


def test_what_an_earlier_driver_saw_end_is_where_it_was() -> None:
    it = Spread()
    it.member_places.written[attempt(0)] = "aws-1"
    assert it.shared.connection(attempt(0)) is it.rented
    assert it.shared.connection(attempt(1)) is it.hosts
    assert it.shared.connection("run/alone/0/1") is it.rented


def test_what_waits_and_is_stopped_is_told_by_its_first_place() -> None:
    it = Spread(hosts_up=False)
    it.rented.executor = None
    it.submit(0)
    it.shared.stop(attempt(0))
    assert list(it.hosts.waiting) == [attempt(0)]
    assert not it.shared.waiting


def test_the_others_go_on_where_one_place_has_no_machines() -> None:
    it = Spread()
    (said,) = it.shared.without(cast("Any", it.hosts), ProviderError("none within 5 min"))
    assert said == "train goes on without machines of hosts: none within 5 min"
    assert not list(it.shared.without(cast("Any", it.hosts), ProviderError("none")))
    it.submit(0)
    assert it.rented.taken == [attempt(0)]
    with pytest.raises(UsageError, match="none here"):
        list(it.shared.without(cast("Any", it.rented), UsageError("none here")))


def test_what_waited_in_a_place_that_is_left_goes_elsewhere() -> None:
    it = Spread()
    it.submit(0)
    it.hosts.waiting[attempt(0)] = gang(0)
    assert list(it.shared.without(cast("Any", it.hosts), ProviderError("none")))
    it.shared.send()
    assert it.rented.taken == [attempt(0)]
    assert not it.hosts.waiting


def test_a_mistake_of_ours_is_no_missing_machine() -> None:
    it = Spread()
    with pytest.raises(ValueError, match="ours"):
        list(it.shared.without(cast("Any", it.hosts), ValueError("ours")))
