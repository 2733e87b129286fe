"""What was learnt of a job by measuring it: a step-time model, and what is not steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

import numpy as np

from trainmaster.advisor.market.load import mean_doubt
from trainmaster.advisor.model.device_transfer import TRANSFER_SPREAD, transferred_points
from trainmaster.advisor.model.devices import Device, speed_ratio
from trainmaster.advisor.model.experience import Experience
from trainmaster.advisor.model.measurement import HELD, Measurement, ObservedCurve, Point
from trainmaster.advisor.model.physics import COMMON_MBPS, own_time
from trainmaster.advisor.model.priors import INDEX, achieved_bytes_per_second
from trainmaster.advisor.model.shapes import Columns, Floats, Shapes
from trainmaster.advisor.model.steptime import StepTimeModel
from trainmaster.dataclass import dataclass, field
from trainmaster.spec import Strategy
from trainmaster.spec.log_normal import LogNormal

#: What the processes of one machine have for a network, Mbit/s: the loopback, where no card was measured.
LOOPBACK_MBPS: Final = 20_000.0
#: How much tasks of an experiment, and start-ups of one task, differ (log), before any was seen.
_TASK_SPREAD: Final = 0.15
_STARTUP_SPREAD: Final = 0.3
_SEVERAL: Final = 2
#: How far one point of a type that is not the best known is from what later runs show (log): few points of
#: their own say little of how well they repeat.
_ONE_POINT: Final = 0.3
#: So many measurements are shown.
_KEPT: Final = 20
#: Members that send less per step are saying something else than gradients.
_CHATTER_BYTES: Final = 1000.0


@dataclass(frozen=True)
class Knowledge:
    """Of one experiment's tasks.

    Attributes:
        model: of the step time; None where the tasks show no steps.
        measured: the device of the model's points.
        startup_s: start of the members until the first step begins; see `Measurement.before_steps_s`.
        startup_spread: how much start-ups differ (log).
        startups: start-up and warm-up where they were measured on other machines, by the name of the offer.
        warmup_s: see `Measurement`. pause_s: per epoch, None if unknown. tail_s: None if unknown.
        duration_s: median of a whole task, None if none was seen to its end; it counts where there are no
            steps.
        task_spread: how much tasks differ from each other (log).
        extra_spread: because the step time drifts, or the points are not of this very job (log).
        memory: bytes of main memory of a member, by local batch (NaN if unknown). device_memory: of a device.
        rare_share: what rare slow steps add, relative to typical ones.
        output_bytes: of a task's model. checkpoint_bytes: of one checkpoint. 0 where none was seen.
        cores_per_worker: that one worker keeps busy, or would if nothing else held them; None if unknown.
        server_work_s: seconds of one core that an update takes at the parameter servers; None if unknown.
        points: how many measurements it rests on. similar: how many of them are of similar jobs only.
        unexplained: how many points physics cannot explain.
        fingerprint: of what was measured.
        measurements: the newest of those that it rests on.
        curves: what was reported of the metrics of targets, the newest first.
        saves_every_s: as `Measurement`: of runs that wrote checkpoints, else 0 where some wrote none.
        computes: share of a worker's own time that another device makes shorter or longer.
        others: the same of each other type of machine that it was measured on, without `others` of their own.
    """

    model: StepTimeModel | None
    measured: Device
    startup_s: float
    startup_spread: float
    warmup_s: float
    pause_s: float | None
    tail_s: float | None
    duration_s: float | None
    task_spread: float
    extra_spread: float
    memory: tuple[tuple[float, float], ...]
    device_memory: tuple[tuple[float, float], ...]
    output_bytes: float
    checkpoint_bytes: float
    cores_per_worker: float | None
    rare_share: float
    server_work_s: float | None
    points: int
    similar: int = 0
    unexplained: int = 0
    fingerprint: str = ""
    measurements: tuple[Measurement, ...] = ()
    startups: Mapping[str, float] = field(default_factory=dict)
    curves: tuple[ObservedCurve, ...] = ()
    saves_every_s: float | None = None
    computes: float = 1.0
    others: tuple[Knowledge, ...] = ()

    @classmethod
    def of(
        cls,
        same: Sequence[Measurement],
        similar: Sequence[Measurement],
        devices: dict[str, Device],
        nic_mbps: dict[str, float],
        seed: int = 0,
        experience: Experience | None = None,
    ) -> Knowledge | None:
        """Learn from measurements; those of similar jobs only count where there are none of the same.

        Each type of machine has a fit of its own, the one that was measured most often first, of equals the
        newest. What is borrowed from a similar job has a `Measurement.step_spread` that says how far that is
        right.

        Args:
            same: of the very job.
            similar: of jobs with other code or parameters.
            devices: by the name of the offer that something was measured on.
            nic_mbps: of offers, where known.
            seed: of the posterior's draws.
            experience: what other jobs have shown of the same machines.

        Returns:
            None if there is nothing to learn from.
        """
        used = undisturbed(list(same) or list(similar))
        if not used:
            return None
        stepped = [m for m in used if m.point is not None and m.point.step_time_s is not None]
        first = stepped or used
        types: dict[str, list[Measurement]] = {}
        for each in first:
            types.setdefault(each.offer, []).append(each)
        best = max(types, key=lambda name: len(types[name]))
        facts = _Facts(first, devices, nic_mbps, seed, experience, is_same=bool(same))
        main = facts.of_type(best, types.pop(best))
        others = [
            facts.of_type(offer, here, main)
            for offer, here in types.items()
            if stepped or any(m.duration_s is not None for m in here)
        ]
        return replace(main, others=tuple(others), curves=curves_of(same, similar))

    @property
    def types(self) -> tuple[Knowledge, ...]:
        """Of each type of machine that it was measured on, the best known first."""
        return self, *self.others

    @property
    def seen(self) -> tuple[Measurement, ...]:
        """The newest of the measurements on any machine."""
        every = [m for each in self.types for m in each.measurements]
        return tuple(sorted(every, key=lambda m: -m.measured_at)[:_KEPT])

    @property
    def all_points(self) -> int:
        """How many measurements there are of all machines."""
        return sum(each.points for each in self.types)

    @property
    def held(self) -> float:
        """Median share of its time for which other work held its processors when it was measured."""
        return _median([m.held for m in self.seen]) or 0.0

    @property
    def computing_share(self) -> float | None:
        """Median share of a step's time that workers computed, or would have alone; None if unknown."""
        shares = [(m.time_shares.computing, m.held or 0.0) for m in self.measurements if m.time_shares]
        return _median([busy if busy is None else min(busy + held, 1.0) for busy, held in shares])

    @property
    def data_share(self) -> float | None:
        """The same for which disks or mounted volumes were waited for."""
        return _median([m.time_shares.data for m in self.measurements if m.time_shares is not None])

    def as_whole_tasks(self) -> Knowledge | None:
        """By how long tasks took from start to end, where their number of steps is unknown.

        Returns:
            None if no task was seen to its end.
        """
        if self.duration_s is None:
            return None
        return replace(
            self,
            model=None,
            startup_s=0.0,
            startups={},
            warmup_s=0.0,
            pause_s=None,
            tail_s=None,
            rare_share=0.0,
            unexplained=0,
            others=tuple(filter(None, (each.as_whole_tasks() for each in self.others))),
        )

    @property
    def was_inside(self) -> bool:
        """All that was measured was inside of one machine."""
        points = [m.point for m in self.measurements if m.point is not None]
        return bool(points) and all(point.nodes == 1 for point in points)

    def with_possible_gradients(self, theta: Floats) -> Floats:
        """(S, P) parameters, of which nothing was seen of the network, with gradients that a member can hold.

        It holds its parameters beside them, so they are half of its memory at most.
        """
        seen, model = self.device_memory or self.memory, self.model
        if model is None or model.kind or not self.was_inside or not seen:
            return theta
        if math.isfinite(model.context.gradient) or not math.isfinite(model.context.nic):
            return theta
        most_s = max(peak for _, peak in seen) / 2 / achieved_bytes_per_second(model.context.nic)
        found, sent = theta.copy(), INDEX[0]["rho_out"]
        found[:, sent] = np.minimum(found[:, sent], math.log(most_s) - found[:, INDEX[0]["level"]])
        return found

    def memory_of(self, batch: int | None) -> tuple[float | None, float | None]:
        """Bytes of main memory, and of a device's, that a member needs; None if unknown."""
        asked = np.array([math.nan if batch is None else batch])
        main, device = (float(self.memory_at(asked, device=device)[0]) for device in (False, True))
        return main if math.isfinite(main) else None, device if math.isfinite(device) else None

    def memory_at(self, batch: Floats, *, device: bool) -> Floats:
        """(m,) bytes that one member needs with a local batch; NaN where nothing was seen."""
        return memory_at(self.device_memory if device else self.memory, batch)


