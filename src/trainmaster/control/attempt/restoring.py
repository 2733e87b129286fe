"""What an attempt begins with: a checkpoint of its task that is kept here or published, or its parent's."""

from __future__ import annotations

import shutil
from contextlib import suppress

from trainmaster.artifacts import CheckpointSeries
from trainmaster.artifacts.manifest import DamagedArtifactError
from trainmaster.artifacts.tree import parts_listing
from trainmaster.control.attempt.unpublished_checkpoint import (
    is_superseded,
    lies_here,
    note_restored,
    restore_kept,
)
from trainmaster.control.task.job_context import RelayError, TaskContext
from trainmaster.spec.errors import TrainmasterError, UsageError


def restore(context: TaskContext) -> int | None:
    """Begin with the last checkpoint of the task; without any with that of its parent, if it has one.

    Returns:
        The number of the task's own; None if it begins with another one, or with none.

    Raises:
        UsageError: its parent left none.
        TrainmasterError: the store cannot be read.
        OSError: something cannot be written.
    """
    number = _restore(context) if context.attempt > 1 else None
    if number is None and context.parent_checkpoints_uri is not None:
        _inherit(context, context.parent_checkpoints_uri)
    return number


def _restore(context: TaskContext) -> int | None:
    kept = context.kept_checkpoint
    if kept is None and not context.site.stays:
        kept = context.attempt - 1  # what was fetched of it, and never recorded
    if kept is not None and begins_with_kept(context, kept):
        return None  # it has no number yet
    number = _begin_with_newest(context, context.checkpoints)
    if number is None:
        context.place.checkpoint.mkdir(parents=True, exist_ok=True)
        note_restored(context.place, None)
    return number


def _begin_with_newest(context: TaskContext, series: CheckpointSeries, *, is_own: bool = True) -> int | None:
    """Begin with the newest checkpoint of a series that is whole; None if there is none."""
    target = context.place.checkpoint
    for number in reversed(series.complete()):
        if is_own and number in context.bad_checkpoints:
            continue
        if target.exists():
            shutil.rmtree(target)
        try:
            if not context.site.stays:
                _note(context, series, number)
            try:
                context.site.restore_checkpoint(context, series, number, is_own=is_own)
            except RelayError:  # nodes get it from here
                restore_here(context, series, number, is_own=is_own)
        except DamagedArtifactError:  # the one before is better than none
            continue
        target.mkdir(parents=True, exist_ok=True)
        return number
    return None


def _note(context: TaskContext, series: CheckpointSeries, number: int) -> None:
    """Keep what a checkpoint consists of that several machines begin with, before any of it is there."""
    manifest = series.manifest(number)
    note_restored(context.place, manifest)
    if manifest is None:
        raise DamagedArtifactError(f"{series.uri_of(number)} is gone")


def restore_here(context: TaskContext, series: CheckpointSeries, number: int, *, is_own: bool) -> None:
    """Download a checkpoint to this machine; see `Site.restore_checkpoint`."""
    target = context.place.checkpoint
    series.restore(number, target)
    if is_own:  # another task's, though unchanged, is to be published as this task's own
        context.listings[target] = parts_listing({"": target})


def begins_with_kept(context: TaskContext, attempt: int) -> bool:
    """Begin with what an earlier attempt has left here, unless the store has a later one by now.

    Returns:
        False if it has, or nothing is left here.

    Raises:
        OSError: it cannot be copied.
    """
    if not lies_here(context, attempt):
        return False
    with suppress(TrainmasterError):  # while the store is away, nothing there is known to be later
        if is_superseded(context, attempt):
            return False
    restore_kept(context, attempt)
    return True


def _inherit(context: TaskContext, uri: str) -> None:
    """Begin with the last checkpoint of another task (population-based training).

    Raises:
        UsageError: it left none.
    """
    if _begin_with_newest(context, CheckpointSeries(uri, context.owner), is_own=False) is None:
        raise UsageError(
            f"task {context.parent}, whose training it goes on with, left no checkpoint",
            "Population-based training needs scripts that save and load TRAINMASTER_CHECKPOINT_DIR.",
        )
