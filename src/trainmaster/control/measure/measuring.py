"""From what was seen of an attempt to a `Measurement`: for profiling attempts and for those of real runs."""

from __future__ import annotations

import itertools
import math
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trainmaster.advisor.model.measurement import Measurement, ObservedCurve, Point, TimeShares, held_doubt
from trainmaster.control.task.gangs import member_names
from trainmaster.dataclass import dataclass, field
from trainmaster.executors.telemetry.usage import Usage, read_usage
from trainmaster.providers.capabilities import HOST
from trainmaster.spec import Experiment, Strategy

if TYPE_CHECKING:
    from trainmaster.advisor.model.step_trace import StepStatistics, StepTrace
    from trainmaster.sweeps import Curve

T = TypeVar("T")

#: Fewer blocks of steps than that are no measurement of a step.
MIN_BLOCKS = 3
_MOST_FILES = 10_000
#: Members are sampled about that often.
_LOOK_S = 1.0
#: An attempt that was over before there were so many blocks shows its step time all the same, if it made so
#: many steps; that the next one has the same is less sure (log).
_FEW_STEPS = 3
_SHORT_SPREAD = 0.1
#: No more of what others held is believed.
_MOST_HELD = 0.9
#: So many points of a curve are kept; and as many steps for each that it counts are epochs, not steps.
_MOST_POINTS = 256
_OF_AN_EPOCH = 2.0


def trace_of(experiment: Experiment, resolution_s: float) -> StepTrace:
    """An empty trace that knows what the recipe tells about steps.

    Args:
        experiment: with a fixed number of workers.
        resolution_s: how often somebody will look.
    """
    from trainmaster.advisor.model.step_trace import StepTrace

    values = experiment.builtin_values()
    batch: float | None = values.get("batch_global")
    per_epoch: float | None = None
    if batch and experiment.examples:
        per_epoch = math.ceil(experiment.examples / batch)
    elif experiment.steps:
        from trainmaster.spec.length_options import lengths_asked_for

        epochs = experiment.epochs or lengths_asked_for(experiment.command).get("epochs")
        per_epoch = experiment.steps / epochs if epochs else None
    if not batch and per_epoch and experiment.examples:
        batch = experiment.examples / per_epoch
    return StepTrace(resolution_s, per_epoch, batch)


