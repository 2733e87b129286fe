"""The gateway's end of a driver's connection: what the driver has to be told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmaster.executors.gangs.copies import Mirror
    from trainmaster.executors.wire import Message

_OUTPUT_PAUSE_S = 0.05


class GatewayClient:
    """One connection; what changed is a set of attempts, told once each.

    Args:
        hello: how the driver has introduced itself.
        mirror: its copies of what members write.
        send: tells it something.

    Attributes:
        run: on whose behalf it came.
        token: of its lease of the run; 0 if it has none.
        env: base of its members' environment; lives here and nowhere else.
        mirror: see above.
        send: see above.
        watches: wants to know which members have written something.
        waits: why attempts of its run have no place, as it was told last.
        row: status and addresses of an attempt, by the gateway.
    """

    row: Callable[[str], tuple[list[Any], dict[str, str]]]

    def __init__(self, hello: Message, mirror: Mirror, send: Callable[[Message], None]) -> None:
        self.run: str = hello["run"]
        self.token: int = hello.get("token", 0)
        self.env: dict[str, str] = hello["env"]
        self.mirror = mirror
        self.send = send
        self.watches = False
        self.waits: dict[str, str] = {}
        self._changed: dict[str, None] = {}
        self._grew: dict[tuple[str, str], None] = {}
        self._grew_at = 0.0

    def changed(self, attempt: str) -> None:
        """Tell it the status of an attempt."""
        if not self._changed:
            asyncio.get_running_loop().call_soon(self._tell_news)
        self._changed[attempt] = None

    def grew(self, attempt: str, member: str) -> None:
        """Tell it, if it watches, that a member has written something."""
        if self.watches:
            if not self._grew:
                asyncio.get_running_loop().call_at(self._grew_at + _OUTPUT_PAUSE_S, self._tell_output)
            self._grew[attempt, member] = None

    def _tell_news(self) -> None:
        attempts, self._changed = list(self._changed), {}
        self.send_rows("news", attempts)

    def _tell_output(self) -> None:
        self.send({"output": list(self._grew)})
        self._grew.clear()
        self._grew_at = asyncio.get_running_loop().time()

    def send_rows(self, key: str, attempts: list[str], **more: object) -> None:
        """Statuses, and before them the addresses of members that have some."""
        rows = [self.row(attempt) for attempt in attempts]
        addresses = {row[0]: found for row, found in rows if found}
        if addresses:
            self.send({"addresses": addresses})
        self.send({key: [row for row, _ in rows], **more})

    def close(self) -> None:
        """Hang up."""
        self.send({"closed": self})
