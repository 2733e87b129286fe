"""What a task says of itself: its metrics file, and its speed.

* `MetricsReader` follows the JSON lines that ``trainmaster.report`` appends.
* `NotFinite` tells which metrics ended as NaN.
* `StepRate` turns steps over time into a rate and a time left.

What scripts print is read by `trainmaster.executors.telemetry.log_metrics.LogMetrics`.

Whatever a script writes (torn or endless lines, other encodings, a gigabyte), memory is bounded
and nothing raises.
"""

from __future__ import annotations

import math
import os
import stat
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainmaster.spec.metric_names import in_order

Metrics = dict[str, float | int | str | bool]

MAX_KEYS = 1000  # a script that makes up a new name each step must not fill the memory
CHUNK = 1 << 20  # bytes taken from a metrics file at once; a longer line is skipped
LEAST_S = (
    0.4  # a rate over less is of lines that were read together, not of a speed; below a look of a driver
)
_TAIL = 256  # bytes before the offset by which a file is known again
_MOST_TOLD = 3  # metrics that are not finite, by name
_MAX_TEXT = 200  # characters of a name or of a text value
_MOST = 1 << 63  # databases hold 64 bits


def json_safe(values: Mapping[str, object]) -> dict[str, object]:
    """The same, with None for NaN and the infinities, which JSON does not have.

    >>> json_safe({"step": 3, "loss": float("nan")})
    {'step': 3, 'loss': None}
    """
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in values.items()
    }


def remember(last: Metrics, row: Metrics) -> None:
    """Put a row's values into ``last``, which never holds more than `MAX_KEYS` names."""
    last.update(row if len(last) < MAX_KEYS else {key: row[key] for key in row.keys() & last.keys()})
    while len(last) > MAX_KEYS:
        last.popitem()  # the newest name


class NotFinite:
    """Metrics whose last value is NaN or an infinity, and since when.

    >>> metrics = NotFinite()
    >>> for step, loss in enumerate([0.5, math.nan, 0.4, math.nan, math.inf]):
    ...     metrics.add({"step": step, "loss": loss})
    >>> metrics.words
    'loss is inf since step 3'
    """

    def __init__(self) -> None:
        self._since: dict[str, tuple[float | int | None, float]] = {}
        self._step: float | int | None = None

    def add(self, row: Mapping[str, object]) -> None:
        """One more report."""
        step = row.get("step")
        if isinstance(step, int | float):
            self._step = step
        for key, value in row.items():
            if not isinstance(value, float) or math.isfinite(value):
                self._since.pop(key, None)
            elif key in self._since or len(self._since) < MAX_KEYS:
                self._since[key] = (self._since.get(key, (self._step, 0.0))[0], value)

    @property
    def words(self) -> str:
        """For people; empty if all is well."""
        names = in_order(self._since)
        told = []
        for name in names[:_MOST_TOLD]:
            step, value = self._since[name]
            told.append(f"{name} is {value}" + ("" if step is None else f" since step {step:g}"))
        more = len(names) - len(told)
        return ", ".join(told) + (f", and {more} more metrics are not finite" if more else "")


