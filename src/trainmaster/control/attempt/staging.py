"""Before the members start: directories, the checkpoint to go on from, data, the cached environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.control.attempt.recorded_environment import note_environment
from trainmaster.control.decide.store_verdicts import Moment, StoreVerdict, verdict
from trainmaster.control.decide.task import Job
from trainmaster.control.task.job_context import ImageSource, TaskContext
from trainmaster.control.task.site_errors import NodeGoneError, RelayError
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
from trainmaster.volumes.mounting.errors import InUseError

if TYPE_CHECKING:
    from trainmaster.control.attempt.setup import Setup
    from trainmaster.executors.engines import Image

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
    if context.site is None:
        return _stage(context, models)
    try:
        from trainmaster.control.task.locking import locked

        # A gang that got other nodes is staged again: a thread for the first ones must not do so later,
        # when the members run.
        with locked(context.place.directory / "staging"):
            return _stage(context, models)
    except OSError as error:  # of the lock's file
        return Job(done=True, error=one_line(error), lacks_room=trouble_of(error) is StoreTrouble.FULL)


def _stage(context: TaskContext, models: dict[str, list[tuple[int, str]]]) -> Job:
    try:
        context.place.make_directories(context.members)
        restored = None
        if context.attempt > 1 or context.parent is not None:
            from trainmaster.control.attempt.restoring import restore

            restored = restore(context)
        for name, source in context.experiment.data.items():
            if source.stage is not None:  # Hadoop may come with `setup`
                continue
            if not _provided_by_nodes(context, name, models.get(name, ())):
                if source.experiment is not None or source.model is not None:
                    take_over(context, name, models[name])
                elif source.volume is not None or source.url is not None:
                    _provide(context, name)
            link_at(context, name)
        if context.site is not None:
            context.site.bring(context)
            _stage_data(context)
            return Job(done=True, fields={"restored": restored})
        setup_environment(context)
        _stage_data(context)
        note_environment(context)
        if context.isolation is not None:
            context.isolation.hand_over(context)
    except UsageError as error:
        return Job(done=True, error=one_line(error), users_fault=True)
    except (ProviderError, NodeGoneError, StoreError) as error:  # of the record: it may be back
        return Job(done=True, error=one_line(error), reason=EndReason.NODE_LOST)
    except InUseError as error:  # by what is left of an earlier attempt: it is waited for, but not for ever
        return Job(done=True, error=one_line(error), reason=EndReason.NODE_LOST, users_fault=True)
    except (TrainmasterError, OSError) as error:
        has_worked = context.attempt > 1 or context.parent is not None or any(models.values())
        trouble = trouble_of(error)
        found = verdict(Moment.LATER if has_worked else Moment.FIRST, trouble)
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
    return Job(done=True, fields={"restored": restored})


def _provide(context: TaskContext, name: str) -> None:
    """Bring a volume, or what a URL names, to where the members find it."""
    from trainmaster.control.attempt.data_sources import fetch_url, provide_volume, volume_url

    source, target = context.experiment.data[name], context.data_path(name)
    try:
        if source.url is not None and context.isolation is not None:
            raise UsageError("a server fetches no URL for others", "Push it as a volume.")
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
            # Only a process that has mounted a volume sees what is in it.
            provide_volume(
                source.volume, address, target, context.facts, fetches=context.isolation is not None
            )
    except UsageError as error:
        raise UsageError(f"data.{name}: {error.args[0]}", error.hint) from error


def _provided_by_nodes(context: TaskContext, name: str, models: Sequence[tuple[int, str]]) -> bool:
    """Have the nodes get data from where they are; False if not all of them can: they get ours."""
    source = context.experiment.data[name]
    if context.site is None or source.directory is not None or (source.experiment is not None and not models):
        return False
    try:
        context.site.provide(context, name, models)
    except RelayError as error:
        if source.url is not None and context.is_foreign:  # what only this machine reaches may be private
            raise UsageError(
                f"data.{name}: the nodes cannot fetch it: {error}", "A server fetches no URL for others."
            ) from error
        return False
    except UsageError as error:
        raise UsageError(f"data.{name}: {error.args[0]}", error.hint) from error
    return True


def _stage_data(context: TaskContext) -> None:
    for name in context.staged:
        try:
            if context.site is None:
                from trainmaster.control.attempt.staged_data import stage_here

                stage_here(context, name)
            else:
                context.site.provide(context, name, ())
        except RelayError as error:
            raise UsageError(
                f"data.{name}: the nodes cannot read its store: {error}",
                "What is staged does not go through this machine: nodes must reach the store, with keys.",
            ) from error
        except UsageError as error:
            raise UsageError(f"data.{name}: {error.args[0]}", error.hint) from error


def take_over(context: TaskContext, name: str, models: list[tuple[int, str]]) -> None:
    """Bring the models of another experiment, or a registered one, here: one directory, shared by tasks.

    A single model (the only one, or ``best``) is the directory itself; several lie in one
    directory per task, named by its number.

    Raises:
        UsageError: the experiment left no model at all.
    """
    from trainmaster.control.attempt.data_sources import fetch_models

    source = context.experiment.data[name]
    if not models:
        raise UsageError(
            f"data.{name}: the experiment {source.experiment!r} left no model",
            "Its tasks must write files into TRAINMASTER_OUTPUT_DIR.",
        )
    fetch_models(models, context.data_path(name), is_single=source.best is not None or len(models) == 1)


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
    from trainmaster.control.task.locking import locked

    target = context.data_path(name)
    with locked(context.home.data_directory(context.run) / f"at-{name}"):
        if link.is_symlink() and link.readlink() == target:
            return
        if link.exists() or link.is_symlink():
            raise UsageError(f"data.{name}.at: {at} exists already", "Choose another path.")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def setup_environment(context: TaskContext) -> None:
    """Bring the image that members run in, and make the experiment's virtual environment.

    Raises:
        UsageError: there is no such image, or the recipe's ``setup`` failed; its log is named.
    """
    image = context.images.prepare(context) if context.images is not None else None
    if context.venv is None:
        return
    setup = setup_of(context, context.venv, _PYTHON, image, context.images)
    try:
        setup.make(None if context.images is None else partial(context.images.set_up, context))
    except UsageError as error:
        raise UsageError(context.masked(error.args[0]), error.hint) from None


def setup_of(
    context: TaskContext,
    venv: Path,
    python: tuple[str, str],
    image: Image | None,
    images: ImageSource | None,
    there: Callable[[Path], str] = str,
) -> Setup:
    """The environment of an attempt's members on a machine.

    Args:
        context: the attempt.
        venv: where it would lie on this machine.
        python: path and version of the machine's.
        image: what the members run in there.
        images: where it is from.
        there: where a path of this machine lies there.
    """
    from trainmaster.control.attempt.setup import Setup

    place, code = there(venv), there(context.home.code_directory(context.run))
    script, variables = context.experiment.setup or "", dict(context.variables)
    if image is None or images is None:
        return Setup(place, script, code, variables, python[0], identity=" ".join(python))
    name = context.experiment.container or ""
    return Setup(place, script, code, {**images.additions(name), **variables}, image=name, identity=image.id)
