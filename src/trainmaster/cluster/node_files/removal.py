"""`Remover`: directories of nodes that are no longer needed are removed in the background, many at a time.

`NodeMounts`: mounts on nodes that go on when a run is over are ended.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from trainmaster.cluster.node_access import NodeAccess
from trainmaster.cluster.node_files.data_wanted import Wanted, with_keys
from trainmaster.cluster.node_files.files import (
    AT_ONCE,
    NodeFiles,
    NodePaths,
    end_mounts_command,
    end_setups_command,
    mounted_runs,
    mounted_runs_command,
)
from trainmaster.dataclass import dataclass
from trainmaster.objects.delegated_credentials import EXPIRES_VARIABLE, DelegatedCredentials
from trainmaster.spec.errors import TrainmasterError, one_line

#: A node may be busy, so that the first answer takes so long,
FIRST_S: Final = 15.0
#: but when others are done, one that says nothing for so long hangs.
NEXT_S: Final = 5.0
_MOUNTS_S: Final = 60.0
log = logging.getLogger(__name__)

_LOOK_S: Final = 60.0


class NodeMounts:
    """One run's. Threads share it.

    Args:
        files: of nodes.
        paths: here and there.
        is_over: whether another run is undriven for good, so that its mounts are orphaned.
    """

    def __init__(self, files: NodeFiles, paths: NodePaths, is_over: Callable[[str], bool]) -> None:
        self._files = files
        self._paths = paths
        self._is_over = is_over
        self._cleared: set[str] = set()
        self._guard = threading.Lock()

    def clear(self, node: NodeAccess) -> None:
        """End mounts and setups that other runs left on a machine of one's own; once.

        Their drivers were killed, or could not reach it when they ended.
        """
        with self._guard:
            is_cleared = node.id in self._cleared
            self._cleared.add(node.id)
        if is_cleared:
            return
        runs = f"{self._paths.root}/runs"
        with contextlib.suppress(TrainmasterError):
            for run in mounted_runs(self._files.shell(node, mounted_runs_command(runs), _MOUNTS_S).out):
                if run != self._paths.run and self._is_over(run):
                    ends = (
                        f"{end_setups_command(f'{runs}/{run}/code')}; {end_mounts_command(f'{runs}/{run}')}"
                    )
                    self._files.shell(node, ends, _MOUNTS_S)

    def end(self, nodes: Sequence[NodeAccess], *, first_s: float = FIRST_S, next_s: float = NEXT_S) -> None:
        """End the run's, and what still makes an environment for it; nodes that hang keep them.

        A rented machine takes them along when its lease ends. On one that is used again, and on a host of the
        user's, `clear` of a later run that has data or a setup ends what is left.

        Args:
            nodes: which.
            first_s: how long the first answer is waited for.
            next_s: how long each further one.
        """
        mounted = self._paths.there(self._paths.home.data_directory(self._paths.run))
        code = self._paths.there(self._paths.home.code_directory(self._paths.run))
        command = f"{end_setups_command(code)}; {end_mounts_command(mounted)}"
        todo: queue.SimpleQueue[NodeAccess] = queue.SimpleQueue()
        done: queue.SimpleQueue[None] = queue.SimpleQueue()
        for node in nodes:
            todo.put(node)

        def work() -> None:
            while True:
                try:
                    node = todo.get_nowait()
                except queue.Empty:
                    return
                with contextlib.suppress(TrainmasterError, OSError):  # machines are given back in any case
                    self._files.shell(node, command, _MOUNTS_S)
                done.put(None)

        # Not of a pool: the end of this process would wait for those.
        for number in range(min(AT_ONCE, len(nodes))):
            threading.Thread(target=work, name=f"withdraw-{number}", daemon=True).start()
        patience_s = first_s
        for _ in nodes:
            try:
                done.get(timeout=patience_s)
            except queue.Empty:
                return
            patience_s = next_s


_GATHER_S: Final = 0.5
_AT_ONCE: Final = 200
_TIMEOUT_S: Final = 600.0
_CLOSE_S: Final = 10.0


class Remover:
    """Begins with the first directory. Threads share it; close it.

    Args:
        files: of nodes.
    """

    def __init__(self, files: NodeFiles) -> None:
        self._files = files
        self._doomed: queue.SimpleQueue[tuple[NodeAccess, str] | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None

    def remove(self, node: NodeAccess, directory: str) -> None:
        """Have a directory removed, soon; a node that cannot be reached keeps it."""
        self._doomed.put((node, directory))
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="remover", daemon=True)
                self._thread.start()

    def close(self, *, waits: bool = True) -> None:
        """Finish, for a short while; without waiting where the nodes are gone, and take it all along."""
        if self._thread is not None:
            self._doomed.put(None)
            self._thread.join(_CLOSE_S if waits else 0)

    def _work(self) -> None:
        ended = False
        while not ended:
            doomed = [self._doomed.get()]
            if doomed[0] is not None:
                time.sleep(_GATHER_S)
            while len(doomed) < _AT_ONCE:
                try:
                    doomed.append(self._doomed.get_nowait())
                except queue.Empty:
                    break
            ended = None in doomed
            by_node: dict[str, tuple[NodeAccess, list[str]]] = {}
            for node, directory in filter(None, doomed):
                by_node.setdefault(node.id, (node, []))[1].append(directory)
            for node, directories in by_node.values():
                self._perform(node, directories)

    def _perform(self, node: NodeAccess, directories: Sequence[str]) -> None:
        try:
            self._files.shell(node, f"rm -rf -- {shlex.join(directories)}", _TIMEOUT_S)
        except TrainmasterError:
            return


@dataclass(frozen=True, slots=True)
class _Mount:
    """What a node has, and when that was lent and runs out, Unix seconds."""

    node: NodeAccess
    wanted: Wanted
    given_at: float
    expires_at: float

    def is_due(self, now: float) -> bool:
        """A third of the life of its keys is over, as where they are made."""
        return now - self.given_at >= (self.expires_at - self.given_at) / 3


class KeyRenewal:
    """Remembers what was lent to which mounts, and lends it again; threads share it.

    Args:
        credentials: makes keys.
        renew: brings a node what is wanted once more, with new keys.
        clock: gives Unix seconds.
    """

    def __init__(
        self,
        credentials: DelegatedCredentials,
        renew: Callable[[NodeAccess, Wanted], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._credentials = credentials
        self._renew = renew
        self._clock = clock
        self._guard = threading.Lock()
        self._mounts: dict[tuple[str, str], _Mount] = {}
        self._asked: set[str] = set()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def brought(self, node: NodeAccess, wanted: Wanted) -> None:
        """A node has it, with the keys that were lent for it."""
        expires = wanted.credentials.get(EXPIRES_VARIABLE)
        if expires is None or wanted.order["do"] != "volume":
            return  # they last, or are not needed any more
        with self._guard:
            self._mounts[node.id, wanted.there] = _Mount(node, wanted, self._clock(), float(expires))
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="keys", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """The mounts end."""
        self._closed.set()

    def look(self) -> list[threading.Thread]:
        """Renew what is due; what fails is tried at the next look.

        Each node is asked by a thread of its own, which are returned: one that hangs keeps no other waiting.
        """
        now = self._clock()
        with self._guard:
            due = {key: each for key, each in self._mounts.items() if each.is_due(now)}
            nodes = {node for node, _ in due} - self._asked
            self._asked |= nodes
        threads = []
        for node in nodes:
            mounts = [mount for (its, _), mount in due.items() if its == node]
            threads.append(threading.Thread(target=self._look_at, args=(mounts,), name="keys", daemon=True))
            threads[-1].start()
        return threads

    def _look_at(self, mounts: Sequence[_Mount]) -> None:
        """Renew those of one node."""
        try:
            for mount in mounts:
                self._renew_one(mount)
        finally:
            with self._guard:
                self._asked -= {mount.node.id for mount in mounts}

    def _renew_one(self, mount: _Mount) -> None:
        node, wanted = mount.node, mount.wanted
        try:
            self._renew(node, with_keys(self._credentials, wanted))
        except (TrainmasterError, OSError) as error:
            log.info("keys of %s on %s: %s", wanted.name, node.id, one_line(error))
            if self._clock() > mount.expires_at:  # it has no reader any more; the node is probably lost
                with self._guard:
                    if self._mounts.get((node.id, wanted.there)) is mount:
                        del self._mounts[node.id, wanted.there]

    def _run(self) -> None:
        while not self._closed.wait(_LOOK_S):
            try:
                self.look()
            except Exception:  # the next look may do
                log.exception("keys cannot be renewed")
