"""What an attempt begins with: a checkpoint of its task that is kept here or published, or its parent's."""

from __future__ import annotations

import shutil
from contextlib import suppress

from trainmaster.artifacts import CheckpointSeries
from trainmaster.artifacts.manifest import DamagedArtifactError
from trainmaster.artifacts.tree import parts_listing
from trainmaster.control.attempt.restored import note_restored
from trainmaster.control.attempt.unpublished_checkpoint import is_superseded, lies_here, restore_kept
from trainmaster.control.task.job_context import TaskContext
from trainmaster.control.task.site_errors import RelayError
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
    if kept is None and context.site is not None:
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
        if not _note(context, series, number):
            continue
        if _restored_by_nodes(context, series.uri_of(number), is_own=is_own):
            return number
        try:
            series.restore(number, target)
        except DamagedArtifactError:  # the one before is better than none
            continue
        if is_own:  # another task's, though unchanged, is to be published as this task's own
            context.listings[target] = parts_listing({"": target})
        return number
    return None


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


def _note(context: TaskContext, series: CheckpointSeries, number: int) -> bool:
    """Keep what a checkpoint consists of that nodes will begin with; False if it is damaged or gone."""
    if context.site is None:
        return True
    try:
        manifest = series.manifest(number)
    except DamagedArtifactError:
        return False
    note_restored(context.place, manifest)
    return manifest is not None


def _restored_by_nodes(context: TaskContext, uri: str, *, is_own: bool = True) -> bool:
    """Have the nodes download a checkpoint themselves; False if they cannot: they get ours."""
    if context.site is None:
        return False
    try:
        context.site.restore_checkpoint(context, uri, is_own=is_own)
    except RelayError:
        return False
    context.place.checkpoint.mkdir(parents=True, exist_ok=True)
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
