"""What a schedule consists of: a recipe, and all that will befall it. Drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import replace
from enum import StrEnum

from trainmaster.control.decide.task import Policy
from trainmaster.control.loop.loading import Shape
from trainmaster.dataclass import dataclass, field
from trainmaster.executors.base import GangRequest
from trainmaster.testing.simulated_node import Ending


class PlannedFault(StrEnum):
    """What may befall a run."""

    KILL_CONTROL = "KILL_CONTROL"
    KILL_SUPERVISOR = "KILL_SUPERVISOR"
    LOSE_NODE = "LOSE_NODE"
    PREEMPT = "PREEMPT"
    CANCEL = "CANCEL"
    BUDGET = "BUDGET"
    INTERRUPT = "INTERRUPT"
    FULL_DISK = "FULL_DISK"
    PAUSE = "PAUSE"


_WEIGHTS = {
    PlannedFault.KILL_CONTROL: 6,
    PlannedFault.KILL_SUPERVISOR: 4,
    PlannedFault.LOSE_NODE: 1,
    PlannedFault.PREEMPT: 1,
    PlannedFault.CANCEL: 2,
    PlannedFault.BUDGET: 1,
    PlannedFault.INTERRUPT: 2,
    PlannedFault.FULL_DISK: 1,
    PlannedFault.PAUSE: 2,
}


@dataclass(frozen=True, slots=True)
class SimulatedExperiment:
    """One experiment of the recipe.

    Attributes:
        pruned: probability that a running task is found hopeless at a look.
        until: probability that `until` holds at a look.
        generation: so many tasks begin only when all before them are over; 0 for no generations.
    """

    shape: Shape
    total: int
    members: tuple[str, ...]
    group_slots: int
    hold: bool
    policy: Policy
    pruned: float = 0.0
    until: float = 0.0
    generation: int = 0


@dataclass(slots=True)
class SchedulePlan:
    """One schedule.

    Attributes:
        slots: of the node.
        failures: probability that a member fails.
        job_failures: probability that a background job fails.
        quick: probability that a background job takes no time.
        slow: probability that news is late or comes twice.
        faults: at which second what happens.
        kill_after: kill the control process after so many of its steps, one number per kill.
        break_after: kill the supervisor after so many of the control process's steps.
        pause_after: let it sleep after so many of its steps until another one has taken over.
        resumes: how often the user resumes what did not succeed.
        strikes: so often the node fails while the first experiment runs.
        outages: from which second to which one nothing can be published, or read: a store that is away,
            credentials that have expired.
        keeps: probability that this machine's disk takes what cannot be published.
        usd_per_hour: price of what the run uses; 0 on one's own machines.
        saving_usd: see `SavingMoney`.
    """

    run: str
    experiments: dict[str, SimulatedExperiment]
    slots: int
    failures: float
    job_failures: float
    quick: float
    slow: float
    faults: list[tuple[float, PlannedFault]] = field(default_factory=list)
    kill_after: list[int] = field(default_factory=list)
    break_after: list[int] = field(default_factory=list)
    pause_after: list[int] = field(default_factory=list)
    resumes: int = 0
    strikes: int = 0
    outages: list[tuple[float, float]] = field(default_factory=list)
    keeps: float = 1.0
    usd_per_hour: float = 0.0
    saving_usd: float | None = None

    @classmethod
    def draw(cls, rng: random.Random) -> SchedulePlan:
        """A plan from a generator of chance."""
        strikes = 24 if rng.random() < 0.01 else 0
        slots = rng.randint(1, 4)
        experiments: dict[str, SimulatedExperiment] = {}
        for index in range(1 if strikes else rng.choice((1, 1, 2, 3))):
            before = tuple(name for name in experiments if rng.random() < 0.5)
            members = tuple(f"worker-{number}" for number in range(rng.choice((1, 1, 1, 2, 3))))
            if rng.random() < 0.15:
                members += ("ps-0",)
            experiments["abc"[index]] = SimulatedExperiment(
                shape=Shape(before, rng.randint(1, 4)),
                total=1 if strikes else rng.choice((1, 1, 2, 3, 5)),
                members=members,
                group_slots=rng.randint(1, 4),
                hold=rng.random() < 0.5,
                policy=Policy(
                    retries=rng.choice((0, 0, 1, 3)),
                    timeout_s=rng.choice((None, None, 5.0, 20.0)),
                    grace_s=rng.choice((0.0, 1.0, 5.0)),
                    checkpoint_every_s=rng.choice((2.0, 60.0)),
                    helpers=frozenset({"ps-0"}),
                ),
            )
            if not strikes and rng.random() < 0.25:
                found = experiments["abc"[index]]
                experiments["abc"[index]] = replace(
                    found,
                    shape=replace(found.shape, keeps_results=True),
                    pruned=rng.choice((0.0, 0.05, 0.5)),
                    generation=rng.choice((0, 0, 1, 2)),
                )
        if not strikes and rng.random() < 0.2:
            name = rng.choice([*experiments])
            experiments[name] = replace(experiments[name], until=rng.choice((0.05, 0.5)))
        slots = max([slots, *(len(experiment.members) for experiment in experiments.values())])
        plan = cls(
            run="sim-0000",
            experiments=experiments,
            slots=slots,
            failures=0.0 if strikes else rng.choice((0.0, 0.1, 0.3, 0.7)),
            job_failures=0.0 if strikes else rng.choice((0.0, 0.0, 0.05, 0.3)),
            quick=rng.choice((0.0, 0.5, 1.0)),
            slow=rng.choice((0.0, 0.1, 0.4)),
            resumes=rng.choice((0, 0, 1, 2)),
            strikes=strikes,
        )
        horizon_s = rng.choice((3.0, 20.0, 100.0))
        for _ in range(0 if strikes else rng.choice((0, 1, 1, 2, 4))):
            fault = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
            if fault is PlannedFault.KILL_CONTROL:
                plan.kill_after.append(1 + int(rng.expovariate(1 / 40)))
            elif fault is PlannedFault.KILL_SUPERVISOR and rng.random() < 0.5:
                plan.break_after.append(1 + int(rng.expovariate(1 / 20)))
            elif fault is PlannedFault.PAUSE:
                plan.pause_after.append(1 + int(rng.expovariate(1 / 40)))
            else:
                at_s = rng.uniform(0, horizon_s)
                plan.faults.append((at_s, fault))
                if fault is PlannedFault.INTERRUPT and rng.random() < 0.4:  # a second Ctrl-C
                    plan.faults.append((at_s + rng.uniform(0, 2), fault))
        plan.draw_outages(rng, horizon_s)
        return plan

    def draw_outages(self, rng: random.Random, horizon_s: float) -> None:
        """When stores are away, and what is done about it."""
        if rng.random() < 0.7:
            return
        for _ in range(rng.choice((1, 1, 2))):
            begin_s = rng.uniform(0, horizon_s)
            length_s = rng.uniform(3600, 9000) if rng.random() < 0.06 else rng.uniform(1, 200)
            self.outages.append((begin_s, begin_s + length_s))
        self.keeps = rng.choice((1.0, 0.5, 0.0))
        self.usd_per_hour = rng.choice((0.0, 0.0, 3.6))
        self.saving_usd = rng.choice((None, 0.0, 0.05))

    @property
    def loses_nodes(self) -> bool:
        """Whether what attempts leave may be lost with its node."""
        return self.strikes > 0 or any(fault is PlannedFault.LOSE_NODE for _, fault in self.faults)

    def is_away(self, at_s: float) -> bool:
        """Whether nothing can be published, so many seconds after the beginning."""
        return any(begin_s <= at_s < end_s for begin_s, end_s in self.outages)

    def endings(self, request: GangRequest, rng: random.Random) -> list[Ending]:
        """How the members of an attempt end if they are not stopped."""
        experiment = self.experiments[request.group.rpartition("/")[2]]
        length_s = rng.choice((0.01, 1.0, 10.0, 40.0))
        endings = []
        for member in request.members:
            after_s = length_s * rng.uniform(0.5, 1.5)
            if not member.essential:
                after_s *= 3
            if rng.random() >= self.failures / len(request.members):
                endings.append(Ending(after_s))
                continue
            kind = rng.choice(("code", "code", "signal", "oom", "hang", "broken"))
            if kind == "hang" and experiment.policy.timeout_s is not None:
                endings.append(Ending(1e6))
            elif kind == "signal":
                endings.append(Ending(after_s, None, rng.choice((6, 9, 11))))
            elif kind == "oom":
                endings.append(Ending(after_s, None, 9, oom=True))
            elif kind == "broken":
                endings.append(Ending(after_s, None, error="no such directory"))
            else:
                endings.append(Ending(after_s, rng.choice((1, 3, 127, 137))))
        return endings
