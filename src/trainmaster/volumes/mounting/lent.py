"""Credentials for the processes of a mount: from memory to memory, never in an environment that others see.

A process's environment shows in ``/proc``, as it was when it began. What belongs to an object store goes
through the process's standard input instead, which is a file in memory that is closed once it was read.
"""

import json
import os
from collections.abc import Mapping

_BEGINNINGS = ("AWS_", "GOOGLE_", "AZURE_")
_LARGEST_BYTES = 1 << 20


def open_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What of an environment anybody may see.

    >>> open_environment({"AWS_SECRET_ACCESS_KEY": "x", "LANG": "C"})
    {'LANG': 'C'}
    """
    environ = os.environ if environ is None else environ
    return {name: value for name, value in environ.items() if not name.startswith(_BEGINNINGS)}


def hand_over() -> int:
    """Gives a descriptor with the rest of the environment, for a child's standard input; close it."""
    rest = {name: value for name, value in os.environ.items() if name.startswith(_BEGINNINGS)}
    descriptor = os.memfd_create("lent", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, json.dumps(rest).encode())
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def take_over() -> None:
    """Takes what :func:`hand_over` has put into the standard input, and closes that."""
    found = json.loads(os.read(0, _LARGEST_BYTES) or b"{}")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.environ.update(found)  # only this process's memory: /proc shows what it began with
