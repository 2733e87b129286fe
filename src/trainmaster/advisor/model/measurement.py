"""What one attempt at a task showed of its speed: the raw material of quotes.

Where the time of a measured step went, as far as the counters of kernel and devices tell.

What was measured of a job: points, and the profile that holds them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from trainmaster.dataclass import dataclass, field
from trainmaster.spec import Strategy
from trainmaster.spec.plain_json import JsonObject

if TYPE_CHECKING:
    from trainmaster.advisor.market.load import LoadCorrection

#: Other work that holds the processors for more of the time has disturbed what is measured.
HELD: Final = 0.1
#: Doubt (log) of the mean of a few times that are never negative: its standard error is at most itself.
MOST_STEP_DOUBT: Final = math.sqrt(math.log(2))
#: Members are looked at every second: in less time nothing is known of what others hold.
_BRIEF_S: Final = 3.0
#: What ends with a smaller share of the steps that it has said has ended early.
_WHOLE: Final = 0.75
#: From the median to the 5th percentile, in spreads.
_P5_SIGMA: Final = 1.645
#: What of a measurement is not told.
_SILENT: Final = (
    "code_lines", "numbers", "curve", "startup_doubt", "work_doubt", "wanted", "load", "begun_at",
    "said_steps", "unit", "of_task", "as_seen",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Point:
    """One shape of a cluster, with its step time if that was measured. ``None`` is "unknown".

    Attributes:
        sync: how the workers agree.
        workers: training processes in all, parameter servers not counted.
        nodes: machines the training processes sit on; more than ``workers`` counts as ``workers``.
        parameter_servers: 0 for all-reduce.
        local_batch: samples per worker and step.
        latency_ms: one-way latency between nodes, milliseconds (as set with netem, or measured).
        nic_mbps: megabits per second of one node's network card, one direction.
        gradient_bytes: bytes of one gradient as it is sent.
        step_time_s: median seconds per step; for ``ps-async`` seconds per *global* step,
            that is 1 / (global steps per second).
        step_time_p10_s, step_time_p90_s: quantiles of the single steps.
        steps: how many steps the median rests on.
        bytes_in, bytes_out: per member and step, as counted by the kernel.
        server_cpu: share of the parameter server's processors in use, 0..1.
        peak_memory_bytes: of the device.
        offer: what it was measured on, a name in the catalogue.
    """

    sync: Strategy
    workers: int
    nodes: int | None = None
    parameter_servers: int | None = None
    local_batch: float | None = None
    latency_ms: float | None = None
    nic_mbps: float | None = None
    gradient_bytes: float | None = None
    step_time_s: float | None = None
    step_time_p10_s: float | None = None
    step_time_p90_s: float | None = None
    steps: int | None = None
    bytes_in: float | None = None
    bytes_out: float | None = None
    server_cpu: float | None = None
    peak_memory_bytes: float | None = None
    offer: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ValueError: a count below 1, or a time or a size that is not positive and finite.
        """
        for name in ("workers", "nodes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; at least 1 is needed")
        if self.parameter_servers is not None and self.parameter_servers < self.sync.has_servers:
            raise ValueError(f"parameter_servers is {self.parameter_servers}; {self.sync} needs at least 1")
        for name in ("local_batch", "nic_mbps", "gradient_bytes", "step_time_s"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} is {value:g}; a positive number is needed")
        if self.latency_ms is not None and not (self.latency_ms >= 0 and math.isfinite(self.latency_ms)):
            raise ValueError(f"latency_ms is {self.latency_ms:g}; zero or more is needed")