@dataclass(frozen=True)
class _Facts:
    """What one type of machine is learnt with: `Knowledge.of` has the arguments.

    Attributes:
        every: measurements of all types.
        is_same: they are of the very job.
    """

    every: Sequence[Measurement]
    devices: Mapping[str, Device]
    nic_mbps: Mapping[str, float]
    seed: int
    experience: Experience | None
    is_same: bool

    def of_type(self, offer: str, here: Sequence[Measurement], best: Knowledge | None = None) -> Knowledge:
        """Learn what was measured on one type.

        What was not seen there, and does not follow from how fast it is, is as on the others.

        Args:
            offer: its name.
            here: its measurements.
            best: of the type that is known best, whose step times say how those of this one go on.
        """
        measured = self.devices.get(offer) or Device("", 1.0, offer)
        nic_mbps = self.nic_mbps.get(offer)
        points: list[Point] = []
        model = None
        if all(m.point is not None and m.point.step_time_s is not None for m in here):
            points = [prepared(m, nic_mbps) for m in here]
            more = self._lent(best, points, measured, nic_mbps)
            doubts = [0.0] * len(points) + [TRANSFER_SPREAD] * len(more)
            like = best.model if best is not None else None
            model = StepTimeModel.fit([*points, *more], self.seed, self.experience, doubts, like)

        def typical(of: Callable[[Measurement], float | None]) -> float | None:
            found = _median([of(m) for m in here])
            return _median([of(m) for m in self.every]) if found is None else found

        durations = [m.duration_s for m in here if m.duration_s is not None]
        starts = [m.before_steps_s for m in here if m.before_steps_s > 0]
        few = 0.0 if best is None else _ONE_POINT / math.sqrt(len(here))
        return Knowledge(
            model=model,
            measured=measured,
            startup_s=_median([m.before_steps_s for m in here])
            or _median([m.before_steps_s for m in self.every])
            or 0.0,
            startup_spread=math.hypot(
                _spread(starts, _STARTUP_SPREAD) * math.sqrt(1 + 1 / max(len(starts), 1)),
                mean_doubt([m.startup_doubt for m in here]),
            ),
            warmup_s=_median([m.warmup_s for m in here]) or 0.0,
            pause_s=typical(lambda m: m.pause_s),
            tail_s=typical(lambda m: m.tail_s),
            duration_s=_median(durations),
            task_spread=_spread(durations, _TASK_SPREAD),
            extra_spread=math.hypot(
                _median([m.step_spread for m in here]) or 0.0, few, mean_doubt([m.work_doubt for m in here])
            ),
            memory=self._memory(here, lambda m: m.memory_bytes),
            device_memory=self._memory(here, lambda m: m.device_memory_bytes),
            output_bytes=max(m.output_bytes or 0.0 for m in self.every),
            checkpoint_bytes=max(m.checkpoint_bytes or 0.0 for m in self.every),
            cores_per_worker=_median([None if m.cores is None else m.cores + (m.held or 0.0) for m in here]),
            rare_share=_median([m.rare_share for m in here]) or 0.0,
            server_work_s=typical(_server_work_s),
            points=len(here),
            similar=0 if self.is_same else len(here),
            unexplained=int(model.unexplained[: len(points)].sum()) if model is not None else 0,
            startups=_startups(self.every),
            measurements=tuple(_with_network(m, nic_mbps) for m in here[:_KEPT]),
            saves_every_s=_median([m.saves_every_s or None for m in self.every])
            or next((0.0 for m in self.every if m.saves_every_s == 0), None),
            computes=_computes(model, points, here, measured.cores),
        )

    def _lent(
        self, best: Knowledge | None, own: Sequence[Point], device: Device, nic_mbps: float | None
    ) -> list[Point]:
        """What the best-known type says of another one."""
        if best is None or best.model is None:
            return []
        there = [prepared(m, self.nic_mbps.get(m.offer)) for m in best.measurements]
        ratio = speed_ratio(device, best.measured)
        slower = 1 - best.computes + best.computes * math.exp(-ratio.log)
        return transferred_points(best.model, there, own, LogNormal(slower, ratio.spread), nic_mbps)

    def _memory(
        self, here: Sequence[Measurement], peak: Callable[[Measurement], float | None]
    ) -> tuple[tuple[float, float], ...]:
        found = memory_seen([(m.point, peak(m)) for m in here])
        return found or memory_seen([(m.point, peak(m)) for m in self.every])


