"""`PortForward`: a port of this machine that leads to one of a member, however many connect to it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import TracebackType

from trainmaster.spec.errors import NotListeningError, UsageError
from trainmaster.transport.forwarding import ByteStream, Forwarding


class PortForward:
    """Listens on the loopback of this machine until it is closed; use it in a ``with``.

    Args:
        open_stream: makes a connection to there; in a thread of its own.
        local_port: 0 for any that is free.
        tell: shows a line to the user: why a connection could not be made.
        closed: called at the end.

    Raises:
        UsageError: the port is taken, or not ours to take.
        TrainmasterError: what a first stream is refused with; that nothing listens there yet is only told.
    """

    def __init__(
        self,
        open_stream: Callable[[], ByteStream],
        local_port: int,
        tell: Callable[[str], None],
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        self._closed = closed
        try:
            self._listener = socket.create_server(("127.0.0.1", local_port), backlog=128)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"port {local_port} of this machine cannot be used: {error}",
                "Give another one: `port-forward RUN LOCAL_PORT:PORT`.",
            ) from None
        try:
            open_stream().close()
        except NotListeningError as error:  # what is asked for may come up later
            tell(str(error.args[0]))
        except BaseException:
            self._listener.close()
            closed()
            raise
        self._forwarding = Forwarding(self._listener, open_stream, tell)

    @property
    def port(self) -> int:
        """Of this machine."""
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> PortForward:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Listen no more, and end all connections."""
        self._forwarding.close()
        self._closed()