class MetricsReader:
    """Follows a ``TRAINMASTER_METRICS`` file, which may not exist yet.

    Attributes:
        offset: bytes of the file that are dealt with; a new reader may start there.
        skipped: lines that were no JSON object with at least one number, text or truth value.
        problem: why the file could not be read, else empty.
        last: the last value of each name, of the first `MAX_KEYS` names.

    Args:
        path: of the file.
        offset: where to begin.
        until: the end of a line: what follows is not read; None reads all.
    """

    def __init__(self, path: str | Path, offset: int = 0, until: int | None = None) -> None:
        self.path = path
        self.offset = offset
        self._until = until
        self.skipped = 0
        self.problem = ""
        self.last: Metrics = {}
        self._in_long_line = False
        self._tail = b""  # what was read last

    @property
    def is_rewritten(self) -> bool:
        """Whether other lines are there now than those that were read, so that it reads from the start."""
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return self._is_other(file)
        except OSError:  # a named pipe
            return False
        finally:
            os.close(file)

    def _is_other(self, file: int) -> bool:
        at = self.offset - len(self._tail)
        return os.fstat(file).st_size < self.offset or os.pread(file, len(self._tail), at) != self._tail

    def read(self, *, final: bool = False) -> list[Metrics]:
        """New rows, from at most 1 MiB of lines; empty only at the end of the file, so call it until then.

        Args:
            final: the writer is gone: a last line without its newline counts too.
        """
        while True:
            rows, at_end = self._step(final)
            if rows or at_end:
                return rows

    def _step(self, final: bool) -> tuple[list[Metrics], bool]:
        data = self._read_chunk()
        at_end = len(data) < CHUNK
        end = data.rfind(b"\n") + 1
        is_cut = self._in_long_line or (final and at_end and end < len(data))
        if end and not is_cut and (rows := _alike(data[:end])):
            self._go_on(data[:end])
            remember(self.last, rows[-1])
            return rows, at_end
        lines = data[:end].splitlines()
        if lines and self._in_long_line:  # what is left of it
            del lines[0]
            self._in_long_line = False
        if not end and not at_end:
            self.skipped += not self._in_long_line
            self._in_long_line = True
            end = len(data)
        elif final and at_end and data[end:]:
            if not self._in_long_line:
                lines.append(data[end:])
            end = len(data)
        self._go_on(data[:end])
        return [row for line in lines if line.strip() and (row := self._row(line))], at_end

    def _go_on(self, read: bytes) -> None:
        self.offset += len(read)
        self._tail = (self._tail + read[-_TAIL:])[-_TAIL:]

    def _read_chunk(self) -> bytes:
        self.problem = ""
        try:
            # Non-blocking, because a script may have put a named pipe there.
            file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise OSError(f"{self.path} is not a regular file")
                if self._is_other(file):  # the script has begun it again
                    self.offset, self._tail, self._in_long_line = 0, b"", False
                most = CHUNK if self._until is None else max(0, min(CHUNK, self._until - self.offset))
                return os.pread(file, most, self.offset)
            finally:
                os.close(file)
        except FileNotFoundError:
            return b""
        except OSError as error:
            self.problem = str(error)
            return b""

    def _row(self, line: bytes) -> Metrics | None:
        from pydantic_core import from_json

        try:
            found = from_json(line)
        except ValueError:  # also wrong encodings, 5,000-digit integers, too many brackets
            found = None
        row = _clean(found) if isinstance(found, dict) else {}
        if not row:
            self.skipped += 1
            return None
        remember(self.last, row)
        return row


class AlikeRows(list[Metrics]):
    """Rows with the same names, which hold plain numbers and truth values.

    Attributes:
        numbers: of each name that is always a number its values, one per row.
    """

    numbers: dict[str, list[float]]


def _alike(lines: bytes) -> AlikeRows | None:
    """What whole lines say if all have the same names, read at once.

    Nearly all files are of such lines, and this is ten times as fast as one by one.
    """
    array = lines[:-1].replace(b"}\n{", b"},{")
    if not array.startswith(b"{") or b"\n" in array:
        return None
    from pydantic_core import from_json

    try:
        rows = AlikeRows(from_json(b"[%b]" % array))
        columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in rows[0]}
        is_same = len(rows) == lines.count(b"\n") and set(map(len, rows)) == {len(columns)}
    except (ValueError, LookupError, TypeError):
        return None
    kinds = {name: set(map(type, column)) for name, column in columns.items()}
    rows.numbers = {name: column for name, column in columns.items() if kinds[name] <= {float, int}}
    are_plain = all(kind == {bool} for name, kind in kinds.items() if name not in rows.numbers)
    are_small = not any(int in kinds[name] and _has_huge(column) for name, column in rows.numbers.items())
    if not is_same or not columns or len(columns) > MAX_KEYS or max(map(len, columns)) > _MAX_TEXT:
        return None
    return rows if are_plain and are_small else None