def _computes(
    model: StepTimeModel | None, points: Sequence[Point], measured: Sequence[Measurement], cores: float
) -> float:
    """Share of a worker's own time, without communication, for which it computes; 1 where that is unknown.

    What waits for data or for a clock takes as long on another device. Of a machine with a part of a core
    that part is all that it can keep busy.
    """
    if model is None or all(m.time_shares is None for m in measured):
        return 1.0
    own_s = own_time(model.theta[None], Shapes.of(Columns.of(points), model.context))[0]
    shares = []
    for m, point, alone_s in zip(measured, points, own_s.tolist(), strict=True):
        busy = None if m.time_shares is None else m.time_shares.computing
        if busy is not None and point.step_time_s:
            busy = min(busy / min(cores or 1.0, 1.0) + (m.held or 0.0), 1.0)
            shares.append(min(busy * point.step_time_s / alone_s, 1.0))
    return float(np.median(shares)) if shares else 1.0


def curves_of(same: Sequence[Measurement], similar: Sequence[Measurement]) -> tuple[ObservedCurve, ...]:
    """Curves of the very job; of other versions of it where it has none, which are marked so."""
    found = tuple(each.curve for each in same if each.curve is not None)
    return found or tuple(replace(each.curve, is_kin=True) for each in similar if each.curve is not None)


