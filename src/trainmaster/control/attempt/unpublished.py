"""What cannot be published is kept on this machine's disk, and published later; `decide.saving` says when."""

from __future__ import annotations

from collections.abc import Mapping

from trainmaster.artifacts import UnstableDirectory
from trainmaster.control.attempt.saving import (
    fetch_checkpoint,
    has_model,
    manifest_extra,
    place_of,
    publish_model_here,
    recover,
    save,
)
from trainmaster.control.decide.effects import Job
from trainmaster.control.task.job_context import NodeGoneError, TaskContext
from trainmaster.control.task.layout import has_entries
from trainmaster.spec.errors import NotFoundError, TrainmasterError, one_line
from trainmaster.spec.states import EndReason


def keep(context: TaskContext, *, has_won: bool) -> Job:
    """Have on this machine's disk what could not be saved; if that is not possible either, try once more.

    Args:
        context: the attempt.
        has_won: it ended well: its model is what matters.
    """
    fields: dict[str, object] = {}
    failures: list[Exception] = []
    try:
        if has_won and context.kept_model != context.attempt:
            context.site.fetch_output(context)
        if has_won and has_model(context):
            fields["kept_model"] = context.attempt
    except (TrainmasterError, OSError) as error:
        failures.append(error)
    try:
        if fetch_checkpoint(context, is_patient=has_won):
            if has_entries(context.place.checkpoint):
                fields["kept_checkpoint"] = context.attempt
        else:
            failures.append(UnstableDirectory(str(context.place.checkpoint)))
    except (TrainmasterError, OSError) as error:
        if "kept_model" not in fields:
            failures.append(error)
    if not failures:
        return Job(done=True, error=_kept(context, fields), fields=fields)
    job = save(context) if has_won else recover(context)
    if not job.error or "kept_checkpoint" in job.fields:
        return job
    is_gone = all(isinstance(failure, NodeGoneError) for failure in failures)
    words = " ".join(one_line(failure) for failure in failures)
    return Job(
        done=True,
        error=f"It could not be fetched either: {words}",
        fields=fields,
        reason=EndReason.NODE_LOST if is_gone else None,
        unsaved=not is_gone,
        place=place_of(context),
    )


def _kept(context: TaskContext, fields: Mapping[str, object]) -> str:
    """Where it is, and what to do with it."""
    if "kept_model" in fields:
        place = context.place.output(context.members[0], first=True)
        return f"It is kept in {place}; `trainmaster models save {context.run}` publishes it."
    if "kept_checkpoint" in fields:
        return f"It is kept in {context.place.checkpoint}, and the next attempt goes on from it."
    return "There was nothing to keep."


def publish_kept(context: TaskContext, metrics: Mapping[str, object]) -> None:
    """Publish a model that was kept here, as that of its attempt. Safe to repeat.

    Args:
        context: the attempt, on this machine.
        metrics: of it.

    Raises:
        NotFoundError: it is not here any more.
        PublishError: it cannot be published.
    """
    if not has_model(context):
        raise NotFoundError(
            f"{context.run}: the model of {context.experiment.name}/{context.task} is not in "
            f"{context.place.directory} any more",
            f"`trainmaster resume {context.run}` trains it again.",
        )
    publish_model_here(context, manifest_extra(context, metrics))
