"""`NodeStaging`: what an attempt needs is put on a node."""

from __future__ import annotations

import base64
import contextlib
import json
import posixpath
import re
import shlex
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from trainmaster.cluster.node_files.worker_client import OrderError
from trainmaster.control.attempt.recorded_environment import PROGRAM, environment_in, note_found
from trainmaster.control.attempt.staging import setup_of
from trainmaster.spec.errors import UsageError
from trainmaster.transport.base import CommandError

if TYPE_CHECKING:
    from trainmaster.cluster.node_access import NodeAccess
    from trainmaster.cluster.node_files.data import NodeData
    from trainmaster.cluster.node_files.files import NodeFiles, NodePaths
    from trainmaster.cluster.node_files.images import NodeImages
    from trainmaster.control.task.job_context import TaskContext
    from trainmaster.executors.containers.engines import ContainerImage
    from trainmaster.spec import DataSource


#: The node has better things to do while its members begin: a `python3` may be a dozen shell scripts.
_NOTED_AFTER_S: Final = 1.0
#: To find that an image is there takes less.
_PULLED_S: Final = 3.0


class NodeStaging:
    """Threads share it.

    Args:
        files: of nodes.
        images: what experiments name as ``container``.
        paths: here and there.
        data: what nodes get by themselves.
    """

    def __init__(self, files: NodeFiles, images: NodeImages, paths: NodePaths, data: NodeData) -> None:
        self._files = files
        self._data = data
        self._images = images
        self._paths = paths
        self._linked: set[tuple[str, str]] = set()
        self._set_up: dict[tuple[str, str], threading.Lock] = {}
        self._is_set_up: set[tuple[str, str]] = set()
        self._guard = threading.Lock()

    def bring(self, node: NodeAccess, context: TaskContext) -> None:
        """Put directories, data, image and environment on a node; safe to repeat.

        Raises:
            UsageError: the recipe's ``setup`` failed there, or its ``container`` cannot be had.
            TrainmasterError: the node cannot be reached or has no room.
        """
        place = context.place
        outputs = [place.output(name, first=rank == 0) for rank, name in enumerate(context.members)]
        self._files.make(node, [self._paths.there(each) for each in (place.checkpoint, *outputs)])
        if place.checkpoint.is_dir() and any(place.checkpoint.iterdir()):
            self._files.push(node, place.checkpoint, self._paths.there(place.checkpoint))
        for name, source in context.experiment.data.items():
            if source.stage is not None:
                continue
            here = context.data_path(name)
            if not self._data.has(node, self._paths.there(here)):
                if not here.is_dir():
                    self._refuse(node, name, source, here)
                with context.timed("data", source.identity):
                    self._files.push(node, here, self._paths.there(here), is_shared=True)
            if source.at is not None:
                code = self._paths.there(context.home.code_directory(context.run))
                self._link(node, posixpath.normpath(f"{code}/{source.at}"), here)
        image = None
        if context.experiment.container is not None:
            with context.timed("image", context.experiment.container) as is_new:
                begun = time.monotonic()
                image = self._images.prepare(node, context)
                is_new(time.monotonic() - begun > _PULLED_S)
        self._set_up_on(node, context, image)
        noting = partial(self._note_meanwhile, node, context, image)
        later = threading.Timer(_NOTED_AFTER_S, noting)
        later.name, later.daemon = "environment", True
        later.start()

    def note_environment(
        self, node: NodeAccess, context: TaskContext, image: ContainerImage | None = None
    ) -> None:
        """Write down with what members work there, unless that is known."""
        note_found(context, lambda: self._environment(node, context, image))

    def _note_meanwhile(self, node: NodeAccess, context: TaskContext, image: ContainerImage | None) -> None:
        """No member waits for that; what is published does, see `RemoteSite`."""
        # The run has just ended, and hung up; of a connection that is closing asyncssh says so by `assert`.
        with contextlib.suppress(RuntimeError, AssertionError):
            self.note_environment(node, context, image)

    def _environment(
        self, node: NodeAccess, context: TaskContext, image: ContainerImage | None
    ) -> dict[str, Any]:
        """With what members work there."""
        if image is not None:
            return environment_in(context.experiment.container or "", image.id)
        if context.venv is not None:
            python = f"{self._paths.there(context.venv)}/bin/python"
        else:
            python = node.target.python or "python3"
        result = self._files.shell(node, shlex.join([python, "-E", "-s", "-c", PROGRAM]))
        found: dict[str, Any] = json.loads(result.out)
        return found

    @staticmethod
    def _refuse(node: NodeAccess, name: str, source: DataSource, here: Path) -> NoReturn:
        if source.directory is not None or here.exists():
            raise UsageError(f"data.{name}: {here} is no directory", "Only directories come to nodes.")
        # It has taken another one's place after the others got the data themselves: the next attempt does so.
        raise CommandError(f"{node.target.shown}: data.{name} is not there yet", "It is safe to try again.")

    def _link(self, node: NodeAccess, link: str, here: Path) -> None:
        if (node.id, link) in self._linked:
            return
        place, target = shlex.quote(link), shlex.quote(self._paths.there(here))
        above = shlex.quote(link.rpartition("/")[0])
        command = (
            f'is() {{ [ "$(readlink {place})" = {target} ]; }}; '
            f"is || {{ mkdir -p -- {above} && ln -sT -- {target} {place}; }} || is"
        )
        result = self._files.shell(node, command)
        if result.code != 0:
            raise CommandError(f"{node.target.shown}: {result.last_words}")
        self._linked.add((node.id, link))

    def _set_up_on(self, node: NodeAccess, context: TaskContext, image: ContainerImage | None) -> None:
        here = context.venv
        if here is None:
            return
        key = (node.id, str(here))
        with self._guard:
            lock = self._set_up.setdefault(key, threading.Lock())
        with context.timed("setup", here.name) as is_new, lock:
            if key in self._is_set_up:
                is_new(False)
                return
            self._data.clear(node)
            is_new(self._make(node, context, here, image))
            self._is_set_up.add(key)

    def _make(self, node: NodeAccess, context: TaskContext, here: Path, image: ContainerImage | None) -> bool:
        """Have an environment made there, unless it is; whether it was not. Its log comes here."""
        plan = node.result.plan
        assert plan is not None
        python = (plan.host_python.path, plan.host_python.version)
        setup = setup_of(context, here, python, image, self._paths.there)
        order = {"root": self._paths.root, "setup": asdict(setup)}  # secrets travel in the connection only
        log = here.with_name(f"{here.name}-{re.sub(r'[^A-Za-z0-9.-]', '_', node.target.name)}.log")

        def hear(said: Mapping[str, Any]) -> None:
            with contextlib.suppress(OSError, ValueError):  # an error matters more
                log.parent.mkdir(parents=True, exist_ok=True)
                log.write_bytes(base64.b64decode(said.get("log", "")))

        try:
            with self._files.worker(node) as worker:
                return worker.set_up(order, hear)
        except OrderError as error:
            if error.kind != UsageError.__name__:
                raise
            hint = f"Its whole output: {log}" if log.exists() else ""
            raise UsageError(context.masked(f"{node.target.shown}: {error.message}"), hint) from None
