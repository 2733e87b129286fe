"""`LocalExecutor`: gangs as plain processes of this machine."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainmaster.executors.base import (
    Capacity,
    Container,
    GangRequest,
    GangStatus,
    MemberStatus,
    Phase,
    QueuePlace,
)
from trainmaster.executors.supervisor_connection import WHO, ConnectionLost, SupervisorConnection
from trainmaster.spec.errors import ExecutorError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.executors.wire import Message

#: A supervisor that is lost so often within `_LOSSES_WINDOW_S` is not worth another try.
_LOSSES_MAX = 3
_LOSSES_WINDOW_S = 60.0
_ANSWER_TIMEOUT_S = 30.0
_OBSERVE_BATCH = 4096


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
        self._hello: Message = {}
        self._watching = False
        self._live: dict[str, None] = {}
        self._news: dict[str, GangStatus] = {}
        self._grew: dict[tuple[str, str], None] = {}
        self._queue_place: QueuePlace | None = None
        self._losses: list[float] = []
        self._asked = 0
        self._answer_s = _ANSWER_TIMEOUT_S

    @property
    def supervisor_pid(self) -> int:
        """Process id of the supervisor, 0 before `open`."""
        return self._connection.supervisor_pid

    def start(self) -> None:
        """Start the supervisor in the background if there is none; `open` then waits less."""
        self._connection.start()

    def open(self, run: str, capacity: Capacity, env: Mapping[str, str], token: int = 0) -> None:
        """Connect on behalf of a run; see `Executor.open`."""
        self._hello = {
            "do": "open",
            "run": run,
            "slots": capacity.slots,
            "gpus": list(capacity.gpus),
            "env": _portable(env),
            "token": token,
        }
        self._connection.open(self._hello)

    def submit(self, gangs: Sequence[GangRequest]) -> None:
        """Queue gangs; see `Executor.submit`."""
        if not gangs:
            return
        self._live.update(dict.fromkeys(gang.attempt for gang in gangs))
        self._send({"do": "submit", "gangs": [_request(gang) for gang in gangs]})
        for gang in gangs:  # a supervisor that died meanwhile did not know them; its successor does
            self._live[gang.attempt] = None
            if (old := self._news.get(gang.attempt)) and old.phase is Phase.UNKNOWN:
                del self._news[gang.attempt]

    def launch(self, attempt: str, env: Mapping[str, Mapping[str, str]]) -> None:
        """Start a GRANTED gang; see `Executor.launch`."""
        extra = {name: _portable(variables) for name, variables in env.items()}
        self._send({"do": "launch", "attempt": attempt, "env": extra})

    def observe(self, attempts: Sequence[str]) -> list[GangStatus]:
        """The present status of each attempt; see `Executor.observe`."""
        statuses: list[GangStatus] = []
        for start in range(0, len(attempts), _OBSERVE_BATCH):
            statuses += self._observe(list(attempts[start : start + _OBSERVE_BATCH]))
        for status in statuses:
            if status.phase is not Phase.UNKNOWN:
                self._live[status.attempt] = None
        return statuses

    def changes(self, timeout_s: float) -> list[GangStatus]:
        """Wait for something to change; see `Executor.changes`. New `output` ends the wait too."""
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
            self._send({"do": "watch"})
        grew = list(self._grew)
        self._grew.clear()
        return grew

    def queue_place(self) -> QueuePlace | None:
        """For what the run waits; see `Executor.queue_place`."""
        return self._queue_place

    def stop(self, attempt: str, grace_s: float) -> None:
        """Stop an attempt; see `Executor.stop`."""
        self._send({"do": "stop", "attempt": attempt, "grace_s": grace_s})

    def forget(self, attempts: Sequence[str]) -> None:
        """Drop exit records; see `Executor.forget`."""
        if not attempts:
            return
        for attempt in attempts:
            self._live.pop(attempt, None)
        self._send({"do": "forget", "attempts": list(attempts)})

    def close(self) -> None:
        """Disconnect; see `Executor.close`."""
        self._connection.close()
        self._hello = {}
        self._live.clear()
        self._news.clear()
        self._grew.clear()
        self._queue_place = None
        self._watching = False

    def _send(self, message: Message) -> None:
        while True:
            try:
                self._connection.send(message)
                return
            except ConnectionLost:
                self._revive()  # all that is sent may be sent twice

    def _receive(self, timeout_s: float) -> list[Message]:
        try:
            return self._connection.receive(timeout_s)
        except ConnectionLost:
            self._revive()
            return []

    def _observe(self, attempts: list[str]) -> list[GangStatus]:
        while True:
            try:
                return self._ask(attempts)
            except ConnectionLost:
                self._revive()

    def _ask(self, attempts: list[str]) -> list[GangStatus]:
        self._asked += 1  # an interrupted call leaves its answer for the next one to skip
        self._connection.send({"do": "observe", "id": self._asked, "attempts": attempts})
        patience_s = self._answer_s
        deadline = time.monotonic() + patience_s
        answer: list[GangStatus] | None = None
        while answer is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise ExecutorError(
                    f"{WHO} ({self.supervisor_pid}) did not answer for {patience_s:.0f} s",
                    "If it is stopped, `kill -CONT` it; `kill` ends it and everything it runs.",
                )
            for message in self._connection.receive(left_s):
                if message.get("reply") == "observe":
                    if message["id"] != self._asked:
                        continue
                    answer = [_status(row) for row in message["gangs"]]
                else:
                    self._take(message)
        return answer

    def _take(self, message: Message) -> None:
        for row in message.get("news", ()):
            status = _status(row)
            self._news.pop(status.attempt, None)  # the newest goes to the end
            self._news[status.attempt] = status
            if status.phase is Phase.UNKNOWN:
                self._live.pop(status.attempt, None)
        for attempt, member in message.get("output", ()):
            self._grew[attempt, member] = None
        if "queue" in message:
            place = message["queue"]
            self._queue_place = None if place is None else QueuePlace(*place)

    def _revive(self) -> None:
        """The supervisor has died: start another one and see what it knows."""
        if not self._hello:
            raise ExecutorError("the executor is not open", "Call open() first.")
        now = time.monotonic()
        self._losses = [loss for loss in self._losses if now - loss < _LOSSES_WINDOW_S] + [now]
        if len(self._losses) > _LOSSES_MAX:
            raise ExecutorError(
                f"{WHO} was lost {len(self._losses)} times within a minute",
                "See the end of TRAINMASTER_HOME/supervisor/log, then resume the run.",
            )
        self._connection.close()
        self._queue_place = None
        try:
            self._connection.open(self._hello)
        except ExecutorError:
            self._connection.close()
            self._connection.open(self._hello)  # once more, then it is the caller's
        if self._watching:
            self._send({"do": "watch"})
        for status in self.observe(list(self._live)):
            known = self._news.get(status.attempt)
            if known is None or known.phase is not Phase.EXITED:  # news of the end may have come after it
                self._news[status.attempt] = status
            if status.phase is Phase.UNKNOWN:
                self._live.pop(status.attempt, None)


def _request(gang: GangRequest) -> Message:
    return {
        "attempt": gang.attempt,
        "directory": gang.directory,
        "slots": gang.slots,
        "group": gang.group,
        "group_slots": gang.group_slots,
        "hold": gang.hold,
        "grace_s": gang.grace_s,
        "share_gpus": gang.share_gpus,
        "members": [
            {
                "name": member.name,
                "script": member.script,
                "cwd": member.cwd,
                "env": _portable(member.env),
                "ports": member.ports,
                "essential": member.essential,
                "gpus": member.gpus,
                "container": _container(member.container),
                # with each member, as those of a gang may be told to different nodes
                "directories": list(gang.directories),
            }
            for member in gang.members
        ],
    }


def _container(container: Container | None) -> Message | None:
    if container is None:
        return None
    return {**asdict(container), "settings": _portable(container.settings)}


def _status(row: Sequence[Any]) -> GangStatus:
    attempt, phase, members, ports, started_at, ended_at = row
    return GangStatus(
        attempt=attempt,
        phase=Phase(phase),
        members=tuple(MemberStatus(*member) for member in members),
        ports={name: tuple(numbers) for name, numbers in ports.items()},
        started_at=started_at,
        ended_at=ended_at,
    )


def _portable(env: Mapping[str, str]) -> dict[str, str]:
    """As the supervisor reads it, which takes file names and variables for UTF-8."""
    if sys.getfilesystemencoding() == "utf-8":
        return dict(env)
    return {_recode(name): _recode(value) for name, value in env.items()}


def _recode(text: str) -> str:
    return os.fsencode(text).decode("utf-8", "surrogateescape")
