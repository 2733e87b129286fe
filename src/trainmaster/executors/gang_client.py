"""`GangClient`: what executors ask a supervisor or a cluster's gateway, and what they have heard of it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any, Protocol

from trainmaster.executors.base import (
    Capacity,
    Container,
    GangRequest,
    GangStatus,
    MemberRequest,
    MemberStatus,
    Phase,
    QueuePlace,
)
from trainmaster.executors.supervisor_connection import SUPERVISOR, ConnectionLost
from trainmaster.spec.errors import ExecutorError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.executors.wire import Message

#: A peer that is lost so often within `_LOSSES_WINDOW_S` is not worth another try.
_LOSSES_MAX = 3
_LOSSES_WINDOW_S = 60.0
_ANSWER_TIMEOUT_S = 30.0
_OBSERVE_BATCH = 4096


class FrameConnection(Protocol):
    """A stream of frames to a supervisor or gateway. `send` and `receive` raise `ConnectionLost`."""

    supervisor_pid: int

    def open(self, hello: Message) -> None:
        """Connect, introduce ourselves and be welcomed."""

    def send(self, message: Message) -> None:
        """Send a frame."""

    def receive(self, timeout_s: float) -> list[Message]:
        """Frames that have arrived, after waiting for one at most ``timeout_s``."""

    def close(self) -> None:
        """Hang up."""


class GangClient:
    """Speaks of gangs over a connection: what executors share, and all that an agent needs; see `Executor`.

    Args:
        connection: not open yet.

    Attributes:
        live: what was heard last of each attempt that was submitted or observed, until it is forgotten.
        news: of attempts, to be returned by `changes`.
        is_lost: the peer is gone for good: nothing is sent, and `observe` tells ``live``.
        losses: monotonic times in seconds of when the peer was lost lately.
        answer_s: how long an answer is waited for.
    """

    def __init__(self, connection: FrameConnection) -> None:
        self._connection = connection
        self._hello: Message = {}
        self._watching = False
        self._grew: dict[tuple[str, str], None] = {}
        self._asked = 0
        self.live: dict[str, GangStatus] = {}
        self.news: dict[str, GangStatus] = {}
        self._queue_place: QueuePlace | None = None
        self.is_lost = False
        self.losses: list[float] = []
        self.answer_s = _ANSWER_TIMEOUT_S

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
            "env": _portable(env),
            "token": token,
            "leased": leased,
        }
        self._connection.open(self._hello)

    def submit(self, gangs: Sequence[GangRequest]) -> None:
        """Queue gangs; see `Executor.submit`."""
        self.queue([gang_message(gang) for gang in gangs])

    def queue(self, gangs: Sequence[Message]) -> None:
        """The same, as they are sent."""
        if not gangs:
            return
        attempts = [gang["attempt"] for gang in gangs]
        self._add_live(attempts)
        self.send({"do": "submit", "gangs": list(gangs)})
        self._add_live(attempts)  # a supervisor that died meanwhile did not know them; its successor does
        for attempt in attempts:
            if (old := self.news.get(attempt)) and old.phase is Phase.UNKNOWN:
                del self.news[attempt]

    def launch(self, attempt: str, env: Mapping[str, Mapping[str, str]]) -> None:
        """Start a GRANTED gang."""
        extra = {name: _portable(variables) for name, variables in env.items()}
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
        wait_s = 0.0 if self.news or self._grew else timeout_s
        while True:
            for message in self._receive(max(0.0, wait_s)):
                self._take(message)
            if self.news or self._grew:
                break
            wait_s = deadline - time.monotonic()
            if wait_s <= 0:
                break
        news = list(self.news.values())
        self.news.clear()
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
            self.live.pop(attempt, None)
        self.send({"do": "forget", "attempts": list(attempts)})

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()
        self._hello = {}
        self.live.clear()
        self.news.clear()
        self._grew.clear()
        self._queue_place = None
        self._watching = False

    def send(self, message: Message) -> None:
        """Send a frame; it may be sent twice."""
        while not self.is_lost:
            try:
                self._connection.send(message)
                return
            except ConnectionLost:
                self._on_lost()

    def reopen(self) -> None:
        """The peer has died: connect to its successor and see what that knows.

        Raises:
            ExecutorError: there is none, or they die too often.
        """
        if not self._hello:
            raise ExecutorError("the executor is not open", "Call open() first.")
        now = time.monotonic()
        self.losses = [loss for loss in self.losses if now - loss < _LOSSES_WINDOW_S] + [now]
        if len(self.losses) > _LOSSES_MAX:
            raise ExecutorError(
                f"{SUPERVISOR} was lost {len(self.losses)} times within a minute",
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
            self.send({"do": "watch"})
        for status in self.observe(list(self.live)):
            known = self.news.get(status.attempt)
            if known is None or known.phase is not Phase.EXITED:  # news of the end may have come after it
                self.news[status.attempt] = status
            if status.phase is Phase.UNKNOWN:
                self.live.pop(status.attempt, None)

    def _on_lost(self) -> None:
        """`reopen` it, set `is_lost`, or raise."""
        self.reopen()

    def _add_live(self, attempts: Sequence[str]) -> None:
        for attempt in attempts:
            self.live.setdefault(attempt, GangStatus(attempt, Phase.QUEUED))

    def _receive(self, timeout_s: float) -> list[Message]:
        if not self.is_lost:
            try:
                return self._connection.receive(timeout_s)
            except ConnectionLost:
                self._on_lost()
        elif not self.news:
            time.sleep(timeout_s)  # nothing can come any more
        return []

    def _observe(self, attempts: list[str]) -> list[GangStatus]:
        while not self.is_lost:
            try:
                return self._ask(attempts)
            except ConnectionLost:
                self._on_lost()
        return [self.live.get(attempt, GangStatus(attempt, Phase.UNKNOWN)) for attempt in attempts]

    def _ask(self, attempts: list[str]) -> list[GangStatus]:
        self._asked += 1  # an interrupted call leaves its answer for the next one to skip
        self._connection.send({"do": "observe", "id": self._asked, "attempts": attempts})
        patience_s = self.answer_s
        deadline = time.monotonic() + patience_s
        answer: list[GangStatus] | None = None
        while answer is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise ExecutorError(
                    f"{SUPERVISOR} ({self._connection.supervisor_pid}) did not answer for {patience_s:.0f} s",
                    "If it is stopped, `kill -CONT` it; `kill` ends it and everything it runs.",
                )
            for message in self._connection.receive(left_s):
                if message.get("reply") == "observe":
                    if message["id"] != self._asked:
                        continue
                    answer = [status_of(row) for row in message["gangs"]]
                    self.live.update(
                        (each.attempt, each) for each in answer if each.phase is not Phase.UNKNOWN
                    )
                else:
                    self._take(message)
        return answer

    def _take(self, message: Message) -> None:
        for row in message.get("news", ()):
            status = status_of(row)
            self.news.pop(status.attempt, None)  # the newest goes to the end
            self.news[status.attempt] = status
            if status.phase is Phase.UNKNOWN:
                self.live.pop(status.attempt, None)
            elif status.attempt in self.live:
                self.live[status.attempt] = status
        for attempt, member in message.get("output", ()):
            self._grew[attempt, member] = None
        if "queue" in message:
            place = message["queue"]
            self._queue_place = None if place is None else QueuePlace(*place)


def gang_message(gang: GangRequest) -> Message:
    """A gang as it is submitted."""
    return {
        **_fields(gang),
        "members": [
            {
                **_fields(member),
                "env": _portable(member.env),
                "container": _container(member.container),
                "node_labels": dict(member.node_labels),
                "directories": gang.directories,
            }
            for member in gang.members
        ],
    }


def _fields(request: GangRequest | MemberRequest) -> Message:
    return {name: getattr(request, name) for name in request.__slots__}


def _container(container: Container | None) -> Message | None:
    if container is None:
        return None
    return {**container.message(), "settings": _portable(container.settings)}


def status_of(row: Sequence[Any]) -> GangStatus:
    """A status as it comes over the wire."""
    attempt, phase, members, ports, started_at, ended_at = row
    return GangStatus(
        attempt=attempt,
        phase=Phase(phase),
        members=tuple(MemberStatus(*member) for member in members),
        ports={name: tuple(numbers) for name, numbers in ports.items()},
        started_at=started_at,
        ended_at=ended_at,
    )


def row_of(status: GangStatus) -> list[Any]:
    """A status as it goes over the wire: the contrary of `status_of`."""
    return [
        status.attempt,
        status.phase.value,
        [list(astuple(member)) for member in status.members],
        dict(status.ports),
        status.started_at,
        status.ended_at,
    ]


def _portable(env: Mapping[str, str]) -> dict[str, str]:
    """An environment as the supervisor reads it, which takes file names and variables for UTF-8."""
    if sys.getfilesystemencoding() == "utf-8":
        return dict(env)
    return {_recode(name): _recode(value) for name, value in env.items()}


def _recode(text: str) -> str:
    return os.fsencode(text).decode("utf-8", "surrogateescape")