@dataclass(frozen=True, slots=True)
class TimeShares:
    """Shares of the time of a step, 0..1; None is "unknown". They overlap: sending hides behind computing.

    Attributes:
        computing: a worker's devices, or at least one of its cores, were busy.
        waiting: neither was: it slept, or waited for other workers, servers, the network or data.
        network: what a worker sent, or received, takes at the rate of its network card; between machines.
        server: of the busiest parameter server's processors.
        data: anything on a worker's machine waited for a disk or a mounted volume.
    """

    computing: float | None = None
    waiting: float | None = None
    network: float | None = None
    server: float | None = None
    data: float | None = None

    @classmethod
    def of(
        cls, cores: float | None, devices: float | None, server: float | None, data: float | None = None
    ) -> TimeShares:
        """Of what workers and servers kept busy.

        Args:
            cores: that one worker kept busy on average.
            devices: share of the time that a worker's accelerators were busy; None without any.
            server: share of a parameter server's processors that was busy.
            data: share of the time for which disks or volumes were waited for.

        >>> TimeShares.of(cores=1.7, devices=0.25, server=None)
        TimeShares(computing=0.25, waiting=0.75, network=None, server=None, data=None)
        """
        busy = devices if devices is not None else cores
        if busy is None:
            return cls(server=server, data=data)
        computing = round(min(busy, 1.0), 4)
        return cls(computing, round(1 - computing, 4), None, server, data)

    def over(self, nic_mbps: float, bytes_per_step: float, step_time_s: float) -> TimeShares:
        """The same with what a network card takes.

        Args:
            nic_mbps: of the card.
            bytes_per_step: that one worker sent, or received if that is more.
            step_time_s: seconds per step.

        >>> TimeShares().over(10_000, 1e8, 0.2).network
        0.4
        """
        return replace(self, network=round(min(bytes_per_step * 8 / (nic_mbps * 1e6) / step_time_s, 1.0), 4))


@dataclass(frozen=True, slots=True)
class ObservedCurve:
    """A metric of one attempt, by step.

    Attributes:
        metric: its name.
        points: step and value, rising.
        batch: examples of a step of all workers together; None if unknown.
        is_run: it is of a run; else of a measurement that was stopped after a minute.
        noise: gradient noise scale in batches, where it was measured.
        is_kin: it is of another version of the job: its code, batch or parameters were others.
    """

    metric: str
    points: tuple[tuple[float, float], ...]
    batch: float | None = None
    is_run: bool = True
    noise: float | None = None
    is_kin: bool = False


