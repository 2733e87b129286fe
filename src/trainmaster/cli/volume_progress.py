"""What the verbs of ``trainmaster volume`` show and read: a bar on a terminal, sizes, durations."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

now_s = time.monotonic
_REDRAWN_EVERY_S = 0.2


class Progress:
    """A bar with rate and time left, on a terminal only; drawn by a thread of its own.

    Args:
        verb: what is being done.
        state: gives the bytes that are done, and all of them or None.
        more: gives what else is to be said.
    """

    def __init__(
        self, verb: str, state: Callable[[], tuple[int, int | None]], more: Callable[[], str] = lambda: ""
    ) -> None:
        self._verb = verb
        self._state = state
        self._more = more
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            import threading

            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                TextColumn,
                TimeRemainingColumn,
                TransferSpeedColumn,
            )
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[more]}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(self._verb, total=None, more="")
            self._stopped = threading.Event()
            self._bar.start()
            self._drawer = threading.Thread(target=self._draw, daemon=True)
            self._drawer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._stopped.set()
            self._drawer.join()
            self._bar.stop()

    def _draw(self) -> None:
        while not self._stopped.wait(_REDRAWN_EVERY_S):
            done, total = self._state()
            self._bar.update(self._task, completed=done, total=total, more=self._more())


def interruptible() -> None:
    """Lets Ctrl-C unwind: what is half done is taken away again, or kept for the next try."""
    import signal

    signal.signal(signal.SIGINT, signal.default_int_handler)


def printed(line: str) -> None:
    """A line of standard output; bytes of names that are not UTF-8 as they are."""
    import os

    sys.stdout.buffer.write(os.fsencode(line.replace("\n", "\\n")) + b"\n")


def chunk_bytes(text: str) -> int:
    """Reads a size.

    >>> chunk_bytes("64MiB"), chunk_bytes("1000000"), chunk_bytes("8 MB")
    (67108864, 1000000, 8000000)

    Raises:
        UsageError: it is none.
    """
    import re

    from trainmaster.spec.errors import UsageError

    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
    found = re.fullmatch(r"\s*(\d+)\s*([A-Za-z]*)\s*", text)
    if found is None or found[2].upper() not in units or int(found[1]) == 0:
        raise UsageError(f"--chunk-size {text}: this is no size.", "Write 64MiB or 8MB.")
    return int(found[1]) * units[found[2].upper()]


def seconds(text: str) -> float:
    """Reads a duration.

    >>> seconds("24h"), seconds("90s"), seconds("0")
    (86400.0, 90.0, 0.0)

    Raises:
        UsageError: it is none.
    """
    import re

    from trainmaster.spec.errors import UsageError

    units = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", text)
    if found is None:
        raise UsageError(f"--grace {text}: this is no duration.", "Write 24h, 30m or 0s.")
    return float(found[1]) * units[found[2]]