@dataclass(frozen=True, slots=True)
class WatchedAttempt:
    """What was seen of an attempt by a moment.

    Attributes:
        experiment: with a fixed number of workers.
        directory: of the attempt; its samples are read.
        offer, cores: of the machine that it runs on.
        started_at: Unix seconds, of the first member.
        now: Unix seconds, of that moment.
        ended_at: Unix seconds, if it ended by itself and succeeded, else None.
        trace: of its steps; None where it was not traced.
        addresses: the machine of each member; empty where all are on one.
        aimed: what it reported of the metric of its target.
        said_steps: that it makes in all, as its script says; 0 if unknown.
        saves_every_s: as its checkpoints were published; None: what it left in its directory tells.
    """

    experiment: Experiment
    directory: Path
    offer: str
    cores: int
    started_at: float
    now: float
    ended_at: float | None = None
    trace: StepTrace | None = None
    addresses: Mapping[str, str] = field(default_factory=dict)
    aimed: Curve | None = None
    said_steps: int = 0
    saves_every_s: float | None = None

    def measurement(self, min_blocks: int = MIN_BLOCKS) -> Measurement | None:
        """What it showed; None if that is nothing worth keeping, as fewer blocks of steps are."""
        trace, ended_at, started_at = self.trace, self.ended_at, self.started_at
        found = trace.steady() if trace is not None else None
        found = None if found is None else found.by_mean()
        if (
            found is not None
            and found.blocks < min_blocks
            and not (ended_at is not None and _is_whole(found))
        ):
            found = None
        if found is None and ended_at is None:
            return None
        usage = read_usage(self.directory, whole=False)
        memory = max((each.peak_rss_bytes for each in usage.values()), default=0)
        device_memory = max((each.gpu_memory_bytes or 0 for each in usage.values()), default=0)
        counted, workers, servers = usage, _of_role(usage, "worker"), _of_role(usage, "ps")
        nodes = max(len(set(_of_role(self.addresses, "worker"))), 1)
        point = None
        if found is not None and trace is not None:
            steady = _steady_usage(trace, self.directory, started_at)
            counted = {name: each.usage for name, each in steady.items()} or counted
            workers, servers = _of_role(counted, "worker") or workers, _of_role(counted, "ps") or servers
            latency_ms = 0.0 if nodes == 1 else _latency_ms(usage.values())
            # Too short to look at steps alone: most of what it sent was for them all the same.
            sent = steady or {
                name: _Steady(each, trace.steps_at(started_at + each.seconds)) for name, each in usage.items()
            }
            point = self._point(found, steady, _traffic(self.experiment, sent, nodes), nodes, latency_ms)
        held = held_share(counted, self.cores, self.addresses, is_here=self.offer in ("local", HOST))
        shown = trace if point is not None else None
        return Measurement(
            point,
            startup_s=shown.startup_s(started_at) if shown is not None else 0.0,
            warmup_s=found.warmup_s if found is not None else 0.0,
            pause_s=found.pause_s if found is not None else None,
            tail_s=shown.tail_s(ended_at) if shown is not None and ended_at is not None else None,
            duration_s=None if ended_at is None else max(0.0, ended_at - started_at),
            steps_done=round(shown.steps_done) if shown is not None else 0,
            memory_bytes=memory or None,
            device_memory_bytes=device_memory or None,
            output_bytes=_bytes_below(self.directory / "output"),
            checkpoint_bytes=_bytes_below(self.directory / "checkpoint"),
            cores=_cores(self.experiment, workers, nodes),
            server_cores=max((each.cpu_share for each in servers), default=None),
            rare_share=max(0.0, found.mean_s / found.step_time_s - 1) if found is not None else 0.0,
            step_spread=math.hypot(
                _spread(found, trace.resolution_s) if found is not None and trace is not None else 0.0,
                held_doubt(held),
            ),
            time_shares=_shares(self.experiment, point, workers) if point is not None else None,
            offer=self.offer,
            measured_at=self.now,
            epochs_done=trace.epoch if trace is not None else None,
            curve=curve_of(self.experiment, self.aimed, trace.steps_done if trace is not None else 0.0)
            if self.aimed
            else None,
            held=held,
            wanted=wanted_cores(list(counted.values())),
            begun_at=round(shown.begun_at) if shown is not None else 0,
            said_steps=self.said_steps,
            unit=shown.unit if shown is not None else "step",
            saves_every_s=self.saves_every_s or self._left_checkpoint_s() or self.saves_every_s,
        )

    def _left_checkpoint_s(self) -> float | None:
        """After how long there is one in its directory; that of members elsewhere is empty."""
        is_there = _bytes_below(self.directory / "checkpoint")
        return max(self.now - self.started_at, 1.0) if is_there else None

    def _point(
        self,
        found: StepStatistics,
        usage: Mapping[str, _Steady],
        traffic: tuple[float | None, float | None],
        nodes: int,
        latency_ms: float | None,
    ) -> Point:
        distributed, cores = self.experiment.distributed, self.cores
        sync = distributed.strategy if distributed else Strategy.ALLREDUCE
        roles = [role for role, _ in member_names(self.experiment)]
        servers = [each.usage for each in _of_role(usage, "ps")]
        batch: float | None = self.experiment.builtin_values().get("batch_per_worker")
        if batch is None and found.examples_per_step is not None:
            # A step of all together, but where each worker goes its own way.
            batch = found.examples_per_step / (1 if sync is Strategy.PS_ASYNC else roles.count("worker"))
        device_memory = max(
            (each.usage.gpu_memory_bytes or 0 for each in _of_role(usage, "worker")), default=0
        )
        return Point(
            sync=sync,
            workers=roles.count("worker"),
            nodes=nodes,
            parameter_servers=roles.count("ps"),
            local_batch=batch,
            latency_ms=latency_ms,
            step_time_s=found.step_time_s,
            step_time_p10_s=found.p10_s,
            step_time_p90_s=found.p90_s,
            steps=max(1, round(found.steps)),
            bytes_in=traffic[0],
            bytes_out=traffic[1],
            server_cpu=min(1.0, max(each.cpu_share for each in servers) / cores) if servers else None,
            peak_memory_bytes=device_memory or None,
            offer=self.offer,
        )


