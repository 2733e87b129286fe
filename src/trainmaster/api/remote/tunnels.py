"""Websockets to members of a server's runs: a stream to a port, and a command that is run there."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from trainmaster.api.remote.connection import RestConnection, ServerUnreachableError, error_of, quoted
from trainmaster.spec.errors import AccessError, TrainmasterError, imports_of

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

PIECE_BYTES: Final = 1 << 18
_STDIN, _STDOUT, _STDERR, _STATUS, _SIZE = (bytes([number]) for number in range(5))
_OPEN_S: Final = 90.0
#: A command whose end is unknown; `ssh` exits with the same.
_LOST: Final = 255
#: Close code of RFC 6455 with which a server cuts off a caller that may not use a run any more.
_REFUSED: Final = 1008


def opened(connection: RestConnection, path: str, query: Mapping[str, object]) -> ClientConnection:
    """A websocket.

    Args:
        connection: to the server.
        path: of the route.
        query: its parameters; those that are None are left out.

    Raises:
        TrainmasterError: what the server refuses.
        MissingPartError: the extra ``tunnel`` is not installed.
    """
    with imports_of("tunnel", "a connection to a member of a server's run"):
        from websockets.exceptions import InvalidStatus, WebSocketException
        from websockets.sync.client import connect
    socket, target, headers = connection.raw_socket(path, query)
    try:
        return connect(
            f"ws://{connection.host}{target}",  # whatever it is, the socket is connected, by TLS too
            sock=socket,
            additional_headers=headers,
            compression=None,
            max_size=None,
            open_timeout=_OPEN_S,
            user_agent_header=None,
            proxy=None,
        )
    except InvalidStatus as refused:
        answer = refused.response
        try:
            problem = json.loads(answer.body or b"{}")
        except ValueError:
            problem = {}
        raise error_of(answer.status_code, problem, connection.url) from None
    except (OSError, WebSocketException) as error:
        raise connection.unreachable(error) from error


class WebsocketStream:
    """A stream to a port of a member; fulfils `ByteStream`.

    Args:
        connection: to the server.
        run: its id.
        member: None for the first.
        port: of it.

    Raises:
        TrainmasterError: what the server refuses.
    """

    def __init__(self, connection: RestConnection, run: str, member: str | None, port: int) -> None:
        self._socket = opened(connection, f"/runs/{quoted(run)}/ports/{port}", {"member": member})

    def receive(self) -> bytes:
        """What comes; nothing is the end."""
        from websockets.exceptions import ConnectionClosed

        try:
            data = self._socket.recv(decode=False)
        except ConnectionClosed as closed:
            if closed.rcvd is not None and closed.rcvd.reason:
                raise OSError(closed.rcvd.reason) from None
            return b""
        return bytes(data)

    def send(self, data: bytes) -> None:
        """Say something; nothing is the end of it."""
        from websockets.exceptions import ConnectionClosed

        try:
            self._socket.send(data)
        except ConnectionClosed as closed:
            raise ConnectionError(str(closed)) from None

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def execute(
    connection: RestConnection,
    run: str,
    member: str | None,
    command: Sequence[str],
    files: tuple[int, int, int],
    tell: Callable[[str], None],
    *,
    is_terminal: bool,
) -> int:
    """Run a command where a member works; its exit code.

    Args:
        connection: to the server.
        run: its id.
        member: None for the first.
        command: none for a shell.
        files: descriptors of standard input, output and error.
        tell: shows a line to the user.
        is_terminal: the first two are one, and the command gets one.

    Raises:
        TrainmasterError: what the server refuses, or that it is away.
    """
    from websockets.exceptions import ConnectionClosed

    query: dict[str, object] = {"member": member, "command": tuple(command)}
    if is_terminal:
        size = shutil.get_terminal_size()
        query |= {"term": os.environ.get("TERM", "xterm"), "columns": size.columns, "rows": size.lines}
    socket = opened(connection, f"/runs/{quoted(run)}/exec", query)
    standard_input, output, errors = files
    with socket, _raw(standard_input, socket) if is_terminal else contextlib.nullcontext():
        threading.Thread(target=_send_input, args=(socket, standard_input), daemon=True).start()
        try:
            for message in socket:
                assert isinstance(message, bytes)
                channel, data = message[:1], message[1:]
                if channel == _STATUS:
                    status = json.loads(data)
                    if "exit" in status:
                        return int(status["exit"])
                    if "problem" in status:
                        problem = status["problem"]
                        raise error_of(int(problem["status"]), problem, connection.url)
                    tell(str(status.get("told", "")))
                else:
                    _write(output if channel == _STDOUT else errors, data)
        except ConnectionClosed as closed:
            if closed.rcvd is not None and closed.rcvd.code == _REFUSED:
                raise _lost(
                    AccessError(
                        f"{connection.url}: {closed.rcvd.reason}",
                        "The token has ended or was revoked, or your team or role has changed: "
                        f"`trainmaster login {connection.url}` logs in anew.",
                    )
                ) from None
        except BrokenPipeError:  # the reader is gone
            return _LOST
    raise _lost(
        ServerUnreachableError(
            f"{connection.url} was cut off before the command had ended; how that ended is unknown",
            "Is the server up, and is this machine on its network? The run goes on, the command may not.",
        )
    )


def _lost(error: TrainmasterError) -> TrainmasterError:
    error.exit_code = _LOST
    return error


def _send_input(socket: ClientConnection, descriptor: int) -> None:
    with contextlib.suppress(Exception):  # the command is over, and so is whatever this is about
        while data := os.read(descriptor, PIECE_BYTES):
            socket.send(_STDIN + data)
        socket.send(_STDIN)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


@contextlib.contextmanager
def _raw(descriptor: int, socket: ClientConnection) -> Iterator[None]:
    """The user's terminal is passed on as it is, its size too."""
    import termios
    import tty

    def resized(*_: Any) -> None:  # noqa: ANN401 - of a signal
        size = shutil.get_terminal_size()
        with contextlib.suppress(Exception):
            socket.send(_SIZE + json.dumps({"columns": size.columns, "rows": size.lines}).encode())

    before = termios.tcgetattr(descriptor)
    handler = signal.signal(signal.SIGWINCH, resized)
    try:
        tty.setraw(descriptor, termios.TCSADRAIN)  # what was typed meanwhile counts
        yield
    finally:
        signal.signal(signal.SIGWINCH, handler)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        sys.stdout.flush()