def memory_at(seen: Sequence[tuple[float, float]], batch: Floats) -> Floats:
    """(m,) bytes that one member needs with a local batch; NaN where nothing was seen.

    With two batch sizes or more a line; with one, three tenths of it do not grow with the batch,
    which errs towards too much when the batch is larger than measured.

    Args:
        seen: local batches (NaN if unknown) with their peaks.
        batch: (m,) that is asked for.
    """
    if not seen:
        return np.full(len(batch), np.nan)
    sizes, peaks = np.array(seen).T
    if not np.isfinite(sizes).any():  # with the batch that it will have, whatever that is
        return np.full(len(batch), float(peaks.max()))
    sizes, peaks = sizes[np.isfinite(sizes)], peaks[np.isfinite(sizes)]
    asked = np.where(np.isnan(batch), sizes.max(), batch)
    if len(set(sizes.tolist())) >= 2:
        slope, base = np.polyfit(sizes, peaks, 1)
        return np.maximum(base, 0) + max(slope, 0.0) * asked
    return np.asarray(peaks.max() * (0.3 + 0.7 * asked / sizes.max()), dtype=float)


def prepared(measurement: Measurement, nic_mbps: float | None) -> Point:
    """A measured point with what follows from its other facts: the network, and the gradient's size.

    In a ring each member sends ``2 (n-1)/n`` gradients per step (Patarasu and Yuan, 2009); with
    parameter servers a worker sends one for each step of its own.
    """
    point = measurement.point
    assert point is not None
    exchanges = point.workers > 1 or point.sync.has_servers
    if point.gradient_bytes is None and point.bytes_out and exchanges:
        share = 1.0 if point.sync.has_servers else 2 * (point.workers - 1) / point.workers
        if point.sync is Strategy.PS_ASYNC:  # a global step is that of one of the workers
            share /= point.workers
        if (gradient := point.bytes_out / share) > _CHATTER_BYTES:
            point = replace(point, gradient_bytes=gradient)
    if point.nic_mbps is None:
        # Without bytes nothing was seen of the network: what is believed of it holds for a common card.
        inside = LOOPBACK_MBPS if point.gradient_bytes else COMMON_MBPS
        point = replace(point, nic_mbps=nic_mbps or (None if (point.nodes or 1) > 1 else inside))
    return point


