"""Directories to hosts, as streams of tar: nothing lies in between, and links stay links."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trainmaster.transport.ssh import Connection

_PIECE: Final = 1 << 18


def upload(connection: Connection, source: Path, destination: str, timeout_s: float = 900.0) -> None:
    """Copy what is in a directory into one on a host, which is made if need be.

    Raises:
        CommandError: the host cannot take it.
    """
    place = shlex.quote(destination)
    connection.check(
        f"mkdir -p {place} && exec tar -xf - -C {place}", data=_packed(source), timeout_s=timeout_s
    )


def _packed(source: Path) -> Iterator[bytes]:
    command = ["tar", "-cf", "-", "-C", os.fspath(source), "."]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while piece := process.stdout.read(_PIECE):
            yield piece
    if process.returncode != 0:
        raise OSError(f"{source} could not be read whole")
