"""The driver's end of the connection to what conducts its gangs, in a thread of this process."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmaster.executors.gangs.clients import GatewayClient
from trainmaster.executors.supervisor_connection import ConnectionLost
from trainmaster.spec.errors import ExecutorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmaster.executors.gangs.copies import Mirror
    from trainmaster.executors.gangs.gateway import Gateway
    from trainmaster.executors.wire import Message

#: All nodes have to be asked what an earlier driver has left.
_OPEN_TIMEOUT_S = 90.0
#: Once it was there.
_REOPEN_TIMEOUT_S = 30.0
_PARTING_TIMEOUT_S = 5.0
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node that is not known to be dead.

    Attributes:
        key: its name in the cluster.
        address: private.
        unreachable_since: Unix time in seconds since when it has not answered, None while it does.
    """

    key: str
    address: str
    unreachable_since: float | None = None


class GatewayConnection:
    """The driver's end.

    Args:
        connect: gives the gateway, to which one introduces oneself.
        mirror: copies of what members write.

    Attributes:
        supervisor_pid: of the process that the gateway is in, 0 before `open`.
        addresses: of members, by attempt.
        nodes: by key.
        waits: reasons why attempts could not be placed for a while, by attempt.
    """

    def __init__(self, connect: Callable[[Message], Gateway], mirror: Mirror) -> None:
        self._connect = connect
        self._mirror = mirror
        self._gateway: Gateway | None = None
        self._client: GatewayClient | None = None
        self.supervisor_pid = 0
        self.addresses: dict[str, dict[str, str]] = {}
        self.nodes: dict[str, NodeView] = {}
        self.waits: dict[str, str] = {}
        self._inbox: deque[Message] = deque()
        self._arrived = threading.Condition()

    @property
    def silent_s(self) -> float:
        """For how long the engine has said nothing."""
        return 0.0 if self._gateway is None else self._gateway.silent_s

    def open(self, hello: Message) -> None:
        """Connect to the gateway, which is started if there is none.

        Raises:
            ExecutorError: the cluster cannot be reached.
        """
        deadline = time.monotonic() + (_REOPEN_TIMEOUT_S if self.supervisor_pid else _OPEN_TIMEOUT_S)
        self._inbox.clear()
        while time.monotonic() < deadline:
            gateway = self._connect(hello)
            opening = gateway.open(GatewayClient(hello, self._mirror, self._take))
            while not gateway.is_over and time.monotonic() < deadline:
                with contextlib.suppress(TimeoutError, CancelledError):
                    self._client = opening.result(_LOOK_S)
                    break
            else:
                opening.cancel()
                if gateway.error is not None:
                    raise gateway.error
                continue  # it was just about to end
            self._gateway, self.supervisor_pid = gateway, os.getpid()
            return
        raise ExecutorError(
            "what conducts the cluster's tasks does not answer", "Can its machines be reached?"
        )

    def send(self, message: Message) -> None:
        """Have the gateway do something.

        Raises:
            ConnectionLost: it is gone.
        """
        if self._gateway is None or self._client is None:
            raise ConnectionLost
        try:
            self._gateway.tell(self._client, message)
        except RuntimeError as error:  # its loop has ended
            self.close()
            raise ConnectionLost from error

    def part(self) -> None:
        """Hang up, once all that was said has reached the nodes: the next connection may come another way."""
        if self._gateway is not None:
            self._gateway.deliver(_PARTING_TIMEOUT_S)
        self.close()

    def receive(self, timeout_s: float) -> list[Message]:
        """What has arrived, after waiting for something at most ``timeout_s``.

        Raises:
            ConnectionLost: the gateway is gone.
        """
        with self._arrived:
            if not self._inbox and self._client is None:
                raise ConnectionLost
            self._arrived.wait_for(lambda: self._inbox, timeout_s)
        found = []
        while self._inbox:
            message = self._inbox.popleft()
            if "closed" in message:
                if message["closed"] is self._client:
                    self.close()
                    raise ConnectionLost
                continue
            found.append(message)
        return found

    def close(self) -> None:
        """Hang up."""
        if self._gateway is not None and self._client is not None:
            self._gateway.hang_up(self._client)
        self._gateway = self._client = None

    def _take(self, message: Message) -> None:
        """The gateway says something, in a thread of its own."""
        if "addresses" in message:
            self.addresses.update(message["addresses"])
        elif "nodes" in message:
            self.nodes = {row["key"]: NodeView(**row) for row in message["nodes"]}
        elif "waits" in message:
            self.waits = message["waits"]
        else:
            with self._arrived:
                self._inbox.append(message)
                self._arrived.notify()
