"""The driver's end of the connection to what conducts its gangs, in a thread of this process."""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import threading
import time
from collections import deque
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmaster.executors.gangs.copies import RESERVE_BYTES, Mirror
from trainmaster.executors.supervisor_connection import ConnectionLost
from trainmaster.spec.errors import ExecutorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmaster.executors.gangs.clients import GatewayClient
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
    """The driver's end; a thread takes what arrives.

    Args:
        connect: gives the gateway, to which one introduces oneself.

    Attributes:
        supervisor_pid: of the process that the gateway is in, 0 before `open`.
        mirror: copies of what members write.
        addresses: of members, by attempt.
        plans: attempts that another driver has started: directory and members, newest news last.
        nodes: by key.
        waits: reasons why attempts could not be placed for a while, by attempt.
        full: words about those whose files had no room here, by attempt, as long as it is followed.
    """

    def __init__(self, connect: Callable[[Message], Gateway]) -> None:
        self._connect = connect
        self._gateway: Gateway | None = None
        self._client: GatewayClient | None = None
        self.supervisor_pid = 0
        self.mirror = Mirror()
        self.addresses: dict[str, dict[str, str]] = {}
        self.plans: dict[str, tuple[str, list[str]]] = {}
        self.nodes: dict[str, NodeView] = {}
        self.waits: dict[str, str] = {}
        self.full: dict[str, str] = {}
        self.broken: set[str] = set()
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
        while time.monotonic() < deadline:
            gateway = self._connect(hello)
            opening = gateway.open(hello)
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
            self._inbox.clear()
            threading.Thread(target=self._listen, args=(self._client,), name="copies", daemon=True).start()
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

    def _listen(self, client: GatewayClient) -> None:
        while (message := client.messages.get()) is not None:
            self._take(message)
            client.taken_bytes += message.get("bytes", 0)
        self._put({"closed": client})

    def _take(self, message: Message) -> None:
        if "piece" in message:
            attempt, node, name, offset, text = message["piece"]
            if attempt not in self.broken:
                try:
                    self.mirror.write(attempt, node, name, offset, base64.b64decode(text))
                except OSError as error:  # such as a full disk: it is asked for again
                    self.broken.add(attempt)
                    if error.errno in (errno.ENOSPC, errno.EDQUOT):
                        self.full[attempt] = _no_room(error.filename)
        elif "plan" in message:
            attempt, directory, members = message["plan"]
            self.plans[attempt] = (directory, members)
        elif "addresses" in message:
            self.addresses.update(message["addresses"])
        elif "nodes" in message:
            self.nodes = {row["key"]: NodeView(**row) for row in message["nodes"]}
        elif "waits" in message:
            self.waits = message["waits"]
        else:
            self._put(message)

    def _put(self, message: Message) -> None:
        with self._arrived:
            self._inbox.append(message)
            self._arrived.notify()


def _no_room(path: str | None) -> str:
    return (
        f"what its members write is kept{f' at {path}' if path else ''} on the machine that drives the run, "
        f"where less than {RESERVE_BYTES >> 20} MiB are free; they go on, but their logs, metrics and ends "
        "are not seen before there is more"
    )
