"""`ExecProcess`: a command in a pod, over a websocket of Kubernetes (``v4.channel.k8s.io``).

That protocol cannot say that standard input has ended (the next one can, from Kubernetes 1.30 on). So input
goes in pieces, each behind a line with its length, to a few lines of shell in front of the command; a piece
of no bytes is the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import socket
from collections import deque
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from trainmaster.spec.errors import UsageError, imports_of
from trainmaster.spec.plain_json import parsed_json
from trainmaster.transport.base import ConnectionLostError, UnreachableError
from trainmaster.transport.checked_connection import checked_connection, has_proxy
from trainmaster.transport.kubernetes.api import KubeApi, refused_of
from trainmaster.transport.process_connection import PieceInput

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

PROTOCOL: Final = "v4.channel.k8s.io"
#: Of our container: others may be put beside it.
CONTAINER: Final = "node"
_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE = range(5)
_PIECE_BYTES: Final = 1 << 16
_KEPT_BYTES: Final = 4 << 20
_OPEN_S: Final = 20.0
#: What was said last may come after how it ended.
_LAST_WORDS_S: Final = 5.0
_KEEPALIVE_S: Final = 15
#: Takes pieces of input apart for the command, which has a session of its own; ends with it, and as it does.
#: What it has not read is read for a moment: an API server that cannot pass on input loses how it ended.
_PIECES: Final = (
    "exec 3>&2 2>/dev/null; "
    "{ sh -c 'echo $PPID'; while read -r n && [ \"$n\" -gt 0 ]; do "
    'dd bs="$n" count=1 iflag=fullblock || break; done; } 3>&- | '
    '{ read -r r; setsid /bin/sh -c "$0" 2>&3 3>&-; c=$?; '
    'if kill -0 "$r"; then { sleep 0.3 || sleep 1; kill -9 "$r"; } >&- 3>&- & '
    "cat >/dev/null 3>&-; kill -9 $!; fi; exit $c; }"
)


def load_websockets() -> None:
    """Refuse to go on without the library.

    Raises:
        MissingPartError: it is not installed.
    """
    with imports_of("kubernetes", "a command in a pod"):
        import websockets.asyncio.client  # noqa: F401


async def _checked(api: KubeApi, address: str) -> socket.socket | None:
    """A connection to where a team's own login may lead; None if that, or a proxy, need not be asked for."""
    at = urlsplit(address)
    host, port = at.hostname or "", at.port or (443 if at.scheme == "wss" else 80)
    if api.may_reach is None or has_proxy("http" + address.removeprefix("ws")):
        return None
    found = await asyncio.to_thread(checked_connection, host, port, api.may_reach, _OPEN_S)
    found.setblocking(False)
    return found


