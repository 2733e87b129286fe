"""`LocalExecutor`: gangs as processes of this machine, asked of its supervisor; what was heard of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainmaster.executors.base import Capacity, GangRequest, GangStatus, Phase, QueuePlace, portable
from trainmaster.executors.local.connection import SUPERVISOR, ConnectionLost, SupervisorConnection
from trainmaster.spec.errors import ExecutorError, OtherVersionError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainmaster.executors.wire import Message

#: A peer that is lost so often within `_LOSSES_WINDOW_S` is not worth another try.
_LOSSES_MAX = 3
_LOSSES_WINDOW_S = 60.0
_ANSWER_TIMEOUT_S = 30.0
_OBSERVE_BATCH = 4096


class LocalExecutor:
    """Starts gangs through the supervisor of this node and home; see `Executor` for the methods.

    When the supervisor dies, another one is started: it ends what the first one left and reports it as
    lost. Gangs that were still queued come back from `changes` as UNKNOWN, to be submitted again.

    Args:
        home: of the supervisor.

    Attributes:
        connection: to the supervisor.

    Example:
        >>> from trainmaster.executors.base import Capacity
        >>> executor = LocalExecutor(Path("/tmp/home"))
        >>> executor.open("digits-7f3a", Capacity(slots=2), os.environ)  # doctest: +SKIP
    """

    def __init__(self, home: Path) -> None:
        self.connection = SupervisorConnection(home)
        #: Starts the supervisor in the background if there is none; `open` then waits less.
        self.start = self.connection.start
        self._hello: Message = {}
        self._watching = False
        self._grew: dict[tuple[str, str], None] = {}
        self._asked = 0
        self._live: dict[str, GangStatus] = {}
        self._news: dict[str, GangStatus] = {}
        self._queue_place: QueuePlace | None = None
        self._losses: list[float] = []

    @property
    def supervisor_pid(self) -> int:
        """Process id of the supervisor, 0 before `open`."""
        return self.connection.supervisor_pid

    def open(
        self, run: str, capacity: Capacity, env: Mapping[str, str], token: int = 0, leased: str = ""
    ) -> None:
        """Connect on behalf of a run; ``leased`` is the one that the token is of, if that is another."""
        self._hello = {
            "do": "open",
            "run": run,
            "slots": capacity.slots,
            "gpus": list(capacity.gpus),
            "team": capacity.team,
            "team_slots": capacity.team_slots,
            "env": portable(env),
            "token": token,
            "leased": leased,
        }
        self.connection.open(self._hello)

    def submit(self, gangs: Sequence[GangRequest]) -> None:
        """Queue gangs; see `Executor.submit`."""
        self.queue([gang.message() for gang in gangs])

    def queue(self, gangs: Sequence[Message]) -> None:
        """The same, as they are sent."""
        if not gangs:
            return
        attempts = [gang["attempt"] for gang in gangs]
        self._add_live(attempts)
        self.send({"do": "submit", "gangs": list(gangs)})
        self._add_live(attempts)  # a supervisor that died meanwhile did not know them; its successor does
        for attempt in attempts:
            if (old := self._news.get(attempt)) and old.phase is Phase.UNKNOWN:
                del self._news[attempt]

    def launch(self, attempt: str, env: Mapping[str, Mapping[str, str]]) -> None:
        """Start a GRANTED gang."""
        extra = {name: portable(variables) for name, variables in env.items()}
        self.send({"do": "launch", "attempt": attempt, "env": extra})

    def observe(self, attempts: Sequence[str]) -> list[GangStatus]:
        """The present status of each attempt."""
        statuses: list[GangStatus] = []
        for start in range(0, len(attempts), _OBSERVE_BATCH):
            statuses += self._observe(list(attempts[start : start + _OBSERVE_BATCH]))
        return statuses

    def changes(self, timeout_s: float) -> list[GangStatus]:
        """Wait for something to change; new `output` ends the wait too."""
        deadline = time.monotonic() + timeout_s
        wait_s = 0.0 if self._news or self._grew else timeout_s
        while True:
            for message in self._receive(max(0.0, wait_s)):
                self._take(message)
            if self._news or self._grew:
                break
            wait_s = deadline - time.monotonic()
            if wait_s <= 0:
                break
        news = list(self._news.values())
        self._news.clear()
        return news

    def output(self) -> list[tuple[str, str]]:
        """(attempt, member) of each member that wrote something since the last call.

        The first call asks to be told. From then on the first output of a member ends `changes` at
        once, later output at most every 50 ms.
        """
        if not self._watching:
            self._watching = True
            self.send({"do": "watch"})
        grew = list(self._grew)
        self._grew.clear()
        return grew

    def queue_place(self) -> QueuePlace | None:
        """For what the run waits; see `Executor.queue_place`."""
        return self._queue_place

    def stop(self, attempt: str, grace_s: float, *, stacks: bool = False) -> None:
        """Stop an attempt."""
        self.send({"do": "stop", "attempt": attempt, "grace_s": grace_s, "stacks": stacks})

    def forget(self, attempts: Sequence[str]) -> None:
        """Drop exit records."""
        if not attempts:
            return
        for attempt in attempts:
            self._live.pop(attempt, None)
        self.send({"do": "forget", "attempts": list(attempts)})

    def close(self) -> None:
        """Disconnect."""
        self.connection.close()
        self._hello = {}
        self._live.clear()
        self._news.clear()
        self._grew.clear()
        self._queue_place = None
        self._watching = False

    def send(self, message: Message) -> None:
        """Send a frame; it may be sent twice."""
        while True:
            try:
                self.connection.send(message)
            except ConnectionLost:
                self._reopen()
            else:
                return

    def _reopen(self) -> None:
        """The peer has died: connect to its successor and see what that knows.

        Raises:
            ExecutorError: there is none, or they die too often.
        """
        if not self._hello:
            raise ExecutorError("the executor is not open", "Call open() first.")
        now = time.monotonic()
        self._losses = [loss for loss in self._losses if now - loss < _LOSSES_WINDOW_S] + [now]
        if len(self._losses) > _LOSSES_MAX:
            raise ExecutorError(
                f"{SUPERVISOR} was lost {len(self._losses)} times within a minute",
                "See the end of TRAINMASTER_HOME/supervisor/log, then resume the run.",
            )
        self.connection.close()
        self._queue_place = None
        try:
            self.connection.open(self._hello)
        except ExecutorError:
            self.connection.close()
            self.connection.open(self._hello)  # once more, then it is the caller's
        if self._watching:
            self.send({"do": "watch"})
        for status in self.observe(list(self._live)):
            known = self._news.get(status.attempt)
            if known is None or known.phase is not Phase.EXITED:  # news of the end may have come after it
                self._news[status.attempt] = status
            if status.phase is Phase.UNKNOWN:
                self._live.pop(status.attempt, None)

    def _add_live(self, attempts: Sequence[str]) -> None:
        for attempt in attempts:
            self._live.setdefault(attempt, GangStatus(attempt, Phase.QUEUED))

    def _receive(self, timeout_s: float) -> list[Message]:
        try:
            return self.connection.receive(timeout_s)
        except ConnectionLost:
            self._reopen()
        return []

    def _observe(self, attempts: list[str]) -> list[GangStatus]:
        while True:
            try:
                return self._ask(attempts)
            except ConnectionLost:
                self._reopen()

    def _ask(self, attempts: list[str]) -> list[GangStatus]:
        self._asked += 1  # an interrupted call leaves its answer for the next one to skip
        self.connection.send({"do": "observe", "id": self._asked, "attempts": attempts})
        patience_s = _ANSWER_TIMEOUT_S
        deadline = time.monotonic() + patience_s
        answer: list[GangStatus] | None = None
        while answer is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise ExecutorError(
                    f"{SUPERVISOR} ({self.connection.supervisor_pid}) did not answer for {patience_s:.0f} s",
                    "If it is stopped, `kill -CONT` it; `kill` ends it and everything it runs.",
                )
            for message in self.connection.receive(left_s):
                if message.get("reply") == "observe":
                    if message["id"] != self._asked:
                        continue
                    answer = [self._status(row) for row in message["gangs"]]
                    self._live.update(
                        (each.attempt, each) for each in answer if each.phase is not Phase.UNKNOWN
                    )
                else:
                    self._take(message)
        return answer

    def _status(self, row: Sequence[Any]) -> GangStatus:
        try:
            return GangStatus.of_row(row)
        except OtherVersionError as error:
            raise self.connection.other_version() from error

    def _take(self, message: Message) -> None:
        for row in message.get("news", ()):
            status = self._status(row)
            self._news.pop(status.attempt, None)  # the newest goes to the end
            self._news[status.attempt] = status
            if status.phase is Phase.UNKNOWN:
                self._live.pop(status.attempt, None)
            elif status.attempt in self._live:
                self._live[status.attempt] = status
        for attempt, member in message.get("output", ()):
            self._grew[attempt, member] = None
        if "queue" in message:
            place = message["queue"]
            self._queue_place = None if place is None else QueuePlace(*place)
