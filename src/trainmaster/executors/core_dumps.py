"""Processes that hold secrets leave no image of their memory behind when they crash; those of users may."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# One byte, which no dump fits into: files are not written, and programs that take dumps (a pipe in
# `core_pattern`: systemd-coredump, apport) are not started, as they are in spite of a limit of 0.
_NO_DUMP_BYTES = 1

_given: tuple[int, int] | None = None
_lending = threading.Lock()  # the limit is the whole process's, and runs of several threads start supervisors


def forbid_core_dumps() -> None:
    """Let this process, and those that it starts, leave no core dump. Again, it changes nothing."""
    global _given
    if _given is None:
        _given = resource.getrlimit(resource.RLIMIT_CORE)
        if _given[1] != 0:
            resource.setrlimit(resource.RLIMIT_CORE, (_NO_DUMP_BYTES, _given[1]))


@contextmanager
def core_dumps_as_given() -> Iterator[None]:
    """What is started here may leave what our own caller's processes may: it is the user's."""
    if _given is None:
        yield
        return
    with _lending:
        forbidden = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, _given)
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_CORE, forbidden)
