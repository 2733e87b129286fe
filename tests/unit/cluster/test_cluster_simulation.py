"""A cluster's decisions against a cloud that does what clouds do, with kill -9 between any two steps."""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import dataclass, field, replace

import pytest

from trainmaster.cluster.decide_cluster import decide_cluster
from trainmaster.cluster.decision import Action, ActionKind, Observation, Refusal, Stage, WaitLimits
from trainmaster.cluster.observed import Scaling
from trainmaster.cluster.record import ClusterRecord, ClusterState, new_record
from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan
from trainmaster.providers.base import Node, NodeState

PATIENCE = WaitLimits(lost_s=20.0, cool_down_s=30.0)
ZONES = ("us-a", "us-b", "us-c")
LIVE = (NodeState.STARTING, NodeState.READY, NodeState.LEAVING)


@dataclass
class Cloud:
    """Rents machines by token, loses some, takes some back, and has none now and then."""

    dice: random.Random
    now: float = 0.0
    machines: dict[str, Node] = field(default_factory=dict)
    by_token: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unresponsive: set[str] = field(default_factory=set)
    head: str = ""
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def acquire(self, token: str, count: int, rental: Rental) -> tuple[str, ...] | Refusal:
        if token in self.by_token:
            return self.by_token[token]
        if self.dice.random() < 0.3:
            return Refusal((rental.zone,), "none there")
        if self.dice.random() < 0.1:
            return Refusal(reason="away", is_capacity=False)
        names = tuple(f"i-{next(self.numbers)}" for _ in range(count))
        for name in names:
            place = {"zone": rental.zone, "spot": rental.spot, "started_at": self.now}
            self.machines[name] = Node(name, "c", "worker", NodeState.STARTING, **place)
        self.by_token[token] = names
        return names

    def end(self, name: str) -> None:
        node = self.machines.get(name)
        if node is not None and node.state in LIVE:
            self.machines[name] = replace(node, state=NodeState.GONE, ended_at=self.now, reason="ended")

    def live(self) -> set[str]:
        return {name for name, node in self.machines.items() if node.state in LIVE}

    def pass_time(self, *, calm: bool) -> None:
        self.now += 1.0
        for name, node in list(self.machines.items()):
            luck = self.dice.random()
            if node.state is NodeState.STARTING and luck < 0.5:
                self.machines[name] = replace(node, state=NodeState.READY)
            elif node.state is NodeState.LEAVING and self.now >= (node.leaves_at or 0):
                self.end(name)
            elif calm or node.state is not NodeState.READY:
                continue
            elif luck < 0.01:
                self.end(name)
            elif luck < 0.02 and node.spot:
                self.machines[name] = replace(node, state=NodeState.LEAVING, leaves_at=self.now + 5)
            elif luck < 0.03:
                self.unresponsive ^= {name}


@dataclass
class Driver:
    """One control process: what it knows is lost when it is killed, but for the record."""

    cloud: Cloud
    record: ClusterRecord
    stages: dict[str, Stage] = field(default_factory=dict)
    lost_since: dict[str, float] = field(default_factory=dict)
    answers: dict[str, tuple[str, ...] | Refusal] = field(default_factory=dict)
    head: str | None = None
    is_released: bool = False
    needed: int | None = None

    def turn(self, *, ending: bool) -> None:
        cloud = self.cloud
        for name in cloud.machines:
            if name in cloud.unresponsive and name in cloud.live():
                self.lost_since.setdefault(name, cloud.now)
            else:
                self.lost_since.pop(name, None)
        seen = Observation(
            nodes=None if cloud.dice.random() < 0.1 and not self.is_released else dict(cloud.machines),
            stages=dict(self.stages),
            lost_since=dict(self.lost_since),
            rented={token: a for token, a in self.answers.items() if isinstance(a, tuple)},
            refusals={token: a for token, a in self.answers.items() if isinstance(a, Refusal)},
            head=cloud.head if cloud.head in {m.id for m in self.record.rented} else "",
            vacant=self.vacant(),
            is_formed=self.head is not None,
            is_released=self.is_released,
        )
        self.answers.clear()
        scaling = Scaling(None if self.needed is None else {"worker": self.needed}, self.unused())
        decision = decide_cluster(
            self.record, seen, cloud.now, wanted=True, ending=ending, patience=PATIENCE, scaling=scaling
        )
        assert not decision.fatal
        self.record = decision.record
        self.check()
        for action in decision.actions:
            if cloud.dice.random() < 0.03:
                raise Killed
            self.perform(action)

    def vacant(self) -> frozenset[str]:
        """What is taken back works no more; what is not needed has ended now and then."""
        leaving = {name for name, node in self.cloud.machines.items() if node.state is NodeState.LEAVING}
        spare = {m.id for m in self.record.rented if m.is_leaving and self.cloud.dice.random() < 0.5}
        return frozenset(leaving | spare)

    def unused(self) -> frozenset[str]:
        """All others need the head."""
        if self.needed is None:
            return frozenset()
        idle = {name for name in self.stages if self.cloud.dice.random() < 0.3}
        return frozenset(idle - {self.head} if self.needed else idle)

    def perform(self, action: Action) -> None:
        match action.kind:
            case ActionKind.RENT:
                asked = [m for m in self.record.machines if m.token == action.token]
                self.answers[action.token] = self.cloud.acquire(action.token, len(asked), asked[0].rental)
            case ActionKind.PREPARE:
                self.stages.update(dict.fromkeys(action.ids, Stage.READY))
            case ActionKind.FORM:
                assert not set(action.ids) & self.lost_since.keys(), "what does not answer cannot take part"
                self.head = self.cloud.head = action.ids[0]
                self.stages.update(dict.fromkeys(action.ids, Stage.JOINED))
            case ActionKind.JOIN:
                self.stages.update(dict.fromkeys(action.ids, Stage.JOINED))
            case ActionKind.DROP:
                for name in action.ids:
                    self.stages.pop(name, None)
                    machine = self.record.machine(name)
                    if machine is not None and not machine.is_over:
                        self.stages[name] = Stage.READY
                if self.head in action.ids:
                    self.head, self.cloud.head = None, ""
                    self.stages = dict.fromkeys(self.stages, Stage.READY)
            case ActionKind.GIVE_BACK:
                for name in action.ids:
                    self.cloud.end(name)
            case ActionKind.RELEASE:
                for name in list(self.cloud.machines):
                    self.cloud.end(name)
                self.is_released = True
            case ActionKind.DRAIN:
                pass

    def check(self) -> None:
        """What must hold at every moment."""
        record = self.record
        seats = [m.seat for m in record.live if not m.is_leaving]
        assert len(seats) == len(set(seats)), "a seat is held by one machine"
        ids = [m.id for m in record.machines if m.id]
        assert len(ids) == len(set(ids)), "a machine holds one seat"
        known = {*ids, *self.overlooked()}
        assert self.cloud.live() <= known, "nothing is rented that nobody knows of"

    def overlooked(self) -> set[str]:
        """Machines whose token the record knows and whose names it will hear when it asks again."""
        tokens = {m.token for m in self.record.live if not m.id}
        return {name for token in tokens for name in self.cloud.by_token.get(token, ())}


