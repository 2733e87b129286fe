"""What members of an attempt have left: last metrics, why they failed, whether there is more to save."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trainmaster.control.decide.effects import Job
from trainmaster.control.task.job_context import TaskContext
from trainmaster.executors.logs import read_tail
from trainmaster.executors.member_metrics import MemberMetrics
from trainmaster.executors.metrics import NotFinite, json_safe
from trainmaster.spec.search import TaskValue
from trainmaster.spec.states import EndReason

#: How much of the end of a log is searched for metrics and for known failures.
METRICS_TAIL_BYTES = 4 << 20
FAILURE_TAIL_BYTES = 16 << 10
#: Of these ends the script can hardly say why: the kernel or the cloud took something away.
TELLING: Final = frozenset({EndReason.OOM, EndReason.NODE_LOST})

_OUT_OF_MEMORY = re.compile(
    r"^(MemoryError\b|.*\bCUDA out of memory|.*\bOutOfMemoryError\b|.*std::bad_alloc"
    r"|.*[Cc]annot allocate memory|.*can't allocate memory|.*RESOURCE_EXHAUSTED: (OOM|Out of memory)"
    r"|fatal error: out of memory)",
    re.MULTILINE,
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
    """All that is to be saved of an attempt that ended well and left no files."""
    metrics, not_finite = last_metrics(context)
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
    from trainmaster.control.task.last_error import last_error  # most attempts do not fail

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


def has_entries(directory: Path) -> bool:
    """Whether there is anything in a directory."""
    try:
        with os.scandir(directory) as entries:
            return next(entries, None) is not None
    except FileNotFoundError:
        return False
