"""What members of an attempt have left: last metrics, why they failed, whether there is more to save."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

from trainmaster.control.decide.effects import Job
from trainmaster.control.task.job_context import TaskContext
from trainmaster.control.task.layout import has_entries
from trainmaster.executors.telemetry.logs import read_tail
from trainmaster.executors.telemetry.member_metrics import MemberMetrics
from trainmaster.executors.telemetry.metrics import NotFinite, json_safe
from trainmaster.lazy import regex
from trainmaster.spec.search import TaskValue
from trainmaster.spec.states import EndReason

#: How much of the end of a log is searched for metrics and for known failures.
METRICS_TAIL_BYTES = 4 << 20
FAILURE_TAIL_BYTES = 16 << 10
#: Of these ends the script can hardly say why: the kernel or the cloud took something away.
TELLING: Final = frozenset({EndReason.OOM, EndReason.NODE_LOST})

_OUT_OF_MEMORY = regex(
    r"^(MemoryError\b|.*\bCUDA out of memory|.*\bOutOfMemoryError\b|.*std::bad_alloc"
    r"|.*[Cc]annot allocate memory|.*can't allocate memory|.*RESOURCE_EXHAUSTED: (OOM|Out of memory)"
    r"|fatal error: out of memory)",
    re.MULTILINE,
)
_MOST_CHARACTERS: Final = 200
_MOST_ABOVE_ADVICE: Final = 30
#: What launchers put before the lines of a process: ``[rank0]:``, ``[1,0]<stderr>:``, ``0:``, ``(f pid=7)``;
#: and the bars of an exception group.
_PREFIX: Final = regex(r"\[[\w,]+\](?:<std\w+>)?: ?|\d+: |\(\w+ pid=\d+[^)]*\) ?|[\s+]*\| ?")
#: Colours, and whatever else a terminal would do: what is told goes to terminals of others.
_CONTROL: Final = regex(r"\x1b\[[0-9;:?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_TRACEBACK: Final = "Traceback (most recent call last):"
#: The line of a Python traceback that says what went wrong; without a traceback only what is named like one.
_RAISED: Final = regex(r"[A-Za-z_][\w.<>]*(?:\(\w+\))?(?::.*)?")
_EXCEPTION: Final = regex(r"(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt|Failure)\b(?::.*)?")
#: Tracebacks after these lines are none of what has ended the process.
_IGNORED: Final = ("Exception ignored in", "Exception ignored on")
#: These only tell that something else has failed, which has said why.
_WRAPPERS: Final = regex(
    r"(?:[\w.]+\.)?(?:CalledProcessError|ChildFailedError|SystemExit|KeyboardInterrupt|ProcessExitedException)\b"
)
#: What other languages say at their end; the groups are what is told.
_CRASHES: Final = (
    regex(r"^terminate called after throwing an instance of '(.+)'(?:\n\s*what\(\):\s*(.*))?", re.M),
    regex(r"^thread '.*' (?:\(\d+\) )?(panicked at .*)(?:\n(?!note:)(\S.*))?", re.M),
    regex(r"^((?:panic|fatal error|Fatal Python error): .+)", re.M),
    regex(r"^Exception in thread \"[^\"]*\" (.+)", re.M),
    regex(r"^(.*: Assertion `.*' failed\.)", re.M),
    # `error: 0.25` is a metric.
    regex(
        r"^((?:[\w./:-]+: )*(?:\[error\]|error:|fatal(?: error)?:) (?![-+.\d]).+|Error in .+)", re.M | re.I
    ),
)
#: Launchers say so after what their processes have said.
_TOLD_AFTER: Final = regex(
    r"(?:srun|slurmstepd|make(?:\[\d+\])?|wandb|ninja): |-{20,}$|Primary job|(?:mpirun|prterun)\b"
    r"|the job to be terminated|  Process name:|.*(?:\bexit(?:ed)? (?:code|status)\b|\(exitcode)",
    re.I,
)
_READ_ONLY: Final = "Read-only file system"
#: Mostly the code of a team's task on a server's own machine: with `code=$PWD` before, it is found still.
_WRITE_ELSEWHERE: Final = (
    '; if that is in the code, begin `command` with `code=$PWD; cd "$TRAINMASTER_OUTPUT_DIR"`, and call '
    '"$code/SCRIPT"'
)
#: Above advice: where the complaint begins, if not after the last empty line.
_COMPLAINT: Final = regex(r".*\b(?:could ?n[o']t|can(?:no|')t|no such|not found|missing|invalid)\b", re.I)
#: Advice below an error.
_HINT: Final = regex(
    r"Set the environment variable HYDRA_FULL_ERROR|note: run with `RUST_BACKTRACE|\(?see https?://"
    r"|For (?:more|further) (?:information|details)|Try '.*--help' for help|Aborted(?: \(core dumped\)|!)?$",
    re.I,
)


def last_metrics(context: TaskContext) -> tuple[dict[str, object], str]:
    """The last value per key of rank 0, from its metrics file, else from its log; and which are not finite.

    Of a trial the latter is empty: its search knows that it is the worst.
    """
    metrics, not_finite = metrics_of(context), NotFinite()
    if metrics.value is None:
        metrics.skip(METRICS_TAIL_BYTES)
    for row in metrics.rows(final=True):
        not_finite.add(row)
    return json_safe(metrics.last), "" if context.experiment.search else not_finite.words


def metrics_of(context: TaskContext) -> MemberMetrics:
    """What rank 0 reports, from the beginning; what it reported in earlier attempts counts for a search."""
    search, pattern, member = (
        context.experiment.search,
        context.experiment.metrics_pattern,
        context.members[0],
    )
    if search is None or search.best == "last":
        return MemberMetrics(context.place.directory, member, pattern)
    value = TaskValue(search)
    for number in range(1, context.attempt):
        place = context.home.attempt(context.run, context.experiment.name, context.task, number)
        for _ in MemberMetrics(place.directory, member, pattern, value).rows(final=True):
            pass
    return MemberMetrics(context.place.directory, member, pattern, value)


def saved_metrics(context: TaskContext) -> Job:
    """All that is to be saved of an attempt that ended well and left no files.

    What it has not reported, as it went on from a checkpoint, such as one of the last step, counts as earlier
    attempts have reported it.
    """
    last, not_finite = last_metrics(context)
    metrics = {**context.reported, **last}
    missing = missing_metric(context, metrics)
    fields: dict[str, object] = {"metrics": metrics} if metrics else {}
    return Job(done=True, error=missing, users_fault=bool(missing), fields=fields, note=not_finite)


def missing_metric(context: TaskContext, metrics: Mapping[str, object]) -> str:
    """What is wrong if a search cannot tell how good this task is; NaN (None here) is an answer too."""
    search = context.experiment.search
    if search is None:
        return ""
    found = metrics.get(search.metric, "")
    if search.metric in metrics and (found is None or isinstance(found, int | float)):
        return ""
    seen = ", ".join(sorted(metrics)) or "none at all"
    wrong = f"was {found!r}, which is no number" if search.metric in metrics else "never appeared"
    return (
        f"the metric {search.metric!r} of the search {wrong}; metrics seen: {seen}. "
        f"Report it with trainmaster.report({search.metric}=...), set metrics.pattern, "
        f'or let the command append {{"{search.metric}": ...}} to the file $TRAINMASTER_METRICS.'
    )


def explain_failure(context: TaskContext) -> tuple[EndReason | None, str, dict[str, str]]:
    """A better reason and message than the exit code, from the members' logs; else what each says last."""
    said = {}
    for name in context.members:
        if not size_of(context.place.log(name)):
            continue
        tail = read_tail(context.place.directory, name, FAILURE_TAIL_BYTES).decode("utf-8", "replace")
        found = _OUT_OF_MEMORY.search(tail)
        if found:
            return EndReason.OOM, f"{name} ran out of memory: {found.group(0).strip()[:200]}", {}
        advice = context.launcher.explain(tail)
        if advice:
            return None, advice, {}
        said[name] = last_error(tail)
    return None, "", said


