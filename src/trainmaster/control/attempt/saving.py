"""After the members ended, and now and then before: checkpoints, the model, the last metrics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import cast

from trainmaster.artifacts import JSON, Manifest, UnstableDirectory, publish
from trainmaster.artifacts.collecting import UnfitError
from trainmaster.artifacts.owner import ForeignArtifactError
from trainmaster.artifacts.publishing import publish_model as publish_once
from trainmaster.artifacts.tree import parts_listing
from trainmaster.control.attempt.system_log import keep_system_logs
from trainmaster.control.attempt.unpublished_checkpoint import (
    drop_kept_checkpoint,
    empty_fetched,
    is_superseded,
    was_fetched,
)
from trainmaster.control.decide.effects import Job
from trainmaster.control.task.attempt_end import (
    TELLING,
    explain_failure,
    last_metrics,
    saved_metrics,
)
from trainmaster.control.task.gangs import checkpoints_of, kept_after
from trainmaster.control.task.job_context import NodeGoneError, RelayError, TaskContext
from trainmaster.control.task.layout import has_entries
from trainmaster.executors.telemetry.metrics import json_safe
from trainmaster.spec.errors import ProviderError, PublishError, TrainmasterError, UsageError, one_line
from trainmaster.spec.states import EndReason

#: A directory that changes while it is read is tried again this often at an attempt's end.
STABLE_TRIES = 3
#: So often in a row a running script was writing whenever its checkpoint was copied: then it is told.
UNSTABLE_TOLD = 5
#: A model that waits is fetched from its nodes unless one of its members has left more.
SECURED_BYTES = 1 << 30


def save(context: TaskContext) -> Job:
    """Publish the model and the last checkpoint of an attempt that ended well. Safe to repeat."""
    job = saved_metrics(context)
    fields: dict[str, object] = dict(job.fields)
    extra = manifest_extra(context, cast("dict[str, object]", fields.get("metrics", {})))
    try:
        if job.error:
            if context.kept_model != context.attempt:
                context.site.fetch_output(context)
            return replace(job, fields=fields)
        if publish_model(context, extra, fields):
            fields["model_uri"] = context.model_uri
        fields.pop("kept_model", None)
        if "model_uri" in fields and not kept_after(context.experiment):
            drop_kept_checkpoint(context, fields)
        else:
            publish_last_checkpoint(context, fields)
    except (NodeGoneError, ProviderError) as error:  # what is lost then is not needed, if the model is here
        if "model_uri" not in fields:
            return _not_saved(context, error, fields)
    except (TrainmasterError, OSError) as error:
        return _not_saved(context, error, fields)
    if "model_uri" in fields:
        _remove_checkpoints(context)
    return replace(job, fields=fields)


def _remove_checkpoints(context: TaskContext) -> None:
    """Delete those that nothing needs beside the model; waste, if it cannot be done."""
    with contextlib.suppress(TrainmasterError, OSError):
        if keep := kept_after(context.experiment):
            context.checkpoints.prune(keep, context.bad_checkpoints)
        else:
            context.checkpoints.delete_all()


def manifest_extra(context: TaskContext, metrics: Mapping[str, object]) -> dict[str, JSON]:
    """What a model's manifest says of where it comes from."""
    kept: dict[str, object] = {
        "run": context.run,
        "experiment": context.experiment.name,
        "task": context.task,
        "attempt": context.attempt,
        "parameters": json_safe(context.parameters),
        "metrics": dict(metrics),
    }
    return cast("dict[str, JSON]", kept)


def publish_model(context: TaskContext, extra: Mapping[str, JSON], fields: dict[str, object]) -> bool:
    """Publish the model from where it is; False if there is none.

    Args:
        context: the attempt.
        extra: kept in the manifest.
        fields: get ``kept_model`` once it was fetched: what becomes of its nodes is then of no more interest.
    """
    if context.kept_model != context.attempt:
        try:
            return context.site.publish_model(context, extra)
        except RelayError:
            context.site.fetch_output(context)
            if has_model(context):
                fields["kept_model"] = context.attempt
    return publish_model_here(context, extra)


