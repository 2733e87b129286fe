"""`TaskSpread`: tasks of one experiment spread over clusters in several places; each gang is in one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainmaster.cluster.renting.plan import Rental, RolePlan
from trainmaster.cluster.task_spread import TaskSpread
from trainmaster.control.loop.run_state import ExperimentState
from trainmaster.executors.base import GangRequest, GangStatus, MemberRequest, MemberStatus, Phase
from trainmaster.spec.errors import ProviderError, UsageError


class FakeConnection:
    """To a cluster of some nodes with so many slots each."""

    def __init__(
        self,
        provider: str,
        nodes: int,
        *,
        slots: int = 2,
        gpus: int = 0,
        is_up: bool = True,
        spot: bool = False,
    ) -> None:
        self.taken: list[str] = []
        self.waiting: dict[str, GangRequest] = {}
        self.sent: dict[str, GangStatus] = {}
        self.wanted = 0
        rental = Rental("m", spot=spot, is_rented=provider != "hosts")
        roles = (RolePlan("worker", nodes, (rental,)),)
        plan = SimpleNamespace(name="train", slots=slots * nodes, nodes=nodes, gpus=gpus * nodes, roles=roles)
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
        self.shared = TaskSpread(cast("Any", places), cast("Any", self.member_places))

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


def gang(task: int, slots: int = 1, gpus: int = 0) -> GangRequest:
    """Of one member."""
    member = MemberRequest("worker-0", "true", "/", gpus=gpus)
    return GangRequest(attempt(task), "/d", (member,), slots, "g", 9)


def pair(task: int) -> GangRequest:
    """Of two members on two nodes, and what shares a node with them."""
    names = ("ps-0", "ps-1", "ps-2", "worker-0", "worker-1")
    members = tuple(MemberRequest(name, "true", "/") for name in names)
    return GangRequest(attempt(task), "/d", members, 2, "g", 9, per_node=1)


def test_all_machines_are_used_before_two_share_one_and_what_has_no_room_waits() -> None:
    it = Spread()
    it.submit(*range(7))
    assert it.hosts.taken == [attempt(0), attempt(3)]
    assert it.rented.taken == [attempt(task) for task in (1, 2, 4, 5)]
    assert list(it.shared.waiting) == [attempt(6)]
    it.ends(3)
    assert it.hosts.taken[-1] == attempt(6)
    assert it.shared.slots == 6
    assert it.shared.connection(attempt(6)) is it.hosts


def test_machines_that_are_paid_for_do_not_wait_for_cores_of_others() -> None:
    """Six tasks with a GPU each; the nodes of the queue have many cores, and one GPU."""
    hosts = FakeConnection("hosts", 2, slots=1, gpus=1)
    queue = FakeConnection("slurm", 2, slots=32, gpus=1, is_up=False)
    rented = FakeConnection("aws", 2, slots=4, gpus=1)
    shared = TaskSpread(cast("Any", {"train": (hosts, queue, rented)}), cast("Any", FakeMemberPlaces()))
    for task in range(7):
        shared.take(gang(task, gpus=1))
    shared.send()
    assert [len(each.taken) for each in (hosts, queue, rented)] == [2, 0, 2], "a GPU is not shared"
    queue.executor = SimpleNamespace(nodes=lambda: range(2))
    shared.send()
    assert [len(each.taken) for each in (hosts, queue, rented)] == [2, 2, 2]
    assert list(shared.waiting) == [attempt(6)]


def test_a_next_driver_counts_what_runs_at_its_size() -> None:
    it = Spread(hosts_up=False)
    for task in (0, 1):
        running = GangStatus(attempt(task), Phase.RUNNING, (MemberStatus("worker-0"),))
        it.shared.heard(running, cast("Any", it.rented))
    it.submit(2, slots=2)
    assert not it.rented.taken, "both nodes are full, with two slots of each gang"
    it.ends(0)
    assert it.rented.taken == [attempt(2)]


def test_nothing_goes_to_a_place_without_the_nodes_that_it_needs() -> None:
    it = Spread()
    it.hosts.there = 0
    it.submit(0)
    assert it.rented.taken == [attempt(0)]
    two = Spread()
    two.rented.there = 1
    two.shared.take(pair(0))
    two.shared.send()
    assert list(two.shared.waiting) == [attempt(0)], "the hosts never have two, and of the others one is lost"
    two.rented.there = 2
    two.shared.send()
    assert two.rented.taken == [attempt(0)]
    never = Spread()
    never.shared.take(replace(pair(0), per_node=1, members=pair(0).members * 2))
    never.shared.send()
    assert never.hosts.taken == [attempt(0)], "its engine says what there is not"


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


@pytest.mark.parametrize(
    ("spares", "others", "given_back"),
    [
        (FakeConnection("slurm", 1), [FakeConnection("aws", 1)], True),
        (FakeConnection("hosts", 1), [FakeConnection("aws", 1)], False),
        (FakeConnection("slurm", 1), [FakeConnection("aws", 1, spot=True)], False),
        (FakeConnection("slurm", 1), [FakeConnection("aws", 1, spot=True), FakeConnection("hosts", 1)], True),
        (FakeConnection("slurm", 1), [FakeConnection("aws", 1, spot=True),
                                      FakeConnection("ray", 1, is_up=False)], False),
    ],
)  # fmt: skip
def test_what_is_given_back_is_not_needed_where_a_machine_is_lost(
    spares: FakeConnection, others: list[FakeConnection], *, given_back: bool
) -> None:
    """Own hosts cost nothing, and machines that may be taken back are never all that is left."""
    shared = TaskSpread(cast("Any", {"train": (*others, spares)}), cast("Any", FakeMemberPlaces()))
    shared.take(gang(0))
    shared.send()
    assert others[0].taken == [attempt(0)]
    others[0].sent[attempt(0)] = GangStatus(attempt(0), Phase.RUNNING)
    experiment = ExperimentState("train", (), 1, 1, created=1, live={0: cast("Any", None)})
    assert shared.leave_surplus(cast("Any", spares), [experiment]) is given_back


@pytest.mark.parametrize("phase", [None, Phase.QUEUED, Phase.GRANTED, Phase.RUNNING])
def test_nothing_is_given_back_for_a_gang_that_only_waits_elsewhere(phase: Phase | None) -> None:
    """Its machines may just have been lost."""
    rented, queue = FakeConnection("aws", 1), FakeConnection("slurm", 1)
    shared = TaskSpread(cast("Any", {"train": (rented, queue)}), cast("Any", FakeMemberPlaces()))
    shared.take(gang(0))
    shared.send()
    if phase is not None:
        rented.sent[attempt(0)] = GangStatus(attempt(0), phase)
    experiment = ExperimentState("train", (), 1, 1, created=1, live={0: cast("Any", None)})
    executor, rented.executor = rented.executor, None
    assert not shared.leave_surplus(cast("Any", queue), [experiment]), "it cannot be asked"
    rented.executor = executor
    assert shared.leave_surplus(cast("Any", queue), [experiment]) is (phase is Phase.RUNNING)
