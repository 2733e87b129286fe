"""`TensorBoard`: the app that shows event files of runs.

`EventMirror`: the directory that a TensorBoard reads: event files of tasks, or what tasks reported.

`NodeEvents`: event files of tasks that work on other machines, as they grow there.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from sqlalchemy.engine import RowMapping

from trainmaster.artifacts.tree import real_place
from trainmaster.cluster.member_places import PLACES, read_places
from trainmaster.db import queries
from trainmaster.executors.supervisor.processes import kept_environment
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.apps.app_host import AppKind, without_tensorflow
from trainmaster.service.runs.member_ways import find_way
from trainmaster.service.runs.metric_export import OWN, EventFiles
from trainmaster.service.service import Service
from trainmaster.spec.clocks import boot_s
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.states import State

#: Machines are asked so often.
LOOK_S: Final = 30.0
_ANSWER_S: Final = 60.0
#: Of one machine, at one look.
_MOST_FILES: Final = 2000
_MOST_BYTES: Final = 64 << 20
#: What a machine may call an event file, below the directory of the run.
_PATH: Final = re.compile(r"(tasks|code)(/[^/\x00-\x1f\x7f]{1,255}){1,20}")

#: Executes a command on a machine: what it says.
Ask = Callable[[str, str], bytes]


class NodeEvents:
    """Those of one run; `look` is to be called again and again.

    Args:
        service: of the home.
        run: its id.
        directory: where they are put: ``EXPERIMENT/TASK/...``, and what lies beside the code.
        environ: credentials of the provider.
        most_bytes: of all together.
        ask: executes a command on a machine; replaced in tests.
    """

    def __init__(
        self,
        service: Service,
        run: str,
        directory: Path,
        environ: Mapping[str, str],
        most_bytes: int,
        ask: Ask | None = None,
    ) -> None:
        self._service, self._run, self._directory, self._environ = service, run, directory, environ
        self._left_bytes = most_bytes
        self._ask = ask or self._asked
        self._machine_of: dict[Path, str] = {}
        self._look_at = 0.0

    def look(self) -> int:
        """Bring what has been written since; how many files have grown.

        Raises:
            TrainmasterError: a machine cannot be reached.
            OSError: there is no room.
        """
        row = self._service.database.run_row(self._run)
        if boot_s() < self._look_at or row["state"] == State.DONE:
            return 0
        if capabilities_of(row["provider"]).is_here:
            return 0
        self._look_at = boot_s() + LOOK_S
        files = self._service.files_of(self._run)
        places = (files.run_directory(self._run) / "tasks").glob(f"*/*/*/{PLACES}")
        machines = sorted({machine for path in places for machine in read_places(path).values()})
        from trainmaster.providers.base import root_on_nodes

        root = f"{root_on_nodes(row['home_id'] or self._service.home.identity())}/runs/{self._run}"
        return sum(self._look(machine, root) for machine in machines)

    def _look(self, machine: str, root: str) -> int:
        found = (
            f"cd {shlex.quote(root)} && find tasks code -type f -name '*tfevents*' ! -name '*.draft' "
            f"-printf '%s %p\\n' 2>/dev/null | head -n {_MOST_FILES}"
        )
        wanted = list(self._grown(machine, self._ask(machine, found).decode("utf-8", "replace").splitlines()))
        if not wanted:
            return 0
        pieces = [
            f"tail -c +{begin + 1} -- {shlex.quote(path)} | head -c {count}"
            for path, _, begin, count in wanted
        ]
        data, count_of_files = self._ask(machine, f"cd {shlex.quote(root)} && {'; '.join(pieces)}"), 0
        for _, target, _, count in wanted:
            piece, data = data[:count], data[count:]
            if len(piece) < count:  # it was cut or is gone: what follows would be another file's
                break
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("ab") as file:
                file.write(piece)
            self._machine_of[target] = machine
            self._left_bytes -= count
            count_of_files += 1
        return count_of_files

    def _grown(self, machine: str, lines: Sequence[str]) -> Sequence[tuple[str, Path, int, int]]:
        """What there is more of than here: path there, file here, where to begin, and how many bytes."""
        wanted, left_bytes = [], min(self._left_bytes, _MOST_BYTES)
        for line in lines:
            size, _, path = line.partition(" ")
            target = self._target(path)
            if target is None or not size.isdecimal() or self._machine_of.get(target, machine) != machine:
                continue
            begin = target.stat().st_size if target.exists() else 0
            if target.exists() and target not in self._machine_of:
                continue  # it came from a model
            if 0 < (count := int(size) - begin) <= left_bytes:
                wanted.append((path, target, begin, count))
                left_bytes -= count
        return wanted

    def _target(self, path: str) -> Path | None:
        """Where a file of a machine goes; None for what is no event file, or leads elsewhere."""
        parts = PurePosixPath(path).parts
        if not _PATH.fullmatch(path) or ".." in parts or "tfevents" not in parts[-1]:
            return None
        if parts[0] == "code":
            return self._directory.joinpath(*parts[1:])
        if len(parts) < 5:
            return None
        # The number of the attempt is no part of the name: TensorBoard joins the files of a folder.
        return self._directory.joinpath(*parts[1:3], *parts[4:])

    def _asked(self, machine: str, command: str) -> bytes:
        way = find_way(self._service, self._run, machine, self._environ, patience_s=0.0, is_for_others=True)
        options, command = ("-T", "-o", "BatchMode=yes"), f"exec sh -c {shlex.quote(command)}"
        try:
            return way.ask(options, command, os.environ, _ANSWER_S, 2 * _MOST_BYTES)[0]
        except subprocess.TimeoutExpired as error:
            raise TrainmasterError(f"{machine} has not answered in {_ANSWER_S:g} s") from error


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


class TensorBoard(AppKind):
    """A TensorBoard of runs."""

    def __init__(self, service: Service, row: RowMapping, directory: Path) -> None:
        super().__init__(service, row, directory)
        self._mirror = EventMirror(service, json.loads(row["runs"]), directory / "events")

    def command(self, port: int, token: str) -> tuple[list[str], dict[str, str]]:
        """TensorBoard itself; it has no login, and knows no token."""
        options = {
            "--logdir": str(self.directory / "events"),
            "--host": "127.0.0.1",
            "--port": str(port),
            "--path_prefix": self.prefix.rstrip("/"),
            "--reload_interval": "5",
            "--window_title": ", ".join(json.loads(self.row["runs"])),
        }
        words = [word for option in options.items() for word in option]
        return [*without_tensorflow("tensorboard.main"), *words], kept_environment()

    def look(self) -> None:
        """Bring what runs have written since."""
        self._mirror.look()
