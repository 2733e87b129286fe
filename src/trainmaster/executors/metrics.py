"""What a task says of itself: its metrics file, the numbers in its log, and its speed.

* `MetricsReader` follows the JSON lines that ``trainmaster.report`` appends.
* `LogMetrics` finds metrics in what scripts print (Keras, Lightning, tqdm, key-value prints).
* `StepRate` turns steps over time into a rate and a time left.

Whatever a script writes (torn or endless lines, other encodings, a gigabyte), memory is bounded
and nothing raises.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainmaster.spec.errors import UsageError

Metrics = dict[str, float | int | str | bool]

MAX_KEYS = 1000  # a script that makes up a new name each step must not fill the memory
CHUNK = 1 << 20  # bytes taken from a metrics file at once; a longer line is skipped
MAX_LINE = 4096  # bytes of a log line that are looked at: bounds the work of any pattern
_MAX_TEXT = 200  # characters of a name or of a text value


def json_safe(values: Mapping[str, object]) -> dict[str, object]:
    """The same, with None for NaN and the infinities, which JSON does not have.

    >>> json_safe({"step": 3, "loss": float("nan")})
    {'step': 3, 'loss': None}
    """
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in values.items()
    }


def _remember(last: Metrics, row: Metrics) -> None:
    last.update(row if len(last) < MAX_KEYS else {key: row[key] for key in row.keys() & last.keys()})
    while len(last) > MAX_KEYS:
        last.popitem()  # the newest name


class MetricsReader:
    """Follows a ``TRAINMASTER_METRICS`` file, which may not exist yet.

    Attributes:
        offset: bytes of the file that are dealt with; a new reader may start there.
        skipped: lines that were no JSON object with at least one number, text or truth value.
        problem: why the file could not be read, else empty.
        last: the last value of each name, of the first `MAX_KEYS` names.
    """

    def __init__(self, path: str | Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self.skipped = 0
        self.problem = ""
        self.last: Metrics = {}
        self._in_long_line = False

    def read(self, *, final: bool = False) -> list[Metrics]:
        """New rows, from at most 1 MiB of lines; empty only at the end of the file, so call it until then.

        Args:
            final: nobody writes any more: a last line without its newline counts too.
        """
        while True:
            rows, at_end = self._step(final)
            if rows or at_end:
                return rows

    def _step(self, final: bool) -> tuple[list[Metrics], bool]:
        data = self._read_chunk()
        at_end = len(data) < CHUNK
        end = data.rfind(b"\n") + 1
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
        self.offset += end
        return [row for line in lines if line.strip() and (row := self._row(line))], at_end

    def _read_chunk(self) -> bytes:
        self.problem = ""
        try:
            # Non-blocking, because a script may have put a named pipe there.
            file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                status = os.fstat(file)
                if not stat.S_ISREG(status.st_mode):
                    raise OSError(f"{self.path} is not a regular file")
                if status.st_size < self.offset:  # the script has begun it anew
                    self.offset, self._in_long_line = 0, False
                return os.pread(file, CHUNK, self.offset)
            finally:
                os.close(file)
        except FileNotFoundError:
            return b""
        except OSError as error:
            self.problem = str(error)
            return b""

    def _row(self, line: bytes) -> Metrics | None:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):  # also wrong encodings and 5,000-digit integers
            found = None
        row = _clean(found) if isinstance(found, dict) else {}
        if not row:
            self.skipped += 1
            return None
        _remember(self.last, row)
        return row


def _clean(found: dict[Any, Any]) -> Metrics:
    row: Metrics = {}
    for key, value in found.items():
        if len(row) >= MAX_KEYS:
            break
        if not isinstance(value, (bool, int, float, str)) or len(key) > _MAX_TEXT:
            continue
        if isinstance(value, str):
            value = value[:_MAX_TEXT]
        elif isinstance(value, int) and abs(value) >= 1 << 63:  # databases hold 64 bits
            value = float(value) if abs(value) < 1 << 1000 else math.inf if value > 0 else -math.inf
        row[key] = value
    return row


_NUMBER = r"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?|nan|inf(?:inity)?)"
_ONE_NUMBER = re.compile(rf"({_NUMBER})\s?(%?)[,;:)\]]*", re.I)
# Colours, cursor movements and the backspaces with which Keras wipes its bar.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\b\x00]")

_EPOCH_LINE = re.compile(r"Epoch (\d{1,9})/\d+")
_KERAS_BAR = re.compile(r"(\d{1,15})/(\d{1,15}|Unknown)\s+(?:\[[=>.\s]+\]|━|-?\s*\d+(?:\.\d+)?m?s\b)")
_KERAS_PAIR = re.compile(rf" - ([A-Za-z_]\w*): ({_NUMBER})(?= - |$)", re.I)
_TQDM_BAR = re.compile(
    r"(?:\d{1,3}%\s?(?:\|[^|]*\|)?\s*(\d{1,15})/(\d{1,15})|(?<!\S)(\d{1,15})it) \[([^\]]*)"
)
_TQDM_STEPS = re.compile(r"(?<![a-zA-Z])(?:it|iters?|batch(?:es)?|steps?)/s\b|s/(?:it|iter|batch|step)\b")
_TQDM_PAIR = re.compile(rf"([A-Za-z_][\w/@.-]*)=\s*({_NUMBER})(?=[,\s\]]|$)", re.I)
_TQDM_EPOCH = re.compile(r"epoch\s*[:\[#]?\s*(\d{1,9})(/\d+)?", re.I)
_NOT_TRAINING = re.compile(r"\W*(?:val|sanity|test|eval|predict)", re.I)
_DICT_PAIR = re.compile(rf"""['"]([A-Za-z_][\w/@.-]*)['"]:\s*['"]?({_NUMBER})['"]?\s*(?=[,}}])""", re.I)

_SCORES = (
    r"(?:log)?loss|accuracy|acc|auc|f1|mae|mse|rmse|mape|r2|perplexity|ppl|bleu|wer|cer|m?iou|reward|"
    r"lr|learning[_ ]rate|grad_norm"
)
_PAIR = re.compile(
    r"(?<![\w./@-])(?:(?P<of>train|training|val|valid|validation|dev|test|eval|best)[ -])?"
    rf"(?P<key>(?:[a-z]\w*[_/])?(?:{_SCORES})|(?:train|val|valid|validation|dev|test|eval)_\w+"
    r"|(?:examples|samples|images|tokens|steps)/s(?:ec)?)"
    rf"(?P<sep>\s*[:=]\s*|\s+)(?P<value>{_NUMBER})(?P<percent>\s?%)?(?!\w|[:/.,-]\d)",
    re.I,
)
_COUNTER = re.compile(
    r"(?<![\w./@-])(?P<key>epoch|global[_ ]step|step|iteration|iter)\s*[:=#]?\s*[\[(]?\s*"
    r"(?P<value>\d{1,15})(?:\s*/\s*\d+)?(?!\w|\.\d)",
    re.I,
)
_WORD = re.compile(r"[^\W\d_]{2,}")
_SUBSETS = {"training": "train", "valid": "val", "validation": "val"}
# Some of this stands in every line that matters; looking for it first is several times faster.
_HINT = re.compile(
    "loss|acc|auc|f1|ma[ep]|mse|r2|perp|ppl|bleu|[wc]er|iou|rew|lr|learn|grad|epoch|"
    "(?:train|val|valid|validation|dev|test|eval)_|/s|s/"
)


class LogMetrics:
    r"""Finds metrics in a log, fed piece by piece; how it is cut changes nothing.

    Without a pattern it knows Keras 2 and 3, Lightning, tqdm with a postfix, printed dictionaries
    (Hugging Face) and prints of well-known names such as ``step 120 loss 0.4``; it prefers missing
    a number to inventing one. ``98%`` becomes 0.98. Bars of Keras and Lightning count steps anew in
    each epoch; here ``step`` counts on.

    Attributes:
        last: the last value of each name, of the first `MAX_KEYS` names.

    >>> LogMetrics().feed(b"step 120 loss 0.4\n")
    [{'step': 120, 'loss': 0.4}]
    >>> LogMetrics(r"after (?P<step>\d+): (?P<loss>\S+)").feed(b"after 120: 0.4, fine\n")
    [{'step': 120, 'loss': 0.4}]
    """

    def __init__(self, pattern: str | None = None) -> None:
        self._parse: Callable[[str], Metrics] = self._common
        if pattern is not None:
            try:
                self._pattern = re.compile(pattern)
            except (re.error, RecursionError, OverflowError) as error:
                raise UsageError(f"metrics.pattern: {error}", "It is a Python regular expression.") from None
            if not self._pattern.groupindex:
                raise UsageError("metrics.pattern names no metric", r"Name its groups: 'loss (?P<loss>\S+)'.")
            self._parse = self._own
        self._line = b""
        self.last: Metrics = {}
        self._epoch: int | None = None  # of Keras, from 1
        self._epoch_steps = 0
        self._bars_from_0 = False

    def feed(self, data: bytes) -> list[Metrics]:
        """The metrics of each line that ends in ``data``; a carriage return ends a line too."""
        *lines, rest = data.replace(b"\r", b"\n").split(b"\n")
        if not lines:
            self._keep(rest)
            return []
        self._keep(lines[0])
        lines[0] = self._line
        self._line = b""
        self._keep(rest)
        return [row for line in lines if line and (row := self._row(line))]

    def finish(self) -> list[Metrics]:
        """Nobody writes any more: the metrics of a last line without its end."""
        return self.feed(b"\n")

    def _keep(self, piece: bytes) -> None:
        self._line += piece[: MAX_LINE - len(self._line)]

    def _row(self, line: bytes) -> Metrics | None:
        text = _CONTROL.sub("", line[:MAX_LINE].decode("utf-8", "replace")).strip()
        row = self._parse(text)
        _remember(self.last, row)
        return row or None

    def _own(self, text: str) -> Metrics:
        match = self._pattern.search(text)
        if not match:
            return {}
        row: Metrics = {}
        for key, found in match.groupdict().items():
            if number := _ONE_NUMBER.fullmatch((found or "").strip()):
                row[key] = _number(number[1], number[2])
        return row

    def _common(self, text: str) -> Metrics:
        if not _HINT.search(text.lower()):
            return {}
        if match := _EPOCH_LINE.fullmatch(text):
            self._epoch, self._epoch_steps = int(match[1]), 0
            return {}
        if match := _KERAS_BAR.match(text):
            return self._keras(text, match)
        if match := _TQDM_BAR.search(text):
            return self._tqdm(text[: match.start()], match)
        if text.startswith("{") and text.endswith("}"):
            pairs: Metrics = {key: _number(value) for key, value in _DICT_PAIR.findall(text)}
            return pairs if any(_PAIR.match(f"{key}=0") for key in pairs) else {}
        return _prints(text)

    def _keras(self, text: str, bar: re.Match[str]) -> Metrics:
        row: Metrics = {key: _number(value) for key, value in _KERAS_PAIR.findall(text)}
        if not row:
            return {}
        done, total = int(bar[1]), 0 if bar[2] == "Unknown" else int(bar[2])
        if self._epoch is None:
            return {"step": done, **row}
        self._epoch_steps = self._epoch_steps or total
        if total != self._epoch_steps:  # `evaluate`, in the middle or at the end
            return row
        step: Metrics = {"step": (self._epoch - 1) * total + done} if total else {}
        return {"epoch": self._epoch, **step, **row}

    def _tqdm(self, title: str, bar: re.Match[str]) -> Metrics:
        if _NOT_TRAINING.match(title):
            return {}
        row: Metrics = {key: _number(value) for key, value in _TQDM_PAIR.findall(bar[4]) if key != "v_num"}
        epoch = _TQDM_EPOCH.search(title)
        if not _TQDM_STEPS.search(bar[4]) or not (row or epoch):
            return row  # a download, or a loop of which nobody says that it trains
        done, total = int(bar[1] or bar[3]), int(bar[2] or 0)
        if not epoch:
            return {"step": done, **row}
        # Lightning counts from 0 and so do most; "Epoch 1/10" counts from 1 unless there was a 0.
        number = int(epoch[1])
        self._bars_from_0 |= number == 0 or not epoch[2]
        return {"epoch": number, "step": (number - (not self._bars_from_0)) * total + done, **row}


def _prints(text: str) -> Metrics:
    """Pairs such as ``Epoch [3/10], Loss: 0.31`` or ``iter 250: train loss 2.42, val loss 2.44``."""
    row: Metrics = {}
    clear = False
    spans: list[tuple[int, int]] = []
    for match in _PAIR.finditer(text):
        # "a loss 3 times as high" is prose; "loss: 3" and "loss 3.0" are not
        separated = not match["sep"].isspace()
        if not separated and match["value"].isdigit():
            continue
        key = re.sub(r"\s", "_", match["key"].lower()).replace("/sec", "/s")
        if subset := (match["of"] or "").lower():
            key = f"{_SUBSETS.get(subset, subset)}_{key}"
        row[key] = _number(match["value"], match["percent"] or "")
        clear = clear or separated
        spans.append(match.span())
    if not row:
        return {}
    counters: Metrics = {}
    for match in _COUNTER.finditer(text):
        name = match["key"].lower()
        key = "epoch" if name == "epoch" else "step"
        if key not in counters or name.startswith("global"):
            counters[key] = int(match["value"])
        spans.append(match.span())
    if not clear:  # only "name number": then the line must be about little else
        for start, end in sorted(spans, reverse=True):
            text = text[:start] + " " + text[end:]
        if len(_WORD.findall(text)) > (len(spans) + 1 if len(spans) > 1 else 0):
            return {}
    return counters | row


def _number(text: str, percent: str = "") -> float | int:
    if percent.strip():
        return float(text) / 100
    return int(text) if text.lstrip("+-").isdigit() and len(text) < 19 else float(text)


class StepRate:
    """Steps and examples per second over a recent window.

    A step that goes back (a restart from a checkpoint, a bar that begins anew) or a clock that
    does begins a new window.

    >>> rate = StepRate()
    >>> for second in range(5):
    ...     rate.observe(second, step=10 * second, examples=640 * second)
    >>> rate.steps_per_s, rate.examples_per_s, rate.eta_s(100)
    (10.0, 640.0, 6.0)
    """

    def __init__(self, window_s: float = 30.0, points: int = 64) -> None:
        self._window_s = window_s
        self._points = points
        self._seen: deque[tuple[float, float, float | None]] = deque()

    def observe(self, time_s: float, step: float, examples: float | None = None) -> None:
        """At ``time_s`` (of any steady clock) so many steps and examples were done in all."""
        if not all(math.isfinite(number) for number in (time_s, step, examples or 0)):
            return
        seen, now = self._seen, (time_s, step, examples)
        if seen and (time_s < seen[-1][0] or step < seen[-1][1]):
            seen.clear()
        # The newest point slides along until it is far enough from the one before it to stay.
        if len(seen) > 1 and seen[-1][0] - seen[-2][0] < self._window_s / self._points:
            seen[-1] = now
        else:
            seen.append(now)
        while len(seen) > 2 and time_s - seen[1][0] >= self._window_s:
            seen.popleft()

    @property
    def steps_per_s(self) -> float | None:
        """None until two different times were seen."""
        return self._rate(1)

    @property
    def examples_per_s(self) -> float | None:
        """None until two different times were seen, or when nobody counts examples."""
        return self._rate(2)

    def eta_s(self, total_steps: float, now_s: float | None = None) -> float | None:
        """Seconds until ``total_steps``, from the last observation or from ``now_s``; None if unknown."""
        rate = self.steps_per_s
        if not rate:
            return None
        time_s, step, _ = self._seen[-1]
        passed = 0.0 if now_s is None else max(0.0, now_s - time_s)
        return max(0.0, (total_steps - step) / rate - passed)

    def _rate(self, field: int) -> float | None:
        if len(self._seen) < 2:
            return None
        first, last = self._seen[0], self._seen[-1]
        before, after = first[field], last[field]
        if before is None or after is None or last[0] <= first[0] or after < before:
            return None
        return (after - before) / (last[0] - first[0])
