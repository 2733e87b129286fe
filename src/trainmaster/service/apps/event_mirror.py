"""`EventMirror`: the directory that a TensorBoard reads: event files of tasks, or what tasks reported."""

from __future__ import annotations

import logging
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.artifacts.tree import real_place
from trainmaster.db import queries
from trainmaster.service.apps.node_events import NodeEvents
from trainmaster.service.runs.metric_export import OWN, EventFiles
from trainmaster.spec.clocks import boot_s
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.states import State

if TYPE_CHECKING:
    from trainmaster.service.service import Service

#: By this in its name TensorBoard knows an event file; nothing else of a task is shown to it, as its plug-ins
#: read files that others name.
_MARK: Final = "tfevents"
#: So much is brought from models into one app; what is larger is left out.
MOST_BYTES: Final = 1 << 30
#: A model whose files could not be brought is tried again after so long.
_AGAIN_S: Final = 300.0

log = logging.getLogger(__name__)


class _TooLargeError(Exception):
    """There is no room for a file."""


class EventMirror:
    """Grows with the runs: `look` is to be called again and again.

    Args:
        service: of the home.
        runs: ids; their files are on this machine, as far as they were brought here.
        directory: that has no other writer; it is begun anew.
        most_bytes: of all files that are brought from models.
    """

    def __init__(
        self, service: Service, runs: Sequence[str], directory: Path, *, most_bytes: int = MOST_BYTES
    ) -> None:
        self._service, self._runs, self._directory = service, runs, directory
        self._left_bytes = most_bytes
        self._again_at: dict[str, float] = {}
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True, mode=0o700)
        self._metrics = {run: EventFiles(directory / run) for run in runs}
        self._published: set[str] = set()
        self._nodes = {run: NodeEvents(service, run, directory / run, os.environ, most_bytes) for run in runs}

    def look(self) -> int:
        """Bring what is new; how many event files and values that were."""
        return sum(self._look(run) for run in self._runs)

    def _look(self, run: str) -> int:
        found, own = 0, set()
        try:
            files = self._service.files_of(run)
            tasks = list(queries.tasks(self._service.database, run))
        except TrainmasterError:  # it is back soon, or gone for ever, which others see
            return 0
        try:
            found += self._nodes[run].look()
        except (TrainmasterError, OSError) as error:
            log.warning("event files of machines of %s cannot be brought: %s", run, error)
        for row in tasks:
            task = f"{row['experiment']}/{row['number']}"
            base = Path(os.path.realpath(files.run_directory(run) / "tasks" / task))
            target = self._directory / run / task
            for path in _event_files(base):
                # The number of the attempt is no part of the name: TensorBoard joins the files of a folder.
                inner = path.relative_to(base)
                found += _link(path, target.joinpath(*inner.parts[1:]))
                own.add(task)
            uri = row["model_uri"]
            if row["state"] == State.DONE and uri and uri not in self._published:
                found += self._bring_again(uri, target)
            if any(path.suffix != OWN for path in _event_files(target)):
                own.add(task)
        code = Path(os.path.realpath(files.code_directory(run)))
        for path in _event_files(code):
            found += _link(path, self._directory / run / path.relative_to(code))
        metrics = self._metrics[run]
        metrics.skipped = frozenset(own)
        with suppress(TrainmasterError, OSError):
            found += metrics.write(self._service.metrics(run, None, None))
        return found

    def _bring_again(self, uri: str, target: Path) -> int:
        if boot_s() < self._again_at.get(uri, 0.0):
            return 0
        try:
            return self._bring(uri, target)
        except (TrainmasterError, OSError) as error:
            log.warning("event files of %s cannot be brought: %s", uri, error)
            self._again_at[uri] = boot_s() + _AGAIN_S
            return 0

    def _bring(self, uri: str, target: Path) -> int:
        """Event files of a model that is published: of tasks on nodes, there are no others here."""
        from trainmaster.artifacts import read_manifest
        from trainmaster.service.models.model_files import ModelFiles

        manifest, count = read_manifest(uri), 0
        if manifest is None:
            return 0
        files = ModelFiles(uri, manifest)
        for entry in files.files:
            path = target / "output" / entry.path
            if _MARK not in path.name or path.exists() or not path.resolve().is_relative_to(target.resolve()):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f".{path.name[:200]}.draft")
            try:
                self._left_bytes -= _save(files.read(entry), draft, self._left_bytes)
                draft.replace(path)
                count += 1
            except _TooLargeError:
                log.warning("%s of %s is left out: there is no room for it in one app", entry.path, uri)
            finally:
                draft.unlink(missing_ok=True)
        self._published.add(uri)
        return count


def _save(blocks: Iterable[bytes], path: Path, most_bytes: int) -> int:
    size_bytes = 0
    with path.open("wb") as out:
        for block in blocks:
            size_bytes += len(block)
            if size_bytes > most_bytes:
                raise _TooLargeError
            out.write(block)
    return size_bytes


def _event_files(directory: Path) -> Iterator[Path]:
    """Regular files only: a link could lead anywhere."""
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder) / name
            with suppress(OSError):
                if _MARK in name and not name.endswith(".draft") and stat.S_ISREG(path.lstat().st_mode):
                    yield path


def _link(path: Path, target: Path) -> int:
    """Have a file there, too, which grows with it; 1 if it was not.

    Args:
        path: without links, when it was found: a script may have made one of a directory since.
        target: where.
    """
    if target.exists():
        return 0
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        if real_place(descriptor) != str(path):
            return 0
        os.link(f"/proc/self/fd/{descriptor}", target, follow_symlinks=True)
    except FileNotFoundError:
        return 0
    except OSError:  # another file system
        target.symlink_to(path)
    finally:
        os.close(descriptor)
    return 1
