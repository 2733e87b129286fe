"""What clients share that stand in the place of OpenSSH's ``ssh``, for machines that have no SSH server.

``python -m MODULE WAY [-t] [-L FILE:HOST:PORT] MACHINE COMMAND``
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from trainmaster.spec.errors import TrainmasterError, one_line

#: As ``ssh`` ends when there is no connection.
LOST: Final = 255


@dataclass(frozen=True, slots=True)
class ClientOrder:
    """What a client is to do.

    Attributes:
        way: to the machine, see `Node.way`. machine: its name.
        command: for its shell; empty for a shell itself.
        is_terminal: it speaks with a terminal here.
        forward: ``FILE:HOST:PORT``: a socket file here that leads to a port there; empty for none.
    """

    way: str
    machine: str
    command: str
    is_terminal: bool
    forward: str

    @contextlib.contextmanager
    def listening(self) -> Iterator[tuple[socket.socket, str, int] | None]:
        """The socket that is to lead to a port, and which; None if none is to."""
        if not self.forward:
            yield None
            return
        place, host, port = self.forward.rsplit(":", 2)
        with socket.socket(socket.AF_UNIX) as server:
            os.umask(0o077)
            server.bind(place)
            server.listen(64)
            yield server, host, int(port)


def run_client(do: Callable[[ClientOrder], int], words: list[str] | None = None) -> int:
    """Do what was asked, on a command line as ``ssh`` has it; its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way")
    parser.add_argument("-t", action="store_true", dest="is_terminal")
    parser.add_argument("-T", action="store_true")
    parser.add_argument("-o", action="append")
    parser.add_argument("-L", dest="forward", default="")
    parser.add_argument("machine")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args(words)
    command, is_terminal = " ".join(asked.command), asked.is_terminal and os.isatty(0)
    try:
        return do(ClientOrder(asked.way, asked.machine, command, is_terminal, asked.forward))
    except TrainmasterError as error:
        sys.stderr.write(f"{one_line(error)}\n")
        return LOST


@contextlib.contextmanager
def raw_terminal(is_terminal: bool) -> Iterator[None]:
    """While it lasts, keys go on as they are; without a terminal nothing changes."""
    if not is_terminal:
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
