"""What a task's log says of it: metrics, and how far it is.

`LogMetrics` reads the log line by line and knows what the lines before said, such as the epoch;
`trainmaster.executors.telemetry.log_formats` reads single lines.

Whatever a script writes (endless lines, other encodings, a gigabyte), memory is bounded and nothing raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from trainmaster.dataclass import dataclass
from trainmaster.executors.telemetry import log_formats
from trainmaster.executors.telemetry.log_formats import NUMBER, InEpoch, number
from trainmaster.executors.telemetry.metrics import Metrics, remember
from trainmaster.lazy import regex
from trainmaster.spec.errors import UsageError

MAX_LINE = 4096  # bytes of a log line that are looked at: bounds the work of any pattern

_ONE_NUMBER = regex(rf"({NUMBER})\s?(%?)[,;:)\]]*", re.I)
# Colours, cursor movements and the backspaces with which Keras wipes its bar.
_CONTROL = regex(r"\x1b\[[0-9;?]*[A-Za-z]|[\b\x00]")

_EPOCH_LINE = regex(r"Epoch (\d{1,9})/(\d{1,9})")
_KERAS_BAR = regex(r"(\d{1,15})/(\d{1,15}|Unknown)\s+(?:\[[=>.\s]+\]|━|-?\s*\d+(?:\.\d+)?m?s\b)")
_KERAS_PAIR = regex(rf" - ([A-Za-z_]\w*): ({NUMBER})(?= - |$)", re.I)
_TQDM_BAR = regex(r"(?:\d{1,3}%\s?(?:\|[^|]*\|)?\s*(\d{1,15})/(\d{1,15})|(?<!\S)(\d{1,15})it) \[([^\]]*)")
_TQDM_STEPS = regex(r"(?<![a-zA-Z])(?:it|iters?|batch(?:es)?|steps?)/s\b|s/(?:it|iter|batch|step)\b")
_TQDM_PAIR = regex(rf"([A-Za-z_][\w/@.-]*)=\s*({NUMBER})(?=[,\s\]]|$)", re.I)
_TQDM_EPOCH = regex(r"epoch\s*(?:[:\[#]\s*)?(\d{1,9})(?:/(\d{1,9}))?", re.I)
_NOT_TRAINING = regex(r"\W*(?:val|sanity|test|eval|predict)", re.I)
# What XGBoost and LightGBM say before they repeat the line of a round long past.
_BEST_ROUND = ("est iteration is:", "est iteration:")
# Some of this stands in every line that matters; looking for it first is several times faster.
_HINT = regex(
    "loss|acc|auc|f1|ma[ep]|mse|r2|perp|ppl|bleu|[wc]er|iou|rew|[_/]return|residual|timesteps|bound|elbo|lr|learn|grad|epoch|trial|"
    "(?:train|val|valid|validation|dev|test|eval)_|/s|s/"
)


class LogMetrics:
    r"""Finds metrics in a log, fed piece by piece; how it is cut changes nothing.

    Without a pattern it knows what the programs print that `tests/unit/executors/telemetry/logs/` lists, and
    prints of well-known names such as ``step 120 loss 0.4``; it prefers missing a number to inventing
    one. ``98%`` becomes 0.98. Where steps count anew in each epoch, ``step`` counts on, and so does
    ``examples`` where examples are counted instead.

    Attributes:
        last: the last value of each name, of the first `MAX_KEYS` names.
        per_epoch: how much an epoch has by what was printed last: ``{"step": 938}``, or ``examples``.
        totals: how many there will be in all, as far as that is printed: ``{"step": 9380, "epoch": 10}``.

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
        self.per_epoch: dict[str, int] = {}
        self.totals: dict[str, int] = {}
        self._laps = _Laps()
        self._epoch: int | None = None  # of Keras, from 1
        self._epoch_steps = 0
        self._from_0 = False  # the first epoch is 0, whatever is usual
        self._bar_total: int | None = None  # of the first bar without a title
        self._bar_done: int | None = None  # of that bar, once it is known that it trains
        self._text = ""

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
        """The writer is gone: the metrics of a last line without its end."""
        return self.feed(b"\n")

    def _keep(self, piece: bytes) -> None:
        self._line += piece[: MAX_LINE - len(self._line)]

    def _row(self, line: bytes) -> Metrics | None:
        text = _CONTROL.sub("", line[:MAX_LINE].decode("utf-8", "replace")).strip()
        row = self._parse(text)
        remember(self.last, row)
        return row or None

    def _own(self, text: str) -> Metrics:
        match = self._pattern.search(text)
        if not match:
            return {}
        row: Metrics = {}
        for key, found in match.groupdict().items():
            if value := _ONE_NUMBER.fullmatch((found or "").strip()):
                row[key] = number(value[1], value[2])
        return row

    def _common(self, text: str) -> Metrics:
        before, self._text = self._text, text
        if text.startswith("[") and (found := log_formats.boosting(text)) is not None:
            return {} if before.endswith(_BEST_ROUND) else found
        if " = " in text and (totals := log_formats.trainer_totals(text)):
            self.totals |= totals
            return {}
        if log_formats.counts(text) and (row := log_formats.bare_count(text)):
            self._count(row, log_formats.counted_of(text))
            return row
        if not _HINT.search(text.lower()):
            return log_formats.numbered(text) if "=" in text else {}
        if match := _EPOCH_LINE.fullmatch(text):
            self._epoch, self._epoch_steps = int(match[1]), 0
            self.totals["epoch"] = int(match[2]) + (match[1] == "0")
            return {}
        if match := _KERAS_BAR.match(text):
            return self._keras(text, match)
        if match := _TQDM_BAR.search(text):
            return self._tqdm(text[: match.start()], match)
        if (found := log_formats.other(text)) is not None:
            return found
        for form in log_formats.IN_EPOCH:
            if form.mark in text and (match := form.pattern.search(text)):
                return self._in_epoch(form, match)
        if text.startswith("{") and text.endswith("}"):
            return self._dictionary(text)
        if (row := log_formats.prints(text)) and (of := log_formats.counted_of(text)):
            self._count(row, of)
        return row

    def _count(self, row: Metrics, of: dict[str, int]) -> None:
        """A line such as ``Epoch [1/5], Step [100/600]`` says how many there are, of an epoch or in all."""
        if "epoch" in of:
            self.totals["epoch"] = of["epoch"]
        step, epoch = row.get("step"), row.get("epoch", self._epoch)
        if "step" not in of or not isinstance(step, int):
            return
        number = epoch if isinstance(epoch, int) else None
        self._from_0 |= number == 0
        epochs = 1 if number is None else self.totals.get("epoch")
        steps = self._laps.total(step, number or 0, of["step"], epochs)
        if self._laps.is_lap and number is not None:
            row["step"] = step + (number - (not self._from_0)) * of["step"]
            self.per_epoch = {"step": of["step"]}
        self.totals.pop("step", None)
        self.totals |= {"step": steps} if steps else {}

    def _in_epoch(self, form: InEpoch, match: re.Match[str]) -> Metrics:
        epoch, done, total = int(match["epoch"]), int(match["done"] or 0), int(match["total"])
        row: Metrics = {"epoch": epoch}
        self._from_0 |= epoch == 0
        if form.unit == "step" or _is_count(done, total, match["percent"]):
            row[form.unit] = (epoch - (0 if self._from_0 else form.first)) * total + done
            self.per_epoch = {form.unit: total}
        last = match.groupdict().get("last")
        self.totals = {"step": (int(last) + 1 - form.first) * total} if last else {}
        return row | form.pairs(match.string[match.end() :])

    def _dictionary(self, text: str) -> Metrics:
        row = log_formats.dictionary(text)
        if self._bar_done is None and {"loss", "learning_rate", "epoch"} <= row.keys():
            self._bar_done = 0  # Hugging Face's Trainer prints these, and its bar says no more than steps
        return row

    def _keras(self, text: str, bar: re.Match[str]) -> Metrics:
        row: Metrics = {key: number(value) for key, value in _KERAS_PAIR.findall(text)}
        if not row:
            return {}
        done, total = int(bar[1]), 0 if bar[2] == "Unknown" else int(bar[2])
        if self._epoch is None:
            return {"step": done, **row}
        self._epoch_steps = self._epoch_steps or total
        if total != self._epoch_steps:  # `evaluate`, in the middle or at the end
            return row
        if not total:
            return {"epoch": self._epoch, **row}
        self.per_epoch = {"step": total}
        if epochs := self.totals.get("epoch"):
            self.totals["step"] = epochs * total
        return {"epoch": self._epoch, "step": (self._epoch - 1) * total + done, **row}

    def _tqdm(self, title: str, bar: re.Match[str]) -> Metrics:
        if _NOT_TRAINING.match(title.rpartition("|")[2]):
            return {}
        if "num_updates=" in bar[4]:
            return log_formats.fairseq(bar.string)
        row: Metrics = {key: number(value) for key, value in _TQDM_PAIR.findall(bar[4]) if key != "v_num"}
        epoch = _TQDM_EPOCH.search(title)
        if not _TQDM_STEPS.search(bar[4]):
            return row  # a download, for instance
        done, total = int(bar[1] or bar[3]), int(bar[2] or 0)
        if not (row or epoch):
            return row if title.strip() else self._bare_bar(done, total)
        if not epoch:
            return {"step": done, **row}
        # Lightning counts from 0 and so do most; "Epoch 1/10" and "epoch 001" do not unless there was a 0.
        self._from_0 |= int(epoch[1]) == 0 or not (epoch[2] or epoch[1].startswith("0"))
        past = int(epoch[1]) - (not self._from_0)
        self.per_epoch = {"step": total} if total else {}
        # Of those that count from 0 some say their number and some the last one.
        self.totals = {"step": int(epoch[2]) * total} if total and epoch[2] and not self._from_0 else {}
        return {"epoch": int(epoch[1]), "step": past * total + done, **row}

    def _bare_bar(self, done: int, total: int) -> Metrics:
        """A loop that does not say that it trains; except that Hugging Face's Trainer has such a bar."""
        if self._bar_total is None:
            self._bar_total = total
        if self._bar_done is None or total != self._bar_total or done < self._bar_done:
            return {}
        self._bar_done, self.totals["step"] = done, total
        return {"step": done}


