"""`RunHeader`: the first lines of a run's page: how far it is, what is left, its quote.

`TaskFailure`: why it failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trainmaster.dataclass import dataclass, field
from trainmaster.service.runs.highlights import TaskLine
from trainmaster.spec.log_normal import left_s
from trainmaster.spec.states import EndReason, counted_ends
from trainmaster.spec.units import QUOTE_RESOLUTION, worked_s
from trainmaster.web.rendering import duration, usd

#: Of less than this share, and in less time, nothing is said of the rest: starting is slow.
_LEAST_SHARE: Final = 0.02
_LEAST_S: Final = 2.0
#: Colours of phases, and of so many experiments at most they are drawn.
_COLOURS: Final = 8
_MOST_BARS: Final = 4
_FRAME: Final = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.M)
_NAMED: Final = re.compile(r"^(?P<before>.*?)\s*\((?P<error>[^()]*(?:\([^()]*\)[^()]*)*)\)$", re.S)


@dataclass(frozen=True, slots=True)
class ProgressBar:
    """Places in percent of its length, which is of time where a quote is known, else of work.

    Attributes:
        at: how far it is. grows: so much a second.
        left, width: of the quoted interval; None without one.
        end: where it will end by its speed until now; None if unknown.
        is_beyond: it has taken longer than quoted.
    """

    at: float
    grows: float
    left: float | None
    width: float | None
    end: float | None
    is_beyond: bool


@dataclass(frozen=True, slots=True)
class PhasePart:
    """A phase of an experiment, in the bar of its phases.

    Attributes:
        name: of the phase. words: how long it took, is expected to take, and by how much it is late.
        state: ``done``, ``now`` or ``ahead``. kind: number of its colour.
        at, width: in percent of the bar. done: share of its width that is over, in percent of the bar.
    """

    name: str
    words: str
    state: str
    kind: int
    at: float
    width: float
    done: float


def phase_parts(lines: Sequence[Mapping[str, Any]]) -> list[PhasePart]:
    """What a run has done, does and has still to do, on a line; each as long as it took, or may take.

    >>> span = {"p5": 20.0, "p50": 30.0, "p95": 40.0}
    >>> setup = {"phase": "setup", "state": "done", "seconds": 10.0, "expected_s": None, "late_s": 4.0}
    >>> steps = {"phase": "steps", "state": "now", "seconds": 15.0, "expected_s": span, "late_s": 0.0}
    >>> [(part.words, part.at, part.width, part.done) for part in phase_parts([setup, steps])]
    [('10 s, 4 s late', 0.0, 25.0, 25.0), ('15 s of 30 s', 25.0, 75.0, 37.5)]
    """
    expected = [each["expected_s"]["p50"] if each["expected_s"] else 0.0 for each in lines]
    lengths = [
        each["seconds"] if each["state"] == "done" else max(each["seconds"], span)
        for each, span in zip(lines, expected, strict=True)
    ]
    scale, parts = 100 / (sum(lengths) or 1.0), list[PhasePart]()
    for kind, (each, length, span) in enumerate(zip(lines, lengths, expected, strict=True)):
        words = f"about {duration(span)}" if each["state"] == "ahead" else duration(each["seconds"])
        if each["state"] == "now" and span:
            words += f" of {duration(span)}"
        words += f", {duration(each['late_s'])} late" if each["late_s"] else ""
        at = parts[-1].at + parts[-1].width if parts else 0.0
        places = (round(at, 2), round(length * scale, 2), round(each["seconds"] * scale, 2))
        parts.append(PhasePart(each["phase"], words, each["state"], kind % _COLOURS, *places))
    return parts


@dataclass(frozen=True, slots=True)
class RunHeader:
    """Of one run.

    Attributes:
        share: of its work that is done, from 0 to 1; None if unknown.
        words: how far it is: ``step 40 of 200``, ``18 of 44 tasks``; may be empty.
        steps: of its one task; None if it has more, or says none.
        left_s: until its end; None if unknown. work_s: since its beginning, without waiting.
        quote: the quoted time and whether it is or was kept; empty without one. is_beyond: it was not.
        bar: None where nothing is known, and of what waits or is over.
        phase: what it does, if that is no step, and what is late; empty if there is nothing to say.
        is_late: something is.
        phases: of each experiment whose phases were followed, by its name.
    """

    share: float | None
    words: str
    steps: int | None
    left_s: float | None
    work_s: float
    quote: str
    is_beyond: bool
    bar: ProgressBar | None
    phase: str = ""
    is_late: bool = False
    phases: Mapping[str, Sequence[PhasePart]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, status: Mapping[str, Any], steps: Mapping[str, int | None], running: Sequence[TaskLine]
    ) -> RunHeader:
        """Of a run's status.

        Args:
            status: as ``status --json`` has it.
            steps: of each experiment, as far as its recipe says.
            running: some of its tasks that run.
        """
        is_over = status["state"] == "DONE"
        work_s = worked_s(status)
        share, words = _how_far(status["experiments"], steps, running)
        quoted = status.get("quote")
        time_s = quoted["time_s"] if quoted and quoted["time_s"]["p95"] else None
        passed = quoted.get("passed", "") if quoted else ""
        left = None
        if "ends" in status and (ends_s := status["ends"]["time_s"]["p50"] - work_s) > 0:
            left = ends_s
        elif not is_over and share is not None and share >= _LEAST_SHARE and work_s >= _LEAST_S:
            left = work_s * (1 - share) / share
        elif not is_over and not passed and time_s:
            left = left_s(time_s, work_s)
        cost = quoted["cost_usd"] if quoted else {"p5": 0.0, "p95": None}
        is_paid = cost["p95"] is not None and cost["p95"] > 0
        is_dearer = is_paid and status["cost_usd"] - QUOTE_RESOLUTION > cost["p95"]
        is_beyond = bool(time_s and (work_s > time_s["p95"] or is_dearer) and not is_over)
        said = ""
        if quoted and time_s:
            kept = "in it" if quoted["kept"] is None else "kept" if quoted["kept"] else "not kept"
            if quoted["kept"] is False and quoted.get("outside") != "late":
                kept = "not kept, as the run did not succeed"
            if is_over and quoted["kept"] is None:
                kept = "not judged" + ", ended by hand" * quoted.get("ended_by_hand", False)
            interval = f"{duration(time_s['p5'])} to {duration(time_s['p95'])}"
            if is_paid:
                interval += f", {usd(cost['p5'])} to {usd(cost['p95'])}"
            kept = "it does not hold any more" if passed and not is_over else kept
            said = f"quote {interval}: {'beyond it' if is_beyond else kept}"
            said += f"; {passed}" * bool(passed)
            actual = quoted.get("actual") or {}
            if quoted.get("outside") == "late" and (failed := actual.get("failed_attempts")):
                said += f"; attempts failed: {counted_ends(failed)}"
            if quoted.get("outside") == "late" and "held" in actual:
                said += f"; {actual['held']}"
            judged_usd = actual.get("cost_usd", status["cost_usd"])
            if is_over and status["cost_usd"] - judged_usd > QUOTE_RESOLUTION:
                said += f"; {usd(status['cost_usd'] - judged_usd)} of the bill came after its end"
        waits = "queued" in status or not status.get("driver")
        bar = None if is_over or waits else _bar(work_s, left, share, time_s)
        of_one = next(iter(steps.values())) if len(steps) == 1 and _total(status) == 1 else None
        is_beyond = is_beyond or bool(is_over and quoted and quoted["kept"] is False)
        phase, is_late = ("", False) if is_over else _phase(status.get("phases", {}))
        told = list(status.get("phases", {}).items())[:_MOST_BARS]
        parts = {name: phase_parts(lines) for name, lines in told if lines}
        return cls(share, words, of_one, left, work_s, said, is_beyond, bar, phase, is_late, parts)

    @property
    def whole(self) -> int | None:
        """The share in whole percent, of what goes on."""
        return None if self.share is None or self.share == 1 else int(100 * self.share)

    @property
    def percent(self) -> str:
        """The share for people; empty if unknown."""
        return "" if self.share is None else f"{int(100 * self.share)} %"

    @property
    def left(self) -> str:
        """What is left, for people; empty if unknown."""
        return "" if self.left_s is None else f"about {duration(self.left_s)} left"


def _phase(phases: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[str, bool]:
    """What goes on that is no step, with by how much it is late; of several experiments that of the first.

    >>> setup = {"phase": "setup", "state": "now", "seconds": 60.0, "late_s": 20.0}
    >>> _phase({"train": [setup]}), _phase({"train": [{**setup, "phase": "steps", "late_s": 0.0}]})
    (('setup for 1 min, 20 s late', True), ('', False))
    """
    for lines in phases.values():
        for each in lines:
            if each["state"] != "now" or (each["phase"] == "steps" and not each["late_s"]):
                continue
            late = f", {duration(each['late_s'])} late" if each["late_s"] else ""
            return f"{each['phase']} for {duration(each['seconds'])}{late}", bool(late)
    return "", False


def _total(status: Mapping[str, Any]) -> int:
    return sum(each["tasks"]["total"] for each in status["experiments"].values())


def _how_far(
    experiments: Mapping[str, Mapping[str, Any]],
    steps: Mapping[str, int | None],
    running: Sequence[TaskLine],
) -> tuple[float | None, str]:
    total = sum(each["tasks"]["total"] for each in experiments.values())
    under_way = sum(each["tasks"]["running"] for each in experiments.values())
    waiting = sum(each["tasks"]["waiting"] for each in experiments.values())
    done = total - under_way - waiting
    parts = []
    for line in running:
        at, of = line.metrics.get("step"), steps.get(line.experiment)
        if of and isinstance(at, int | float) and at == at:
            parts.append((min(1.0, max(0.0, at / of)), f"step {int(at):,} of {of:,}"))
    if total == 1:
        if done:
            return 1.0, ""
        return parts[0] if parts else (None, _steps_of(running))
    words = f"{done:,} of {total:,} tasks"
    lost = ("failed", "skipped", "cancelled")
    bad = sum(each["tasks"].get(kind, 0) for each in experiments.values() for kind in lost)
    if bad and done == total:
        words = f"{total - bad:,} of {total:,} tasks succeeded"
    if len(parts) == 1 and under_way == 1:
        words += f", {running[0].experiment} at {parts[0][1]}"
    if len(experiments) > 1:  # of which one may take a second, and one a day
        return None if under_way or waiting else 1.0, words
    mean = sum(share for share, _ in parts) / len(parts) if parts else 0.0
    return (done + mean * under_way) / total if total else None, words


def _steps_of(running: Sequence[TaskLine]) -> str:
    at = running[0].metrics.get("step") if running else None
    return f"step {int(at):,}" if isinstance(at, int | float) and at == at else ""


def _bar(
    work_s: float, left_s: float | None, share: float | None, time_s: Mapping[str, float] | None
) -> ProgressBar | None:
    end_s = None if left_s is None else work_s + left_s
    if time_s:
        scale = 100 / (1.05 * max(time_s["p95"], work_s, end_s or 0.0))
        places = (time_s["p5"] * scale, (time_s["p95"] - time_s["p5"]) * scale)
        end = None if end_s is None else round(end_s * scale, 2)
        left, width = (round(place, 2) for place in places)
        is_beyond = work_s > time_s["p95"]
        return ProgressBar(round(work_s * scale, 2), round(scale, 5), left, width, end, is_beyond)
    if share is None:
        return None
    grows = round(100 / end_s, 5) if end_s else 0.0
    return ProgressBar(round(100 * share, 2), grows, None, None, None, False)


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """Why a task failed.

    Attributes:
        error: what the script said last: the exception, or what is known.
        how: how it ended, such as ``exit code 1``; may be empty.
        where: of the script: ``train.py, line 5``; may be empty.
        task: which one. lines: the end of its log, without the error.
    """

    error: str
    how: str
    where: str
    task: TaskLine
    lines: str

    @classmethod
    def of(cls, task: TaskLine, lines: str) -> TaskFailure:
        """Of a task that did not succeed, and the last lines of its log."""
        error, how = error_of(task.message)
        frames = list(_FRAME.finditer(lines))
        own = [frame for frame in frames if "site-packages" not in frame["file"]] or frames
        where = ""
        if own and error != task.message:
            where = f"{own[-1]['file'].rsplit('/', 1)[-1]}, line {own[-1]['line']}"
        told = lines.rstrip().splitlines()
        if told and told[-1].strip() == error:
            lines = "\n".join(told[:-1])
        return cls(error, how, where, task, lines)


def error_of(message: str) -> tuple[str, str]:
    """The exception in a task's message, and how the task ended.

    >>> error_of("exit code 1 (KeyError: 'a (b)')")
    ("KeyError: 'a (b)'", 'exit code 1')
    >>> error_of("killed: out of memory")
    ('killed: out of memory', '')
    """
    found = _NAMED.match(message)
    if found and found["before"].startswith("exit code"):
        return found["error"], found["before"]
    return message, ""


def cost_words(cost_usd: float, cap_usd: float | None) -> str:
    """What it has cost, of what.

    >>> cost_words(0.31, 0.5), cost_words(0.0, None)
    ('$0.31 of $0.50', '$0')
    """
    return usd(cost_usd) if cap_usd is None else f"{usd(cost_usd)} of {usd(cap_usd)}"


def first_failure(bad: Sequence[TaskLine]) -> TaskLine | None:
    """The first task that failed; one that somebody has ended did not."""
    return next((each for each in bad if each.reason != EndReason.CANCELLED), None)
