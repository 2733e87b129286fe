"""`NodeImages`: what the experiments of a run name as ``container``, made ready on the nodes of its clusters.

Each node brings an image to its own docker or podman: it has it, or pulls it; and if no registry gives it but
this machine has it, it is sent there (not for others). What starts containers on a node is written down on
the node, where its supervisor finds it, as it differs from node to node.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.cluster.node_access import NodeAccess
from trainmaster.cluster.node_files.worker_client import OrderError
from trainmaster.control.attempt.images import BroughtImages, image_of
from trainmaster.executors.base import Container
from trainmaster.executors.containers.engines import ContainerEngine, ContainerImage
from trainmaster.spec.errors import UsageError
from trainmaster.transport.base import CommandError

if TYPE_CHECKING:
    from trainmaster.cluster.node_files.files import NodeFiles, NodePaths
    from trainmaster.control.task.job_context import TaskContext

_PIECE_BYTES: Final = 1 << 20
_COMPRESSION: Final = 1  # a network is mostly faster than better compression
_ENGINE_FILE: Final = "engine.json"
# What is raised where an answer is not as our program gives it.
_NOT_OURS: Final = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


class NodeImages(BroughtImages):
    """One run's, shared by its jobs; safe to use from several threads. Close it.

    Args:
        files: of nodes.
        paths: where things of this machine lie on nodes.
        environ: the caller's.
    """

    def __init__(self, files: NodeFiles, paths: NodePaths, environ: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._files = files
        self._paths = paths
        self._environ = dict(os.environ if environ is None else environ)
        self._own: dict[str, tuple[ContainerEngine, ContainerImage] | None] = {}
        self._archives: dict[str, Path] = {}
        self._saving = threading.Lock()

    def request(self, context: TaskContext, data: Mapping[str, Path]) -> Container:
        """The container of an attempt's members, wherever they go; see `ImageSource.request`."""
        mounts = [*map(self._paths.there, context.seen(data)), f"{self._paths.root}/lib"]
        return Container(
            image_of(context),
            program="",
            kind="docker",
            mounts=tuple(dict.fromkeys(mounts)),
            engine_file=self._engine_file,
        )

    def prepare(self, node: NodeAccess, context: TaskContext) -> ContainerImage:
        """Bring an image to a node unless it is there, and see that scripts can run in it; once.

        Raises:
            UsageError: the node has no engine, or the image cannot be had or used there.
            TrainmasterError: the node cannot be reached.
        """
        return self._once(
            context, node.id, lambda name: self._prepare(node, context, name), f"{node.target.shown}: "
        )

    def close(self) -> None:
        """Remove what was saved to be sent."""
        for path in self._archives.values():
            shutil.rmtree(path.parent, ignore_errors=True)

    @property
    def _engine_file(self) -> str:
        return f"{self._paths.root}/{_ENGINE_FILE}"

    def _prepare(self, node: NodeAccess, context: TaskContext, name: str) -> tuple[ContainerImage, str]:
        own = None if context.is_foreign else self._find_own(name)  # this machine's may be private
        facts = node.result.facts
        has_gpus = bool(facts and facts.gpus)  # that of a parameter server has none
        order = {
            "root": self._paths.root,
            "run": context.run,
            "image": name,
            "code": self._paths.there(context.home.code_directory(context.run)),
            "gpus": bool(context.experiment.hardware.gpu_count) and has_gpus,
            "engine_file": self._engine_file,
            "offered": own[1].id if own else "",
            "is_own": own is not None and own[1].is_own,
            "has_archive": False,
        }
        try:
            with self._files.worker(node) as worker:
                found = worker.image(order)
                if own is not None and "wants" in found:
                    archive = self._saved(context, own[0], own[1], name)
                    found = worker.image({**order, "has_archive": True}, _pieces(archive))
            if "wants" in found:
                sent = "" if context.is_foreign else " One that this machine's engine has is sent there."
                raise UsageError(
                    str(found["wants"]), f"Check its name, or log in to its registry there.{sent}"
                )
            image = ContainerImage(
                str(found["id"]), {str(key): str(value) for key, value in found["env"].items()}
            )
            return image, str(found["user"])
        except OrderError as error:
            if error.kind == UsageError.__name__:
                raise UsageError(error.message, error.advice) from error
            raise
        except _NOT_OURS as error:
            raise CommandError(f"{node.target.shown}: it says something that is no image") from error

    def _find_own(self, name: str) -> tuple[ContainerEngine, ContainerImage] | None:
        """What this machine's own engine has of that name; it need not have an engine."""
        from trainmaster.executors.containers.engines import find_engine

        with self._saving:
            if name not in self._own:
                self._own[name] = None
                with contextlib.suppress(UsageError):
                    engine = find_engine(self._environ)
                    image = engine.image(name)
                    self._own[name] = (engine, image) if image is not None else None
            return self._own[name]

    def _saved(self, context: TaskContext, engine: ContainerEngine, image: ContainerImage, name: str) -> Path:
        """An archive of an image, made once for all nodes."""
        with self._saving:
            if name not in self._archives:
                images = context.home.cache / "images"
                in_use = {path.parent for path in self._archives.values()}
                for left in images.glob(f"{context.run}-*"):  # by a driver of this run that was killed
                    if left not in in_use:
                        shutil.rmtree(left, ignore_errors=True)
                digest = hashlib.sha256(f"{image.id} {name}".encode()).hexdigest()[:12]
                place = images / f"{context.run}-{digest}"
                place.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._archives[name] = place / "image.tar.gz"
                plain = place / "image.tar"
                try:
                    plain.unlink(missing_ok=True)
                    engine.save(name, str(plain))
                    with (
                        plain.open("rb") as source,
                        gzip.open(self._archives[name], "wb", compresslevel=_COMPRESSION) as target,
                    ):
                        shutil.copyfileobj(source, target, _PIECE_BYTES)
                except BaseException:
                    del self._archives[name]
                    raise
                finally:
                    plain.unlink(missing_ok=True)
            return self._archives[name]


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
