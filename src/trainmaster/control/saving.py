"""After the members ended, and now and then before: checkpoints, the model, the last metrics."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from trainmaster.control.decide_task import Job
from trainmaster.control.gangs import checkpoints_of
from trainmaster.control.job_context import TaskContext
from trainmaster.control.restored import note_restored
from trainmaster.control.site import NodeGoneError, RelayError
from trainmaster.executors.logs import read_tail
from trainmaster.executors.metrics import LogMetrics, MetricsReader, json_safe
from trainmaster.spec.errors import PublishError, TrainmasterError, one_line
from trainmaster.spec.states import EndReason
from trainmaster.volumes import (
    JSON,
    Manifest,
    UnstableDirectory,
    publish,
)
from trainmaster.volumes.models import publish_model, remove_unrecorded
from trainmaster.volumes.outage import is_away
from trainmaster.volumes.tree import parts_listing

if TYPE_CHECKING:
    from trainmaster.control.site import Site

#: How much of the end of a log is searched for metrics and for known failures.
METRICS_TAIL_BYTES = 4 << 20
FAILURE_TAIL_BYTES = 16 << 10
#: A directory that changes while it is read is tried again this often at an attempt's end.
STABLE_TRIES = 3

_OUT_OF_MEMORY = re.compile(
    r"^(MemoryError\b|.*\bCUDA out of memory|.*\bOutOfMemoryError\b|.*std::bad_alloc"
    r"|.*[Cc]annot allocate memory|.*can't allocate memory|.*RESOURCE_EXHAUSTED: (OOM|Out of memory)"
    r"|fatal error: out of memory)",
    re.MULTILINE,
)


def is_quick(context: TaskContext) -> bool:
    """True if an ended attempt left next to nothing, so that saving it needs no background job."""
    if context.site is not None:  # it has to be fetched first
        return False
    place = context.place
    try:
        if any(_has_entries(part) for part in context.parts.values()) or _has_entries(place.checkpoint):
            return False
        first = context.members[0]
        return _size(place.log(first)) < 1 << 16 and _size(place.metrics(first)) < 1 << 16
    except OSError:  # the script made something else of them: the job will say what
        return False


def save(context: TaskContext) -> Job:
    """Publish the model and the last checkpoint of an attempt that ended well. Safe to repeat."""
    metrics = last_metrics(context)
    fields: dict[str, object] = {"metrics": metrics} if metrics else {}
    missing = missing_metric(context, metrics)
    kept: dict[str, object] = {
        "run": context.run,
        "experiment": context.experiment.name,
        "task": context.task,
        "attempt": context.attempt,
        "parameters": json_safe(context.parameters),
        "metrics": metrics,
    }
    extra = cast("dict[str, JSON]", kept)
    try:
        is_sent = (
            context.site is not None and not missing and _send_model(context, context.site, extra, fields)
        )
        if context.site is not None and not is_sent:
            context.site.fetch_output(context)
    except (TrainmasterError, OSError) as error:
        return _not_saved(error, fields)
    if missing:
        return Job(done=True, error=missing, users_fault=True, fields=fields)
    try:
        if (
            not is_sent
            and any(_has_entries(part) for part in context.parts.values())
            and _publish_model(context, extra)
        ):
            fields["model_uri"] = context.model_uri
        if "model_uri" in fields:
            _remove_unrecorded(context)
        publish_checkpoint(context, is_patient=True)
    except NodeGoneError as error:  # of a member that only served, if the model is here
        if "model_uri" not in fields:
            return _not_saved(error, fields)
    except (TrainmasterError, OSError) as error:
        return _not_saved(error, fields)
    return Job(done=True, fields=fields)


def _send_model(context: TaskContext, site: Site, extra: dict[str, JSON], fields: dict[str, object]) -> bool:
    """Have the nodes publish the model; False if they cannot."""
    try:
        if site.publish_model(context, extra):
            fields["model_uri"] = context.model_uri
    except RelayError:
        return False
    return True


def _not_saved(error: Exception, fields: Mapping[str, object]) -> Job:
    # A lost node takes with it what its members made: the attempt has to be made again.
    reason = EndReason.NODE_LOST if isinstance(error, NodeGoneError) else None
    words = one_line(error)
    return Job(
        done=True,
        error=f"its model could not be saved: {words}",
        fields=fields,
        reason=reason,
        store_away=isinstance(error, PublishError) and is_away(words),
    )


def _publish_model(context: TaskContext, extra: dict[str, JSON]) -> Manifest | None:
    uri = context.model_uri

    def make() -> Manifest | None:
        return publish(context.parts, uri, kind="model", extra=extra, owner=context.owner)

    return publish_model(uri, make, attempt=context.attempt, owner=context.owner)


def _remove_unrecorded(context: TaskContext) -> None:
    """Delete what earlier attempts have published and never recorded; waste, if it cannot be done."""
    for attempt in range(1, context.attempt):
        with contextlib.suppress(TrainmasterError, OSError):
            remove_unrecorded(context.model_uri_of(attempt), attempt=attempt, owner=context.owner)


def recover(context: TaskContext) -> Job:
    """Keep what an attempt that ended badly leaves behind: its last checkpoint, metrics, a better reason."""
    metrics = last_metrics(context)
    error = ""
    progressed = bool(metrics)
    try:
        published = publish_checkpoint(context)
        progressed = progressed or published is not None or _has_published(context)
    except (TrainmasterError, OSError) as failure:  # the attempt's own reason matters more than this
        error = one_line(failure)
    if context.site is not None:
        context.site.fetch_output(context, is_final=False)
    reason, message = explain_failure(context)
    if not message and context.site is not None:
        message = context.site.full_disks(context)
    if reason is None and context.site is not None and context.experiment.data:
        is_lost, words = context.site.lost_data(context)
        if is_lost:  # whatever the script said of it, it was not the script's fault
            reason, message = EndReason.NODE_LOST, words
        message = message or words
    fields: dict[str, object] = {"metrics": metrics} if metrics else {}
    return Job(done=True, error=error, fields=fields, reason=reason, message=message, progressed=progressed)


def checkpoint(context: TaskContext) -> Job:
    """Publish the checkpoint directory of a running attempt, if it holds something new and whole."""
    try:
        published = publish_checkpoint(context, tries=1)
    except (TrainmasterError, OSError) as error:
        return Job(done=True, error=one_line(error))
    return Job(done=True, progressed=published is not None)


def publish_checkpoint(
    context: TaskContext, *, tries: int = STABLE_TRIES, is_patient: bool = False
) -> int | None:
    """Publish what is in the checkpoint directory as the next number of the task's series.

    Args:
        context: the attempt.
        tries: how often a directory that changes under the reader is tried.
        is_patient: a node that does not answer is asked again for a while.

    Returns:
        The number, or None if there was nothing new, or nothing stable.
    """
    directory = context.place.checkpoint
    if context.site is not None:
        try:
            return _send_checkpoint(context, context.site, tries, is_patient)
        except RelayError:
            if not _fetch_checkpoint(context, context.site, tries, is_patient):
                return None
    if not _has_entries(directory):
        return None
    series = context.checkpoints
    for _ in range(tries):
        try:
            before = parts_listing({"": directory})
            number = series.publish(
                {"": directory}, attempt=context.attempt, last=context.listings.get(directory)
            )
        except UnstableDirectory:
            continue
        context.listings[directory] = before
        if number is not None:
            series.prune(checkpoints_of(context.experiment).keep, context.bad_checkpoints)
        return number
    return None


def _send_checkpoint(context: TaskContext, site: Site, tries: int, is_patient: bool) -> int | None:
    """Have the nodes publish it; None if there was nothing new, or nothing stable."""
    for _ in range(tries):
        try:
            number = site.publish_checkpoint(context, is_patient=is_patient)
        except UnstableDirectory:
            continue
        series = context.checkpoints
        if number is not None:
            series.prune(checkpoints_of(context.experiment).keep, context.bad_checkpoints)
        if is_patient and context.attempt > 1:  # the last one; a lost node may have left half of one
            series.clear_unfinished()
        return number
    return None


def _fetch_checkpoint(context: TaskContext, site: Site, tries: int, is_patient: bool) -> bool:
    """Have the directory here as it is on the nodes; False if it never stood still."""
    return any(site.fetch_checkpoint(context, is_patient=is_patient) for _ in range(tries))


def _has_published(context: TaskContext) -> bool:
    """True if the newest checkpoint of the task is of this attempt."""
    series = context.checkpoints
    newest = series.newest()
    manifest = series.manifest(newest) if newest is not None else None
    return manifest is not None and manifest.extra.get("attempt") == context.attempt


def last_metrics(context: TaskContext) -> dict[str, object]:
    """The last value per key of rank 0: from its metrics file, else from its log."""
    first = context.members[0]
    path = context.place.metrics(first)
    if _size(path):
        reader = MetricsReader(path)
        while reader.read(final=True):
            pass
        if reader.last:
            return json_safe(reader.last)
    log = context.place.log(first)
    if not _size(log):
        return {}
    scanner = LogMetrics(metrics_pattern(context))
    last: dict[str, object] = {}
    for values in scanner.feed(read_tail(context.place.directory, first, METRICS_TAIL_BYTES) + b"\n"):
        last.update(values)
    return json_safe(last)


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
        f"Report it with trainmaster.report({search.metric}=...), or set metrics.pattern."
    )


def metrics_pattern(context: TaskContext) -> str | None:
    """The recipe's pattern for metrics in the output; None tries the common ones."""
    return context.experiment.metrics.pattern if context.experiment.metrics else None