def _of_role(members: Mapping[str, T], role: str) -> list[T]:
    """What there is of the members of a role."""
    return [each for name, each in members.items() if name.startswith(f"{role}-")]


def _cores(experiment: Experiment, workers: Sequence[Usage], nodes: int) -> float | None:
    """That a worker keeps busy."""
    if not workers:
        return None
    return sum(each.cpu_share for each in workers) / len(workers) / _ranks(experiment, nodes)


def wanted_cores(members: Sequence[Usage]) -> float | None:
    """Cores that members kept busy, or were ready for and had not, all together.

    One may wait for another, so that only the sum tells how much of the time somebody computed.
    """
    told = [each for each in members if each.seconds >= _LOOK_S / 2 and each.cpu_wait_seconds is not None]
    if not told or len(told) < len(members):
        return None
    return round(sum(each.cpu_share + (each.cpu_wait_seconds or 0.0) / each.seconds for each in told), 4)


def held_share(
    members: Mapping[str, Usage], cores: int, machines: Mapping[str, str] | None = None, *, is_here: bool
) -> float | None:
    """Share of the time for which other work held the processors of members, or they were not given any.

    What they keep from each other does not count: a wait counts as far as others were busy meanwhile.
    Of several machines the one counts that others hold most of: who works together waits for the slowest.

    Args:
        members: what each has used, and its machine, in the same time.
        cores: of one machine.
        machines: the machine of each member; None or empty where all are on one.
        is_here: others may use the machines, too, and their processors are all that their kernels count;
            on rented ones only what the hypervisor takes is known.
    """
    groups: dict[str, list[Usage]] = {}
    for name, each in members.items():
        groups.setdefault((machines or {}).get(name, ""), []).append(each)
    shares = [_held_of_one(group, cores, is_here=is_here) for group in groups.values()]
    return max((share for share in shares if share is not None), default=None)


def _held_of_one(members: Sequence[Usage], cores: int, *, is_here: bool) -> float | None:
    told = [each for each in members if each.seconds >= _LOOK_S / 2 and each.machine_cpu_seconds is not None]
    if not told or cores < 1:
        return None
    held = max((each.stolen_seconds or 0.0) / each.seconds for each in told) / cores
    if is_here:
        waited = max((each.cpu_wait_seconds or 0.0) / each.seconds for each in told)
        busy = max((each.machine_cpu_seconds or 0.0) / each.seconds for each in told)
        held += min(waited, max(0.0, busy - sum(each.cpu_share for each in members)) / cores)
    return round(min(held, _MOST_HELD), 3)


def curve_of(experiment: Experiment, aimed: Curve, steps_done: float) -> ObservedCurve | None:
    """The metric of its target, as it is kept; None of one that has none, or was never reported.

    Args:
        experiment: with a fixed number of workers.
        aimed: what was reported.
        steps_done: that the attempt came to: reports that count epochs are few of them.
    """
    until = experiment.ends_at
    points = [(step, value) for step, value in aimed if math.isfinite(value)]
    if until is None or not points:
        return None
    rate = steps_done / points[-1][0] if points[-1][0] > 0 else 1.0
    unit = rate if rate >= _OF_AN_EPOCH else 1.0
    kept = {round(k * (len(points) - 1) / _MOST_POINTS) for k in range(_MOST_POINTS + 1)}
    kept.add(next((k for k, (_, value) in enumerate(points) if until.holds({until.metric: value})), 0))
    is_async = experiment.distributed is not None and experiment.distributed.strategy is Strategy.PS_ASYNC
    batch = experiment.builtin_values().get("batch_per_worker" if is_async else "batch_global")
    some = tuple((unit * points[k][0], float(f"{points[k][1]:.6g}")) for k in sorted(kept))
    return ObservedCurve(until.metric, some, batch)


def _is_whole(found: StepStatistics) -> bool:
    """An attempt of some seconds that was seen to its end shows its steps as well as it ever will."""
    return found.steps >= _FEW_STEPS and found.seconds >= 2 * _LOOK_S


