"""Before the members start: directories, the checkpoint to go on from, data, the cached environment."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.artifacts import CheckpointSeries
from trainmaster.artifacts.manifest import DamagedArtifactError
from trainmaster.artifacts.owner import check_still_there
from trainmaster.artifacts.tree import parts_listing
from trainmaster.control.attempt.unpublished_checkpoint import (
    is_superseded,
    lies_here,
    note_restored,
    restore_kept,
)
from trainmaster.control.decide.store_verdicts import NoticedAt, StoreVerdict, verdict
from trainmaster.control.decide.task import Job, PhaseDuration
from trainmaster.control.task.environment_hashes import node_python, setup_hash
from trainmaster.control.task.job_context import NodeGoneError, RelayError, TaskContext
from trainmaster.objects.errors import StoreTrouble, trouble_of
from trainmaster.spec.errors import (
    ProviderError,
    PublishError,
    StoreError,
    TrainmasterError,
    UsageError,
    one_line,
)
from trainmaster.spec.states import EndReason
from trainmaster.volumes.errors import InUseError

if TYPE_CHECKING:
    from trainmaster.control.attempt.images import Images
    from trainmaster.control.attempt.setup import Setup
    from trainmaster.executors.containers.engines import ContainerImage
    from trainmaster.spec.sections import RunReference

#: What environments are made with: path and version.
_PYTHON: Final = (f"{sys.base_prefix}/bin/python3", sys.version.split(maxsplit=1)[0])


def stage(context: TaskContext, models: dict[str, list[tuple[int, str]]]) -> Job:
    """Prepare everything an attempt needs. Safe to repeat, and to begin before an earlier call has ended.

    Args:
        context: the attempt.
        models: per ``data`` name with ``from:`` or ``model:``, tasks and URIs of the models that are meant.

    Returns:
        The job's result; its fields hold ``restored``.
    """
    begun = time.monotonic()
    try:
        with context.site.alone(context):
            restored = _stage(context, models)
        took = _parts(context.took, time.monotonic() - begun)
        return Job(done=True, fields={"restored": restored}, took=took, note="; ".join(context.notes))
    except UsageError as error:
        return Job(done=True, error=one_line(error), users_fault=True)
    except (ProviderError, NodeGoneError, StoreError) as error:  # of the record: it may be back
        return Job(done=True, error=one_line(error), reason=EndReason.NODE_LOST)
    except InUseError as error:  # by what is left of an earlier attempt: it is waited for, but not for ever
        return Job(done=True, error=one_line(error), reason=EndReason.NODE_LOST, users_fault=True)
    except (TrainmasterError, OSError) as error:
        has_worked = context.goes_on or any(models.values())
        trouble = trouble_of(error)
        found = verdict(NoticedAt.LATER if has_worked else NoticedAt.FIRST, trouble)
        lacks_room = found is StoreVerdict.WAIT and trouble is StoreTrouble.FULL
        may_wait = isinstance(error, PublishError) and found is StoreVerdict.WAIT and not lacks_room
        reason = EndReason.NODE_LOST if may_wait else None
        return Job(
            done=True,
            error=one_line(error),
            users_fault=found is StoreVerdict.USER_ERROR,
            reason=reason,
            lacks_room=lacks_room,
        )


def _parts(took: Sequence[PhaseDuration], all_s: float) -> tuple[PhaseDuration, ...]:
    """Parts that were done now, of nodes side by side the longest; and the rest of the staging.

    >>> parts = [PhaseDuration("setup", "a", 3.0), PhaseDuration("setup", "a", 5.0)]
    >>> parts += [PhaseDuration("data", "b", 1.0, is_new=False)]
    >>> [(each.phase, each.seconds) for each in _parts(parts, 8.0)]
    [('setup', 5.0), ('staging', 2.0)]
    """
    longest: dict[tuple[str, str], PhaseDuration] = {}
    for each in sorted(took, key=lambda each: each.seconds):
        longest[each.phase, each.content] = each
    rest_s = max(all_s - sum(each.seconds for each in longest.values()), 0.0)
    new = {(each.phase, each.content) for each in took if each.is_new}
    return (*(each for key, each in longest.items() if key in new), PhaseDuration("staging", "", rest_s))


def _stage(context: TaskContext, models: Mapping[str, Sequence[tuple[int, str]]]) -> int | None:
    """Have all of it where members will look; the number of the checkpoint that is restored."""
    context.place.make_directories(context.members)
    restored = None
    if context.goes_on:
        restored = restore(context)
    for name, source in context.experiment.data.items():
        if source.stage is None:
            if source.directory is None:
                with context.timed("data", source.identity):
                    _provide(context, name, models.get(name, ()))
            link_at(context, name)
    context.site.bring(context)
    for name in context.staged:  # Hadoop may come with `setup`
        with context.timed("data", context.experiment.data[name].identity):
            _provide(context, name, ())
    return restored


def _provide(context: TaskContext, name: str, models: Sequence[tuple[int, str]]) -> None:
    """Have data where members find them; what nodes cannot get themselves is brought here, for them."""
    source = context.experiment.data[name]
    try:
        if source.experiment is not None and not models:
            raise UsageError(
                f"the experiment {source.experiment!r} left no model",
                "Its tasks must write files into TRAINMASTER_OUTPUT_DIR.",
            )
        try:
            context.site.provide(context, name, models)
        except RelayError as error:
            if source.stage is not None:
                raise UsageError(
                    f"the nodes cannot read its store: {error}",
                    "What is staged does not go through this machine: nodes must reach the store, with keys.",
                ) from error
            if source.url is not None and context.is_foreign:  # what only this machine reaches may be private
                raise UsageError(
                    f"the nodes cannot fetch it: {error}", "A server fetches no URL for others."
                ) from error
            provide_here(context, name, models)
    except UsageError as error:
        raise UsageError(f"data.{name}: {error.args[0]}", error.hint) from error


def provide_here(
    context: TaskContext, name: str, models: Sequence[tuple[int, str]], *, fetches: bool = False
) -> None:
    """Bring data to this machine: one directory, shared by tasks.

    A single model (the only one, or ``best``) is the directory itself; several lie in one
    directory per task, named by its number.

    Args:
        context: the attempt.
        name: of the data.
        models: of another experiment, or a registered one: their tasks and URIs.
        fetches: a volume is fetched, not mounted.

    Raises:
        UsageError: there is no such volume, or the URL cannot be had.
        TrainmasterError: it cannot be read.
    """
    from trainmaster.control.attempt.data_sources import fetch_models, provide_volume, volume_url
    from trainmaster.control.attempt.data_urls import fetch_url

    source, target = context.experiment.data[name], context.data_path(name)
    if source.url is not None:
        fetch_url(
            source.url_with(context.variables),
            target,
            sha256=source.sha256,
            size_limit_bytes=source.size_limit_bytes,
            label=source.url,
        )
    elif source.volume is not None:
        address = volume_url(source.volume, context.home.volumes_in or context.home.store_url)
        provide_volume(source.volume, address, target, context.facts, fetches=fetches)
    else:
        fetch_models(models, target, is_single=source.best is not None or len(models) == 1)


def link_at(context: TaskContext, name: str) -> None:
    """Show data at the path that ``at:`` names, inside the working directory.

    Raises:
        UsageError: the path leaves the run's directory, or something else is there.
    """
    at = context.experiment.data[name].at
    if at is None:
        return
    code = context.home.code_directory(context.run)
    link = Path(os.path.normpath(code / at))
    if not link.is_relative_to(code.parent) or link in (code, code.parent):
        raise UsageError(f"data.{name}.at: {at} lies outside the working directory", "Give a relative path.")
    from trainmaster.spec.locking import locked

    target = context.data_path(name)
    with locked(context.home.data_directory(context.run) / f"at-{name}"):
        if link.is_symlink() and link.readlink() == target:
            return
        if link.exists() or link.is_symlink():
            raise UsageError(
                f"data.{name}.at: {at} is in the run's working directory already",
                "Choose another path. If another task of the run has made it: all share that directory, so "
                "what is handed on is written below TRAINMASTER_OUTPUT_DIR, or moved there by `mv`.",
            )
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def setup_environment(context: TaskContext, images: Images | None) -> None:
    """Bring the image that members run in here, and make the experiment's virtual environment.

    Raises:
        UsageError: there is no such image, or the recipe's ``setup`` failed; its log is named.
    """
    image = None
    if images is not None:
        with context.timed("image", context.experiment.container or ""):
            image = images.prepare(context)
    if context.venv is None:
        return
    setup = setup_of(context, context.venv, _PYTHON, image)
    part = setup_hash(setup.script, node_python(context.experiment), context.home.code_directory(context.run))
    try:
        with context.timed("setup", part) as is_new:
            is_new(setup.make(None if images is None else partial(images.set_up, context)))
    except UsageError as error:
        raise UsageError(context.masked(error.args[0]), error.hint) from None


def setup_of(
    context: TaskContext,
    venv: Path,
    python: tuple[str, str],
    image: ContainerImage | None,
    there: Callable[[Path], str] = str,
) -> Setup:
    """The environment of an attempt's members on a machine.

    Args:
        context: the attempt.
        venv: where it would lie on this machine.
        python: path and version of the machine's.
        image: what the members run in there.
        there: where a path of this machine lies there.
    """
    from trainmaster.control.attempt.setup import Setup

    place, code = there(venv), there(context.home.code_directory(context.run))
    script, variables = context.experiment.setup or "", dict(context.variables)
    if image is None:
        return Setup(place, script, code, variables, python[0], identity=" ".join(python))
    name = context.experiment.container or ""
    variables = {**context.site.additions(context.experiment), **variables}
    return Setup(place, script, code, variables, image=name, identity=image.id)


def restore(context: TaskContext) -> int | None:
    """Begin with the last checkpoint of the task; without any with another task's, if that is wanted.

    Returns:
        The number of the task's own; None if it begins with another one, or with none.

    Raises:
        UsageError: the other task left none.
        TrainmasterError: the store cannot be read.
        OSError: something cannot be written.
    """
    number = _restore(context) if context.attempt > 1 else None
    if number is None and context.beginning is not None:
        _inherit(context, context.beginning)
    return number


def _restore(context: TaskContext) -> int | None:
    kept = context.kept_checkpoint
    if kept is None and not context.site.stays:
        kept = context.attempt - 1  # what was fetched of it, and never recorded
    if kept is not None and begins_with_kept(context, kept):
        return None  # it has no number yet
    number = _begin_with_newest(context, context.checkpoints)
    if number is None:
        check_still_there(context.home.store_url, context.run)
        context.place.checkpoint.mkdir(parents=True, exist_ok=True)
        note_restored(context.place, None)
    return number


def _begin_with_newest(
    context: TaskContext, series: CheckpointSeries, *, is_own: bool = True, most: int | None = None
) -> int | None:
    """Begin with the newest whole checkpoint of a series, at most number ``most``; None if there is none."""
    target, damaged = context.place.checkpoint, list[int]()
    for number in reversed(series.complete()):
        if (is_own and number in context.bad_checkpoints) or (most is not None and number > most):
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
            damaged.append(number)
            continue
        _tell_damaged(context, {*damaged, *series.broken(number)}, f"begins with checkpoint {number}")
        target.mkdir(parents=True, exist_ok=True)
        return number
    _tell_damaged(context, {*damaged, *series.broken(0)}, "has no other one to begin with")
    return None


def _tell_damaged(context: TaskContext, numbers: set[int], what: str) -> None:
    """Work that was saved is done again: that is not to happen without a word."""
    if numbers:
        which = ", ".join(map(str, sorted(numbers)))
        are = f"checkpoint {which} is" if len(numbers) == 1 else f"checkpoints {which} are"
        context.notes[:] = [f"{are} damaged in the store: attempt {context.attempt} {what}"]


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


def _inherit(context: TaskContext, beginning: RunReference) -> None:
    """Begin with the last checkpoint of another task, of this run (population-based training) or another one.

    Raises:
        UsageError: it left none.
    """
    is_of_run, home = beginning.run == context.run, context.home
    if not is_of_run:  # a measurement has a store of its own
        home = replace(home, store_url=home.volumes_in or home.store_url)
    series = CheckpointSeries(home.checkpoints_uri(*beginning.place), context.owner if is_of_run else None)
    if _begin_with_newest(context, series, is_own=False, most=beginning.number) is not None:
        return
    if is_of_run:
        raise UsageError(
            f"task {beginning.task}, whose training it goes on with, left no checkpoint",
            "Population-based training needs scripts that save and load TRAINMASTER_CHECKPOINT_DIR.",
        )
    raise UsageError(
        f"experiments.{context.experiment.name}.checkpoint.from: {beginning} is not there any more",
        f"{beginning.run} has gone on since, or its checkpoints were removed. Start the recipe again.",
    )
