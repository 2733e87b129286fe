"""After the members ended, and now and then before: checkpoints, the model, the last metrics."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from trainmaster.artifacts import JSON, Manifest, UnstableDirectory, publish
from trainmaster.artifacts.collecting import UnfitError
from trainmaster.artifacts.models import publish_model as publish_once
from trainmaster.artifacts.models import remove_unrecorded
from trainmaster.artifacts.owner import ForeignArtifactError
from trainmaster.artifacts.tree import parts_listing
from trainmaster.control.attempt.system_log import keep_system_logs
from trainmaster.control.attempt.unpublished_checkpoint import (
    drop_kept_checkpoint,
    empty_fetched,
    is_superseded,
    was_fetched,
)
from trainmaster.control.decide.effects import Job
from trainmaster.control.task.attempt_words import (
    TELLING,
    explain_failure,
    has_entries,
    last_metrics,
    saved_metrics,
)
from trainmaster.control.task.gangs import checkpoints_of, kept_after
from trainmaster.control.task.job_context import TaskContext
from trainmaster.control.task.site_errors import NodeGoneError, RelayError
from trainmaster.executors.metrics import json_safe
from trainmaster.spec.errors import ProviderError, PublishError, TrainmasterError, UsageError, one_line
from trainmaster.spec.states import EndReason

if TYPE_CHECKING:
    from trainmaster.control.task.job_context import Site

#: A directory that changes while it is read is tried again this often at an attempt's end.
STABLE_TRIES = 3
#: A model that waits is fetched from its nodes unless one of its members has left more.
SECURED_BYTES = 1 << 30


def save(context: TaskContext) -> Job:
    """Publish the model and the last checkpoint of an attempt that ended well. Safe to repeat."""
    job = saved_metrics(context)
    fields: dict[str, object] = dict(job.fields)
    extra = manifest_extra(context, cast("dict[str, object]", fields.get("metrics", {})))
    # Once it was fetched, what becomes of its nodes is of no more interest.
    site = None if context.kept_model == context.attempt else context.site
    try:
        if context.site is None and context.staged:
            from trainmaster.control.attempt.staged_data import fetch_output_here

            fetch_output_here(context)
        is_sent = site is not None and not job.error and _send_model(context, site, extra, fields)
        if site is not None and not is_sent:
            site.fetch_output(context)
    except (TrainmasterError, OSError) as error:
        return _not_saved(context, error, fields)
    if job.error:
        return replace(job, fields=fields)
    try:
        if not is_sent and has_model(context):
            if site is not None:
                fields["kept_model"] = context.attempt
            if publish_model(context, extra):
                fields["model_uri"] = context.model_uri
        fields.pop("kept_model", None)
        if "model_uri" in fields:
            remove_unrecorded_models(context)
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


def _send_model(context: TaskContext, site: Site, extra: dict[str, JSON], fields: dict[str, object]) -> bool:
    """Have the nodes publish the model; False if they cannot."""
    try:
        if site.publish_model(context, extra):
            fields["model_uri"] = context.model_uri
    except RelayError:
        return False
    return True


def _not_saved(context: TaskContext, error: Exception, fields: dict[str, object]) -> Job:
    # A lost node takes with it what its members made: the attempt has to be made again.
    is_gone = isinstance(error, NodeGoneError)
    # Its place stays another home's: what lies here is safe, and what lies on nodes is fetched at the end.
    is_taken = isinstance(error, ForeignArtifactError) and context.site is None
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
    if context.site is None or context.kept_model == context.attempt or "model_uri" in fields:
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
    is_here = context.site is None or context.attempt in (
        context.kept_model,
        (fields or {}).get("kept_model"),
    )
    if is_here or context.site is None:
        return f"in {context.place.directory}"
    return context.site.where(context)


def has_model(context: TaskContext) -> bool:
    """Whether members have left anything in their output directories, as they are here."""
    return any(has_entries(part) for part in context.parts.values())


def publish_last_checkpoint(context: TaskContext, fields: dict[str, object]) -> int | None:
    """Publish what an attempt that ended well saved last; what was kept of an earlier one has served then."""
    if context.site is None or context.kept_checkpoint != context.attempt:
        number = publish_checkpoint(context, is_patient=True)
    else:
        number = publish_checkpoint(replace(context, site=None))
    if number is not None:
        drop_kept_checkpoint(context, fields)
    return number


def publish_model(context: TaskContext, extra: dict[str, JSON]) -> Manifest | None:
    """Publish what lies here in the members' output directories, as the model of its attempt."""
    uri = context.model_uri

    def make() -> Manifest | None:
        return publish(context.parts, uri, kind="model", extra=extra, owner=context.owner)

    return publish_once(uri, make, attempt=context.attempt, owner=context.owner)


def remove_unrecorded_models(context: TaskContext) -> None:
    """Delete what earlier attempts have published and never recorded; waste, if it cannot be done."""
    for attempt in range(1, context.attempt):
        with contextlib.suppress(TrainmasterError, OSError):
            remove_unrecorded(context.model_uri_of(attempt), attempt=attempt, owner=context.owner)


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
    if context.site is not None:
        context.site.fetch_output(context, is_final=False)
    reason, message, last_errors = explain_failure(context)
    if not message and context.site is not None:
        message = context.site.full_disks(context)
    if reason is None and context.site is not None and context.experiment.data:
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
        if context.site is None or not was_fetched(context):
            raise
        fields["kept_checkpoint"] = context.attempt
        is_published = is_superseded(context, context.attempt)
        if is_published or (number := publish_checkpoint(replace(context, site=None))) is None:
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
            if not fetch_checkpoint(context, context.site, tries=tries, is_patient=is_patient):
                return None
    if not has_entries(directory):
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
            empty_fetched(context)
            series.prune(checkpoints_of(context.experiment).keep, context.bad_checkpoints)
        if is_patient and context.attempt > 1:  # the last one; a lost node may have left half of one
            series.clear_unfinished()
        return number
    return None


def fetch_checkpoint(
    context: TaskContext, site: Site, *, tries: int = STABLE_TRIES, is_patient: bool = False
) -> bool:
    """Have the directory here as it is on the nodes; False if it never stood still."""
    return any(site.fetch_checkpoint(context, is_patient=is_patient) for _ in range(tries))


def _has_published(context: TaskContext) -> bool:
    """True if the newest checkpoint of the task is of this attempt."""
    series = context.checkpoints
    newest = series.newest()
    manifest = series.manifest(newest) if newest is not None else None
    return manifest is not None and manifest.extra.get("attempt") == context.attempt
