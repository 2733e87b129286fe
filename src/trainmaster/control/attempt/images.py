"""`Images`: what the experiments of a run name as ``container``, made ready before their members start."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from trainmaster.executors.base import Container
from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from trainmaster.control.attempt.local_images import LocalImages
    from trainmaster.control.attempt.setup import Setup
    from trainmaster.control.task.isolation import Isolation
    from trainmaster.control.task.job_context import TaskContext
    from trainmaster.executors.containers.engines import ContainerImage

#: The tasks of an experiment that all fail for want of its image ask for it once.
_REMEMBER_REFUSAL_S: Final = 30.0


class BroughtImages:
    """Images are brought to each machine once, and so is one that was refused; threads share it.

    Args:
        user: name of who members are, where no image is ready yet.
    """

    def __init__(self, user: str = "") -> None:
        self._user = user
        self._ready: dict[tuple[str, str], tuple[ContainerImage, str]] = {}
        self._refused: dict[tuple[str, str], tuple[float, UsageError]] = {}
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        self._guard = threading.Lock()

    def environment(self, name: str) -> dict[str, str]:
        """What a member finds in an image that is ready, with what every member gets on top."""
        from trainmaster.control.attempt.local_images import base_inside

        return base_inside(*self._known(name))

    def additions(self, name: str) -> dict[str, str]:
        """What every member gets that the image does not set."""
        from trainmaster.control.attempt.local_images import added_inside

        return added_inside(*self._known(name))

    def _once(
        self,
        context: TaskContext,
        machine: str,
        bring: Callable[[str], tuple[ContainerImage, str]],
        shown: str = "",
    ) -> ContainerImage:
        """Bring an attempt's image to a machine unless it is known to be there.

        Args:
            context: the attempt.
            machine: its id.
            bring: brings the image of this name; gives it, and who members are there.
            shown: of the machine, before what is wrong.

        Raises:
            UsageError: it cannot be had, or cannot be used.
        """
        name = image_of(context)
        key = (machine, name)
        if key in self._ready:  # the loop asks again, and must not wait for another one's pull
            return self._ready[key][0]
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            refused_at, refusal = self._refused.get(key, (0.0, None))
            if refusal is not None and time.monotonic() - refused_at < _REMEMBER_REFUSAL_S:
                raise refusal
            try:
                if key not in self._ready:
                    self._ready[key] = bring(name)
            except UsageError as error:
                where = f"experiments.{context.experiment.name}.container"
                refusal = UsageError(f"{where}: {shown}{error.args[0]}", error.hint)
                self._refused[key] = (time.monotonic(), refusal)
                raise refusal from None
            return self._ready[key][0]

    def _known(self, name: str) -> tuple[ContainerImage | None, str]:
        """As some machine has it."""
        ready = list(self._ready.items())
        return next((found for (_, known), found in ready if known == name), (None, self._user))


class Images(BroughtImages):
    """Those of one run on this machine, shared by its jobs.

    Args:
        isolation: how members are kept apart from this machine.
    """

    def __init__(self, isolation: Isolation | None = None) -> None:
        from trainmaster.control.attempt.local_images import own_user

        super().__init__(own_user() if isolation is None else isolation.user)
        self._isolation = isolation
        self._local_images: LocalImages | None = None

    def request(self, context: TaskContext, data: Mapping[str, Path]) -> Container:
        """The container of an attempt's members; what it mounts is there once it was staged."""
        image = image_of(context)
        paths = tuple(str(path) for path in context.seen(data))
        try:
            return self._own_images(context).engine.container(image, paths)
        except UsageError:  # staging says so, and then nothing is started
            return Container(image, program="", kind="docker", mounts=paths)

    def prepare(self, context: TaskContext) -> ContainerImage:
        """Bring an image here unless it is, and see that scripts can run in it; once.

        Raises:
            UsageError: it cannot be had, or cannot be used.
        """

        def bring(name: str) -> tuple[ContainerImage, str]:
            local_images = self._own_images(context)
            image = local_images.find(name)
            gpus = bool(context.experiment.hardware.gpus)
            if self._isolation is None:
                local_images.try_out(name, str(context.home.code_directory(context.run)), gpus=gpus)
            else:  # the code is handed over later
                local_images.try_out(name, "/", gpus=gpus, sandbox=self._isolation.sandbox())
            return image, self._user

        return self._once(context, "", bring)

    def set_up(self, context: TaskContext, setup: Setup, output: BinaryIO, marker: Mapping[str, str]) -> int:
        """See `LocalImages.set_up`."""
        return self._own_images(context).set_up(setup, output, marker)

    def end_setup(self, context: TaskContext) -> None:
        """End what a driver that was killed has left of an attempt's setup; nothing is pulled for that.

        Raises:
            UsageError: no engine answers.
        """
        from trainmaster.control.attempt.setup import end_abandoned

        images = self._own_images(context)
        venv = context.environments.get(context.experiment.name)
        if venv is None and (image := images.engine.image(image_of(context))) is not None:
            venv = context.venv_with(image.id)
        if venv is not None:  # else nothing was made: there is no image here
            end_abandoned(venv, partial(images.end_setup, str(venv)))

    def _own_images(self, context: TaskContext) -> LocalImages:
        from trainmaster.control.attempt.local_images import LocalImages
        from trainmaster.executors.containers.engines import APART, KINDS, find_engine

        if self._local_images is None:
            engine = find_engine(os.environ, KINDS if self._isolation is None else APART)
            self._local_images = LocalImages(engine, f"{context.home.root}/{context.run}")
        return self._local_images


def image_of(context: TaskContext) -> str:
    """The name of the image that a task's members run in."""
    assert context.experiment.container is not None
    return context.experiment.container
