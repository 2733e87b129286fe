"""`PrivateServer`: what servers of one's own, for tests and benchmarks, have in common."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

START_TIMEOUT_S = 60.0


class PrivateServer(ABC):
    """A server that runs while its context is open; nothing of it is left afterwards."""

    def __enter__(self) -> Self:
        try:
            self.prepare()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def prepare(self) -> None:
        """Does what is done once, before the first start."""
        return

    @abstractmethod
    def start(self) -> None:
        """Starts it and waits until it answers."""

    @abstractmethod
    def close(self) -> None:
        """Ends it and removes everything; also if it was only half started."""


def spawn(
    words: Sequence[str], log: Path, env: Mapping[str, str] | None = None, cwd: Path | str = "/"
) -> subprocess.Popen[bytes]:
    """A server that leads a process group of its own; what it says is added to a file."""
    with log.open("ab") as said:
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=cwd, env=env,
            start_new_session=True,
        )  # fmt: skip


def wait_until(
    done: Callable[[], object],
    started: Iterable[subprocess.Popen[bytes]],
    failed: Callable[[], Exception],
    patience_s: float = START_TIMEOUT_S,
) -> None:
    """Wait for servers that were started.

    Raises:
        Exception: what `failed` makes, as one of them has ended, or they take too long.
    """
    deadline = time.monotonic() + patience_s
    while not done():
        if time.monotonic() > deadline or any(each.poll() is not None for each in started):
            raise failed()
        time.sleep(0.1)


def stay(told: str) -> None:
    """Tell how a server is used, and wait until somebody ends it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    sys.stdout.write(told)
    sys.stdout.flush()
    signal.pause()


def ending_with_us(words: Sequence[str], number: str = "KILL") -> list[str]:
    """A command that gets a signal when this process ends, even if it is killed, where `setpriv` is there."""
    setpriv = shutil.which("setpriv")
    return [*words] if setpriv is None else [setpriv, "--pdeathsig", number, *words]


def kill_group(process: subprocess.Popen[bytes] | None) -> None:
    """End a server that leads a process group of its own, with all that it has started; None has ended."""
    if process is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_ports(count: int) -> list[int]:
    """So many unused ports of the loopback."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
