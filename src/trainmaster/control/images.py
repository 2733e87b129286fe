"""`Images`: what the experiments of a run name as ``container``, made ready before their members start."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster.control.local_images import LocalImages, added_inside, base_inside, own_user
from trainmaster.executors.base import Container
from trainmaster.executors.engines import Image, find_engine
from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from trainmaster.control.isolation import Isolation
    from trainmaster.control.job_context import TaskContext

#: The tasks of an experiment that all fail for want of its image ask for it once.
REMEMBER_REFUSAL_S = 30.0


class Images:
    """One run's, shared by its jobs; safe to use from several threads.

    Args:
        environ: the caller's.
        isolation: how members are kept apart from this machine.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, isolation: Isolation | None = None) -> None:
        self._isolation = isolation
        self._user = own_user() if isolation is None else isolation.user
        self._environ = dict(os.environ if environ is None else environ)
        self._local_images: LocalImages | None = None
        self._ready: dict[str, Image] = {}
        self._refused: dict[str, tuple[float, UsageError]] = {}
        self._lock = threading.Lock()

    def request(self, context: TaskContext, data: Mapping[str, Path]) -> Container:
        """The container of an attempt's members; what it mounts is there once it was staged."""
        image = image_of(context)
        paths = tuple(str(path) for path in context.seen(data))
        try:
            return self.local_images(context).engine.container(image, paths)
        except UsageError:  # staging says so, and then nothing is started
            return Container(image, program="", kind="docker", mounts=paths)

    def prepare(self, context: TaskContext) -> Image:
        """Bring an image here unless it is, and see that scripts can run in it; once.

        Raises:
            UsageError: it cannot be had, or cannot be used.
        """
        name = image_of(context)
        if name in self._ready:  # the loop asks again, and must not wait for another one's pull
            return self._ready[name]
        with self._lock:
            if name in self._ready:
                return self._ready[name]
            refused_at, refusal = self._refused.get(name, (0.0, None))
            if refusal is not None and time.monotonic() - refused_at < REMEMBER_REFUSAL_S:
                raise refusal
            try:
                local_images = self.local_images(context)
                image = local_images.find(name)
                gpus = bool(context.experiment.hardware.gpus)
                if self._isolation is None:
                    local_images.try_out(name, str(context.home.code_directory(context.run)), gpus=gpus)
                else:  # the code is handed over later
                    local_images.try_out(name, "/", gpus=gpus, sandbox=self._isolation.sandbox())
            except UsageError as error:
                refusal = UsageError(f"experiments.{context.experiment.name}.container: {error}")
                self._refused[name] = (time.monotonic(), refusal)
                raise refusal from None
            self._ready[name] = image
            return image

    def environment(self, name: str) -> dict[str, str]:
        """What a member finds in the image, with what every member gets on top.

        Args:
            name: of an image that is ready.
        """
        return base_inside(self._ready.get(name), self._user)

    def additions(self, name: str) -> dict[str, str]:
        """What every member gets that the image does not set."""
        return added_inside(self._ready.get(name), self._user)

    def local_images(self, context: TaskContext) -> LocalImages:
        """What works with the engine here.

        Raises:
            UsageError: there is none.
        """
        if self._local_images is None:
            self._local_images = LocalImages(find_engine(self._environ), f"{context.home.root}/{context.run}")
        return self._local_images


def image_of(context: TaskContext) -> str:
    """The name of the image that a task's members run in."""
    assert context.experiment.container is not None
    return context.experiment.container
