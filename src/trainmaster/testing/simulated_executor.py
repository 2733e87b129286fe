"""An executor whose node is simulated: news comes late, twice, and in any order between attempts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from trainmaster.executors.base import Capacity, GangRequest, GangStatus, Phase, QueuePlace
from trainmaster.spec.errors import LeaseLostError
from trainmaster.testing.simulated_node import SimulatedNode

#: How long a control process may sleep although something has happened (or nothing has).
PATIENCE_S = (0.2, 1.0, 5.0, 5.0)


class SimulatedExecutor:
    """One control process's connection to the node, as `LocalExecutor` behaves.

    Args:
        node: what it talks to.
        step: called before and after each message: here the control process may be killed.
        slow: probability that news is held back or comes twice.
    """

    def __init__(self, node: SimulatedNode, step: Callable[[str], None], slow: float) -> None:
        self._node = node
        self._world = node.world
        self._step = step
        self._slow = slow
        self._epoch = -1
        self._run, self._token = "", 0
        self._news: dict[str, list[GangStatus]] = {}
        self._told: dict[str, GangStatus] = {}
        self._live: dict[str, None] = {}

    def open(self, run: str, capacity: Capacity, env: Mapping[str, str], token: int = 0) -> None:
        """Connect, and let there be a supervisor; see `Executor.open`."""
        self._run, self._token = run, token
        self._node.revive()
        self._prove()
        self._node.token = max(token, self._node.token)
        self._epoch = self._node.epoch
        self._node.clients.append(self)

    def submit(self, gangs: Sequence[GangRequest]) -> None:
        """See `Executor.submit`."""
        self._step("before submit")
        self._live.update(dict.fromkeys(gang.attempt for gang in gangs))
        self._revive()
        for gang in gangs:
            self._world.note(f"submit {gang.attempt}")
            self._told.pop(gang.attempt, None)
            self._news.pop(gang.attempt, None)  # what a dead supervisor did not know is no news
            self._node.submit(self, gang)
        self._step("after submit")

    def launch(self, attempt: str, env: Mapping[str, Mapping[str, str]]) -> None:
        """See `Executor.launch`."""
        self._step("before launch")
        self._revive()
        self._world.note(f"launch {attempt}")
        self._node.launch(attempt)
        self._step("after launch")

    def observe(self, attempts: Sequence[str]) -> list[GangStatus]:
        """See `Executor.observe`."""
        self._step("before observe")
        self._revive()
        found = [self._node.status(attempt) for attempt in attempts]
        self._live.update(dict.fromkeys(s.attempt for s in found if s.phase is not Phase.UNKNOWN))
        self._step("after observe")
        return found

    def changes(self, timeout_s: float) -> list[GangStatus]:
        """See `Executor.changes`; a slow process sleeps longer than it wished."""
        self._step("before changes")
        if timeout_s > 0 and not (self._news and self._world.chance(0.8)):
            self._world.wait(self._world.rng.choice(PATIENCE_S))
        else:
            self._world.count_call()
        self._revive()
        news = []
        for attempt in self._world.rng.sample(list(self._news), len(self._news)):
            if self._world.chance(self._slow):
                continue  # still under way
            waiting = self._news[attempt]
            if self._world.chance(self._slow):
                status = waiting.pop(0)
            else:
                status = waiting[-1]
                waiting.clear()
            if not waiting:
                del self._news[attempt]
            self._told[attempt] = status
            if status.phase is Phase.UNKNOWN:
                self._live.pop(attempt, None)
            news.append(status)
        if self._told and self._world.chance(self._slow):  # once more what was told last, unless newer waits
            attempt = self._world.rng.choice(list(self._told))
            if attempt not in self._news:
                news.append(self._told[attempt])
        self._step("after changes")
        return news

    def output(self) -> list[tuple[str, str]]:
        """See `Executor.output`."""
        return []

    def queue_place(self) -> QueuePlace | None:
        """See `Executor.queue_place`: another run comes and goes as it likes."""
        held = {"another-run": 1}
        return QueuePlace(1, 0, 1, held) if self._world.chance(self._slow / 10) else None

    def stop(self, attempt: str, grace_s: float, *, stacks: bool = False) -> None:
        """See `Executor.stop`."""
        self._step("before stop")
        self._revive()
        self._world.note(f"stop {attempt} ({grace_s:g} s)")
        self._node.stop(attempt, grace_s)
        self._step("after stop")

    def forget(self, attempts: Sequence[str]) -> None:
        """See `Executor.forget`."""
        self._step("before forget")
        for attempt in attempts:
            self._live.pop(attempt, None)
            self._told.pop(attempt, None)
        self._revive()
        for attempt in attempts:
            self._node.forget(attempt)
        self._step("after forget")

    def close(self) -> None:
        """See `Executor.close`; also what happens to the connection of a killed process."""
        self._node.drop_client(self)

    def tell(self, status: GangStatus) -> None:
        """The node has news."""
        self._news.setdefault(status.attempt, []).append(status)

    def _prove(self) -> None:
        """The node refuses drivers that another one has taken over from."""
        if self._token < self._node.token:
            raise LeaseLostError.of(self._run)

    def _revive(self) -> None:
        """The connection is gone: let there be a supervisor again, and see what it knows."""
        self._prove()
        if self._epoch == self._node.epoch:
            return
        self._node.revive()
        self._epoch = self._node.epoch
        self._node.clients.append(self)
        self._told.clear()
        self._news = {attempt: [self._node.status(attempt)] for attempt in self._live}
