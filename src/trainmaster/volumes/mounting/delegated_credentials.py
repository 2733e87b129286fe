"""Credentials for the processes of a mount: from memory to memory, never in an environment that others see.

Keys that run out stay in that memory: what made them writes newer ones there as long as the mount is used.

A process's environment shows in ``/proc``, as it was when it began. What belongs to an object store goes
through the process's standard input instead, which is a file in memory that is closed once it was read.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from trainmaster.objects.delegated_credentials import EXPIRES_VARIABLE
from trainmaster.objects.renewing import read_from

_BEGINNINGS = ("AWS_", "GOOGLE_", "AZURE_", "TRAINMASTER_TOKEN", EXPIRES_VARIABLE)
_LARGEST_BYTES = 1 << 20
_NAME = "lent"


def open_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What of an environment anybody may see.

    >>> open_environment({"AWS_SECRET_ACCESS_KEY": "x", "LANG": "C"})
    {'LANG': 'C'}
    """
    environ = os.environ if environ is None else environ
    return {name: value for name, value in environ.items() if not name.startswith(_BEGINNINGS)}


def hand_over() -> int:
    """Gives a descriptor with the rest of the environment, for a child's standard input; close it."""
    descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
    try:
        os.write(descriptor, _present())
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def take_over() -> None:
    """Takes what :func:`hand_over` has put into the standard input, and closes that."""
    found: dict[str, str] = json.loads(os.read(0, _LARGEST_BYTES) or b"{}")
    if EXPIRES_VARIABLE in found:
        kept, last = os.dup(0), found

        def read() -> Mapping[str, str]:
            nonlocal last
            with suppress(ValueError):  # it is just being written
                last = json.loads(os.pread(kept, _LARGEST_BYTES, 0))
            return last

        read_from(read)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.environ.update(found)  # only this process's memory: /proc shows what it began with


def renew(directory: str) -> int:
    """Gives the processes of a mount the credentials of this one's environment instead of theirs.

    Args:
        directory: where it is, as its processes were told.

    Returns:
        How many have taken them: only those that were lent keys which run out.
    """
    present, count = _present(), 0
    for place in _memories(directory):
        with suppress(OSError):  # it has just ended
            descriptor = os.open(place, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(descriptor, present, 0)
                os.ftruncate(descriptor, len(present))
            finally:
                os.close(descriptor)
            count += 1
    return count


def _present() -> bytes:
    rest = {name: value for name, value in os.environ.items() if name.startswith(_BEGINNINGS)}
    return json.dumps(rest).encode()


def _memories(directory: str) -> Iterator[Path]:
    """The memory files of a mount's processes, by paths that only their user can open."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if directory.encode() not in (process / "cmdline").read_bytes().split(b"\0"):
                continue
            for descriptor in (process / "fd").iterdir():
                if str(descriptor.readlink()).startswith(f"/memfd:{_NAME} "):
                    yield descriptor
