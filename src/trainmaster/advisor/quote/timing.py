"""Time and cost of clusters, drawn: posterior x noise x start-up x preemptions x billing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainmaster.advisor.market.candidates import Candidates, Outcomes
from trainmaster.advisor.market.credits import LAUNCH_CREDIT_S, sent_mbit, served_s, slowed, with_credits
from trainmaster.advisor.market.hourly_cost import Bill
from trainmaster.advisor.market.machines import Machines, codes, joined
from trainmaster.advisor.market.pairs import NetworkCards
from trainmaster.advisor.market.phases import ClusterWait
from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.model import posterior
from trainmaster.advisor.model.devices import Device, speed_ratio
from trainmaster.advisor.model.knowledge import Knowledge
from trainmaster.advisor.model.physics import own_time, step_time
from trainmaster.advisor.model.priors import NAMES
from trainmaster.advisor.model.shapes import KINDS, Columns, Floats, Shapes
from trainmaster.advisor.model.steptime import StepTimeModel
from trainmaster.advisor.quote import beliefs
from trainmaster.advisor.quote.equivalence import Equivalence, alike
from trainmaster.advisor.quote.once_phases import AFTERWARDS, OncePhases
from trainmaster.advisor.quote.task_sizes import TaskSizes
from trainmaster.dataclass import dataclass
from trainmaster.providers import Offer
from trainmaster.spec import Strategy
from trainmaster.spec.log_normal import LogNormal

_COPIES: Final = 3
#: A job that keeps less than this share of the cores busy is not limited by them.
_BUSY: Final = 0.7
#: On another type it computes in bursts: so many cores count at least.
_BURST: Final = 0.5
#: From here on something beside the steps is what limits a cluster.
_HELD_UP: Final = 1.1
#: A tail that was not seen, as a share of the start-up; and how much tails differ (log).
_UNSEEN_TAIL: Final = 0.1
_TAIL_SPREAD: Final = 0.4
#: Draws of every quantity: the posterior's, with three draws of all the rest for each.
DRAWS: Final = posterior.DRAWS * _COPIES


@dataclass(frozen=True)
class Timing:
    """Draws of time and cost of any candidates of one experiment; a draw is the same world for all of them.

    Attributes:
        workload: what is to be done. knowledge: what was measured of it.
        machines, servers: as in `Candidates.of`. offers: what they index.
        own_machine: it runs where it was measured, on the user's machine.
        waited: what earlier runs waited for machines. gave_back_s: what giving them back took.
        seed: of all draws.
        data_leaves: models and checkpoints are kept outside of the cloud.
        central: one draw instead of many: every belief at its median, the model at its most probable.
        end_s: see `QuoteLimits`.
    """

    workload: Workload
    knowledge: Knowledge
    machines: Machines
    servers: Machines
    offers: tuple[Offer, ...]
    own_machine: bool = False
    waited: tuple[ClusterWait, ...] = ()
    gave_back_s: tuple[float, ...] = ()
    seed: int = 0
    central: bool = False
    data_leaves: bool = False
    end_s: Callable[[int], float] = lambda _: 0.0

    @property
    def draws(self) -> int:
        """How many worlds there are."""
        return 1 if self.central else DRAWS

    def outcomes(self, some: Candidates) -> Outcomes:
        """Draw time and cost of some candidates: (DRAWS, m)."""
        time_s = self.time_s(some)
        return Outcomes(time_s, self.cost_usd(time_s, some))

    def time_s(self, some: Candidates, slower: Floats | float = 1.0) -> Floats:
        """(DRAWS, m) seconds of some candidates, from asking for machines to the end.

        Args:
            some: candidates.
            slower: their training takes so many times as long, in each draw of a step's time.
        """
        return self._whole_s(self._task_s(self._busy_s(some) * slower, some), some)

    def cost_usd(self, time_s: Floats, some: Candidates) -> Floats:
        """(S, m) dollars of m candidates that take (S, m) seconds; a longer time never costs less.

        Machines are billed until they are given back, not while they are.
        """
        return self._bill.cost_usd(self._rented_s(time_s, some), some)

    def rent_usd(self, rented_s: Floats, some: Candidates) -> Floats:
        """(S, m) dollars of the machines of m candidates that are there for (S, m) seconds."""
        return self._bill.rent_usd(rented_s, some)

    def needed_usd(self, time_s: Floats, some: Candidates) -> Floats:
        """(S, m) dollars that a run must be allowed for m candidates that take (S, m) seconds."""
        return self._bill.needed_usd(self._rented_s(time_s, some), some, self.end_s)

    def _rented_s(self, time_s: Floats, some: Candidates) -> Floats:
        return np.maximum(time_s - self.once.giving_back_s(some), 0.0)

    def typical_s(self, some: Candidates) -> Floats:
        """(m,) seconds to be expected, without the draws: for thousands of candidates at once."""
        return np.asarray(replace(self, central=True).time_s(some)[0], dtype=float)

    def at_best_s(self, some: Candidates, *, alone: bool) -> Floats:
        """(posterior draws, m): lower bound of the run time: no node is lost, no card throttles.

        Each draw bounds the three of `time_s` that share its posterior draw, so quantiles and
        probabilities of these bound those of them.

        Args:
            some: candidates.
            alone: without communication too.
        """
        work = self._task_s(self._busy_s(some, at_best=True, alone=alone), some) * self._waves(some)
        first, back = self.once.alike(some)
        least = sum(self.once_s(some[first]).values()) + _draw(beliefs.OVERHEAD_S, self._world(1))
        return work + least.reshape(-1, len(work), len(first)).min(0)[:, back]

    def at_least_s(self, some: Candidates) -> Floats:
        """(m,) what no time is below, as the parameter servers' processors need it."""
        return self._served_s(some) * self._waves(some) * self.trained(some).min(0)

    def alike(self, some: Candidates, *, alone: bool = False) -> Equivalence:
        """Which candidates take the same time in every draw.

        Args:
            some: candidates.
            alone: in `at_best_s` without communication.
        """
        return alike(some, self.machines, self.servers, self.kinds, self.once.server_kinds, alone=alone)

    def rate(self, some: Candidates) -> Floats:
        """(m,) Mbit/s between the machines; NaN if unknown. Other things being equal more is never slower."""
        return NetworkCards.of(self.machines, self.servers, some.machine, some.server).rate

    def step_s(self, some: Candidates) -> Floats:
        """(S, m) seconds of one step; there must be steps."""
        model = self.knowledge.model
        assert model is not None
        shapes = self.shapes(some)
        physics = step_time(self._theta(model), shapes, slowness=self.slowness(some))
        return np.asarray(physics * self._misfit(some, shapes), dtype=float)

    def training_s(self, some: Candidates) -> Floats:
        """(S, m) seconds of training of one task: no start-up, no waiting."""
        return self._busy_s(some)

    def task_s(self, some: Candidates) -> Floats:
        """(S, m) seconds of one task, from the start of its members to their end."""
        return self._task_s(self._busy_s(some), some)

    @cached_property
    def sizes(self) -> TaskSizes:
        """How tasks differ."""
        return TaskSizes.of(self.workload.sizes, self.knowledge.measurements, self._normal(9))

    def tail_s(self) -> Floats:
        """(S, 1) seconds from the last step to the end of a task."""
        known = self.knowledge
        seen = known.tail_s if known.tail_s is not None else _UNSEEN_TAIL * known.startup_s
        return seen * np.exp(_TAIL_SPREAD * self._normal(3))

    def held_up_by(self, some: Candidates) -> str:
        """What beside its steps costs the first one more than a tenth of its time, in words; or nothing."""
        fast = self._busy_s(some, at_best=True)[:, 0]
        launch_s = LAUNCH_CREDIT_S / self._waves(some)
        tired = with_credits(fast[:, None], self.machines.baseline[some.machine][:1], launch_s[:1])
        if np.median(tired[:, 0] / np.maximum(fast, 1e-9)) > _HELD_UP:
            return "CPU credits: they run out, and the cores go on at a fraction of their speed"
        if np.median(self._served_s(some)[0] / np.maximum(fast, 1e-9)) > 1:
            return "parameter server: its processors are saturated by updates"
        if np.median(self._busy_s(some)[:, 0] / np.maximum(fast, 1e-9)) > _HELD_UP:
            return "network credits: they run out, and the network cards go on at what they sustain"
        return ""

    def phases_s(self, one: Candidates) -> dict[str, Floats]:
        """(DRAWS,) seconds of each phase of one candidate, in their order; they add up to `time_s`."""
        copies = 1 if self.central else _COPIES
        waves, late = self._waves(one), self._late(one)
        busy = self._busy_s(one)

        def of_tasks(each: Floats) -> Floats:
            return np.tile(np.broadcast_to(each, (self.draws // copies, 1)) * waves * (1 + late), (copies, 1))

        start, pauses, tail = of_tasks(self._start_s(one)), of_tasks(self._paused_s(one)), self.tail_s()
        tail = of_tasks(tail + _draw(beliefs.TASK_OVERHEAD_S, self._normal(4)))
        once = self.once_s(one)
        work = np.tile(self._task_s(busy, one) * waves * (1 + late), (copies, 1))
        overhead = _draw(beliefs.OVERHEAD_S, self._world(1))
        wait = sum((each for name, each in once.items() if name not in AFTERWARDS), np.zeros((1, 1)))
        found = {name: each for name, each in once.items() if name not in AFTERWARDS}
        found |= {"first step": start, "steps": work - start - pauses - tail, "pauses": pauses}
        found["end of the tasks"] = tail + overhead
        before = wait - once.get("machines", 0.0)
        found["interruptions"] = self._lost_s(work + overhead, one, self._anew_s(one, wait), before)
        found |= {name: each for name, each in once.items() if name in AFTERWARDS}
        return {
            name: np.broadcast_to(each, (self.draws, 1))[:, 0] for name, each in found.items() if each.any()
        }

    # --- one task --------------------------------------------------------------------------------

    def _busy_s(self, some: Candidates, *, at_best: bool = False, alone: bool = False) -> Floats:
        """(S, m) seconds of training of one task on full cores, S posterior draws."""
        model = self.knowledge.model
        if model is None:
            noise = (self.knowledge.duration_s or 0.0) * np.exp(self._task_noise)
            alike = noise * self.slowness(some) * self._contention(some)
            return np.asarray(alike * self.sizes.over(some.at_once), dtype=float)
        shapes = self.shapes(some)
        theta = self._theta(model)
        if alone:
            step = self._own_s(theta, shapes) * self.slowness(some)
        else:
            step = step_time(theta, shapes, slowness=self.slowness(some))
        step = step * self._misfit(some, shapes)
        times = some.steps * (1 + self.knowledge.rare_share) * self._contention(some)
        total = times * step
        if not at_best:
            total = np.maximum(total, self._served_s(some))
        cards = NetworkCards.of(self.machines, self.servers, some.machine, some.server)
        if not at_best and not self.own_machine and cards.are_known:
            credit_s = _draw(beliefs.NIC_CREDIT_S, self._normal(7)) / self._waves(some)
            worker, server = sent_mbit(theta, shapes, model.context)
            total = slowed(total, (some.steps * worker, some.steps * server), cards, credit_s)
        total = total * self.sizes.over(some.at_once)
        return np.asarray((total + self._pauses(some, step)) * self.trained(some), dtype=float)

    def trained(self, some: Candidates) -> Floats:
        """(S, m or 1) share of its steps that a task makes on average: to its target, or until pruned."""
        target, share = self.workload.target, self._pruned(some)
        if target is None or self.knowledge.model is None:
            return share
        aimed = target.share(some.steps, self.global_batch(some), self.workload.tasks)
        return share * (np.median(aimed, axis=0, keepdims=True) if self.central else aimed)

    def _pruned(self, some: Candidates) -> Floats:
        """(S, m or 1) share of its steps that a pruner lets a task make, by how many are beside it."""
        pruned, tasks = self.workload.trained, self.workload.tasks
        if pruned is None:
            return np.ones((1, 1))
        together, which = np.unique(np.minimum(some.at_once, tasks), return_inverse=True)
        place = self._normal(8)[:, 0].argsort().argsort()  # of each draw, from the least to the most
        at = (place + 0.5) / len(place)
        shares = [np.quantile(pruned(tasks, int(n)), at, method="inverted_cdf") for n in together]
        return np.column_stack(shares)[:, which.ravel()]

    def global_batch(self, some: Candidates) -> Floats:
        """(m,) examples of a step of all workers, NaN if unknown; where each goes its own way, of one."""
        return some.batch if self.workload.sync is Strategy.PS_ASYNC else some.batch * some.workers

    def until_target_s(self, one: Candidates) -> Floats | None:
        """(DRAWS,) what it trains beyond the earliest that its target may be reached; None without one."""
        if self.workload.target is None or self.knowledge.model is None:
            return None
        share = self.workload.target.share(one.steps, self.global_batch(one), self.workload.tasks)
        least = np.minimum(share, np.quantile(share, 0.05, axis=0))
        late = self._busy_s(one) * (1 - least / share) * self._waves(one) * (1 + self._late(one))
        return np.tile(late, (self.draws // len(late), 1))[:, 0]

    def _served_s(self, some: Candidates) -> Floats:
        known = None if self.own_machine else self.knowledge.server_work_s
        return served_s(some, self.workload, self.servers, known, self._waves(some))

    def _own_s(self, theta: Floats, shapes: Shapes) -> Floats:
        """(S, m) seconds of a step on the measured device without communication; many shapes are the same."""
        keys = np.column_stack([shapes.workers, shapes.per_node, shapes.batch])
        _, first, back = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        return own_time(theta, shapes[first])[:, back.ravel()]

    def _paused_s(self, some: Candidates) -> Floats:
        """(S, m) seconds of a task that validation and checkpoints take."""
        if self.knowledge.model is None:
            return np.zeros((1, 1))
        return np.asarray(self._pauses(some, self.step_s(some)) * self.trained(some), dtype=float)

    def _pauses(self, some: Candidates, step: Floats) -> Floats:
        seen = self.knowledge.pause_s
        if seen is not None:
            return some.epochs * seen * np.exp(0.1 * self._normal(1))
        if (some.epochs <= 1).all() and self.knowledge.tail_s is not None:
            return np.zeros_like(step)  # it was seen to its end
        return some.steps * step * _draw(beliefs.UNSEEN_PAUSES, self._normal(1))

    def _task_s(self, busy_s: Floats, some: Candidates) -> Floats:
        """(S, m) seconds of one task: start-up, training, tail."""
        tail = self.tail_s()
        # the credits of a machine are for all the tasks that it is given, one after the other
        launch_s = LAUNCH_CREDIT_S / self._waves(some)
        start = self._start_s(some)
        busy = with_credits(busy_s + start, self.machines.baseline[some.machine], launch_s)
        return busy + tail + _draw(beliefs.TASK_OVERHEAD_S, self._normal(4))

    def _start_s(self, some: Candidates) -> Floats:
        """(S, m) seconds from the start of a task's members to the end of its first step."""
        medians, spreads = (each[some.machine] for each in self._starts)
        return np.asarray(medians * np.exp(spreads * self._normal(2)), dtype=float)

    @cached_property
    def _starts(self) -> tuple[Floats, Floats]:
        """(k,) each: median and spread (log) of what a task's start takes on a machine.

        It is the work of one thread: a share of one core counts in full.
        """
        known, elsewhere = self.knowledge, beliefs.STARTUP_ELSEWHERE
        here_s = known.startup_s + known.warmup_s
        if self.own_machine:
            return np.full(len(self.machines), here_s), np.full(len(self.machines), known.startup_spread)
        medians, spreads = [], []
        for i, index in enumerate(self.machines.index.tolist()):
            offer = self.offers[index]
            there = known.startups.get(offer.instance_type)
            cores = min(offer.vcpus / max(float(self.machines.per_node[i]), 1.0), 1.0)
            slower = max(min(known.measured.cores, 1.0) / max(cores, 0.05), 1.0)
            medians.append(here_s * elsewhere.median * slower if there is None else there)
            spreads.append(elsewhere.spread if there is None else known.startup_spread)
        return np.array(medians), np.array(spreads)

    # --- all tasks, on rented machines ----------------------------------------------------------

    def _whole_s(self, task_s: Floats, some: Candidates) -> Floats:
        work = np.tile(
            task_s * self._waves(some) * (1.0 + self._late(some)), (1 if self.central else _COPIES, 1)
        )
        work = work + _draw(beliefs.OVERHEAD_S, self._world(1))
        first, back = self.once.alike(some)
        once = self.once_s(some[first])
        after = sum((once.pop(name) for name in AFTERWARDS if name in once), np.zeros((1, len(first))))
        wait = sum(once.values(), np.zeros((1, len(first))))
        before = (wait - once.get("machines", 0.0))[:, back]
        lost = self._lost_s(work, some, self._anew_s(some, wait[:, back]), before)
        return work + lost + (wait + after)[:, back]

    def _anew_s(self, some: Candidates, wait: Floats) -> Floats:
        """(S, m) seconds until a machine in the place of a lost one can work; ``wait``: until the first ones.

        Where these are warm, it has to be waited for all the same.
        """
        if not self.workload.is_warm:
            return wait
        phases = replace(self.once, workload=replace(self.workload, is_warm=False)).seconds(some, self._world)
        new: list[Floats] = [each for name, each in phases.items() if name not in AFTERWARDS]
        return np.asarray(sum(new, np.zeros((1, len(some)))))

    def _late(self, some: Candidates) -> Floats:
        """(m,) by how much, relatively, the last of tasks side by side ends after the usual one."""
        together = np.minimum(some.at_once, self.workload.tasks)
        late = np.sqrt(2 * np.log(np.maximum(together, 1)) / self._waves(some))
        return np.asarray(self.knowledge.task_spread * late, dtype=float)

    def _lost_s(self, work: Floats, some: Candidates, wait: Floats, before: Floats) -> Floats:
        """`interrupted_s` of machines that may be lost, and `change_s`."""
        rate = sum(self.loss_rates(some), np.zeros((1, 1)))
        if not rate.any():
            return self.change_s()[:, None]
        return np.asarray(self.interrupted_s(work, rate, wait, some, before) + self.change_s()[:, None])

    def replaced_usd(self, time_s: Floats, some: Candidates) -> Floats:
        """(DRAWS, m) dollars that lost machines cost beside the time: two have a minimum in place of one.

        Other than `cost_usd` it does not follow from the time alone.
        """
        rates = self.loss_rates(some)
        if not any(rate.any() for rate in rates):
            return np.zeros((1, 1))
        from trainmaster.advisor.quote.interruptions import count_losses

        rented_s, total = self._rented_s(time_s, some), sum(rates, np.zeros((1, 1)))
        at = np.random.default_rng((self.seed, 23)).uniform(size=(DRAWS, 1))
        each = self._bill.replaced_usd(rented_s, at, some, rates)
        return np.asarray(count_losses(total * rented_s, self.seed) * each)

    def loss_rates(self, some: Candidates) -> list[Floats]:
        """(S, m) losses per second of the workers' machines, and of the servers' if there are any."""
        found = [self._loss_rate(0, some.machine, some.machines)]
        return [*found, self._loss_rate(1, some.server, some.servers)] if len(self.servers) else found

    def _loss_rate(self, role: int, which: NDArray[np.int_], count: Floats) -> Floats:
        """(S, m) losses per second of so many workers' machines (0), or servers' (1)."""
        medians, spreads = self._losses[role]
        return self.loss_rate(medians[which], spreads[which], count)

    def loss_rate(self, per_hour: Floats, spread: Floats, count: Floats) -> Floats:
        """(S, m) losses per second of (m,) machines: of one per hour, the spread of that (log), how many."""
        return np.asarray(per_hour / 3600 * count * np.exp(spread * self._world(2)))

    @cached_property
    def _losses(self) -> list[tuple[Floats, Floats]]:
        """Of the workers' machines and of the servers': (k,) median and spread (log) of losses per hour."""
        found = []
        for machines in (self.machines, self.servers):
            providers = [self.offers[index].provider for index in machines.index.tolist()]
            kinds = list(zip(providers, machines.spot.astype(bool).tolist(), strict=True))
            known = {kind: beliefs.losses_per_hour(self.waited, kind[0], spot=kind[1]) for kind in set(kinds)}
            mine = [known[kind] for kind in kinds]
            found.append((np.array([each.median for each in mine]), np.array([each.spread for each in mine])))
        return found

    def interrupted_s(
        self, work: Floats, rate: Floats, wait: Floats, some: Candidates, before: Floats | float = 0.0
    ) -> Floats:
        """(S, m) seconds by lost machines: each costs what was done since the last checkpoint, and a restart.

        Args:
            work: (S, m) seconds to do.
            rate: (S, m) losses per second.
            wait: (S, m) seconds until a machine in the place of a lost one can work.
            some: candidates.
            before: (S, m) seconds for which the machines are there until the work begins.
        """
        from trainmaster.advisor.quote.interruptions import from_start_s, interrupted_s

        copies, seed = (1, None) if self.central else (_COPIES, self.seed)
        restart, is_whole = _draw(beliefs.RESTART_S, self._world(4)) + wait, math.isinf(self._every_s)
        every = np.tile(self.task_s(some), (copies, 1)) if is_whole else np.minimum(self._every_s, work)
        again = restart + np.tile(self._start_s(some), (copies, 1))
        lost = interrupted_s(work, before, rate, every, again, seed)
        if not is_whole:
            return lost
        alone = from_start_s(work, np.maximum(every - work, 0.0), rate, restart, seed)
        return np.where(self._waves(some) > 1, lost, alone)

    @property
    def _every_s(self) -> float:
        """Seconds from one checkpoint to the next that a task goes on from; infinite without any."""
        return self.workload.saves_every_s(self.knowledge.saves_every_s)

    def change_s(self) -> Floats:
        """(DRAWS,) what going on with another machine costs, where one that is slow may be replaced.

        What a run loses by a slow machine is in no quote, so neither is what is gained: this is room for one
        change, which few runs make.
        """
        if not self.workload.adapts or self.central or math.isinf(self._every_s):
            return np.zeros(1)  # it changes at a checkpoint
        is_made, since = np.random.default_rng((self.seed, 22)).uniform(size=(2, DRAWS))
        again_s = self.knowledge.startup_s + self.knowledge.warmup_s + beliefs.STOPPING_S
        return np.asarray((is_made < beliefs.CHANGES) * (self._every_s * since + again_s), dtype=float)

    # --- what draws and columns are made of ------------------------------------------------------

    @cached_property
    def once(self) -> OncePhases:
        """What comes once, beside the tasks."""
        return OncePhases(
            self.workload, self.machines, self.servers, self.offers, self.waited, self.gave_back_s
        )

    def once_s(self, some: Candidates) -> dict[str, Floats]:
        """(S, m) seconds of each phase that comes once, by name."""
        return self.once.seconds(some, self._world)

    def _waves(self, some: Candidates) -> Floats:
        """(m,) how many tasks each place is given, one after the other."""
        return self.workload.waves(some.at_once)

    def shapes(self, some: Candidates) -> Shapes:
        """The candidates as the step-time model sees them."""
        model = self.knowledge.model
        assert model is not None
        nic = np.full(len(some), np.nan) if self.own_machine else self.rate(some)
        if self._knows_no_network:
            nic = np.where(some.nodes > 1, beliefs.UNTOLD_CARD_MBPS.median, nic)
        latency = np.nan if self.workload.latency_ms is None else self.workload.latency_ms
        columns = Columns(
            kind=np.full(len(some), KINDS.index(self.workload.sync)),
            workers=some.workers,
            nodes=some.nodes,
            servers=np.full(len(some), float(self.workload.servers)),
            batch=some.batch,
            latency=np.where(some.nodes > 1, latency, 0.0),
            nic=nic,
            gradient=np.full(len(some), np.nan),
        )
        return Shapes.of(columns, model.context)

    def slowness(self, some: Candidates) -> Floats:
        """(S, m) compute time on these machines over that on the measured one."""
        means, spreads = self.ratios
        rows, back = np.unique(self._speeds[some.machine], return_index=True, return_inverse=True)[1:]
        mean, spread = means[some.machine[rows]], spreads[some.machine[rows]]
        if not spread.any() and not mean.any():
            return np.ones((1, len(some)))
        share = self.knowledge.computes
        return (1 - share + share * np.exp(-mean + spread * self._normal(5)))[:, back.ravel()]

    @cached_property
    def _speeds(self) -> NDArray[np.int_]:
        """(k,) numbers of machines that compute alike."""
        return joined(*map(codes, self.ratios))

    @cached_property
    def kinds(self) -> NDArray[np.int_]:
        """(k,) numbers of machines that compute alike, and for which one waits alike."""
        return joined(self._speeds, self.once.kinds, *map(codes, (*self._starts, *self._losses[0])))

    @cached_property
    def _bill(self) -> Bill:
        return Bill(self.workload, self.knowledge, self.machines, self.servers, self.offers, self.data_leaves)

    @cached_property
    def ratios(self) -> tuple[Floats, Floats]:
        """(k,) each: how much faster machines compute than the measured one (log), and the spread of that."""
        if self.own_machine:
            return np.zeros(len(self.machines)), np.zeros(len(self.machines))
        known, measured = self.knowledge, self.knowledge.measured
        # A job that left cores idle where it was measured does not get faster by having more of them. What
        # others of its tasks have beside it slows it on that type once it is less than what it kept busy.
        used = known.cores_per_worker
        is_idle = used is not None and used < _BUSY * measured.cores
        ratios = []
        for i, index in enumerate(self.machines.index.tolist()):
            offer = self.offers[index]
            most, least = math.inf, 0.0 if offer.instance_type == measured.offer else _BURST
            if is_idle:
                most = max(used or 0.0, least)
            cores = min(offer.vcpus / max(float(self.machines.per_node[i]), 1.0), most)
            # the job uses an accelerator only if it asks for one
            accelerator = offer.accelerator if self.workload.hardware.gpu_count else ""
            device = Device(accelerator, cores, offer.instance_type)
            ratios.append(speed_ratio(device, replace(measured, cores=min(measured.cores, most))))
        return np.array([r.log for r in ratios]), np.array([r.spread for r in ratios])

    def _misfit(self, some: Candidates, shapes: Shapes) -> Floats:
        """(S, m) factor on the physics, once for each shape: thousands of machines share a few dozen."""
        model = self.knowledge.model
        assert model is not None
        if self.central:
            return np.ones((1, len(some)))
        keys = np.column_stack([shapes.workers, shapes.nodes, shapes.batch, shapes.guess])
        _, first, back = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        own = model.deviations(shapes[first]) + self.knowledge.extra_spread * self._normal(0)
        return np.exp(own)[:, back.ravel()]

    def _contention(self, some: Candidates) -> Floats | float:
        """On one machine, tasks at the same time share its cores."""
        each = self.knowledge.cores_per_worker
        if not self.own_machine or each is None:
            return 1.0
        measured = max(self.knowledge.measured.cores, 1.0)
        cores = each * some.workers
        wanted = cores * some.at_once
        return np.maximum(wanted / measured, 1.0) / np.maximum(cores / measured, 1.0)

    @cached_property
    def _task_noise(self) -> Floats:
        """(S, 1) log: the mean duration of tasks without steps, known from a few of them."""
        known = self.knowledge
        spread = math.hypot(known.task_spread / math.sqrt(max(known.points, 1)), known.extra_spread, 0.03)
        return spread * self._normal(6)

    def _theta(self, model: StepTimeModel) -> Floats:
        theta = model.theta[None] if self.central else model.draws
        if self._knows_no_network and model.kind == 0:
            slower = beliefs.UNTOLD_CARD_MBPS.spread * self._normal(30)[:, 0]
            theta = theta + slower[:, None] * (np.array(NAMES[0]) == "rho_out")
        return self.knowledge.with_possible_gradients(theta)

    @cached_property
    def _knows_no_network(self) -> bool:
        """No network card is told, and all that was measured was inside of one machine."""
        return self.knowledge.was_inside and not self.own_machine and bool(np.isnan(self.machines.nic).all())

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


def _draw(belief: LogNormal, normal: Floats) -> Floats:
    return belief.median * np.exp(belief.spread * normal)
