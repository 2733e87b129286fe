"""Time and cost of clusters, drawn: posterior x noise x start-up x preemptions x billing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainmaster.advisor import posterior, surroundings
from trainmaster.advisor.candidates import Candidates
from trainmaster.advisor.credits import LAUNCH_CREDIT_S, with_credits
from trainmaster.advisor.devices import Device, speed_ratio
from trainmaster.advisor.knowledge import Knowledge
from trainmaster.advisor.machines import Machines
from trainmaster.advisor.physics import own_time, step_time
from trainmaster.advisor.shapes import KINDS, Columns, Floats, Shapes
from trainmaster.advisor.steptime import StepTimeModel
from trainmaster.advisor.surroundings import LogNormal
from trainmaster.advisor.workload import Workload
from trainmaster.providers import Offer
from trainmaster.providers.egress import EGRESS_USD_PER_GB

_COPIES: Final = 3
#: A job that keeps less than this share of the cores busy is not limited by them.
_BUSY: Final = 0.7
#: A tail that was not seen, as a share of the start-up; and how much tails differ (log).
_UNSEEN_TAIL: Final = 0.1
_TAIL_SPREAD: Final = 0.4
#: How often checkpoints are taken where the recipe says nothing.
_CHECKPOINT_EVERY_S: Final = 60.0
#: Draws of every quantity: the posterior's, with three draws of all the rest for each.
DRAWS: Final = posterior.DRAWS * _COPIES


@dataclass(frozen=True)
class Outcomes:
    """What may become of m clusters.

    Attributes:
        time_s: (DRAWS, m). cost_usd: (DRAWS, m).
    """

    time_s: Floats
    cost_usd: Floats


@dataclass(frozen=True)
class Timing:
    """Draws of time and cost of any candidates of one experiment; a draw is the same world for all of them.

    Attributes:
        workload: what is to be done. knowledge: what was measured of it.
        machines, servers: as in `Candidates.of`. offers: what they index.
        own_machine: it runs where it was measured, on the user's machine.
        waited_s: provisioning times of earlier runs.
        seed: of all draws.
        data_leaves: models and checkpoints are kept outside of the cloud.
        central: one draw instead of many: every belief at its median, the model at its most probable.
    """

    workload: Workload
    knowledge: Knowledge
    machines: Machines
    servers: Machines
    offers: tuple[Offer, ...]
    own_machine: bool = False
    waited_s: tuple[float, ...] = ()
    seed: int = 0
    central: bool = False
    data_leaves: bool = False

    def outcomes(self, some: Candidates) -> Outcomes:
        """Draw time and cost of some candidates: (DRAWS, m)."""
        one = self._task_s(self._busy_s(some), some)
        return self._whole(one, some)

    def typical(self, some: Candidates) -> tuple[Floats, Floats]:
        """(m,) seconds and dollars to be expected, without the draws: for thousands of candidates at once."""
        one = replace(self, central=True).outcomes(some)
        return one.time_s[0], one.cost_usd[0]

    def at_best(self, some: Candidates) -> Outcomes:
        """(posterior draws, m): no outcome is better. No communication, no waiting, nobody lost.

        Each draw bounds the three of `outcomes` that share its posterior draw, so quantiles and
        probabilities of these bound those of them.
        """
        first, back = self._alike(some)
        few = some[first]
        task_s = self._task_s(self._busy_s(few, alone=True), few)
        work = (task_s * self._waves(few))[:, back]
        return Outcomes(work, self._cost_usd(work, some))

    def _alike(self, some: Candidates) -> tuple[NDArray[np.int_], NDArray[np.int_]]:
        """One row of each kind that takes the same time without communication, and the kind of every row."""
        if not len(self.servers):
            rows = np.arange(len(some))
            return rows, rows
        unknown = np.isnan(self.servers.nic[some.server])  # guessing has its price
        keys = np.column_stack([some.machine, some.workers, some.at_once, unknown])
        _, first, back = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        return first, back.ravel()

    def step_s(self, some: Candidates) -> Floats:
        """(S, m) seconds of one step; there must be steps."""
        model = self.knowledge.model
        assert model is not None
        shapes = self.shapes(some)
        log_step = np.log(step_time(self._theta(model), shapes, slowness=self.slowness(some)))
        drawn: Floats = np.exp(
            log_step + self._deviations(some, shapes) + self.knowledge.extra_spread * self._normal(0)
        )
        return drawn

    def training_s(self, some: Candidates) -> Floats:
        """(S, m) seconds of training of one task: no start-up, no waiting."""
        return self._busy_s(some)

    def task_s(self, some: Candidates) -> Floats:
        """(S, m) seconds of one task, from the start of its members to their end."""
        return self._task_s(self._busy_s(some), some)

    def tail_s(self) -> Floats:
        """(S, 1) seconds from the last step to the end of a task."""
        known = self.knowledge
        seen = known.tail_s if known.tail_s is not None else _UNSEEN_TAIL * known.startup_s
        tail: Floats = seen * np.exp(_TAIL_SPREAD * self._normal(3))
        return tail

    def slowed_by_credits(self, some: Candidates) -> bool:
        """True if CPU credits run out and cost the first of them more than a tenth of its time."""
        busy = self._busy_s(some)
        launch_s = LAUNCH_CREDIT_S / self._waves(some)
        slow = with_credits(busy, self.machines.baseline[some.machine], launch_s)
        return bool(np.median(slow[:, 0] / np.maximum(busy[:, 0], 1e-9)) > 1.1)

    # --- one task --------------------------------------------------------------------------------

    def _busy_s(self, some: Candidates, *, alone: bool = False) -> Floats:
        """(S, m) seconds of training of one task on full cores, S posterior draws."""
        model = self.knowledge.model
        slowness = self.slowness(some)
        if model is None:
            seconds: Floats = (self.knowledge.duration_s or 0.0) * np.exp(self._task_noise) * slowness
            return seconds * self._contention(some)
        shapes = self.shapes(some)
        physics = own_time if alone else step_time
        log_step = np.log(physics(self._theta(model), shapes, slowness=slowness))
        log_step = log_step + self._deviations(some, shapes)
        step = np.exp(log_step + self.knowledge.extra_spread * self._normal(0))
        pauses = self._pauses(some, step)
        slow = (1 + self.knowledge.rare_share) * self._contention(some)
        total: Floats = some.steps * step * slow + pauses
        return total

    def _pauses(self, some: Candidates, step: Floats) -> Floats:
        seen = self.knowledge.pause_s
        if seen is not None:
            return some.epochs * seen * np.exp(0.1 * self._normal(1))
        if (some.epochs <= 1).all() and self.knowledge.tail_s is not None:
            return np.zeros_like(step)  # it was seen to its end
        return some.steps * step * _draw(surroundings.UNSEEN_PAUSES, self._normal(1))

    def _task_s(self, busy_s: Floats, some: Candidates) -> Floats:
        """(S, m) seconds of one task: start-up, training, tail."""
        known = self.knowledge
        again = LogNormal(1.0, known.startup_spread)
        belief = again if self.own_machine else surroundings.STARTUP_ELSEWHERE
        start = (known.startup_s + known.warmup_s) * _draw(belief, self._normal(2))
        tail = self.tail_s()
        # the credits of a machine are for all the tasks that it is given, one after the other
        launch_s = LAUNCH_CREDIT_S / self._waves(some)
        busy = with_credits(busy_s + start, self.machines.baseline[some.machine], launch_s)
        total: Floats = busy + tail + _draw(surroundings.TASK_OVERHEAD_S, self._normal(4))
        return total

    # --- all tasks, on rented machines ----------------------------------------------------------

    def _whole(self, task_s: Floats, some: Candidates) -> Outcomes:
        waves = self._waves(some)
        together = np.minimum(some.at_once, self.workload.tasks)
        late = self.knowledge.task_spread * np.sqrt(2 * np.log(np.maximum(together, 1)) / waves)
        medians, spreads = self._waits
        wait = medians[some.machine] * np.exp(spreads[some.machine] * self._world(0))
        work = np.tile(task_s * waves * (1.0 + late), (1 if self.central else _COPIES, 1))
        work = work + _draw(surroundings.OVERHEAD_S, self._world(1))
        work = work + self._lost_s(work, some, wait)
        time_s = wait + work
        return Outcomes(time_s, self._cost_usd(time_s, some))

    def _lost_s(self, work: Floats, some: Candidates, wait: Floats) -> Floats | float:
        """Preemptions: each costs what was done since the last checkpoint, and a restart.

        The interval is the recipe's, or Young's and Daly's ``sqrt(2 delta / rate)`` (Young, CACM 1974; Daly,
        FGCS 2006).
        """
        at_risk = np.where(self.machines.spot[some.machine], some.machines, 0.0)
        if len(self.servers):
            at_risk = at_risk + np.where(self.servers.spot[some.server], some.servers, 0.0)
        if not at_risk.any():
            return 0.0
        rate = _draw(surroundings.PREEMPTIONS_PER_HOUR, self._world(2)) / 3600 * at_risk
        delta = _draw(surroundings.CHECKPOINT_S, self._world(3))
        every = self.workload.checkpoint_every_s or np.sqrt(2 * delta / np.maximum(rate, 1e-9))
        every = np.minimum(every, work)
        restart = _draw(surroundings.RESTART_S, self._world(4)) + wait
        since = 0.5 if self.central else np.random.default_rng((self.seed, 21)).uniform(size=(DRAWS, 1))
        saving = np.where(rate > 0, work * np.minimum(delta / np.maximum(every, 1e-3), 1.0), 0.0)
        lost: Floats = self._preemptions(rate * work) * (every * since + restart) + saving
        return lost

    def _preemptions(self, expected: Floats) -> Floats:
        """(DRAWS, m) Poisson counts, monotone in what is expected; beyond fifty, what is expected."""
        if self.central:
            return expected
        arrivals = np.random.default_rng((self.seed, 20)).exponential(size=(DRAWS, 50)).cumsum(1)
        counts = np.zeros_like(expected)
        for i in range(arrivals.shape[1]):
            if not (arrivals[:, i : i + 1] <= expected).any():
                break
            counts += arrivals[:, i : i + 1] <= expected
        return np.maximum(counts, np.where(expected > arrivals.shape[1], expected, 0.0))

    def _cost_usd(self, time_s: Floats, some: Candidates) -> Floats:
        billed = _billed(time_s, self.machines, some.machine)
        cost = billed * self.machines.price[some.machine] * some.machines / 3600
        if len(self.servers) and (some.server >= 0).any():
            billed = _billed(time_s, self.servers, some.server)
            cost = cost + billed * self.servers.price[some.server] * some.servers / 3600
        result: Floats = cost + self._egress_usd(time_s, some)
        return result

    def _egress_usd(self, time_s: Floats, some: Candidates) -> Floats | float:
        """Models once, and each task's checkpoints as often as they are taken."""
        known = self.knowledge
        if not self.data_leaves or not (known.output_bytes or known.checkpoint_bytes):
            return 0.0
        per_gb = np.array([EGRESS_USD_PER_GB.get(self.offers[i].provider, 0.0) for i in self.machines.index])
        every = self.workload.checkpoint_every_s or _CHECKPOINT_EVERY_S
        taken = np.ceil(time_s / every) * np.minimum(some.at_once, self.workload.tasks)
        leaving = known.output_bytes * self.workload.tasks + known.checkpoint_bytes * taken
        result: Floats = per_gb[some.machine] * leaving / 1e9
        return result

    # --- what draws and columns are made of ------------------------------------------------------

    def _waves(self, some: Candidates) -> Floats:
        """(m,) how many tasks each place is given, one after the other."""
        waves: Floats = np.ceil(self.workload.tasks / some.at_once)
        return waves

    @cached_property
    def _waits(self) -> tuple[Floats, Floats]:
        """(k,) each: median and spread (log) of the seconds until the workers' machines are there."""
        providers = [self.offers[index].provider for index in self.machines.index.tolist()]
        known = {name: surroundings.provisioning(name, self.waited_s) for name in set(providers)}
        found = [known[name] for name in providers]
        return np.array([b.median for b in found]), np.array([b.spread for b in found])

    def shapes(self, some: Candidates) -> Shapes:
        """The candidates as the step-time model sees them."""
        model = self.knowledge.model
        assert model is not None
        nic = self.machines.nic[some.machine]
        if len(self.servers):
            nic = np.fmin(nic, self.servers.nic[some.server])
        if self.own_machine:
            nic = np.full(len(some), np.nan)
        columns = Columns(
            kind=np.full(len(some), KINDS.index(self.workload.sync)),
            workers=some.workers,
            nodes=some.nodes,
            servers=np.full(len(some), float(self.workload.servers)),
            batch=some.batch,
            latency=np.where(some.nodes > 1, np.nan, 0.0),
            nic=nic,
            gradient=np.full(len(some), np.nan),
        )
        return Shapes.of(columns, model.context)

    def slowness(self, some: Candidates) -> Floats:
        """(S, m) compute time on these machines over that on the measured one."""
        means, spreads = self._ratios
        mean, spread = means[some.machine], spreads[some.machine]
        if not spread.any() and not mean.any():
            return np.ones((1, len(some)))
        slow: Floats = np.exp(-mean + spread * self._normal(5))
        return slow

    @cached_property
    def _ratios(self) -> tuple[Floats, Floats]:
        if self.own_machine:
            return np.zeros(len(self.machines)), np.zeros(len(self.machines))
        known, measured = self.knowledge, self.knowledge.measured
        # A job that left cores idle where it was measured does not get faster by having more of them.
        most = math.inf
        if known.cores_per_worker is not None and known.cores_per_worker < _BUSY * measured.cores:
            most = max(known.cores_per_worker, 0.5)
        measured = replace(measured, cores=min(measured.cores, most))
        ratios = []
        for i, index in enumerate(self.machines.index.tolist()):
            offer = self.offers[index]
            cores = min(offer.vcpus / max(float(self.machines.per_node[i]), 1.0), most)
            device = Device(_wanted(self.workload, offer), cores, offer.instance_type)
            ratios.append(speed_ratio(device, measured))
        return np.array([r.log for r in ratios]), np.array([r.spread for r in ratios])

    def _deviations(self, some: Candidates, shapes: Shapes) -> Floats:
        """(S, m) of the model, computed once for each shape: thousands of machines share a few dozen."""
        model = self.knowledge.model
        assert model is not None
        if self.central:
            return np.zeros((1, len(some)))
        keys = np.column_stack([shapes.workers, shapes.nodes, shapes.batch, shapes.guess])
        _, first, back = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        found: Floats = model.deviations(shapes[first])[:, back.ravel()]
        return found

    def _contention(self, some: Candidates) -> Floats | float:
        """On one machine, tasks at the same time share its cores."""
        each = self.knowledge.cores_per_worker
        if not self.own_machine or each is None:
            return 1.0
        measured = max(self.knowledge.measured.cores, 1.0)
        cores = each * some.workers
        wanted = cores * some.at_once
        crowded: Floats = np.maximum(wanted / measured, 1.0) / np.maximum(cores / measured, 1.0)
        return crowded

    @cached_property
    def _task_noise(self) -> Floats:
        """(S, 1) log: the mean duration of tasks without steps, known from a few of them."""
        known = self.knowledge
        spread = math.hypot(known.task_spread / math.sqrt(max(known.points, 1)), known.extra_spread, 0.03)
        noise: Floats = spread * self._normal(6)
        return noise

    def _theta(self, model: StepTimeModel) -> Floats:
        return model.theta[None] if self.central else model.draws

    def _normal(self, stream: int) -> Floats:
        """(S, 1) standard normal, the same at every call."""
        if self.central:
            return np.zeros((1, 1))
        return np.random.default_rng((self.seed, stream)).standard_normal((posterior.DRAWS, 1))

    def _world(self, stream: int) -> Floats:
        """(DRAWS, 1) standard normal, the same at every call."""
        if self.central:
            return np.zeros((1, 1))
        return np.random.default_rng((self.seed, 10 + stream)).standard_normal((DRAWS, 1))


def _wanted(workload: Workload, offer: Offer) -> str:
    """The accelerator that the job will use there: none unless it asks for one."""
    return offer.accelerator if workload.hardware.gpu_count else ""


def _draw(belief: LogNormal, normal: Floats) -> Floats:
    drawn: Floats = belief.median * np.exp(belief.spread * normal)
    return drawn


def _billed(time_s: Floats, machines: Machines, which: NDArray[np.int_]) -> Floats:
    """Seconds on the bill: at least the minimum, rounded up to the quantum."""
    quantum = np.maximum(machines.quantum[which], 1e-3)
    billed: Floats = np.ceil(np.maximum(time_s, machines.minimum[which]) / quantum) * quantum
    return billed