class ExecProcess:
    """One command, on a loop of asyncio. It looks as asyncssh's processes do.

    Attributes:
        stdin, stdout, stderr: its streams.
        returncode: how it ended; 128 and the number of a signal, None until it is known.
    """

    def __init__(self, socket: ClientConnection, shown: str, *, is_terminal: bool) -> None:
        self._socket, self._shown, self._is_terminal = socket, shown, is_terminal
        self.stdout, self.stderr = _OutputPieces(), _OutputPieces()
        self.stdin = PieceInput(self._say, _PIECE_BYTES)
        self.returncode: int | None = None
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(
        cls, api: KubeApi, pod: str, command: str, shown: str, *, is_terminal: bool = False
    ) -> ExecProcess:
        """Start a command.

        Args:
            api: of its namespace.
            pod: its name.
            command: for the POSIX shell.
            shown: the pod, in messages.
            is_terminal: it gets a terminal; what it says on standard error is in its output then.

        Raises:
            UnreachableError: it cannot be started now.
            UsageError: this login may not do that.
        """
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidStatus, WebSocketException

        words = ["/bin/sh", "-c", command] if is_terminal else ["/bin/sh", "-c", _PIECES, command]
        switches = ["stdin", "stdout", "tty" if is_terminal else "stderr"]
        query = [("container", CONTAINER), *((each, "true") for each in switches)]
        query += [("command", each) for each in words]
        for is_refused in (False, True):
            told = api.websocket(f"pods/{pod}/exec", query, is_refused=is_refused)
            address, headers, encryption = told
            try:
                line = await connect(
                    address, additional_headers=headers, ssl=encryption, subprotocols=[PROTOCOL],  # type: ignore[list-item]
                    compression=None, max_size=None, open_timeout=_OPEN_S, close_timeout=2.0,
                    sock=await _checked(api, address),
                    proxy=True if encryption else None,  # as requests go: what is not encrypted stays here
                    ping_interval=_KEEPALIVE_S, ping_timeout=None, user_agent_header="trainmaster",
                )  # fmt: skip
                api.is_exec_known = True
                break
            except InvalidStatus as error:
                status, body = error.response.status_code, bytes(error.response.body or b"")
                if status == 401 and not is_refused:
                    continue
                words_said = refused_of(status, body.decode(errors="replace")).words
                if status in (401, 403) and not api.is_exec_known:
                    raise UsageError(
                        f"{shown}: {api.login.name!r} may not run commands there: {words_said}",
                        "Ask for the right `get` and `create` on pods/exec; see docs/kubernetes.md.",
                    ) from None
                raise UnreachableError(f"{shown}: {words_said} ({status})", "Does the pod run?") from None
            except (OSError, WebSocketException, TimeoutError) as error:
                raise UnreachableError(
                    f"{shown}: Kubernetes does not answer: {error or type(error).__name__}",
                    "Is it up, and can this machine reach it?",
                ) from None
        watched = line.transport.get_extra_info("socket")
        if watched is not None:  # a server that is gone is noticed, whatever a command says
            with contextlib.suppress(OSError, AttributeError):
                watched.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000)
        return cls(line, shown, is_terminal=is_terminal)

    async def _say(self, piece: bytes) -> bool:
        """A terminal gets it unchanged, and no end; what is no terminal gets its length before it."""
        from websockets.exceptions import ConnectionClosed

        head = b"" if self._is_terminal else b"%d\n" % len(piece)
        try:
            if head or piece:
                await self._socket.send(bytes([_STDIN]) + head + piece)
        except ConnectionClosed:
            raise BrokenPipeError from None
        return True

    async def resize(self, columns: int, rows: int) -> None:
        """Of its terminal."""
        await self._socket.send(bytes([_RESIZE]) + b'{"Width":%d,"Height":%d}' % (columns, rows))

    async def wait_closed(self) -> None:
        """Until it has ended, or the connection is lost."""
        await asyncio.wait({self._reading})

    def close(self) -> None:
        """Hang up."""
        self._reading.cancel()
        transport = self._socket.transport
        if transport is not None:
            transport.abort()

    async def hang_up(self) -> None:
        """Hang up as one should."""
        with contextlib.suppress(Exception):
            await self._socket.close()
        self.close()

    async def _read(self) -> None:
        from websockets.exceptions import ConnectionClosed

        lost: Exception | None = None
        try:
            while True:
                limit = _LAST_WORDS_S if self.returncode is not None else None
                piece = await asyncio.wait_for(self._socket.recv(decode=False), limit)
                if len(piece) > 1:
                    await self._take(piece[0], bytes(piece[1:]))
        except TimeoutError:
            pass
        except ConnectionClosed:
            if self.returncode is None:
                lost = ConnectionLostError(f"{self._shown}: the connection was lost")
        except UnreachableError as error:
            lost = error
        finally:
            for stream in (self.stdout, self.stderr):
                stream.end(lost)
            self.stdin.is_over = True

    async def _take(self, channel: int, data: bytes) -> None:
        if channel == _STDOUT:
            await self.stdout.put(data)
        elif channel == _STDERR:
            await self.stderr.put(data)
        elif channel == _ERROR:
            code = code_of(data)
            if code is None:
                words = refused_of(500, data.decode(errors="replace")).words
                raise UnreachableError(f"{self._shown}: {words}", "Does the pod run?")
            self.returncode = code


def code_of(said: bytes) -> int | None:
    """How a command ended, as the last channel says it; None: it could not be run.

    >>> code_of(b'{"status": "Success"}')
    0
    """
    try:
        told = parsed_json(said)
        if told.get("status") == "Success":
            return 0
        causes = (told.get("details") or {}).get("causes") or ()
        return next((int(each["message"]) for each in causes if each.get("reason") == "ExitCode"), None)
    except (ValueError, AttributeError, KeyError, TypeError):
        return None


class _OutputPieces:
    """What is said: a few pieces, then the other end waits."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._changed = asyncio.Condition()
        self._size, self._is_over = 0, False
        self._lost: Exception | None = None

    async def put(self, data: bytes) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._size < _KEPT_BYTES)
            self._pieces.append(data)
            self._size += len(data)
            self._changed.notify_all()

    async def read(self, most: int) -> bytes:
        del most  # pieces are small
        async with self._changed:
            await self._changed.wait_for(lambda: self._pieces or self._is_over)
            if not self._pieces:
                if self._lost is not None:
                    raise self._lost
                return b""
            self._size -= len(self._pieces[0])
            self._changed.notify_all()
            return self._pieces.popleft()

    def end(self, lost: Exception | None) -> None:
        self._is_over, self._lost = True, lost
        task = asyncio.ensure_future(self._tell())
        _telling.add(task)
        task.add_done_callback(_telling.discard)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


_telling: set[asyncio.Future[None]] = set()


def run_line(command: str) -> str:
    """A command that replaces the shell which is given it.

    >>> run_line("date; ls")
    "exec /bin/sh -c 'date; ls'"
    """
    return f"exec /bin/sh -c {shlex.quote(command)}"
