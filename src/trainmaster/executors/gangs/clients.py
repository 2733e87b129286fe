"""The gateway's end of a driver's connection: what the driver has to be told."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from trainmaster.executors.wire import Message

#: A driver that has not taken so much yet gets no more of members' files for now.
_FULL_BYTES = 4 << 20
_OUTPUT_PAUSE_S = 0.05


class GatewayClient:
    """One connection; what changed is a set of attempts, told once each.

    Args:
        loop: the gateway's.
        hello: what the driver has introduced itself with.
        row: status and addresses of an attempt.

    Attributes:
        run: on whose behalf it came.
        token: of its lease of the run; 0 if it has none.
        env: base of its members' environment; lives here and nowhere else.
        watches: wants to know which members have written something.
        waits: why attempts of its run have no place, as it was told last.
        messages: to the driver, which takes them from a thread of its own; None when it is hung up on.
        taken_bytes: of members' files that the driver has taken.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        hello: Message,
        row: Callable[[str], tuple[list[Any], dict[str, str]]],
    ) -> None:
        self.run: str = hello["run"]
        self.token: int = hello.get("token", 0)
        self.env: dict[str, str] = hello["env"]
        self.watches = False
        self.waits: dict[str, str] = {}
        self.messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self.taken_bytes = 0
        self._sent_bytes = 0
        self._loop = loop
        self._row = row
        self._changed: dict[str, None] = {}
        self._grew: dict[tuple[str, str], None] = {}
        self._grew_at = 0.0

    @property
    def full(self) -> bool:
        """It does not keep up."""
        return self._sent_bytes - self.taken_bytes > _FULL_BYTES

    def send(self, message: Message) -> None:
        """Tell it something."""
        self.messages.put(message)

    def send_piece(self, attempt: str, node: str, piece: tuple[str, int, int, str]) -> None:
        """A part of a file that a member writes."""
        name, offset, count, text = piece
        self._sent_bytes += count
        self.send({"piece": [attempt, node, name, offset, text], "bytes": count})

    def changed(self, attempt: str) -> None:
        """Tell it the status of an attempt."""
        if not self._changed:
            self._loop.call_soon(self._tell_news)
        self._changed[attempt] = None

    def grew(self, attempt: str, member: str) -> None:
        """Tell it, if it watches, that a member has written something."""
        if self.watches:
            if not self._grew:
                self._loop.call_at(self._grew_at + _OUTPUT_PAUSE_S, self._tell_output)
            self._grew[attempt, member] = None

    def _tell_news(self) -> None:
        attempts, self._changed = list(self._changed), {}
        self.send_rows("news", attempts)

    def _tell_output(self) -> None:
        self.send({"output": list(self._grew)})
        self._grew.clear()
        self._grew_at = self._loop.time()

    def send_rows(self, key: str, attempts: list[str], **more: object) -> None:
        """Statuses, and before them the addresses of members that have some."""
        rows = [self._row(attempt) for attempt in attempts]
        addresses = {row[0]: found for row, found in rows if found}
        if addresses:
            self.send({"addresses": addresses})
        self.send({key: [row for row, _ in rows], **more})

    def close(self) -> None:
        """Hang up."""
        self.messages.put(None)
