"""`Replication`: what the driver of a run writes on its disk goes to the database, for any server to go on.

Files that grow (logs, points, samples) are sent from where they were sent last, others whole when they have
changed. They are sent before a change of state is committed: of an attempt that has ended, all is there. What
is private (keys, the state of a provider) is sealed, and sent before it is used.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.control.task.layout import SYSTEM, Home
from trainmaster.db import ExperimentChange, RunChange, TaskChange, run_files
from trainmaster.db.run_files import PIECE_BYTES, Piece, private_place
from trainmaster.providers.base import ProviderPlace
from trainmaster.spec.errors import LeaseLostError, StoreError, fails_as
from trainmaster.spec.facts import Approval
from trainmaster.spec.states import EndReason, State

if TYPE_CHECKING:
    from trainmaster.control.loop.run_state import RunState
    from trainmaster.control.loop.surroundings import RunRecords
    from trainmaster.db import Change, Database, Lease
    from trainmaster.service.driving.encryption import SealingKey

#: How late the database knows what was written, in seconds.
SEND_EVERY_S: Final = 1.0
#: About so much is sent in one transaction.
_BATCH_BYTES: Final = 4 * PIECE_BYTES
_CLOSE_S: Final = 5.0
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_DRAFT: Final = (".new", ".draft", ".lock")
_GROWS: Final = re.compile(rf"(?!{SYSTEM}).*\.(jsonl|log(\.\d+)?)")
#: In a cluster's directory, but of this home only: paths, and which database knows it.
_OWN: Final = frozenset({"nodes.json", "database"})
#: What any other trouble says nothing of.
_GONE: Final = (FileNotFoundError, NotADirectoryError)

log = logging.getLogger(__name__)

_Stamp = tuple[int, int, int]


class Replication:
    """Sends the files of one run while it is driven.

    Args:
        database: of the servers.
        lease: of the run; without it nothing is written.
        home: that the run is driven in.
        provider: of its machines.
        key: gives that of the servers, which may be another one an hour later.

    Attributes:
        own_cluster: that the driver itself runs on; or empty.
    """

    own_cluster = ""

    def __init__(
        self, database: Database, lease: Lease, home: Home, provider: str, key: Callable[[], SealingKey]
    ) -> None:
        self._database = database
        self._lease = lease
        self._home = home
        self._provider = provider
        self._key = key
        self._root = home.run_directory(lease.run)
        # Beside data, which come from where they lie, it holds records: which HDFS has what was staged.
        self._inputs = home.data_directory(lease.run)
        self._sent: dict[str, int] = {}
        self._stamps: dict[str, _Stamp] = {}
        self._private: dict[str, _Stamp] = {}
        self._live: list[Path] = []
        self._ending: list[Path] = []
        self._guard = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"files of {lease.run}", daemon=True)

    def begin(self) -> None:
        """Send what an earlier driver in this home has not sent, then what is written from now on.

        Raises:
            LeaseLostError: somebody else drives the run.
        """
        self._sent = run_files.sizes(self._database, self._lease.run)
        self._ending = self._everywhere()
        self.flush()
        self._thread.start()

    def close(self, run_state: RunState | None) -> None:
        """Send the rest; of a run that is over, put files together, and remove unneeded keys.

        Raises:
            LeaseLostError: somebody else drives the run.
            StoreError: the database is away, or a file cannot be read.
        """
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)
        self._ending = self._everywhere()
        self.flush()
        if run_state is not None and run_state.state is State.DONE:
            run_files.compact(self._database, self._lease)
            if run_state.reason is EndReason.SUCCEEDED:
                names = run_files.private(self._database, self._lease.run)
                run_files.put_private(self._database, self._lease, {}, names)

    def flush(self) -> None:
        """Send all that was written until now.

        Raises:
            LeaseLostError: somebody else drives the run.
            StoreError: the database is away, or a file cannot be read.
        """
        self.save_private()
        with self._guard, _reading(self._lease.run):
            ending, self._ending = self._ending, []
            try:
                places = [self._inputs, *self._live]
                self._send([*places, *(place for place in ending if place not in places)])
            except BaseException:
                self._ending = ending
                raise

    def save_private(self) -> None:
        """Send what is needed to go on with the run's machines: before it is relied on.

        Raises:
            LeaseLostError: somebody else drives the run.
            StoreError: the database is away, or a file cannot be read.
        """
        with self._guard, _reading(self._lease.run):
            run, found = self._lease.run, dict(self._private_files())
            changed = [name for name, (_, stamp) in found.items() if self._private.get(name) != stamp]
            key = self._key() if changed else None
            sealed = {
                name: key.seal(found[name][0].read_bytes(), private_place(run, name))
                for name in changed
                if key is not None
            }
            gone = [name for name in self._private if name not in found]
            if sealed or gone:
                run_files.put_private(self._database, self._lease, sealed, gone)
                self._private = {name: stamp for name, (_, stamp) in found.items()}

    def follow(self, run_state: RunState) -> None:
        """Look at the attempts that are under way from now on, and once more at those that have ended."""
        live = [
            self._home.attempt(run_state.run, task.experiment, task.number, task.attempt).directory
            for task in run_state.live_tasks()
            if task.attempt
        ]
        with self._guard:
            self._ending += [place for place in self._live if place not in live]
            self._live = live

    def records(self, records: RunRecords, run_state: RunState) -> RunRecords:
        """The database as the controller is to write to it: files before what is said of them."""
        self.follow(run_state)
        return _FilesFirst(records, self, run_state)

    def committed(self, changes: Sequence[Change]) -> None:
        """Changes are in the database, and nothing was done yet that they say."""

    # --- private ------------------------------------------------------------------------------------

    def _watch(self) -> None:
        from trainmaster.service.server_loops import LoopErrorLog

        errors = LoopErrorLog(f"files of {self._lease.run}")
        while not self._over.wait(SEND_EVERY_S):
            with errors.caught():  # what was not sent is sent in the next one
                try:
                    self.flush()
                except LeaseLostError:
                    return

    def _everywhere(self) -> list[Path]:
        return sorted(self._root.glob("tasks/*/*/*"))

    def _send(self, places: Sequence[Path]) -> None:
        batch: list[Piece] = []
        sent, stamps = dict(self._sent), dict(self._stamps)
        size = 0
        for place in places:
            seen = set()
            for name, path, stamp in _files(place):
                relative = f"{place.relative_to(self._root)}/{name}"
                seen.add(relative)
                if stamps.get(relative) == stamp:
                    continue
                for piece in _news(path, relative, sent.get(relative)):
                    batch.append(piece)
                    sent[relative] = piece.offset + len(piece.data)
                    if (size := size + len(piece.data)) >= _BATCH_BYTES:
                        self._put(batch, (), sent, stamps)
                        batch, size = [], 0
                stamps[relative] = stamp
            prefix = f"{place.relative_to(self._root)}/"
            gone = [each for each in sent if each.startswith(prefix) and each not in seen]
            if gone:
                for each in gone:
                    sent.pop(each)
                    stamps.pop(each, None)
                self._put(batch, gone, sent, stamps)
                batch, size = [], 0
        self._put(batch, (), sent, stamps)

    def _put(
        self,
        batch: Sequence[Piece],
        gone: Iterable[str],
        sent: Mapping[str, int],
        stamps: Mapping[str, _Stamp],
    ) -> None:
        if batch or gone:
            run_files.put_pieces(self._database, self._lease, batch, gone)
        self._sent, self._stamps = dict(sent), dict(stamps)

    def _private_files(self) -> Iterator[tuple[str, tuple[Path, _Stamp]]]:
        clusters = [row["id"] for row in self._database.clusters_of(self._lease.run)]
        places = [place for each in clusters for place in self._home.root.glob(f"clusters/{each}/**/*")]
        team = self._database.run_row(self._lease.run)["team"]
        own = ProviderPlace(self._home.root, "")
        roots = [own, *([own.with_login_of(team, {})] if team else ())]
        of_provider = [path for place in roots for path in place.files_for(self._provider, clusters)]
        for path in [*places, *of_provider]:
            if _NAME.fullmatch(path.name) and not path.name.endswith(_DRAFT) and path.name not in _OWN:
                stamp = _stamp(path)
                if stamp is not None:
                    yield str(path.relative_to(self._home.root)), (path, stamp)


class _FilesFirst:
    """See `Replication.records`."""

    def __init__(self, records: RunRecords, files: Replication, run_state: RunState) -> None:
        self._records = records
        self._files = files
        self._run_state = run_state
        self.renew: Callable[[Lease, float], EndReason | None] = records.renew
        self.stop_wanted: Callable[[str], EndReason | None] = records.stop_wanted
        self.want_stop: Callable[[str, EndReason], None] = records.want_stop
        self.approvals: Callable[[str], Mapping[str, Approval]] = records.approvals
        self.cancelled_tasks: Callable[[str], Mapping[str, str]] = records.cancelled_tasks

    def commit(self, lease: Lease, changes: Sequence[Change], now: float) -> None:
        """Write changes in one transaction, after the files."""
        changes_state = any(isinstance(each, TaskChange | ExperimentChange | RunChange) for each in changes)
        if changes_state:
            self._files.flush()
        self._records.commit(lease, changes, now)
        if changes_state and self._run_state.state is not State.DONE:
            self._files.follow(self._run_state)
        self._files.committed(changes)


def _reading(run: str) -> AbstractContextManager[None]:
    """What cannot be read is not gone: as while the database is away, it is tried again."""
    hint = "Nothing of this step was recorded; it is tried again."
    return fails_as(f"files of {run} cannot be read", hint, StoreError)


def _files(place: Path) -> Iterator[tuple[str, Path, _Stamp]]:
    try:
        names = sorted(os.listdir(place))  # noqa: PTH208 - plain text: a task may call its files anything
    except _GONE:
        return
    for name in names:
        if _NAME.fullmatch(name) and not name.endswith(_DRAFT):
            stamp = _stamp(place / name)
            if stamp is not None:
                yield name, place / name, stamp


def _stamp(path: Path) -> _Stamp | None:
    """Changes with a file; None for what is none."""
    try:
        found = path.lstat()
    except _GONE:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def _news(path: Path, relative: str, sent: int | None) -> Iterator[Piece]:
    """What was not sent of a file; all of one that was written again."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            offset = sent if sent and _GROWS.fullmatch(path.name) and sent <= size else 0
            file.seek(offset)
            if not size and sent != 0:
                yield Piece(relative, 0, b"")
            while data := file.read(PIECE_BYTES):
                yield Piece(relative, offset, data)
                offset += len(data)
    except FileNotFoundError:
        return
