"""The driver's end of the stream to a cluster's gateway."""

from __future__ import annotations

import base64
import contextlib
import errno
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmaster.executors.gangs.copies import RESERVE_BYTES, Mirror
from trainmaster.executors.supervisor_connection import ConnectionLost
from trainmaster.executors.wire import PROTOCOL, Splitter, WireError, encode
from trainmaster.spec.errors import ExecutorError, LeaseLostError

if TYPE_CHECKING:
    from trainmaster.executors.wire import Message

#: The head may have to start the gateway, and that has to ask all nodes.
_OPEN_TIMEOUT_S = 90.0
#: Once it was there.
_REOPEN_TIMEOUT_S = 30.0
_PARTING_TIMEOUT_S = 5.0
READ_BYTES = 1 << 20
#: What the gateway is to users.
GATEWAY = "what places tasks, on the cluster's first machine,"
_LOOK_S = 1.0


class HeadGone(Exception):  # noqa: N818 - it is handled, not shown
    """The head is gone, and with it the way to the cluster."""


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
    """The driver's end of the stream to the gateway; a thread takes what arrives.

    Attributes:
        supervisor_pid: process id of the gateway, 0 before `open`.
        mirror: copies of what members write.
        addresses: of members, by attempt.
        plans: attempts that another driver has started: directory and members, newest news last.
        nodes: by key.
        waits: reasons why attempts could not be placed for a while, by attempt.
        full: words about those whose files had no room here, by attempt, as long as it is followed.
        heard_at: monotonic time of its last word in seconds; it says something every 2 s.
    """

    def __init__(
        self, connect: Callable[[Message], socket.socket], is_hopeless: Callable[[], bool] = lambda: False
    ) -> None:
        self._dial = connect
        self._socket: socket.socket | None = None
        self.supervisor_pid = 0
        self._is_hopeless = is_hopeless
        self.heard_at = time.monotonic()
        self.mirror = Mirror()
        self.addresses: dict[str, dict[str, str]] = {}
        self.plans: dict[str, tuple[str, list[str]]] = {}
        self.nodes: dict[str, NodeView] = {}
        self.waits: dict[str, str] = {}
        self.full: dict[str, str] = {}
        self.broken: set[str] = set()
        self._inbox: deque[Message] = deque()
        self._arrived = threading.Condition()
        self._answers: dict[str, queue.SimpleQueue[Message]] = {}
        self._refusal = ""

    def open(self, hello: Message) -> None:
        """Connect to the gateway, which is started if there is none.

        Raises:
            ExecutorError: the cluster cannot be reached.
            HeadGone: and never will be.
        """
        deadline = time.monotonic() + (_REOPEN_TIMEOUT_S if self.supervisor_pid else _OPEN_TIMEOUT_S)
        while True:
            if self._is_hopeless():
                raise HeadGone
            self._socket = self._dial(hello)
            self._inbox.clear()
            welcome: queue.SimpleQueue[Message] = queue.SimpleQueue()
            self._answers["open"] = welcome
            self._refusal = ""
            self.heard_at = time.monotonic()
            threading.Thread(target=self._listen, args=(self._socket,), name="gateway", daemon=True).start()
            try:
                self.send(hello)
                self._expect_welcome(welcome, deadline)
                return
            except ConnectionLost:
                if self._refusal:
                    raise self._error(self._refusal) from None
                if time.monotonic() > deadline:
                    raise self._error(f"{GATEWAY} does not answer") from None
                time.sleep(0.1)  # it was just about to end

    def send(self, message: Message) -> None:
        """Send a frame.

        Raises:
            ConnectionLost: the gateway is gone.
        """
        if self._socket is None:
            raise ConnectionLost
        try:
            self._socket.sendall(encode(message))
        except OSError as error:
            self.close()
            raise ConnectionLost from error

    def part(self) -> None:
        """Hang up, once all that was said has been heard: the next connection may come another way."""
        if self._socket is not None:
            answer = self._answers["part"] = queue.SimpleQueue()
            with contextlib.suppress(ConnectionLost, queue.Empty):
                self.send({"do": "part", "id": 0})
                answer.get(timeout=_PARTING_TIMEOUT_S)
        self.close()

    def receive(self, timeout_s: float) -> list[Message]:
        """Frames that have arrived, after waiting for one at most ``timeout_s``.

        Raises:
            ConnectionLost: the gateway is gone.
        """
        with self._arrived:
            if not self._inbox and self._socket is None:
                raise ConnectionLost
            self._arrived.wait_for(lambda: self._inbox, timeout_s)
        found = []
        while self._inbox:
            message = self._inbox.popleft()
            if message.get("reply") == "closed":
                if message["socket"] is self._socket:
                    self.close()
                    raise ConnectionLost
                continue
            found.append(message)
        return found

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # its thread is reading
            self._socket.close()
            self._socket = None

    def _expect_welcome(self, welcome: queue.SimpleQueue[Message], deadline: float) -> None:
        while time.monotonic() < deadline:
            if self._is_hopeless():
                self.close()
                raise HeadGone
            try:
                message = welcome.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            if message.get("reply") == "closed":
                if message["socket"] is not self._socket:
                    continue  # of the connection before
                self.close()
                raise ConnectionLost
            if message.get("protocol") != PROTOCOL:
                self.close()
                raise self._error("the cluster runs another version of Trainmaster")
            if "fenced" in message:
                self.close()
                raise LeaseLostError.of(message["fenced"])
            self.supervisor_pid = message["pid"]
            return
        self.close()
        raise self._error(f"{GATEWAY} does not answer")

    def _listen(self, stream: socket.socket) -> None:
        splitter = Splitter()
        try:
            while data := stream.recv(READ_BYTES):
                self.heard_at = time.monotonic()
                for message in splitter.feed(data):
                    self._take(message)
        except (OSError, WireError):
            pass
        except (LookupError, TypeError, ValueError):  # what comes is no message of ours
            stream.close()
        closed: Message = {"reply": "closed", "socket": stream}
        self._put(closed)
        for waiting in list(self._answers.values()):
            waiting.put(closed)

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
        elif "alive" in message:
            pass
        elif (waiting := self._answers.get(message.get("reply", ""))) is not None:
            waiting.put(message)
        elif message.get("reply") == "error":
            self._refusal = message["error"]
        else:
            self._put(message)

    def _put(self, message: Message) -> None:
        with self._arrived:
            self._inbox.append(message)
            self._arrived.notify()

    def _error(self, message: str) -> ExecutorError:
        return ExecutorError(
            message,
            "Its log is `gateway/log` in the cluster's directory there; is the cluster still there?",
        )


def _no_room(path: str | None) -> str:
    return (
        f"what its members write is kept{f' at {path}' if path else ''} on the machine that drives the run, "
        f"where less than {RESERVE_BYTES >> 20} MiB are free; they go on, but their logs, metrics and ends "
        "are not seen before there is more"
    )