@dataclass(frozen=True, slots=True)
class _Steady:
    """What a member used while it made steps, and how many."""

    usage: Usage
    steps: float


def _steady_usage(trace: StepTrace, directory: Path, started_at: float) -> dict[str, _Steady]:
    """Without what was used before the first step and after the newest one."""
    if trace.first_at is None or trace.last_at is None:
        return {}
    begin_s, end_s = trace.first_at - started_at, trace.last_at - started_at
    if end_s - begin_s < 2 * _LOOK_S:
        return {}
    until = read_usage(directory, 0.0, end_s, whole=False)
    # What the samples cover begins with the one before that moment.
    found = read_usage(directory, begin_s + _LOOK_S, end_s, whole=False)
    steady = {}
    for name, usage in found.items():
        newest_s = until[name].seconds
        steps = trace.steps_at(started_at + newest_s) - trace.steps_at(started_at + newest_s - usage.seconds)
        if steps > 0 and usage.seconds >= _LOOK_S / 2:
            steady[name] = _Steady(usage, steps)
    return steady


def _bytes_below(directory: Path) -> float | None:
    """Size of the files of a directory (of its first ten thousand); None if there is nothing."""
    total = 0
    try:
        for file in itertools.islice(directory.rglob("*"), _MOST_FILES):
            status = file.lstat()
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    except OSError:  # it is being changed, or gone: so much is known
        pass
    return float(total) or None


def _spread(found: StepStatistics, resolution_s: float) -> float:
    """Of the logarithm of the step time in the next minutes: its error now, and half of what it drifted.

    Where steps come in bursts the error is several times the step: as a logarithm that is much less.
    """
    if not math.isfinite(found.half_width_s):  # of so few blocks only the moments of both ends are known
        return math.hypot(_SHORT_SPREAD, resolution_s / found.seconds, found.drift / 2)
    share = math.hypot(found.half_width_s / found.step_time_s / 1.96, found.drift / 2)
    return math.sqrt(math.log1p(share**2))


def _ranks(experiment: Experiment, nodes: int) -> int:
    """Workers of a member that is measured as one: of MPI those of its machine."""
    if experiment.launcher != "mpi":
        return 1
    return math.ceil([role for role, _ in member_names(experiment)].count("worker") / nodes)


def _traffic(
    experiment: Experiment, usage: Mapping[str, _Steady], nodes: int
) -> tuple[float | None, float | None]:
    """Bytes in and out of a worker, per step."""
    workers = [each for each in _of_role(usage, "worker") if each.steps > 0]
    ranks = _ranks(experiment, nodes)
    received = _mean([(each.usage.bytes_received, each.steps * ranks) for each in workers])
    return received, _mean([(each.usage.bytes_sent, each.steps * ranks) for each in workers])


def _latency_ms(usages: Iterable[Usage]) -> float | None:
    """Between the machines of a gang, one way: half of the median round trip; None if no member knows one."""
    from statistics import median  # every run imports this module, few are measured on several machines

    trips = [each.round_trip_ms for each in usages if each.round_trip_ms is not None]
    return median(trips) / 2 if trips else None


def _shares(experiment: Experiment, point: Point, workers: Sequence[Usage]) -> TimeShares:
    """Where the time went: what members kept busy. What the network took is known with the network card."""
    busy = [each.gpu_utilisation for each in workers if each.gpu_utilisation is not None]
    waits = [
        each.io_wait_seconds / max(each.seconds, 1e-3) for each in workers if each.io_wait_seconds is not None
    ]
    gpus = max(experiment.hardware.gpu_count, 1)
    return TimeShares.of(
        cores=_cores(experiment, workers, point.nodes or 1),
        devices=sum(busy) / len(busy) / gpus if busy else None,
        server=point.server_cpu,
        data=round(min(sum(waits) / len(waits), 1.0), 4) if waits else None,
    )


def _mean(counted: Sequence[tuple[int | None, float]]) -> float | None:
    """Bytes per step, over the members whose traffic the kernel tells."""
    rates = [count / steps for count, steps in counted if count is not None]
    return sum(rates) / len(rates) if rates else None