class Killed(Exception):
    """With signal 9, between two lines."""


@pytest.mark.parametrize("seed", range(min(300, 10 * int(os.environ.get("TRAINMASTER_EXAMPLES", "100")))))
def test_whatever_happens(seed: int) -> None:
    dice = random.Random(seed)
    rentals = tuple(
        Rental("m4.large", "us", zone, spot=dice.random() < 0.5, usd_per_hour=1.0) for zone in ZONES
    )
    roles = (RolePlan("worker", dice.randint(1, 4), rentals), RolePlan("ps", 1, rentals))
    plan = ClusterPlan("train", ("train",), "lab", roles[: dice.randint(1, 2)])
    cloud = Cloud(dice)
    driver = Driver(cloud, new_record("run", plan, "home"))

    def go(turns: int, *, ending: bool = False, calm: bool = False) -> None:
        nonlocal driver
        for _ in range(turns):
            cloud.pass_time(calm=calm)
            try:
                driver.turn(ending=ending)
            except Killed:
                driver = Driver(cloud, driver.record)

    go(dice.randint(5, 120))
    cloud.unresponsive.clear()
    go(120, calm=True)
    held = {m.seat for m in driver.record.live if m.id and not m.is_leaving}
    assert held == {seat for seat, _ in driver.record.seats}, "in quiet times all seats are taken"
    assert driver.head is not None
    assert {m.id for m in driver.record.rented} <= cloud.live()
    go(60, ending=True, calm=True)
    assert driver.record.state is ClusterState.ENDED
    assert not cloud.live(), "nothing is left"
    billed = sum(
        (node.ended_at or cloud.now) - node.started_at for node in cloud.machines.values() if node.started_at
    )
    named = {m.id for m in driver.record.machines}
    forgotten = sum(
        (node.ended_at or cloud.now) - node.started_at
        for name, node in cloud.machines.items()
        if name not in named
    )
    spent_s = driver.record.spent_usd(cloud.now) * 3600
    assert spent_s == pytest.approx(billed - forgotten, abs=2 * len(named) + 1)


@pytest.mark.parametrize("seed", range(min(20, int(os.environ.get("TRAINMASTER_EXAMPLES", "100")))))
def test_there_are_as_many_machines_as_are_needed_whatever_happens(seed: int) -> None:
    dice = random.Random(seed)
    rentals = tuple(
        Rental("m4.large", "us", zone, spot=dice.random() < 0.5, usd_per_hour=1.0) for zone in ZONES
    )
    count = dice.randint(1, 4)
    plan = ClusterPlan("serve", ("serve",), "lab", (RolePlan("worker", count, rentals),))
    cloud = Cloud(dice)
    driver = Driver(cloud, new_record("run", plan, "home"))

    def go(turns: int, *, needed: int, ending: bool = False, calm: bool = False) -> None:
        nonlocal driver
        for _ in range(turns):
            driver.needed = needed
            cloud.pass_time(calm=calm)
            try:
                driver.turn(ending=ending)
            except Killed:
                driver = Driver(cloud, driver.record)

    for _ in range(2):
        for _ in range(3):
            go(dice.randint(1, 40), needed=dice.randint(0, count))
        cloud.unresponsive.clear()
        go(100, needed=0, calm=True)
        assert not cloud.live(), "a service that sleeps costs nothing"
        assert driver.head is None
        needed = dice.randint(1, count)
        go(100, needed=needed, calm=True)
        assert len(cloud.live()) == needed
        assert {m.id for m in driver.record.rented} == cloud.live()
        assert driver.head in cloud.live()
    go(60, needed=1, ending=True, calm=True)
    assert driver.record.state is ClusterState.ENDED
    assert not cloud.live()