def _server_work_s(measurement: Measurement) -> float | None:
    """Of an update by one worker, at all servers together."""
    point, cores = measurement.point, measurement.server_cores
    if point is None or not point.step_time_s or cores is None:
        return None
    updates = point.workers if point.sync is Strategy.PS_SYNC else 1
    return cores * (point.parameter_servers or 1) * point.step_time_s / updates


def _with_network(measurement: Measurement, nic_mbps: float | None) -> Measurement:
    """A measurement with what its network took, where it went over one that is known."""
    point, shares = measurement.point, measurement.time_shares
    nic = (point and point.nic_mbps) or nic_mbps
    if point is None or shares is None or not nic or (point.nodes or 1) < _SEVERAL or not point.step_time_s:
        return measurement
    most = max(point.bytes_in or 0.0, point.bytes_out or 0.0)
    return (
        replace(measurement, time_shares=shares.over(nic, most, point.step_time_s)) if most else measurement
    )


def undisturbed(measured: Sequence[Measurement]) -> list[Measurement]:
    """Without those that other work has disturbed, where the same shape was measured without that."""
    calm = {shape_of(m) for m in measured if (m.held or 0.0) <= HELD}
    return [m for m in measured if (m.held or 0.0) <= HELD or shape_of(m) not in calm]


def shape_of(m: Measurement) -> tuple[object, ...]:
    """On what it was measured, what, and in which unit its steps are."""
    return m.offer, m.point and (m.point.workers, m.point.nodes, m.point.local_batch), m.unit


def _startups(measured: Sequence[Measurement]) -> dict[str, float]:
    """By the name of the offer, in seconds, with the warm-up."""
    seen: dict[str, list[float]] = {}
    for each in measured:
        if each.before_steps_s > 0:
            seen.setdefault(each.offer, []).append(each.before_steps_s + each.warmup_s)
    return {offer: float(np.median(some)) for offer, some in seen.items()}


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(median(known)) if known else None


def _spread(seen: Sequence[float], belief: float) -> float:
    """Spread (log) of what was seen, with a belief that counts as much as four of them."""
    logs = np.log([max(value, 1e-3) for value in seen])
    squares = float(((logs - logs.mean()) ** 2).sum()) if len(logs) > 1 else 0.0
    return math.sqrt((4 * belief**2 + squares) / (4 + max(len(logs) - 1, 0)))


def memory_seen(seen: Sequence[tuple[Point | None, float | None]]) -> tuple[tuple[float, float], ...]:
    """Local batches (NaN if unknown) with the memory that a member took at most."""
    rows = []
    for point, peak in seen:
        if peak is not None:
            rows.append(((point.local_batch if point and point.local_batch else math.nan), peak))
    return tuple(sorted(rows))