def _not_saved(context: TaskContext, error: Exception, fields: dict[str, object]) -> Job:
    # A lost node takes with it what its members made: the attempt has to be made again.
    is_gone = isinstance(error, NodeGoneError)
    # Its place stays another home's: what lies here is safe, and what lies on nodes is fetched at the end.
    is_taken = isinstance(error, ForeignArtifactError) and context.site.stays
    what = "last checkpoint" if "model_uri" in fields else "model"
    if isinstance(error, PublishError | UsageError) and not is_lasting(error):
        _secure(context, fields)
    return Job(
        done=True,
        error=f"its {what} could not be saved: {one_line(error)}",
        fields=fields,
        reason=EndReason.NODE_LOST if is_gone else None,
        unsaved=not is_gone and not is_lasting(error) and not is_taken,
        place=place_of(context, fields),
    )


def _secure(context: TaskContext, fields: dict[str, object]) -> None:
    """Have a model here while it waits, unless it is large: its machine may be lost meanwhile."""
    is_here = context.kept_model == context.attempt or "kept_model" in fields
    if is_here or context.site.stays or "model_uri" in fields:
        return
    with contextlib.suppress(TrainmasterError, OSError):
        context.site.fetch_output(context, limit_bytes=SECURED_BYTES)
        if has_model(context):
            fields["kept_model"] = context.attempt


def is_lasting(error: Exception) -> bool:
    """Return True if retrying is pointless: the content is invalid, not the store."""
    # What the script has made of its directories no waiting changes.
    return isinstance(error, UnfitError | NotADirectoryError)


def place_of(context: TaskContext, fields: Mapping[str, object] | None = None) -> str:
    """Where what an attempt left lies, in words."""
    if context.attempt in (context.kept_model, (fields or {}).get("kept_model")):
        return f"in {context.place.directory}"
    return context.site.where(context)


def has_model(context: TaskContext) -> bool:
    """Whether members have left anything in their output directories, as they are here."""
    return any(has_entries(part) for part in context.parts.values())


def publish_last_checkpoint(context: TaskContext, fields: dict[str, object]) -> int | None:
    """Publish what an attempt that ended well saved last; what was kept of an earlier one has served then."""
    if context.kept_checkpoint == context.attempt:
        number = _published(context, publish_checkpoint_here, STABLE_TRIES)
    else:
        number = publish_checkpoint(context, is_patient=True)
    if number is not None:
        drop_kept_checkpoint(context, fields)
    return number


def publish_model_here(context: TaskContext, extra: Mapping[str, JSON]) -> bool:
    """Publish what lies here in the members' output directories as the attempt's model; False if none."""
    if not has_model(context):
        return False
    uri = context.model_uri

    def make() -> Manifest | None:
        return publish(context.parts, uri, kind="model", extra=extra, owner=context.owner)

    return publish_once(uri, make, attempt=context.attempt, owner=context.owner) is not None


def recover(context: TaskContext) -> Job:
    """Keep what an attempt that ended badly leaves behind: its last checkpoint, metrics, a better reason."""
    metrics, not_finite = last_metrics(context)
    fields: dict[str, object] = {"metrics": metrics} if metrics else {}
    error, unsaved = "", False
    progressed = bool(metrics)
    try:
        published = _publish_what_is_left(context, fields)
        progressed = progressed or published is not None or _has_published(context)
        if published is not None:
            drop_kept_checkpoint(context, fields)
    except (TrainmasterError, OSError) as failure:  # the attempt's own reason matters more than this
        # A node that does not answer is not waited for: it was lost, as likely as not.
        unsaved = isinstance(failure, PublishError | UsageError | OSError) and not is_lasting(failure)
        error = f"its last checkpoint could not be saved: {one_line(failure)}"
        if "kept_checkpoint" in fields:
            unsaved = False
            here = context.place.checkpoint
            error += f" What was fetched before is kept in {here}, and the next attempt goes on from it."
    context.site.fetch_output(context, is_final=False)
    reason, message, last_errors = explain_failure(context)
    message = message or context.site.full_disks(context)
    if reason is None and context.experiment.data:
        is_lost, words = context.site.lost_data(context)
        if is_lost:  # whatever the script said of it, it was not the script's fault
            reason, message = EndReason.NODE_LOST, words
        message = message or words
    system = keep_system_logs(context) if TELLING & {reason, context.end_reason} else ""
    return Job(
        done=True,
        note="; ".join(filter(None, (not_finite, system))),
        error=error,
        fields=fields,
        reason=reason,
        message=message,
        last_errors=last_errors,
        progressed=progressed,
        unsaved=unsaved,
        place=place_of(context) if unsaved else "",
    )


