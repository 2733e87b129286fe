"""A service under the real controller in simulated time: drivers are killed between any two steps."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

from trainmaster.control.decide.budget import Meter
from trainmaster.control.decide.service import Replica
from trainmaster.control.decide.task import Policy
from trainmaster.control.loop.controller import Controller
from trainmaster.control.loop.health import ProbeHistory
from trainmaster.control.loop.loading import Shape
from trainmaster.control.loop.services import Load, ServedModel, Services, services_from_rows
from trainmaster.db.changes import EndpointChange, ReplicaChange
from trainmaster.executors.base import Capacity, Phase
from trainmaster.spec.serve import Replicas, Scale, Serve
from trainmaster.spec.states import EndReason, State
from trainmaster.testing.simulated_bench import SimulatedActions
from trainmaster.testing.simulated_executor import SimulatedExecutor
from trainmaster.testing.simulated_node import Ending, SimulatedNode
from trainmaster.testing.simulated_plan import SchedulePlan, SimulatedExperiment
from trainmaster.testing.simulated_store import SimulatedStore
from trainmaster.testing.simulated_world import Killed, World

#: Half of the seeds, where fewer examples are asked for than a test has that is called alone.
PART = 2 if int(os.environ.get("TRAINMASTER_EXAMPLES", "100")) >= 100 else 1

RUN, REPLICAS = "sim-0000", 2
NEW = {name: getattr(Replica(0), name) for name in Replica.__slots__ if name != "number"}
ENDPOINT = {"id": "ep", "experiment": "api", "version": None, "model_uri": None, "refused": None,
            "failures": 0, "try_at": 0.0}  # fmt: skip


class ServiceStore(SimulatedStore):
    """With the rows of its service."""

    endpoint, replicas = ENDPOINT, {}
    step = staticmethod(lambda where: None)

    def want_stop(self, run, reason):
        super().want_stop(reason)

    def commit(self, lease, changes, now):
        self.step("before commit")
        super().commit(lease, changes, now)
        for change in changes:
            if isinstance(change, EndpointChange):
                self.endpoint = self.endpoint | change.fields
            elif isinstance(change, ReplicaChange):
                known = self.replicas.get(change.task, NEW)
                self.replicas = self.replicas | {change.task: known | change.fields}
        for number, row in self.replicas.items():
            assert ("api", number) in self.tasks, "each replica is a task"
            assert row["state"] != "READY" or row["port"], "a replica that gets requests has a port"
        self.step("after commit")

    def states(self):
        rows = [
            {"endpoint_id": "ep", "task": number, **row}
            for number, row in self.replicas.items()
            if row["state"] != "GONE" or self.tasks["api", number]["state"] is not State.DONE
        ]
        return services_from_rows(["api"], [self.endpoint], rows)


class Simulation:
    """One schedule: a service that is to have two replicas, until somebody cancels it."""

    def __init__(self, seed, **serve):
        self.serve = Serve(
            **{"replicas": Replicas(fewest=REPLICAS, most=REPLICAS), "model": "d@production", "start_s": 30.0}
            | serve
        )
        self.asked_at, self.needs = None, []
        self.world, self.rng = World(seed), random.Random(seed)
        policy = Policy(grace_s=1.0, checkpoint_every_s=float("inf"))
        experiment = SimulatedExperiment(
            Shape((), 50, serves=True), 0, ("worker-0",), 9, hold=True, policy=policy
        )
        self.plan = SchedulePlan(RUN, {"api": experiment}, 9, 0.0, 0.0, 0.5, 0.2, resumes=0)
        self.store = ServiceStore(RUN, {"api": experiment.shape}, {"api": 0}, {"api": 0})
        self.node = SimulatedNode(self.world, 9, self._behave, self._starts)
        self.model, self.sick, self.hangs = ServedModel("d@1", "mem://1"), set(), set()
        self.fails = 0.0
        self.kill_after = None
        self.meter = None
        self.store.step = self.step

    def _behave(self, request):
        if self.world.chance(self.fails):
            return [Ending(self.rng.choice((0.1, 5.0)), self.rng.choice((0, 1)))]
        return [Ending(1e6)]

    def _starts(self, attempt):
        number, attempt_number = map(int, attempt.split("/")[2:])
        row = self.store.replicas[number]
        assert (row["attempt"], row["port"]) == (attempt_number, 29500), (
            "its port is recorded before it starts"
        )

    def step(self, where):
        if self.kill_after is not None:
            self.kill_after -= 1
            if self.kill_after <= 0:
                self.kill_after = None
                raise Killed(where)

    # --- what services ask of their surroundings -------------------------------------------------------

    def load(self, experiment):
        return Load(asked_ago_s=None if self.asked_at is None else self.world.now - self.asked_at)

    def need(self, experiment, replicas):
        assert replicas or not self.ready(), "machines with replicas are needed"
        self.needs.append(replicas)

    def node_of(self, attempt, member):
        return None

    def ask(self, attempt, reach, path, *, was_healthy):
        now = self.world.now
        gang = self.node.gangs.get(attempt)
        row = self.store.replicas[int(attempt.split("/")[2])]
        up = gang is not None and gang.phase is Phase.RUNNING
        good = up and attempt not in self.hangs and row["version"] not in self.sick
        heard = self.heard.setdefault(attempt, ProbeHistory(now, healthy_at=now if was_healthy else None))
        heard.is_healthy, heard.said = good, "" if good else "GET /: status 500"
        if good:
            heard.healthy_at = now
        return heard

    def drive(self):
        """One driver, from its start until it is killed or the run is over."""
        self.heard = {}
        lease = self.store.acquire("driver", self.world.now, dead=True)
        bench = SimulatedActions(self.world, self.plan, self.step)
        executor = SimulatedExecutor(self.node, self.step, self.plan.slow)
        executor.open(RUN, Capacity(9), {}, lease.token)
        surroundings = type("Surroundings", (), {})()
        surroundings.load, surroundings.node, surroundings.need = self.load, self.node_of, self.need
        surroundings.model = lambda _: self.model
        surroundings.reach, surroundings.stops_in_s = None, lambda _: None
        checks = type("Checks", (), {"ask": self.ask, "forget": self.heard.pop, "close": lambda _: None})()
        checks.forget = lambda attempt: self.heard.pop(attempt, None)
        services = Services(
            RUN, {"api": self.serve}, {"api": "worker-0"}, self.store.states(), surroundings, checks
        )
        controller = Controller(
            database=self.store, lease=lease, run_state=self.store.run_state(), actions=bench,
            executor=executor, policies={"api": self.plan.experiments["api"].policy}, services=services,
            meter=self.meter, clock=lambda: self.world.now, wall=lambda: self.world.now,
        )  # fmt: skip
        try:
            controller.run()
        except Killed:
            pass
        finally:
            bench.jobs.die()
            executor.close()

    def ready(self, version=None):
        """Numbers and attempts of those that get requests."""
        return {
            (number, row["attempt"])
            for number, row in self.store.replicas.items()
            if row["state"] == "READY" and version in (None, row["version"])
        }

    def until_steps(self, steps):
        """Drivers for so many steps in all, each killed after some of them."""
        while steps > 0:
            self.kill_after = min(steps, self.rng.choice((3, 17, 60, 400)))
            steps -= self.kill_after
            self.drive()
            if self.store.run["state"] is State.DONE:
                return

    def end(self):
        self.store.want_stop(RUN, EndReason.CANCELLED)
        self.kill_after = None
        self.drive()
        assert self.store.run["reason"] is EndReason.CANCELLED
        assert {row["state"] for row in self.store.tasks.values()} == {State.DONE}
        assert not [gang for gang in self.node.gangs.values() if gang.phase is Phase.RUNNING]


@pytest.mark.parametrize("seed", range(3 * PART))
def test_a_driver_that_is_killed_between_any_two_steps_loses_no_ready_replica(seed):
    simulation = Simulation(seed)
    simulation.until_steps(600)
    before = simulation.ready()
    assert len(before) == REPLICAS
    simulation.until_steps(600)
    assert simulation.ready() == before
    assert len(simulation.store.tasks) == REPLICAS
    simulation.end()


@pytest.mark.parametrize("seed", range(4 * PART))
def test_whatever_befalls_nodes_and_replicas_two_answer_at_last(seed):
    simulation = Simulation(seed)
    node = simulation.node
    simulation.until_steps(400)
    for strike in simulation.rng.sample(
        [node.kill_supervisor, node.lose, node.preempt, node.preempt, node.lose], 4
    ):
        simulation.world.after(simulation.rng.uniform(0, 30), strike)
        simulation.fails = simulation.rng.choice((0.0, 0.3))
        simulation.hangs = {f"{RUN}/api/{number}/{attempt}" for number, attempt in simulation.ready()}
        simulation.until_steps(300)
    simulation.fails = 0.0
    simulation.hangs = set()
    if simulation.store.run["state"] is not State.DONE:
        simulation.until_steps(3000)
        assert len(simulation.ready()) == REPLICAS
        simulation.end()
    else:
        assert simulation.store.experiments["api"]["reason"] is not EndReason.CANCELLED


@pytest.mark.parametrize("seed", range(2 * PART))
def test_a_switch_goes_on_whoever_drives_it_and_a_sick_version_does_not_take_over(seed):
    simulation = Simulation(seed)
    simulation.until_steps(500)
    simulation.sick, simulation.model = {"d@2"}, ServedModel("d@2", "mem://2")
    simulation.until_steps(3000)
    assert len(simulation.ready("d@1")) == REPLICAS
    assert simulation.store.endpoint["refused"] == "d@2"
    simulation.model = replace(simulation.model, version="d@3")
    simulation.until_steps(3000)
    assert len(simulation.ready("d@3")) == len(simulation.ready()) == REPLICAS
    ended = {row["reason"] for row in simulation.store.tasks.values() if row["state"] is State.DONE}
    assert ended == {EndReason.DRAINED, EndReason.UNHEALTHY}
    simulation.end()


@pytest.mark.parametrize("seed", range(2 * PART))
def test_a_service_needs_no_machine_until_it_is_asked_and_none_after_that_whoever_is_killed(seed):
    simulation = Simulation(
        seed, replicas=Replicas(fewest=0, most=2), scale=Scale(in_flight=8, down_after_s=20.0), model=None
    )
    for _ in range(2):
        simulation.until_steps(300)
        assert not simulation.ready()
        assert simulation.needs[-1] == 0
        simulation.asked_at = simulation.world.now
        while not simulation.ready():
            simulation.until_steps(20)
        assert simulation.needs[-1] == 1
        simulation.until_steps(3000)
    assert not simulation.ready()
    assert simulation.needs[-1] == 0
    simulation.end()


@pytest.mark.parametrize("seed", range(2 * PART))
def test_a_service_whose_budget_is_used_ends_below_its_cap_whoever_is_killed(seed):
    simulation = Simulation(seed)
    began, usd_per_s = simulation.world.now, 3.0 / 3600
    simulation.meter = Meter(cap_usd=1.0, bill=lambda at: (at - began) * usd_per_s, stopping_s=10.0)
    simulation.until_steps(600)
    assert len(simulation.ready()) == REPLICAS
    simulation.until_steps(1_000_000)
    assert simulation.store.run["reason"] is EndReason.BUDGET
    assert 0.5 < (simulation.world.now - began) * usd_per_s < 1.0, (
        "most of it is used, and it is never passed"
    )
    assert {row["state"] for row in simulation.store.tasks.values()} == {State.DONE}
    assert not [gang for gang in simulation.node.gangs.values() if gang.phase is Phase.RUNNING]
