"""`DriverLink`: the line to a driver that is made ready on a machine, see `on_cluster/keeper.py`."""

from __future__ import annotations

import select
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, Final

from trainmaster.service.on_cluster.keeper import DRIVING, FAILED, READY, part
from trainmaster.spec.errors import ProviderError

if TYPE_CHECKING:
    from pathlib import Path

    from trainmaster.cluster.node_access import NodeAccess
    from trainmaster.transport import Ssh

#: A machine that is busy with the run may take minutes; meanwhile the run is driven here.
_READY_S: Final = 900.0
#: It writes the run down, and asks the store; meanwhile the run is undriven.
_BEGIN_S: Final = 60.0


class DriverLink:
    """One call of a keeper; close it. A driver that was not told to begin by then ends.

    Args:
        node: the machine.
        known_hosts: what machines are known by.
        command: for its shell: the keeper.
    """

    def __init__(self, node: NodeAccess, known_hosts: Path, command: str) -> None:
        self._node = node
        self._known_hosts = known_hosts
        self._command = command
        self._ssh: Ssh | None = None
        self._socket: socket.socket | None = None
        self._stream: BinaryIO | None = None

    def get_ready(self, assignment: bytes) -> None:
        """Have a driver made ready.

        Raises:
            TrainmasterError: why that is not possible.
        """
        from trainmaster.transport import HostKeys, Ssh

        self._ssh = Ssh(HostKeys(self._known_hosts))
        self._socket = self._ssh.connect(self._node.target).stream(self._command)
        self._stream = self._socket.makefile("rb")
        if why := self._ask(assignment, READY, _READY_S):
            raise ProviderError(why)

    def begin(self, record: bytes) -> str:
        """Have it begin to drive; why it does not, as far as that was heard, empty if it does."""
        return self._ask(record, DRIVING, _BEGIN_S)

    def is_open(self) -> bool:
        """Whether the driver still waits: it says nothing now, and hangs up when it ends."""
        if self._socket is None or self._socket.fileno() < 0:
            return False
        news = select.poll()
        news.register(self._socket, select.POLLIN)
        return not news.poll(0)

    def close(self) -> None:
        """Hang up."""
        for each in (self._stream, self._socket, self._ssh):
            if each is not None:
                with suppress(OSError, ValueError):
                    each.close()

    def _ask(self, data: bytes, answer: bytes, limit_s: float) -> str:
        if self._stream is None or self._socket is None:
            return "the connection was closed"
        try:
            self._socket.settimeout(limit_s)
            self._socket.sendall(part(data))
            said = self._stream.readline()
        except (OSError, ValueError) as error:  # closed by another thread
            return str(error) or f"it said nothing for {limit_s:.0f} s"
        if said.startswith(answer):
            return ""
        return said.removeprefix(FAILED).decode(errors="replace").strip() or "the connection was lost"
