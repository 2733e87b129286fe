"""The last checkpoint of an attempt that lies on this machine's disk, as it could not be published yet.

What an attempt on nodes has begun with, kept as long as it runs.

Where several nodes publish together, this tells what each holds as it was restored from what it has changed.
The checkpoint itself may make room for newer ones, and the driver may be killed.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster.artifacts import Manifest
from trainmaster.control.task.layout import AttemptPlace, has_entries
from trainmaster.spec.private_files import write_private

if TYPE_CHECKING:
    from trainmaster.control.task.job_context import TaskContext


def note_restored(place: AttemptPlace, manifest: Manifest | None) -> None:
    """Keep what an attempt begins with; before any of it is on a node.

    Args:
        place: of the attempt.
        manifest: of the checkpoint; None if it begins with nothing.

    Raises:
        OSError: it cannot be written.
    """
    if manifest is None:
        place.restored.unlink(missing_ok=True)
        return
    write_private(place.restored, manifest.to_json())


def noted_restored(place: AttemptPlace) -> Manifest | None:
    """What `note_restored` has kept.

    Raises:
        PublishError: the file is damaged.
        OSError: it cannot be read.
    """
    try:
        data = place.restored.read_bytes()
    except FileNotFoundError:
        return None
    return Manifest.from_json(data, str(place.restored))


def was_fetched(context: TaskContext) -> bool:
    """Whether an attempt's directory here holds a later checkpoint than the one that it has begun with.

    It is exchanged as a whole whenever its nodes' are fetched, so what is there is one.

    Raises:
        TrainmasterError: what it has begun with is damaged.
        OSError: something cannot be read.
    """
    if not has_entries(context.place.checkpoint):
        return False
    restored = noted_restored(context.place)
    return restored is None or _files(context.place.checkpoint) != _files_of(restored)


def is_superseded(context: TaskContext, attempt: int) -> bool:
    """Whether the store has a later checkpoint than the one that an attempt has left here.

    A driver may be killed between publishing one and recording that the kept one has served.

    Args:
        context: of the task.
        attempt: whose directory here is meant.

    Raises:
        TrainmasterError: the store cannot be asked.
        OSError: something cannot be read.
    """
    series = context.checkpoints
    newest = series.newest()
    manifest = None if newest is None else series.manifest(newest)
    by = manifest.extra.get("attempt") if manifest is not None else None
    if manifest is None or not isinstance(by, int) or newest in context.bad_checkpoints:
        return False
    here, there = _files(_directory(context, attempt)), _files_of(manifest)
    if by != attempt:
        return by > attempt or here == there  # it came here only to be sent to nodes
    # Of one attempt both have the times of the machines that wrote them. What is the same in both is left
    # out: one machine's clock may be ahead of the others'.
    return max((ns for _, _, ns in here - there), default=0) <= max(
        (ns for _, _, ns in there - here), default=0
    )


def lies_here(context: TaskContext, attempt: int) -> bool:
    """Whether there is a checkpoint of an attempt on this machine."""
    return has_entries(_directory(context, attempt))


def restore_kept(context: TaskContext, attempt: int) -> None:
    """Begin with what an earlier attempt saved last, and could not publish.

    Args:
        context: the attempt that begins.
        attempt: the earlier one.

    Raises:
        OSError: it cannot be copied.
    """
    earlier, target = _directory(context, attempt), context.place.checkpoint
    shutil.rmtree(target, ignore_errors=True)
    # A copy: until something newer is published, or kept, this is the only one.
    shutil.copytree(earlier, target, symlinks=True)
    note_restored(context.place, None)
    for before in range(1, attempt):
        shutil.rmtree(_directory(context, before), ignore_errors=True)


def empty_fetched(context: TaskContext) -> None:
    """Nodes have published a later checkpoint than what was fetched of theirs before."""
    directory = context.place.checkpoint
    if has_entries(directory):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(exist_ok=True)


def drop_kept_checkpoint(context: TaskContext, fields: dict[str, object]) -> None:
    """A newer checkpoint is published than the one that is kept here."""
    if context.kept_checkpoint is None:
        return
    fields["kept_checkpoint"] = None
    if context.kept_checkpoint != context.attempt:
        shutil.rmtree(_directory(context, context.kept_checkpoint), ignore_errors=True)


def _directory(context: TaskContext, attempt: int) -> Path:
    return context.home.attempt(context.run, context.experiment.name, context.task, attempt).checkpoint


def _files(directory: Path) -> set[tuple[str, int, int]]:
    """Path, bytes and time of what lies in a directory."""
    paths = [Path(place) / name for place, _, names in os.walk(directory) for name in names]
    found = [(path.relative_to(directory).as_posix(), path.lstat()) for path in paths]
    return {(path, seen.st_size, seen.st_mtime_ns) for path, seen in found if stat.S_ISREG(seen.st_mode)}


def _files_of(manifest: Manifest) -> set[tuple[str, int, int]]:
    """The same of what is published."""
    return {
        (entry.path, entry.size_bytes, entry.mtime_ns) for entry in manifest.files if entry.kind == "file"
    }