@dataclass(frozen=True, slots=True)
class Measurement(JsonObject):
    """One attempt, measured: a profiling attempt, or an attempt of a real run.

    Attributes:
        point: shape and step time; None where the task shows no steps (then ``duration_s`` is known).
        startup_s: from the start of its members to the end of its first step; 0 without steps.
        warmup_s: what the steps before the steady ones took beyond what steady ones take.
        pause_s: per epoch, what validation and checkpoints took; None if no epoch was seen to end.
        tail_s: from the last step to the end; None if it was stopped before it ended.
        duration_s: of the whole attempt, if it ended by itself and succeeded; else None.
        steps_done: how many steps it made, 0 without steps.
        memory_bytes: peak of main memory of one member (the largest), None if unknown.
        device_memory_bytes: peak of a device's memory of one member, None without a device.
        output_bytes: of what it left as its model so far. checkpoint_bytes: of its checkpoint directory.
        cores: CPU cores that one worker kept busy on average, None if unknown.
        server_cores: that the busiest parameter server kept busy, None without one.
        rare_share: what rare slow steps add to the time of all, relative to typical ones.
        time_shares: where the time of a step went, as far as it is known; None without steps.
        step_spread: how well the steady step time is known (log): its error, and how it drifted.
        offer: what it ran on: name of an instance type, or ``local``.
        measured_at: Unix seconds.
        does_not_fit: True where it failed, as its batch was too large for the machines; else None.
        epochs_done: number of the last epoch that was seen, None if it shows none.
        code_lines: what `kinship` compares: hashes of lines of its code.
        numbers: of its command, parameters and environment, by name.
        of_task: `task_numbers` of the task that it is of; None if unknown.
        curve: of the metric of its target.
        held: share of its time for which other work held the processors that it was ready for, or its
            machine was not given them; None if unknown. `step_spread` counts it.
        wanted: cores that all its members together kept busy, or were ready for and had not; None if unknown.
        load: of the machine as a measurement began that is no run; those of runs are kept with them.
        startup_doubt: about the start at the load of now, where it was seen at another; see `LoadCorrection`.
        work_doubt: the same about the steps, or the whole of it.
        begun_at: number of the step that it went on from, of a checkpoint, if it counts on; else 0.
        said_steps: how many it makes in all, as its script says; 0 where it does not, or the recipe does.
        saves_every_s: seconds from one of its checkpoints to the next; 0 where it made none, None if unknown.
        unit: what its steps are: ``step``, or ``epoch`` where it counts nothing finer.
        as_seen: this, before it was told for another load; None if it was not.
    """

    point: Point | None
    startup_s: float = 0.0
    warmup_s: float = 0.0
    pause_s: float | None = None
    tail_s: float | None = None
    duration_s: float | None = None
    steps_done: int = 0
    memory_bytes: float | None = None
    device_memory_bytes: float | None = None
    output_bytes: float | None = None
    checkpoint_bytes: float | None = None
    cores: float | None = None
    server_cores: float | None = None
    rare_share: float = 0.0
    step_spread: float = 0.0
    time_shares: TimeShares | None = None
    offer: str = "local"
    measured_at: float = 0.0
    does_not_fit: bool | None = None
    epochs_done: float | None = None
    code_lines: tuple[int, ...] | None = None
    numbers: Mapping[str, float] | None = None
    curve: ObservedCurve | None = None
    held: float | None = None
    wanted: float | None = None
    load: float | None = None
    startup_doubt: float = 0.0
    work_doubt: float = 0.0
    begun_at: int = 0
    said_steps: int = 0
    unit: str = "step"
    saves_every_s: float | None = None
    of_task: Mapping[str, float] | None = None
    as_seen: Measurement | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ValueError: neither a step time nor a duration, or a negative or infinite time.
        """
        has_step = self.point is not None and self.point.step_time_s is not None
        if not has_step and self.duration_s is None and not self.does_not_fit:
            raise ValueError("a measurement needs a step time or a duration")
        for name in ("startup_s", "warmup_s", "pause_s", "tail_s", "duration_s"):
            value = getattr(self, name)
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name} is {value}; zero or more is needed")

    @property
    def before_steps_s(self) -> float:
        """From the start of its members until its first step begins, if that takes as long as the others."""
        step_s = self.point.step_time_s if self.point is not None else None
        return max(self.startup_s - (step_s or 0.0), 0.0)

    @property
    def ended_early(self) -> bool:
        """Whether it ended by itself well before the steps that its script said it makes."""
        came_to = self.begun_at + self.steps_done
        return self.duration_s is not None and came_to < _WHOLE * self.said_steps

    def to_its_end(self) -> Measurement:
        """As if it had been seen to its end, where it was stopped and its script says how long it is."""
        step_s, left = self.point and self.point.step_time_s, self.said_steps - self.begun_at
        if self.duration_s is not None or not step_s or left < 1:
            return self
        once_s = self.startup_s + self.warmup_s + (self.tail_s or 0.0)
        work_s = (left - 1) * step_s * (1 + self.rare_share)
        return replace(self, duration_s=once_s + work_s, steps_done=left)

    def counted_in(self, unit: str) -> Measurement | None:
        """Without the time of a step, where its steps are another unit; None where nothing else is known."""
        if self.unit == unit or self.point is None or self.point.step_time_s is None:
            return self
        if self.duration_s is None:
            return None
        return replace(self, point=replace(self.point, step_time_s=None))

    def paced(self, factor: float) -> Measurement:
        """As if its steps took so many times as long, and all but what comes before and after them."""
        point, duration_s = self.point, self.duration_s
        if point is not None and point.step_time_s is not None:
            point = replace(point, step_time_s=point.step_time_s * factor)
        if duration_s is not None:
            once_s = min(self.startup_s + self.warmup_s + (self.tail_s or 0.0), duration_s)
            duration_s = once_s + (duration_s - once_s) * factor
        return replace(self, point=point, duration_s=duration_s)

    def shifted(self, start: LoadCorrection, work: LoadCorrection) -> Measurement:
        """As it would be at another load of the machine.

        Args:
            start: until its first step.
            work: its steps; where none were seen, the whole of it.
        """
        if (start.factor, start.doubt, work.factor, work.doubt) == (1.0, 0.0, 1.0, 0.0):
            return self
        found, once_s = self.paced(work.factor), self.startup_s + self.warmup_s
        duration_s = found.duration_s
        if duration_s is not None:
            duration_s += min(once_s, duration_s) * (start.factor - 1)
        return replace(
            found,
            startup_s=self.startup_s * start.factor,
            warmup_s=self.warmup_s * start.factor,
            duration_s=duration_s,
            startup_doubt=start.doubt,
            work_doubt=work.doubt,
            as_seen=self.as_seen or self,
        )

    def to_json(self) -> str:
        """As text for the database."""
        values = asdict(self)
        del values["startup_doubt"], values["work_doubt"], values["as_seen"]  # they are of one moment
        return json.dumps({name: value for name, value in values.items() if value is not None})

    @classmethod
    def from_json(cls, text: str) -> Measurement:
        """Read what `to_json` wrote."""
        values: Mapping[str, Any] = json.loads(text)
        point = values.get("point")
        if point is not None:
            point = Point(**{**point, "sync": Strategy(point["sync"])})
        shares, epochs = values.get("time_shares"), values.get("epochs_done")
        if "unit" not in values and epochs and 0 <= values.get("steps_done", 0) - epochs <= 1:
            values = {**values, "unit": "epoch"}  # an earlier version wrote it, and the first epoch may be 0
        lines, curve = values.get("code_lines"), values.get("curve")
        if curve is not None:
            points = tuple((float(step), float(value)) for step, value in curve["points"])
            curve = ObservedCurve(**{**curve, "points": points})
        found = cls(
            **{
                **values,
                "point": point,
                "time_shares": TimeShares(**shares) if shares else None,
                "code_lines": None if lines is None else tuple(lines),
                "curve": curve,
            }
        )
        return found._by_mean()

    def _by_mean(self) -> Measurement:
        """The same by the mean of its steps, where the doubt about their median says nothing; else itself.

        Of steps in bursts most wait for nothing, and some for all others. Earlier versions wrote doubts of
        many times the median. How long a run takes follows from the mean, which is known better; see
        `StepStatistics.by_mean`.
        """
        point, most = self.point, math.hypot(MOST_STEP_DOUBT, held_doubt(self.held))
        if point is None or point.step_time_s is None or self.step_spread <= most:
            return self
        point = replace(point, step_time_s=point.step_time_s * (1 + self.rare_share))
        return replace(self, point=point, rare_share=0.0, step_spread=most)

    def as_dict(self) -> dict[str, Any]:
        """For ``quote --json``: what is known of it, as it was seen."""
        values = asdict(replace(self.as_seen or self, offer=self.offer))
        point = values.pop("point") or {}
        for name in _SILENT:
            del values[name]
        return {name: value for name, value in {**point, **values}.items() if value is not None}


def held_doubt(held: float | None) -> float:
    """Doubt (log) about times while other work held so much of the processors; see `Measurement.held`.

    Alone, a step may be quicker by all that others held: that is p5 then.

    >>> held_doubt(None), held_doubt(HELD), round(held_doubt(0.6), 2)
    (0.0, 0.0, 0.42)
    """
    return math.log(1 / (1 - max((held or 0.0) - HELD, 0.0))) / _P5_SIGMA


def brief_doubt(seconds: float, load: float | None, cores: int) -> float:
    """Doubt (log) about times of so short an attempt beside others: what has just begun goes before them.

    A sweep was quoted 4 s (3 to 7) by less than a second at load 6; its steps took nearly four times that.
    What others hold of its processors is not seen within that; at p95 it has its share of them only.

    >>> brief_doubt(0.8, 0.5, 2), brief_doubt(9.0, 6.0, 2), round(brief_doubt(0.8, 6.0, 2), 2)
    (0.0, 0.0, 0.76)

    Args:
        seconds: that it took.
        load: of the machine as it began; None if unknown.
        cores: of the machine.
    """
    if load is None or seconds >= _BRIEF_S:
        return 0.0
    return math.log(max((load + 1) / cores, 1.0)) / _P5_SIGMA


def held_words(held: float | None, verb: str = "held") -> str:
    """What other work has done to times, in words; empty where that is little, or unknown.

    >>> held_words(0.45), held_words(0.05), held_words(None)
    ('other work held its processors for 45 % of the time', '', '')
    """
    is_much = held is not None and held > HELD
    return f"other work {verb} its processors for {100 * held:.0f} % of the time" if held and is_much else ""
