"""`Remover`: directories of nodes that are no longer needed are removed in the background, many at a time."""

from __future__ import annotations

import queue
import shlex
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from trainmaster.cluster.node_files.files import NodeFiles
from trainmaster.spec.errors import TrainmasterError

if TYPE_CHECKING:
    from trainmaster.cluster.node_access import NodeAccess

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

    def close(self) -> None:
        """Finish, for a short while."""
        if self._thread is not None:
            self._doomed.put(None)
            self._thread.join(_CLOSE_S)

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
