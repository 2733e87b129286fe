"""`TaskReports`: all numbers that a task has reported, by name; each look reads on where the last ended."""

from __future__ import annotations

import math
import threading
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from trainmaster.executors.telemetry.member_metrics import MemberMetrics
from trainmaster.executors.telemetry.metrics import MAX_KEYS, AlikeRows, Metrics
from trainmaster.executors.telemetry.usage import member_samples
from trainmaster.spec.metric_names import COUNTERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainmaster.control.task.layout import AttemptPlace
    from trainmaster.spec import Experiment
    from trainmaster.sweeps import Curve

#: A longer column keeps half of its points, of 65,000 equal stretches the least and the greatest.
_MOST: Final = 1 << 18
#: However many there are, each may have as many points as this.
_LEAST: Final = 1 << 12
#: Of all tasks that were looked at, so many points are kept (64 MB), and so many tasks.
_MOST_KEPT: Final = 1 << 22
_MOST_TASKS: Final = 500
_kept: OrderedDict[tuple[str, ...], TaskReports] = OrderedDict()
_lock = threading.Lock()


class Column:
    """Values of one name by rising step.

    At a step that was there before the script has gone back to a checkpoint: what follows is replaced.

    >>> column = Column()
    >>> for step in (1, 2, 4, 2):
    ...     column.add(step, 0.5 * step)
    >>> list(column.steps), list(column.values)
    ([1.0, 2.0], [0.5, 1.0])
    """

    __slots__ = ("steps", "values")

    def __init__(self) -> None:
        self.steps = array("d")
        self.values = array("d")

    @property
    def last_step(self) -> float:
        """The highest step; minus infinity without any."""
        return self.steps[-1] if self.steps else -math.inf

    def add(self, step: float, value: float) -> None:
        """One more value; a step that is no finite number is passed over."""
        if not math.isfinite(step):
            return
        self._go_back(step)
        self.steps.append(step)
        self.values.append(value)
        self.thin()

    def extend(self, steps: NDArray[Any], values: Sequence[float] | NDArray[Any]) -> None:
        """More values at steps that rise and are finite."""
        import numpy as np

        self._go_back(steps[0])
        self.steps.frombytes(steps.tobytes())
        self.values.frombytes(np.asarray(values, np.float64).tobytes())
        self.thin()

    def curve(self, most: int) -> Curve:
        """At most so many points of it; see `thinned`."""
        from trainmaster.sweeps import Curve

        kept = thinned(self.steps, self.values, most)
        return Curve.of([_whole(self.steps[at]) for at in kept], [self.values[at] for at in kept])

    def _go_back(self, step: float) -> None:
        if step <= self.last_step:
            keep = bisect_left(self.steps, step)
            del self.steps[keep:], self.values[keep:]

    def thin(self, most: int | None = None) -> None:
        """Keep half of so many points of a longer one; None: of `_MOST`."""
        most = most or _MOST
        if len(self.steps) > most:
            import numpy as np

            kept = thinned(self.steps, self.values, most // 2)
            self.steps = array("d", np.asarray(self.steps)[kept].tobytes())
            self.values = array("d", np.asarray(self.values)[kept].tobytes())


class TaskReports:
    """What the first members of the attempts at one task have reported.

    Attributes:
        axis: what it counts by, ``step`` or ``epoch``; empty if it did not say.
        columns: by name, as they were reported first, at most `MAX_KEYS`.
        begun: by name the last step before the newest attempt.
        points: how much of the memory it needs.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.axis = ""
        self.columns: dict[str, Column] = {}
        self.begun: dict[str, float] = {}
        self.points = 0
        self._sources: list[MemberMetrics] = []
        #: Of each attempt how much was written by a step, in bytes; where each epoch began.
        self._written: list[Column] = []
        self._epochs = Column()
        self._at: dict[str, float] = {}

    @property
    def is_stale(self) -> bool:
        """Whether what was read is not what there is: files come late, or were rewritten."""
        return any(source.has_more for source in self._sources[:-1]) or any(
            source.is_rewritten for source in self._sources
        )

    def read(self, experiment: Experiment, places: Sequence[AttemptPlace], *, is_over: bool) -> None:
        """Read on.

        Args:
            experiment: of the task.
            places: of its attempts, the first one first.
            is_over: the newest of them is; so a last line counts without its end, too.
        """
        from trainmaster.control.task.gangs import member_names

        member = "{}-{}".format(*member_names(experiment)[0])
        for number in range(max(0, len(self._sources) - 1), len(places)):
            if number == len(self._sources):
                directory = places[number].directory
                self._sources.append(MemberMetrics(directory, member, experiment.metrics_pattern))
                self._written.append(Column())
                self._at = {}
                self.begun = {name: column.last_step for name, column in self.columns.items()}
            self._read_on(self._sources[number], final=is_over or number + 1 < len(places))
        self.points = sum(len(column.steps) for column in (*self.columns.values(), *self._written))

    def _read_on(self, source: MemberMetrics, *, final: bool) -> None:
        size = 1
        while size:
            (kind, before) = source.place
            rows, size = source.read(final=final)
            (now, end) = source.place
            if kind != now or (rows and end <= before):  # from the start
                self._written[-1], before = Column(), 0
            if rows and not self._add_alike(rows, before, end):
                for number, row in enumerate(rows, 1):  # lines of one member are about as long as each other
                    self._add(row, before + (end - before) * number / len(rows))
            # One task with hundreds of names may not take more than all tasks together.
            most = max(_LEAST, min(_MOST, _MOST_KEPT // max(len(self.columns), 1)))
            for column in self.columns.values():
                column.thin(most)

    def _add_alike(self, rows: Sequence[Metrics], before: int, end: int) -> bool:
        """Add rows with the same names and rising steps at once, as nearly all are; False: they are not."""
        import numpy as np

        numbers = rows.numbers if isinstance(rows, AlikeRows) else {}
        by = "step" if "step" in numbers else "epoch"
        if by not in numbers or (by == "epoch" and "step" in self._at):
            return False
        steps = np.asarray(numbers[by], np.float64)
        if not np.isfinite(steps).all() or not (np.diff(steps) > 0).all():
            return False
        self.axis = self.axis or by
        for name, values in numbers.items():
            if name not in COUNTERS and (column := self._column(name)) is not None:
                column.extend(steps, values)
        some = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), 256)).astype(int))
        self._written[-1].extend(steps[some], before + (end - before) * (some + 1) / len(rows))
        began = [0]
        if "epoch" in numbers:
            epochs = np.asarray(numbers["epoch"], np.float64)
            began += (1 + np.flatnonzero(epochs[1:] > np.maximum.accumulate(epochs)[:-1])).tolist()
        for index in began:
            self._at |= {key: numbers[key][index] for key in ("step", "epoch") if key in numbers}
            self._see_epoch(steps[index])
        self._at |= {key: numbers[key][-1] for key in ("step", "epoch") if key in numbers}
        return True

    def _add(self, row: Metrics, offset: float) -> None:
        numbers = {
            key: value
            for key, value in row.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        at = self._at
        at.update({key: numbers[key] for key in ("step", "epoch") if key in numbers})
        if at and not self.axis:
            self.axis = "step" if "step" in at else "epoch"
        step = at.get("step", at.get("epoch"))
        for name in (key for key in numbers if key not in COUNTERS):
            if (column := self._column(name)) is not None:
                reports = column.last_step + 1 if column.steps else 1
                column.add(reports if step is None else step, numbers[name])
        if step is not None:
            self._written[-1].add(step, offset)
            self._see_epoch(step)

    def _column(self, name: str) -> Column | None:
        if name not in self.columns and len(self.columns) >= MAX_KEYS:
            return None
        return self.columns.setdefault(name, Column())

    def _see_epoch(self, step: float) -> None:
        epochs, now = self._epochs, self._at.get("epoch")
        if now is None or not math.isfinite(step):
            return
        if step <= epochs.last_step or not epochs.steps or epochs.values[-1] < now:
            epochs.add(step, now)

    def axes(self, most: int) -> dict[str, Curve]:
        """Other places of what was reported, by step: ``time`` (seconds since the first one) and ``epoch``.

        Args:
            most: points of each.

        Returns:
            Those that are known.
        """
        from trainmaster.sweeps import Curve

        found, times = {}, Curve()
        for source, written in zip(self._sources, self._written, strict=True):
            curve = written.curve(most)
            if len(curve) and (marks := written_at(source)):
                for step, at in zip(curve.steps, placed(marks, curve.values), strict=True):
                    times.add(step, at)
        if len(times):
            found["time"] = Curve((step, round(at - times.values[0], 4)) for step, at in times)
        if self._epochs.steps:
            found["epoch"] = self._epochs.curve(most)
        return found


def reports_of(
    experiment: Experiment, places: Iterable[AttemptPlace], *, is_over: bool = False
) -> TaskReports:
    """What a task has reported up to now; what was read at an earlier look is not read again.

    Args:
        experiment: of the task.
        places: of its attempts, the first one first.
        is_over: nothing more will come.
    """
    places = list(places)
    key = (str(experiment.metrics_pattern), *(str(place.directory) for place in places))
    with _lock:
        reports = _kept.setdefault(key, TaskReports())
    with reports.lock:
        if reports.is_stale:
            reports = TaskReports()
        reports.read(experiment, places, is_over=is_over)
    with _lock:
        _kept[key] = reports
        _kept.move_to_end(key)
        left = sum(each.points for each in _kept.values())
        while len(_kept) > 1 and (left > _MOST_KEPT or len(_kept) > _MOST_TASKS):
            left -= _kept.popitem(last=False)[1].points
    return reports


def thinned(steps: Sequence[float], values: Sequence[float], most: int) -> list[int]:
    """Indices of at most so many points of a curve: the first, the last, and those a picture may not lose.

    These are of as many equally wide columns as there may be the least and the greatest value, or what is no
    number where nothing else is, and from where on all are none.

    >>> thinned(range(8), [5, 1, 2, 9, 3, 4, 0, 7], 7)
    [0, 1, 3, 6, 7]
    """
    count = len(values)
    if count <= most:
        return list(range(count))
    if most < 6:
        return [0, count - 1][:most]
    import numpy as np

    x, y = np.asarray(steps, np.float64), np.asarray(values, np.float64)
    bad = ~np.isfinite(y)
    is_whole = not bad.any()
    columns = max(1, (most - 3) // 2)
    edges = x[0] + (x[-1] - x[0]) * np.arange(columns) / columns
    starts = np.searchsorted(x, edges)
    starts = starts[np.diff(starts, append=count) > 0]
    sizes = np.diff(starts, append=count)
    kept = np.zeros(count, np.bool_)
    kept[[0, -1]] = True
    for sign in (1, -1):
        upright = sign * y if is_whole else np.where(bad, np.inf, sign * y)
        least = np.repeat(np.minimum.reduceat(upright, starts), sizes)
        kept[_first_of_each(starts, (upright == least) & ~bad)] = True
    if not is_whole:
        kept[_first_of_each(starts, least == np.inf)] = True
        numbers = np.flatnonzero(~bad)
        kept[min(int(numbers[-1]) + 1 if len(numbers) else 0, count - 1)] = True
    found: list[int] = np.flatnonzero(kept).tolist()
    return found


def _first_of_each(starts: NDArray[Any], which: NDArray[Any]) -> NDArray[Any]:
    """Indices of the first in each stretch of those that are true."""
    import numpy as np

    found = np.flatnonzero(which)
    stretches = np.searchsorted(starts, found, "right")
    first: NDArray[Any] = found[np.diff(stretches, prepend=-1) > 0]
    return first


def _whole(step: float) -> float:
    return int(step) if step.is_integer() else step


def written_at(metrics: MemberMetrics) -> list[tuple[float, float]]:
    """How many bytes a member had written at each look at it, and when that was, by the clock of its node.

    Both rise; empty if it is not known.

    Args:
        metrics: of the member, read before: it says whether its file or its log counts.
    """
    looks = [
        row
        for row in member_samples(metrics.directory).get(metrics.member, ())
        if isinstance(row.get("time"), int | float)
    ]
    kind, _ = metrics.place
    known = [(row[kind], row["time"]) for row in looks if isinstance(row.get(kind), int)]
    if not known:
        return []
    marks: list[tuple[float, float]] = [(0.0, looks[0]["time"] - looks[0]["seconds"])]
    for size, at in known:
        if size < 0 or (marks[-1][0] and size <= marks[-1][0]):
            continue
        marks.append((size, at)) if size else marks.__setitem__(-1, (0.0, at))
    return marks if len(marks) > 1 else []


def placed(marks: Sequence[tuple[float, float]], at: Sequence[float]) -> list[float]:
    """Values at some places, on straight lines through those that are known, the last of which goes on.

    Args:
        marks: places, rising, and values; at least two.
        at: the places.

    >>> placed([(0, 10.0), (100, 20.0), (200, 40.0)], [-1, 0, 50, 150, 250])
    [9.9, 10.0, 15.0, 30.0, 50.0]
    """
    found = []
    for x in at:
        right = min(max(1, bisect_left(marks, (x, float("-inf")))), len(marks) - 1)
        (x1, y1), (x2, y2) = marks[right - 1], marks[right]
        found.append(round(y1 + (y2 - y1) * (x - x1) / (x2 - x1), 4))
    return found