def _has_huge(column: list[float]) -> bool:
    """Whether there are integers that databases do not hold."""
    whole = [value for value in column if type(value) is int]
    return min(whole) < -_MOST or max(whole) >= _MOST


def _clean(found: dict[Any, Any]) -> Metrics:
    row: Metrics = {}
    for key, value in found.items():
        if len(row) >= MAX_KEYS:
            break
        if not isinstance(value, (bool, int, float, str)) or len(key) > _MAX_TEXT:
            continue
        if isinstance(value, str):
            value = value[:_MAX_TEXT]
        elif isinstance(value, int) and abs(value) >= _MOST:
            value = float(value) if abs(value) < 1 << 1000 else math.inf if value > 0 else -math.inf
        row[key] = value
    return row


class StepRate:
    """Steps and examples per second over a recent window.

    A step that goes back (a restart from a checkpoint, a bar that begins anew) or a clock that
    does begins a new window. What comes at once at its begin was made before: it says nothing of the speed.

    >>> rate = StepRate()
    >>> for second in range(5):
    ...     rate.observe(second, step=10 * second, examples=640 * second)
    >>> rate.steps_per_s, rate.examples_per_s, rate.eta_s(100)
    (10.0, 640.0, 6.0)
    """

    def __init__(self, window_s: float = 30.0, points: int = 64) -> None:
        self._window_s = window_s
        self._points = points
        self._seen: deque[tuple[float, float | None, float | None]] = deque()
        self._began_s = 0.0

    def observe(self, time_s: float, step: float | None, examples: float | None = None) -> None:
        """At ``time_s`` (of any steady clock) so many steps, or examples, or both, were done in all."""
        done = examples if step is None else step
        if done is None or not all(math.isfinite(number) for number in (time_s, done, examples or 0)):
            return
        seen, now = self._seen, (time_s, step, examples)
        if seen and (time_s < seen[-1][0] or _is_anew(seen[-1][1:], now[1:])):
            seen.clear()
        if not seen:
            self._began_s = time_s
        # The newest point slides along until it is far enough from the one before it to stay.
        is_first = len(seen) == 1 and time_s - self._began_s < LEAST_S
        if is_first or (len(seen) > 1 and seen[-1][0] - seen[-2][0] < self._window_s / self._points):
            seen[-1] = now
        else:
            seen.append(now)
        while len(seen) > 2 and time_s - seen[1][0] >= self._window_s:
            seen.popleft()

    @property
    def steps_per_s(self) -> float | None:
        """None until it was seen over `LEAST_S`."""
        return self._rate(1)

    @property
    def examples_per_s(self) -> float | None:
        """None until they were seen over `LEAST_S`, or when examples are not counted."""
        return self._rate(2)

    def eta_s(self, total_steps: float, now_s: float | None = None) -> float | None:
        """Seconds until ``total_steps``, from the last observation or from ``now_s``; None if unknown."""
        return self._eta_s(1, total_steps, now_s)

    def examples_eta_s(self, total_examples: float) -> float | None:
        """The same until ``total_examples``."""
        return self._eta_s(2, total_examples, None)

    def _eta_s(self, field: int, total: float, now_s: float | None) -> float | None:
        rate = self._rate(field)
        if not rate:
            return None
        passed = 0.0 if now_s is None else max(0.0, now_s - self._seen[-1][0])
        return max(0.0, (total - (self._seen[-1][field] or 0.0)) / rate - passed)

    def _rate(self, field: int) -> float | None:
        if len(self._seen) < 2:
            return None
        first, last = self._seen[0], self._seen[-1]
        before, after = first[field], last[field]
        if before is None or after is None or last[0] - first[0] < LEAST_S or after < before:
            return None
        return (after - before) / (last[0] - first[0])


def _is_anew(before: tuple[float | None, float | None], now: tuple[float | None, float | None]) -> bool:
    """Steps went back, or examples where there are no steps, or now there are steps."""
    if before[0] is not None and now[0] is not None:
        return now[0] < before[0]
    return (before[0] is None) != (now[0] is None) or (now[1] or 0.0) < (before[1] or 0.0)
