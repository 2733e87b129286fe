"""How programs on hosts are ordered and answer. Runs on a host before each of them, which finds its names."""

# ruff: noqa: T201 - it runs by itself, with the standard library of somebody else's Python
from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # all of these take long to load
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any

_POLL_S = 0.1


class Refused(Exception):  # noqa: N818 - said and done
    """What is in the way, in words."""


def answer(perform: Callable[[dict[str, Any]], str]) -> int:
    """Do what a line of JSON on standard input orders, and say how it ended; the exit code."""
    order = json.loads(sys.stdin.buffer.readline())
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ended)
    try:
        said = perform(order)
    except Refused as refused:
        said = f"error {refused}"
    except OSError as error:
        said = f"error {explain(error, order.get('root') or order.get('path') or order['directory'])}"
    print(f"@@{said}", flush=True)
    return int(said.startswith("error "))


def explain(error: OSError, place: str) -> str:
    """What is wrong, in words, and where; ``place`` if the error does not know."""
    what = "no room left (bytes or files)" if is_full(error) else error.strerror or str(error)
    return f"{what}: {error.filename or place}"


def is_full(error: OSError) -> bool:
    """Whether there is no room left."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def in_time(read: Callable[[], bytes], patience_s: int) -> bytes:
    """Read; each piece must arrive in time, as a connection may be lost without a word."""
    signal.signal(signal.SIGALRM, _silence)
    signal.alarm(patience_s)
    try:
        return read()
    finally:
        signal.alarm(0)


@contextlib.contextmanager
def only_one(lock: str | Path, doing: str, wait_s: float = math.inf) -> Iterator[None]:
    """Hold a lock while something is done there."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + wait_s
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Refused(f"somebody else has been {doing} for {wait_s:.0f} s") from None
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


def put(path: str | Path, text: str, mode: int = 0o600) -> None:
    """Write a file, whole or not at all."""
    draft = f"{path}.trainmaster-{os.getpid()}"
    unlink(draft)
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        os.chmod(draft, mode)  # noqa: PTH101 - see above
        os.replace(draft, path)  # noqa: PTH105
    finally:
        unlink(draft)


def unlink(path: str) -> None:
    """See that no file is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108


def _silence(_number: int, _frame: object) -> None:
    raise Refused("nothing arrived for too long; the connection may be lost")


def _ended(number: int, _frame: object) -> None:
    raise Refused(f"ended by signal {number}")
