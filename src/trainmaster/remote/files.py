"""Directories to and from hosts, as streams of tar: nothing lies in between, and links stay links."""

from __future__ import annotations

import os
import shlex
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trainmaster.remote._calls import Exchange
from trainmaster.remote.connection import Connection
from trainmaster.remote.errors import CommandError

#: One archive of a download; what is larger belongs into an object store.
MOST_BYTES: Final = 16 << 30
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


def download(connection: Connection, source: str, destination: Path, timeout_s: float = 900.0) -> None:
    """Copy what is in a directory of a host into one here; nothing can come to lie outside of it.

    Raises:
        CommandError: the host cannot read it.
    """
    destination.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as spool:
        written = 0

        def keep(data: bytes) -> None:
            nonlocal written
            written += spool.write(data)
            if written > MOST_BYTES:
                raise CommandError(
                    f"{connection.target.shown}: {source} is larger than {MOST_BYTES >> 30} GiB",
                    "Keep large files in an object store.",
                )

        command = f"exec tar -cf - -C {shlex.quote(source)} ."
        result = connection.exchange(
            Exchange(command, lambda _: None, reads_first=False, sink=keep), timeout_s
        )
        if result.code != 0:
            first = (result.err.strip() or f"exit code {result.code}").splitlines()[0]
            raise CommandError(f"{connection.target.shown}: {first}", code=result.code)
        spool.seek(0)
        with tarfile.open(fileobj=spool, mode="r:") as archive:
            _unpack(archive, destination.resolve(), connection.target.shown)


def _unpack(archive: tarfile.TarFile, place: Path, shown: str) -> None:
    """Unpack what stays below a directory; Python's own filter is missing before 3.11.4."""
    safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    for member in archive:
        path = place / member.name
        if path == place:
            continue
        ends = [path.parent.resolve()]
        if member.issym():
            ends.append((path.parent / member.linkname).resolve())
        elif member.islnk():
            ends.append((place / member.linkname).resolve())
        elif not (member.isfile() or member.isdir()):
            continue  # sockets and the like are nobody's data
        if Path(member.name).is_absolute() or not all(end.is_relative_to(place) for end in ends):
            raise CommandError(
                f"{shown}: {member.name} would lie, or lead, outside of {place}", "Remove it there."
            )
        archive.extract(member, place, **safe)


def _packed(source: Path) -> Iterator[bytes]:
    command = ["tar", "-cf", "-", "-C", os.fspath(source), "."]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while piece := process.stdout.read(_PIECE):
            yield piece
    if process.returncode != 0:
        raise OSError(f"{source} could not be read whole")
