"""`LocalExecutor`: gangs as plain processes of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trainmaster.executors.base import Capacity, GangRequest, GangStatus, QueuePlace
from trainmaster.executors.gang_client import GangClient, gang_message
from trainmaster.executors.supervisor_connection import SupervisorConnection


class LocalExecutor:
    """Starts gangs through the supervisor of this node and home; see `Executor` for the methods.

    When the supervisor dies, another one is started: it ends what the first one left and reports it as
    lost. Gangs that were still queued come back from `changes` as UNKNOWN, to be submitted again.

    Example:
        >>> from trainmaster.executors import Capacity, LocalExecutor
        >>> executor = LocalExecutor(Path("/tmp/home"))
        >>> executor.open("digits-7f3a", Capacity(slots=2), os.environ)  # doctest: +SKIP
    """

    def __init__(self, home: Path) -> None:
        self._connection = SupervisorConnection(home)
        self._client = GangClient(self._connection)

    @property
    def supervisor_pid(self) -> int:
        """Process id of the supervisor, 0 before `open`."""
        return self._connection.supervisor_pid

    def start(self) -> None:
        """Start the supervisor in the background if there is none; `open` then waits less."""
        self._connection.start()

    def open(self, run: str, capacity: Capacity, env: Mapping[str, str], token: int = 0) -> None:
        """Connect on behalf of a run; see `Executor.open`."""
        self._client.open(run, capacity, env, token)

    def submit(self, gangs: Sequence[GangRequest]) -> None:
        """Queue gangs; see `Executor.submit`."""
        self._client.submit([gang_message(gang) for gang in gangs])

    def launch(self, attempt: str, env: Mapping[str, Mapping[str, str]]) -> None:
        """Start a GRANTED gang; see `Executor.launch`."""
        self._client.launch(attempt, env)

    def observe(self, attempts: Sequence[str]) -> list[GangStatus]:
        """The present status of each attempt; see `Executor.observe`."""
        return self._client.observe(attempts)

    def changes(self, timeout_s: float) -> list[GangStatus]:
        """Wait for something to change; see `Executor.changes`. New `output` ends the wait too."""
        return self._client.changes(timeout_s)

    def output(self) -> list[tuple[str, str]]:
        """(attempt, member) of each member that wrote something since the last call."""
        return self._client.output()

    def queue_place(self) -> QueuePlace | None:
        """For what the run waits; see `Executor.queue_place`."""
        return self._client.queue_place

    def stop(self, attempt: str, grace_s: float, *, stacks: bool = False) -> None:
        """Stop an attempt; see `Executor.stop`."""
        self._client.stop(attempt, grace_s, stacks=stacks)

    def forget(self, attempts: Sequence[str]) -> None:
        """Drop exit records; see `Executor.forget`."""
        self._client.forget(attempts)

    def close(self) -> None:
        """Disconnect; see `Executor.close`."""
        self._client.close()
