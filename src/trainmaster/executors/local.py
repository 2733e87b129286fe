"""`LocalExecutor`: gangs as plain processes of this machine."""

from __future__ import annotations

from pathlib import Path

from trainmaster.executors.gang_client import GangClient
from trainmaster.executors.supervisor_connection import SupervisorConnection


class LocalExecutor(GangClient):
    """Starts gangs through the supervisor of this node and home; see `Executor` for the methods.

    When the supervisor dies, another one is started: it ends what the first one left and reports it as
    lost. Gangs that were still queued come back from `changes` as UNKNOWN, to be submitted again.

    Example:
        >>> from trainmaster.executors.base import Capacity
        >>> executor = LocalExecutor(Path("/tmp/home"))
        >>> executor.open("digits-7f3a", Capacity(slots=2), os.environ)  # doctest: +SKIP
    """

    def __init__(self, home: Path) -> None:
        supervisor = SupervisorConnection(home)
        super().__init__(supervisor)
        #: Starts the supervisor in the background if there is none; `open` then waits less.
        self.start = supervisor.start

    @property
    def supervisor_pid(self) -> int:
        """Process id of the supervisor, 0 before `open`."""
        return self._connection.supervisor_pid