@dataclass(slots=True)
class _Laps:
    """Tells whether ``Step [100/600]`` is of an epoch or of all: only a second epoch shows that.

    Attributes:
        steps: how many there were said to be.
        step: the last one. epoch: its epoch.
        is_lap: it was seen to begin anew. goes_on: it was seen to go on in the next epoch.
    """

    steps: int = 0
    step: float = 0.0
    epoch: float = 0.0
    is_lap: bool = False
    goes_on: bool = False

    def total(self, step: float, epoch: float, steps: int, epochs: int | None) -> int | None:
        """Steps in all after a line; None if that is not known.

        Args:
            step: of the line.
            epoch: of the line.
            steps: how many there are, by the line.
            epochs: how many there are; None if that is not said.
        """
        if steps != self.steps:  # of something else, such as a validation: one line shows nothing
            self.steps, self.step, self.epoch, self.is_lap, self.goes_on = steps, step, epoch, False, False
            return None
        self.is_lap |= step < self.step
        self.goes_on |= bool(self.step) and epoch > self.epoch and step > self.step
        self.step, self.epoch = step, epoch
        if self.is_lap:  # how often, only the number of epochs says
            return epochs * steps if epochs and epochs > 1 else None
        return steps if epochs == 1 or self.goes_on else None


def _is_count(done: int, total: int, percent: str) -> bool:
    """Whether so many of ``total`` examples are ``percent`` of an epoch, which rounds.

    They are fewer for one process of several, and where a last, smaller batch is taken for a whole one.
    """
    return int(percent) <= 100 * done / max(1, total) + 0.51
