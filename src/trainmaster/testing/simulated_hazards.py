"""What befalls a run on rented machines: a recipe, and all that goes wrong. Drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan
from trainmaster.control.decide.task import Policy
from trainmaster.control.loop.loading import Shape
from trainmaster.dataclass import dataclass, field
from trainmaster.providers.aws.settings import DISK_BYTES
from trainmaster.testing.simulated_cloud import ON_DEMAND, REGION, TYPE, ZONES
from trainmaster.testing.simulated_plan import SchedulePlan, SimulatedExperiment

#: Of disk and address of each machine, as the project reckons; Amazon bills a little less in most months.
EXTRAS_USD_PER_HOUR: Final = DISK_BYTES / 2**30 * 0.08 / (28 * 24) + 0.005
#: Slots of each machine.
SLOTS: Final = 2


class Hazard(StrEnum):
    """What may go wrong."""

    KILL = "KILL"
    KILL_AT_STEP = "KILL_AT_STEP"
    PAUSE_AT_STEP = "PAUSE_AT_STEP"
    SUSPEND = "SUSPEND"
    CLOCK_BACK = "CLOCK_BACK"
    CLOCK_FORWARD = "CLOCK_FORWARD"
    API_AWAY = "API_AWAY"
    API_THROTTLED = "API_THROTTLED"
    KEYS_EXPIRED = "KEYS_EXPIRED"
    NO_CAPACITY = "NO_CAPACITY"
    LOSE_MACHINE = "LOSE_MACHINE"
    PREEMPT = "PREEMPT"
    MARKET = "MARKET"
    CUT_OFF = "CUT_OFF"
    CANCEL = "CANCEL"
    INTERRUPT = "INTERRUPT"
    FULL_DISK = "FULL_DISK"
    COPIED_HOME = "COPIED_HOME"
    SECOND_DRIVER = "SECOND_DRIVER"
    STORE_AWAY = "STORE_AWAY"
    SECOND_HOME = "SECOND_HOME"
    LATE_COMMIT = "LATE_COMMIT"
    LATE_SAVE = "LATE_SAVE"
    COLLECTION = "COLLECTION"


WEIGHTS: Final[Mapping[Hazard, int]] = {
    Hazard.KILL: 4, Hazard.KILL_AT_STEP: 4, Hazard.PAUSE_AT_STEP: 2, Hazard.SUSPEND: 3, Hazard.CLOCK_BACK: 2,
    Hazard.CLOCK_FORWARD: 2, Hazard.API_AWAY: 3, Hazard.API_THROTTLED: 2, Hazard.KEYS_EXPIRED: 4,
    Hazard.NO_CAPACITY: 3, Hazard.LOSE_MACHINE: 4, Hazard.PREEMPT: 4, Hazard.MARKET: 3, Hazard.CUT_OFF: 2,
    Hazard.CANCEL: 1, Hazard.INTERRUPT: 1, Hazard.FULL_DISK: 1, Hazard.COPIED_HOME: 2,
    Hazard.SECOND_DRIVER: 2, Hazard.STORE_AWAY: 4,
    Hazard.SECOND_HOME: 1, Hazard.LATE_COMMIT: 2, Hazard.LATE_SAVE: 1, Hazard.COLLECTION: 1,
}  # fmt: skip


@dataclass(slots=True)
class Hazards:
    """One schedule.

    Attributes:
        work: the recipe, and how its tasks go.
        cluster: that it runs on.
        lease_s: of its machines.
        pause_s: so long everybody waits at most when nothing happens.
        cap_usd: ``budget.total``; None for none.
        keep_s: how long its machines stay warm afterwards.
        skew_s: how far the driver's wall clock is ahead.
        checks_clocks: whether its cloud refuses those whose clock is wrong, as Amazon does.
        befalls: at which second what happens, and for how long it lasts.
        late: what another driver does just before ours commits something.
        kill_after, pause_after: steps of drivers after which they are killed, or stand still.
        resumes: how often the user resumes what did not succeed.
    """

    work: SchedulePlan
    cluster: ClusterPlan
    lease_s: float
    pause_s: float
    cap_usd: float | None
    keep_s: float = 0.0
    skew_s: float = 0.0
    checks_clocks: bool = True
    befalls: list[tuple[float, Hazard, float]] = field(default_factory=list)
    late: list[Hazard] = field(default_factory=list)
    kill_after: list[int] = field(default_factory=list)
    pause_after: list[int] = field(default_factory=list)
    resumes: int = 0

    @classmethod
    def draw(cls, rng: random.Random, run: str, weights: Mapping[Hazard, int] = WEIGHTS) -> Hazards:
        """A schedule from a generator of chance."""
        machines = rng.choice((1, 1, 2, 2, 3))
        spot = rng.random() < 0.6
        lease_s = rng.choice((300.0, 600.0))
        members = tuple(f"worker-{number}" for number in range(rng.randint(1, machines * SLOTS)))
        experiment = SimulatedExperiment(
            shape=Shape((), rng.randint(1, 3)),
            total=rng.choice((1, 1, 2)),
            members=members,
            group_slots=machines * SLOTS,
            hold=True,
            policy=Policy(
                retries=rng.choice((0, 1, 3)),
                timeout_s=None,
                grace_s=rng.choice((1.0, 20.0)),
                checkpoint_every_s=lease_s * rng.choice((0.2, 0.5)),
            ),
        )
        work = SchedulePlan(
            run=run,
            experiments={"train": experiment},
            slots=machines * SLOTS,
            failures=rng.choice((0.0, 0.0, 0.3)),
            job_failures=0.0,
            quick=0.0,
            slow=rng.choice((0.0, 0.1)),
        )
        found = cls(
            work=work,
            cluster=_cluster(machines, spot, least=rng.choice((0, 0, 1))),
            lease_s=lease_s,
            pause_s=min(lease_s / rng.choice((7, 10, 16)), 60.0),
            cap_usd=rng.choice((None, None, 1.0)),
            keep_s=rng.choice((0.0, 0.0, 2 * lease_s)),
            skew_s=rng.choice((0.0, 0.0, -2.0, 2.0)),
            resumes=rng.choice((0, 1, 2)),
        )
        if found.cap_usd is not None:
            found.cap_usd = machines * lease_s / 3600 * rng.uniform(1.0, 12.0)
        kinds, chances = list(weights), list(weights.values())
        horizon_s = lease_s * rng.choice((0.5, 2.0, 4.0))
        for _ in range(rng.choice((0, 1, 1, 2, 3, 5))):
            found._add(rng, rng.choices(kinds, chances)[0], rng.uniform(0, horizon_s))
        found._set_clocks(random.Random(repr(found)))  # noqa: S311 - a schedule that replays, not a secret
        return found

    def _set_clocks(self, rng: random.Random) -> None:
        """Some clouds take requests whatever their sender's clock: only those serve one that is wrong."""
        self.checks_clocks = rng.random() < 0.5
        if not self.checks_clocks:
            self.skew_s = rng.choice((self.skew_s, -3600.0, 3600.0))

    def _add(self, rng: random.Random, hazard: Hazard, at_s: float) -> None:
        if hazard is Hazard.KILL_AT_STEP:
            self.kill_after.append(1 + int(rng.expovariate(1 / 60)))
        elif hazard in (Hazard.LATE_COMMIT, Hazard.LATE_SAVE):
            self.late.append(hazard)
        elif hazard is Hazard.PAUSE_AT_STEP:
            self.pause_after.append(1 + int(rng.expovariate(1 / 60)))
        else:
            for_s = self.lease_s * rng.choice((0.05, 0.3, 1.5, 3.0))
            if hazard is Hazard.SUSPEND and rng.random() < 0.3:
                for_s = rng.uniform(5, 10) * 3600  # a night
            self.befalls.append((at_s, hazard, for_s))


def _cluster(machines: int, spot: bool, least: int) -> ClusterPlan:
    rentals = tuple(
        Rental(
            TYPE,
            REGION,
            zone,
            spot=kind,
            usd_per_hour=(1.0 if kind else ON_DEMAND) + EXTRAS_USD_PER_HOUR,
            most_usd_per_hour=1.2 + EXTRAS_USD_PER_HOUR if kind else 0.0,
            extras_usd_per_hour=EXTRAS_USD_PER_HOUR,
            minimum_s=60.0,
            slots=SLOTS,
        )
        for kind in ((True, False) if spot else (False,))
        for zone in ZONES
    )
    role = RolePlan("worker", machines, rentals, disk_bytes=DISK_BYTES, least=min(least, machines))
    return ClusterPlan("train", ("train",), "aws", (role,))