def explain_failure(context: TaskContext) -> tuple[EndReason | None, str]:
    """A better reason and message than the exit code, read from the members' logs."""
    for name in context.members:
        if not _size(context.place.log(name)):
            continue
        tail = read_tail(context.place.directory, name, FAILURE_TAIL_BYTES).decode("utf-8", "replace")
        found = _OUT_OF_MEMORY.search(tail)
        if found:
            return EndReason.OOM, f"{name} ran out of memory: {found.group(0).strip()[:200]}"
        advice = context.launcher.explain(tail)
        if advice:
            return None, advice
    return None, ""


def clean_up(context: TaskContext, *, keep_output: bool, keep_checkpoint: bool) -> None:
    """Remove the working directories of an attempt whose end is recorded; logs and metrics stay.

    Args:
        context: the attempt.
        keep_output: it left no published model: what it wrote stays for the user to look at.
        keep_checkpoint: its last checkpoint could not be published.
    """
    place = context.place
    if context.site is not None:
        with contextlib.suppress(OSError):
            note_restored(place, None)
    for directory, keep in (
        (place.checkpoint, keep_checkpoint),
        (place.output("", first=True), keep_output),
        (place.members, keep_output),
    ):
        try:
            directory.rmdir()  # nearly always empty in a sweep: one call instead of a walk
        except OSError:
            if keep:
                _remove_if_empty(directory)
            else:
                shutil.rmtree(directory, ignore_errors=True)


def _remove_if_empty(directory: Path) -> None:
    for child in _directories(directory):
        _remove_if_empty(child)
    try:
        directory.rmdir()
    except OSError:
        return


def _directories(directory: Path) -> list[Path]:
    try:
        with os.scandir(directory) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _has_entries(directory: Path) -> bool:
    try:
        with os.scandir(directory) as entries:
            return next(entries, None) is not None
    except FileNotFoundError:
        return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