def size_of(path: Path) -> int:
    """Bytes of a file; 0 if it is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def is_small(context: TaskContext) -> bool:
    """True if an ended attempt left no files here and little to read, so that saving is quick."""
    place = context.place
    if context.end_reason in TELLING:  # the system's log is read
        return False
    try:
        if any(has_entries(part) for part in context.parts.values()) or has_entries(place.checkpoint):
            return False
        first = context.members[0]
        return size_of(place.log(first)) < 1 << 16 and size_of(place.metrics(first)) < 1 << 16
    except OSError:  # the script made something else of them: the job will say what
        return False


def last_error(tail: str) -> str:
    r"""What a log that ends with a failure says of it, in a line.

    It is the last exception of Python that no wrapper has raised, else what another language says of a
    crash, else the last line that is called an error, else the last line above advice.

    >>> last_error("Traceback (most recent call last):\n  ...\nKeyError: 'lr'\n(see https://example.org)\n")
    "KeyError: 'lr'"
    >>> last_error("Could not override 'a/b'.\nNo match.\n\nSet the environment variable HYDRA_FULL_ERROR=1")
    "Could not override 'a/b'. No match."
    """
    lines = [_without_prefix(line.rstrip("\r").rpartition("\r")[2].rstrip()) for line in tail.split("\n")]
    raised = [*_raised(lines)]
    told = [each for each in raised if not _WRAPPERS.match(each)] or _crash(lines) or raised or _last(lines)
    said = told[-1].strip()[:_MOST_CHARACTERS] if told else ""
    return said + _WRITE_ELSEWHERE if _READ_ONLY in said else said


def _without_prefix(line: str) -> str:
    line = _CONTROL.sub("", line)
    found = _PREFIX.match(line)
    return line[found.end() :] if found else line


def _raised(lines: Sequence[str]) -> Iterator[str]:
    """The exceptions of Python, in order; each with the line below or above it where that says more."""
    in_traceback = is_ignored = False
    for number, line in enumerate(lines):
        if line.startswith(_IGNORED):
            is_ignored = True
        elif line.startswith(_TRACEBACK):
            in_traceback = True
        elif not line.startswith((" ", "\t")) and (_RAISED if in_traceback else _EXCEPTION).fullmatch(line):
            if not is_ignored:
                yield _whole(lines, number)
            in_traceback = is_ignored = False


def _whole(lines: Sequence[str], number: int) -> str:
    line = lines[number]
    if line.endswith(":") and number + 1 < len(lines):  # a message of several lines
        return f"{line} {lines[number + 1].strip()}"
    above = lines[number - 1].strip() if number else ""
    if line == "AssertionError" and lines[number - 1].startswith(" "):
        if not above.strip("^~ ") and number > 1:  # it marks a part of the line above
            above = lines[number - 2].strip()
        return f"{line}: {above}" if above.startswith("assert") else line
    return line


def _crash(lines: Sequence[str]) -> list[str]:
    text = "\n".join(line for line in lines if not _TOLD_AFTER.match(line))
    for pattern in _CRASHES:
        if found := [*pattern.finditer(text)]:
            return [": ".join(group.rstrip(":") for group in found[-1].groups() if group)]
    return []


def _last(lines: Sequence[str]) -> list[str]:
    """The last line; above advice the lines from where the complaint begins."""
    said = [line for line in lines if not _TOLD_AFTER.match(line)]
    while said and not said[-1].strip():
        said.pop()
    has_hint = False
    while said and (not said[-1].strip() or _HINT.match(said[-1])):
        has_hint = has_hint or bool(said[-1].strip())
        said.pop()
    if not has_hint:
        return said[-1:] or [line for line in lines if line.strip()]
    near = said[-_MOST_ABOVE_ADVICE:]
    begins = [number for number, line in enumerate(near) if _COMPLAINT.match(line)]
    begins = begins or [number + 1 for number, line in enumerate(near) if not line.strip()] or [0]
    paragraph = takewhile(str.strip, near[begins[-1] :])
    return [text] if (text := " ".join(line.strip() for line in paragraph)) else []