def _publish_what_is_left(context: TaskContext, fields: dict[str, object]) -> int | None:
    """Publish the last checkpoint: of nodes that are gone what was fetched while their store was away."""
    try:
        return publish_checkpoint(context)
    except (NodeGoneError, ProviderError):
        if not was_fetched(context):
            raise
        fields["kept_checkpoint"] = context.attempt
        is_published = is_superseded(context, context.attempt)
        if is_published or (number := _published(context, publish_checkpoint_here, STABLE_TRIES)) is None:
            del fields["kept_checkpoint"]
            raise
        del fields["kept_checkpoint"]
        return number


def checkpoint(context: TaskContext) -> Job:
    """Publish the checkpoint directory of a running attempt, if it holds something new and whole."""
    try:
        published = publish_checkpoint(context, tries=1)
        if published is not None:
            drop_kept_checkpoint(context, {})
    except (TrainmasterError, OSError) as error:
        return Job(done=True, error=one_line(error))
    times = context.unstable.get(context.place.checkpoint, 0)
    if published is None and times >= UNSTABLE_TOLD:
        return Job(
            done=True,
            error=f"whenever its files were copied, {UNSTABLE_TOLD} times in a row, the script was writing "
            "them. Have it write seldom enough that they stand still for as long as a copy takes.",
        )
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
    try:
        number = _published(context, partial(context.site.publish_checkpoint, is_patient=is_patient), tries)
    except RelayError:
        if not fetch_checkpoint(context, tries=tries, is_patient=is_patient):
            _was_unstable(context)
            return None
        return _published(context, publish_checkpoint_here, tries)
    if number is not None and not context.site.stays:
        empty_fetched(context)
    if is_patient and context.attempt > 1:  # the last one; what was lost may have left half of one
        context.checkpoints.clear_unfinished()
    return number


def _published(context: TaskContext, publish: Callable[[TaskContext], int | None], tries: int) -> int | None:
    """Publish it with a way to do so; None if there was nothing new, or nothing stable."""
    for _ in range(tries):
        try:
            number = publish(context)
        except UnstableDirectory:
            _was_unstable(context)
            continue
        context.unstable.pop(context.place.checkpoint, None)
        if number is not None:
            context.checkpoints.prune(checkpoints_of(context.experiment).keep, context.bad_checkpoints)
        return number
    return None


def _was_unstable(context: TaskContext) -> None:
    directory = context.place.checkpoint
    context.unstable[directory] = context.unstable.get(directory, 0) + 1


def publish_checkpoint_here(context: TaskContext) -> int | None:
    """Publish the checkpoint directory as it is on this machine; see `Site.publish_checkpoint`."""
    directory = context.place.checkpoint
    if not has_entries(directory):
        return None
    before, last = parts_listing({"": directory}), context.listings.get(directory)
    number = context.checkpoints.publish({"": directory}, attempt=context.attempt, last=last)
    context.listings[directory] = before
    return number


def fetch_checkpoint(context: TaskContext, *, tries: int = STABLE_TRIES, is_patient: bool = False) -> bool:
    """Have the directory here as it is on its machines; False if it never stood still."""
    return any(context.site.fetch_checkpoint(context, is_patient=is_patient) for _ in range(tries))


def _has_published(context: TaskContext) -> bool:
    """True if the newest checkpoint of the task is of this attempt."""
    series = context.checkpoints
    newest = series.newest()
    manifest = series.manifest(newest) if newest is not None else None
    return manifest is not None and manifest.extra.get("attempt") == context.attempt
