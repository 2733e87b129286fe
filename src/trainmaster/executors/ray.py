"""`RayExecutor`: gangs over the nodes of a `RayCluster`."""

from __future__ import annotations

import base64
import contextlib
import itertools
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster.executors._connection import Connection, ConnectionLost
from trainmaster.executors._ray_mirror import Mirror, identity
from trainmaster.executors._wire import WireError
from trainmaster.executors.base import Capacity, GangRequest, GangStatus, Phase
from trainmaster.executors.local import LocalExecutor, _request
from trainmaster.spec.errors import ExecutorError

if TYPE_CHECKING:
    from trainmaster.executors._wire import Message
    from trainmaster.executors.ray_cluster import RayCluster

__all__ = ["NodeState", "RayExecutor"]

#: The head may have to start the gateway, and that has to ask all nodes.
_OPEN_TIMEOUT_S = 90.0
_READ_TIMEOUT_S = 30.0
_READ_BYTES = 1 << 20
_GONE_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node that Ray takes to be alive.

    Attributes:
        key: its name in the cluster.
        address: private.
        unreachable_since: Unix time in seconds since when it has not answered, None while it does.
    """

    key: str
    address: str
    unreachable_since: float | None = None


class GatewayConnection(Connection):
    """The driver's end of the stream to the gateway; a thread takes what arrives.

    Attributes:
        mirror: copies of what members write.
        addresses: of members, by attempt.
        plans: attempts that another driver has started: directory and members, newest news last.
        nodes: by key.
    """

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        super().__init__(Path("/"))
        self._dial = connect
        self.mirror = Mirror()
        self.addresses: dict[str, dict[str, str]] = {}
        self.plans: dict[str, tuple[str, list[str]]] = {}
        self.nodes: dict[str, NodeState] = {}
        self.broken: set[str] = set()
        self._inbox: deque[Message] = deque()
        self._arrived = threading.Condition()
        self._answers: dict[int, queue.SimpleQueue[Message]] = {}
        self._numbers = itertools.count(1)
        self._refusal = ""

    def start(self) -> None:
        """Nothing can be done early."""

    def open(self, hello: Message) -> None:
        """Connect to the gateway, which is started if there is none.

        Raises:
            ExecutorError: the cluster cannot be reached.
        """
        deadline = time.monotonic() + _OPEN_TIMEOUT_S
        while True:
            self._socket = self._dial()
            self._inbox.clear()
            self._early = []
            self._refusal = ""
            threading.Thread(target=self._listen, args=(self._socket,), name="gateway", daemon=True).start()
            try:
                self.send(hello)
                self._expect_welcome(deadline)
                return
            except ConnectionLost:
                if self._refusal:
                    raise self._error(self._refusal) from None
                if time.monotonic() > deadline:
                    raise self._error("the gateway does not answer") from None
                time.sleep(0.1)  # it was just about to end

    def receive(self, timeout_s: float) -> list[Message]:
        """Frames that have arrived, after waiting for one at most ``timeout_s``.

        Raises:
            ConnectionLost: the gateway is gone.
        """
        if self._early:
            early, self._early = self._early, []
            return early
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
        super().close()

    def ask(self, message: Message) -> Message:
        """Send what has an answer of its own, and wait for that.

        Raises:
            ExecutorError: there is none.
            ConnectionLost: the gateway is gone.
        """
        number = next(self._numbers)
        answer: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._answers[number] = answer
        try:
            self.send({**message, "id": number})
            return answer.get(timeout=_READ_TIMEOUT_S)
        except queue.Empty:
            raise self._error(f"the gateway did not answer for {_READ_TIMEOUT_S:.0f} s") from None
        finally:
            del self._answers[number]

    def _listen(self, stream: socket.socket) -> None:
        from trainmaster.executors._wire import Splitter

        splitter = Splitter()
        try:
            while data := stream.recv(_READ_BYTES):
                for message in splitter.feed(data):
                    self._take(message)
        except (OSError, WireError):
            pass
        self._put({"reply": "closed", "socket": stream})

    def _take(self, message: Message) -> None:
        if "piece" in message:
            attempt, node, name, offset, text = message["piece"]
            if attempt not in self.broken:
                try:
                    self.mirror.write(attempt, node, name, offset, base64.b64decode(text))
                except OSError:  # a full disk: it is asked for again
                    self.broken.add(attempt)
        elif "plan" in message:
            attempt, directory, members = message["plan"]
            self.plans[attempt] = (directory, members)
        elif "addresses" in message:
            self.addresses.update(message["addresses"])
        elif "nodes" in message:
            self.nodes = {row["key"]: NodeState(**row) for row in message["nodes"]}
        elif message.get("reply") == "read":
            if (waiting := self._answers.get(message["id"])) is not None:
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
            message, "Its log is `gateway/log` in the head's directory; is the Ray cluster still there?"
        )


class RayExecutor(LocalExecutor):
    """Starts gangs on the nodes of a cluster; see `Executor` for the methods.

    To a driver the cluster's gateway is what the supervisor is on one machine, and speaks its language. How
    many slots and GPUs there are is the cluster's to know: of the `Capacity` given to `open` nothing is used.

    A gang for which there is no room even on an empty cluster waits for nodes to come. When a node is lost,
    its members are ``lost`` and the others of their gangs are stopped, with the gang's grace.

    Args:
        cluster: started already.
        place: where the driver's copy of an attempt's directory goes; None for the same path. No copies are
            made where driver and node see the same directory.
        is_gone: a second witness: whether a node that cannot be reached, though Ray has not given it up, is
            no more. Ray's own word is enough without it.

    Example:
        >>> from trainmaster.executors.ray_cluster import RayCluster
        >>> cluster = RayCluster.find(Path("/home/me/clusters/7f3a"))  # doctest: +SKIP
        >>> executor = RayExecutor(cluster)  # doctest: +SKIP
    """

    def __init__(
        self,
        cluster: RayCluster,
        place: Callable[[str], Path] | None = None,
        is_gone: Callable[[str], bool] | None = None,
    ) -> None:
        super().__init__(Path("/"))
        self._gateway = GatewayConnection(cluster.connect)
        self._connection = self._gateway
        self._place = place or Path
        self._is_gone = is_gone
        self._asked_gone_at = 0.0
        self._directories: dict[str, tuple[str, Sequence[str]]] = {}

    def open(self, run: str, capacity: Capacity, env: Mapping[str, str]) -> None:
        """Connect on behalf of a run; see `Executor.open`. ``RAY_*`` variables do not reach the members."""
        super().open(
            run, capacity, {name: value for name, value in env.items() if not name.startswith("RAY_")}
        )

    def submit(self, gangs: Sequence[GangRequest]) -> None:
        """Queue gangs; see `Executor.submit`."""
        if not gangs:
            return
        self._live.update(dict.fromkeys(gang.attempt for gang in gangs))
        messages = []
        for gang in gangs:
            message = _request(gang)
            message["per_node"] = gang.per_node
            for member, row in zip(gang.members, message["members"], strict=True):
                row["node_labels"] = dict(member.node_labels)
            message["here"], _ = self._follow(
                gang.attempt, gang.directory, [each.name for each in gang.members]
            )
            messages.append(message)
        self._send({"do": "submit", "gangs": messages})
        for gang in gangs:
            self._live[gang.attempt] = None
            if (old := self._news.get(gang.attempt)) and old.phase is Phase.UNKNOWN:
                del self._news[gang.attempt]

    def observe(self, attempts: Sequence[str]) -> list[GangStatus]:
        """The present status of each attempt; see `Executor.observe`."""
        statuses = super().observe(attempts)
        if self._follow_plans():
            statuses = super().observe(attempts)  # what has ended is so when its files are here
        # news of an end may have come right behind the answer
        newer = [self._news.get(status.attempt, status) for status in statuses]
        return [
            self._with_addresses(new if new.phase is Phase.EXITED else old)
            for old, new in zip(statuses, newer, strict=True)
        ]

    def changes(self, timeout_s: float) -> list[GangStatus]:
        """Wait for something to change; see `Executor.changes`."""
        self._check_nodes()
        self._follow_broken()
        return [self._with_addresses(status) for status in super().changes(timeout_s)]

    def forget(self, attempts: Sequence[str]) -> None:
        """Drop exit records; see `Executor.forget`."""
        super().forget(attempts)
        for attempt in attempts:
            self._news.pop(attempt, None)  # `observe` looks there too
            self._gateway.mirror.forget(attempt)
            self._directories.pop(attempt, None)
            self._gateway.addresses.pop(attempt, None)

    def close(self) -> None:
        """Disconnect; see `Executor.close`."""
        super().close()
        self._gateway.addresses.clear()

    def read(self, attempt: str, member: str, name: str, offset: int, limit_bytes: int) -> bytes:
        """A part of a file of the attempt's directory on the member's own node; empty at its end.

        Args:
            attempt: not forgotten yet.
            member: ``worker-0``.
            name: relative to the attempt's directory, such as ``worker-0.log``.
            offset: in bytes.
            limit_bytes: most bytes to read.

        Raises:
            ExecutorError: the member was not started, or its node does not answer.
        """
        parts = name.split("/")
        if ".." in parts or "" in parts:
            raise ExecutorError(f"{name!r} is no path inside the attempt's directory", "Give a relative one.")
        message = {
            "do": "read",
            "attempt": attempt,
            "member": member,
            "name": name,
            "offset": offset,
            "limit": min(limit_bytes, _READ_BYTES),
        }
        while True:
            try:
                answer = self._gateway.ask(message)
            except ConnectionLost:
                self._revive()
                continue
            if "error" in answer:
                raise ExecutorError(answer["error"], "Observe the attempt to see what became of it.")
            return base64.b64decode(answer["data"])

    def nodes(self) -> list[NodeState]:
        """Those that Ray takes to be alive, as of the last `changes`."""
        return sorted(self._gateway.nodes.values(), key=lambda node: node.key)

    def _with_addresses(self, status: GangStatus) -> GangStatus:
        found = self._gateway.addresses.get(status.attempt)
        if not found or status.phase in (Phase.UNKNOWN, Phase.QUEUED):
            return status
        return replace(status, addresses=found)

    def _follow(
        self, attempt: str, directory: str, members: Sequence[str]
    ) -> tuple[list[object] | None, dict[str, int]]:
        """Have an attempt's files copied; what its parent directory is here, and what there is already."""
        place = self._place(directory)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None, {}  # nothing can be written there
        self._directories[attempt] = (directory, members)
        have = self._gateway.mirror.follow(attempt, place, members)
        same_path = str(place) == directory
        elsewhere: list[object] = ["elsewhere", str(place), directory]
        return (identity(str(place.parent)) if same_path else elsewhere), have

    def _follow_plans(self) -> bool:
        plans, self._gateway.plans = self._gateway.plans, {}
        for attempt, (directory, members) in plans.items():
            self._tell_to_follow(attempt, directory, members)
        return bool(plans)

    def _follow_broken(self) -> None:
        """Pieces could not be written: take up again where the files end."""
        broken, self._gateway.broken = self._gateway.broken, set()
        for attempt in broken:
            if (known := self._directories.get(attempt)) is not None:
                self._tell_to_follow(attempt, *known)

    def _tell_to_follow(self, attempt: str, directory: str, members: Sequence[str]) -> None:
        here, have = self._follow(attempt, directory, members)
        self._send({"do": "follow", "attempt": attempt, "here": here, "have": have})

    def _check_nodes(self) -> None:
        now = time.monotonic()
        if self._is_gone is None or now - self._asked_gone_at < _GONE_PAUSE_S:
            return
        self._asked_gone_at = now
        for node in list(self._gateway.nodes.values()):
            if node.unreachable_since is not None and self._is_gone(node.key):
                self._send({"do": "gone", "node": node.key})
