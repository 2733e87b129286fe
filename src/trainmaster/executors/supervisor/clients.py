"""The control processes that are connected, and what they have to be told.

`FencingTokens`: which driver of a run is the newest. An earlier one that slept or was cut off may still send
requests, which are refused. Each driver has a token (that of its lease of the run), larger than those of all
earlier ones. The tokens are on disk before a driver is answered: a supervisor that is killed must not forget
them.
"""

# ruff: noqa: PTH105, PTH123 - pathlib would slow down the supervisor's start

from __future__ import annotations

import json
import os
import select
import socket
import time

from trainmaster.executors.wire import PROTOCOL, Splitter, WireError, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from trainmaster.executors.wire import Message

_READ_BYTES = 1 << 20
_NEWS_PER_FRAME = 512
#: News of more output than the first one comes at most this often.
OUTPUT_PAUSE_S = 0.05


class DriverClient:
    """One connection.

    What changed is kept as a set of attempts, not as a queue of messages: a client that is slow
    (or stopped) costs no memory and then gets the newest status of each.

    Attributes:
        run: on whose behalf it came; empty until it said so.
        leased: the run whose lease it has.
        token: of that lease; 0 if it has none.
        env: base of its members' environment; lives here and nowhere else.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.descriptor = connection.fileno()
        self.run = ""
        self.leased = ""
        self.token = 0
        self.env: dict[str, str] = {}
        self.watches = False
        self._splitter = Splitter()
        self._out = bytearray()
        self._changed: dict[str, None] = {}
        self._grew: dict[tuple[str, str], None] = {}
        self._grew_at = 0.0
        self._grew_due: float | None = None
        self._queue_place: list[Any] | None = None

    def receive(self) -> list[Message] | None:
        """Frames that have arrived; None when the connection is over.

        Raises:
            WireError: the peer does not speak our protocol.
        """
        try:
            data = self.connection.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        return self._splitter.feed(data) if data else None

    def send(self, message: Message) -> None:
        """Send as soon as the peer takes it."""
        self._out += encode(message)

    def changed(self, attempt: str) -> None:
        """Tell it the status of an attempt."""
        self._changed[attempt] = None

    def grew(self, key: tuple[str, str], first: bool, now: float) -> None:
        """Tell it that a member has written something."""
        self._grew[key] = None
        due = now if first else max(now, self._grew_at + OUTPUT_PAUSE_S)
        self._grew_due = due if self._grew_due is None else min(due, self._grew_due)

    def waits_at(self, place: list[Any] | None) -> None:
        """Tell it for what its run waits in the queue, if that is news."""
        if place != self._queue_place:
            self._queue_place = place
            self.send({"queue": place})

    def flush(self, status: Callable[[str], list[Any]], now: float) -> float | None:
        """Write what can be written; seconds until there is more to say.

        Raises:
            OSError: the connection is over.
        """
        while True:
            if not self._out and self._changed:
                attempts = list(self._changed)[:_NEWS_PER_FRAME]
                for attempt in attempts:
                    del self._changed[attempt]
                self.send({"news": [status(attempt) for attempt in attempts]})
            if not self._out and self._grew_due is not None and self._grew_due <= now:
                self.send({"output": list(self._grew)})
                self._grew.clear()
                self._grew_at, self._grew_due = now, None
            if not self._out:
                break
            try:
                sent = self.connection.send(self._out)
            except BlockingIOError:
                break
            del self._out[:sent]
        return self._grew_due - now if self._grew_due is not None and not self._out else None

    @property
    def stuck(self) -> bool:
        """It has not taken everything yet."""
        return bool(self._out)


class Clients:
    """All connections."""

    def __init__(
        self, epoll: select.epoll, gone: Callable[[DriverClient], None], note: Callable[[str], None]
    ) -> None:
        self._epoll = epoll
        self._gone = gone
        self._note = note
        self._by_descriptor: dict[int, DriverClient] = {}

    def __len__(self) -> int:
        return len(self._by_descriptor)

    def __contains__(self, descriptor: int) -> bool:
        return descriptor in self._by_descriptor

    def accept(self, listener: socket.socket) -> None:
        """Take the connections that wait."""
        while True:
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError:  # gave up while waiting, or no descriptor is free: it will try again
                return
            connection.setblocking(False)
            client = DriverClient(connection)
            self._by_descriptor[client.descriptor] = client
            self._epoll.register(client.descriptor, select.EPOLLIN)

    def receive(self, descriptor: int, handle: Callable[[DriverClient, Message], None]) -> None:
        """Handle what one of them has sent."""
        client = self._by_descriptor[descriptor]
        try:
            messages = client.receive()
            for message in messages or ():
                handle(client, message)
        except (WireError, KeyError, TypeError, ValueError, AttributeError) as error:
            self._note(f"hung up on a client of {client.run or 'no run'}: {error!r}")
            messages = None  # no client of ours
        if messages is None:
            self._hang_up(client)

    def fence(self, run: str, token: int) -> None:
        """Hang up on earlier drivers of a run: those with a smaller token."""
        for client in list(self._by_descriptor.values()):
            if client.leased == run and 0 < client.token < token:
                self._hang_up(client)

    def changed(self, run: str, attempt: str) -> None:
        """Tell all clients of a run."""
        for client in self._by_descriptor.values():
            if client.run == run:
                client.changed(attempt)

    def grew(self, key: tuple[str, str], run: str, first: bool) -> None:
        """Tell clients that watch."""
        for client in self._by_descriptor.values():
            if client.watches and client.run == run:
                client.grew(key, first, time.monotonic())

    def tell_queue(self, place_of: Callable[[str], list[Any] | None]) -> None:
        """Tell all for what their runs wait in the queue."""
        for client in self._by_descriptor.values():
            if client.run:
                client.waits_at(place_of(client.run))

    def flush(self, status: Callable[[str], list[Any]]) -> float | None:
        """Write to all; seconds until there is more to say."""
        now = time.monotonic()
        due: float | None = None
        for client in list(self._by_descriptor.values()):
            try:
                wait = client.flush(status, now)
            except OSError:
                self._hang_up(client)
                continue
            self._epoll.modify(client.descriptor, select.EPOLLIN | (select.EPOLLOUT if client.stuck else 0))
            if wait is not None:
                due = wait if due is None else min(due, wait)
        return due

    def _hang_up(self, client: DriverClient) -> None:
        del self._by_descriptor[client.descriptor]
        client.connection.close()
        self._gone(client)


#: So many runs are remembered, the latest ones.
_RUNS = 1024
#: Tokens count drivers of a run; none is this large.
_MOST = 1 << 63


class FencingTokens:
    """The largest fencing token of each run.

    Args:
        path: of the file that keeps them.
        note: writes a line into the log of the supervisor.
    """

    def __init__(self, path: str, note: Callable[[str], None]) -> None:
        self._path = path
        self._note = note
        self._tokens = _read(path, note)

    def admit(self, run: str, token: int) -> bool:
        """Whether a client with this token may speak for a run; then no client with a smaller one may.

        Args:
            run: its id.
            token: 0 for clients that drive no run and need none.
        """
        newest = self._tokens.get(run, 0)
        if 0 < token < newest:
            return False
        if token > newest:
            self._tokens.pop(run, None)
            self._tokens[run] = token
            while len(self._tokens) > _RUNS:
                del self._tokens[next(iter(self._tokens))]
            self._write()
        return True

    def welcome(self, message: Message) -> Message:
        """The answer to ``open``; with ``fenced`` if the client may not speak for its run any more."""
        run, token = leased(message)
        found: Message = {"reply": "open", "protocol": PROTOCOL, "pid": os.getpid()}
        if not self.admit(run, token):
            self._note(f"refused an earlier driver of {run}: its token is {token}")
            found["fenced"] = run
        return found

    def _write(self) -> None:
        draft = self._path + ".new"
        try:
            with open(draft, "w", opener=_private) as file:
                json.dump(self._tokens, file)
            os.replace(draft, self._path)
        except OSError as error:  # a full disk: what is in memory holds for as long as we live
            self._note(f"cannot remember which client drives what: {error}")


def leased(message: Message) -> tuple[str, int]:
    """Whose lease a driver has that says ``open``, and its token.

    To a supervisor all gangs of a cluster are those of one run; the driver has the lease of another.
    """
    return message.get("leased") or message["run"], message.get("token", 0)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _read(path: str, note: Callable[[str], None]) -> dict[str, int]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if not all(type(token) is int and 0 < token < _MOST for token in found.values()):
            raise ValueError("it has tokens that are none")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        note(
            f"{path} is damaged ({error}): until its next driver has come, an earlier one may speak for a run"
        )
        return {}
    tokens: dict[str, int] = found
    return tokens
