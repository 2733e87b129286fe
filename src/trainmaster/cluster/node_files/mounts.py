"""`NodeMounts`: mounts on nodes that go on when a run is over are ended."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from trainmaster.cluster.node_files.data_look import end_mounts_command, mounted_runs, mounted_runs_command
from trainmaster.cluster.node_files.files import AT_ONCE, NodeFiles
from trainmaster.spec.errors import TrainmasterError

if TYPE_CHECKING:
    from trainmaster.cluster.node_access import NodeAccess
    from trainmaster.cluster.node_files.paths import NodePaths

#: A node may be busy, so that the first answer takes so long,
FIRST_S: Final = 15.0
#: but when others are done, one that says nothing for so long hangs.
NEXT_S: Final = 5.0
_TIMEOUT_S: Final = 60.0


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
        """End mounts that other runs left on a machine of one's own, as their drivers were killed; once."""
        with self._guard:
            is_cleared = node.id in self._cleared
            self._cleared.add(node.id)
        if is_cleared:
            return
        runs = f"{self._paths.root}/runs"
        with contextlib.suppress(TrainmasterError):
            for run in mounted_runs(self._files.shell(node, mounted_runs_command(runs), _TIMEOUT_S).out):
                if run != self._paths.run and self._is_over(run):
                    self._files.shell(node, end_mounts_command(f"{runs}/{run}"), _TIMEOUT_S)

    def end(self, nodes: Sequence[NodeAccess], *, first_s: float = FIRST_S, next_s: float = NEXT_S) -> None:
        """End the run's; nodes that hang keep them.

        A rented machine takes them along when its lease ends. On one that is used again, and on a host of the
        user's, `clear` of a later run ends what is left.

        Args:
            nodes: which.
            first_s: how long the first answer is waited for.
            next_s: how long each further one.
        """
        command = end_mounts_command(self._paths.there(self._paths.home.data_directory(self._paths.run)))
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
                    self._files.shell(node, command, _TIMEOUT_S)
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
