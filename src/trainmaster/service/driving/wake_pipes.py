"""`WakePipe`: its reader is told at once that there is something new, which it looks for anyway.

Named pipes in a home: what is written into one without a reader, or that is full, is lost, and no more.
"""

from __future__ import annotations

import errno
import os
import select
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

SUFFIX: Final = ".wake"
_MOST_BYTES: Final = 64 << 10


class WakePipe:
    """The reader's end.

    Args:
        path: of the pipe; another one's that is there is replaced.

    Raises:
        OSError: there can be no pipe there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.unlink(missing_ok=True)
        os.mkfifo(new, 0o600)
        # Also for writing: else it would be at its end whenever it has no writer.
        self._descriptor = os.open(new, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        new.rename(path)  # what finds it finds a reader

    def fileno(self) -> int:
        """To wait for it, and for others."""
        return self._descriptor

    def read(self) -> set[str]:
        """What was told since the last time."""
        told = b""
        with suppress(BlockingIOError):
            while piece := os.read(self._descriptor, _MOST_BYTES):
                told += piece
        return {line for line in told.decode(errors="replace").split("\n") if line}

    def wait(self, seconds: float) -> bool:
        """Wait until something is told, or for so long; whether it was."""
        waiting = select.poll()  # `select` knows no descriptors above 1023
        waiting.register(self._descriptor, select.POLLIN)
        if not waiting.poll(seconds * 1000):
            return False
        self.read()
        return True

    def close(self) -> None:
        """It is not read any more."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def wait_for(pipe: WakePipe | None, seconds: float) -> None:
    """Wait for a pipe, or just so long without one."""
    if pipe is None:
        time.sleep(seconds)
    else:
        pipe.wait(seconds)


def wake_all(directory: Path, what: str) -> None:
    """Tell all readers of pipes in a directory.

    Args:
        directory: where they are; need not be there.
        what: a line of less than 4 KB: longer ones of several processes would mix.
    """
    for path in directory.glob(f"*{SUFFIX}"):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.ENXIO:  # its reader was killed
                path.unlink(missing_ok=True)
            continue
        with suppress(OSError):
            os.write(descriptor, f"{what}\n".encode())
        os.close(descriptor)
