"""`Local`: this machine as others are reached: commands are children of this process.

With a prefix, such as `kubectl exec -i POD --`, it leads to wherever that leads: a way without SSH.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from trainmaster.spec.errors import UsageError
from trainmaster.transport.base import (
    ANSWER_BYTES,
    Connection,
    Exchange,
    Result,
    Target,
    Transport,
    UnreachableError,
)
from trainmaster.transport.conversation import converse

_TIMEOUT_S: Final = 60.0


class Local(Transport):
    """Whatever the target says, its connections lead to this machine.

    Args:
        prefix: of a target: a command that runs another one where the target is, with its standard input,
            output and exit code.
    """

    def __init__(self, prefix: Callable[[Target], Sequence[str]] = lambda _: ()) -> None:
        self._prefix = prefix

    def connect(self, target: Target) -> LocalConnection:
        """See `Transport`."""
        return LocalConnection(target, self._prefix(target))

    def forget(self, target: Target) -> None:
        """Nothing is known of it."""

    def close(self) -> None:
        """There is nothing to end: connections end what they have started."""


class LocalConnection(Connection):
    """Runs commands in sessions of their own, in the user's home, as an SSH server does.

    Args:
        prefix: see `Local`.

    Attributes:
        target, host_key: see `Connection`.
    """

    def __init__(self, target: Target, prefix: Sequence[str] = ()) -> None:
        self.target = target
        self._shell = [*prefix, "/bin/sh", "-c"]
        self.host_key = ""
        self._is_closed = False
        self._lock = threading.Lock()
        self._streams: list[subprocess.Popen[bytes]] = []

    def exchange(
        self, talk: Exchange, timeout_s: float | None = None, limit_bytes: int = ANSWER_BYTES
    ) -> Result:
        """See `Connection`."""
        self._check_open()
        limit_s = _TIMEOUT_S if timeout_s is None else timeout_s

        async def work() -> Result:
            children = _Children(self._shell)
            try:
                return await converse(
                    children, talk, limit_s, limit_bytes, self.target.shown, lost=(OSError,)
                )
            finally:
                await children.end()

        return asyncio.run(work())

    def stream(self, command: str) -> socket.socket:
        """See `Connection`."""
        self._check_open()
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [*self._shell, command],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                cwd=Path.home(),
                start_new_session=True,
            )
        with self._lock:
            self._streams = [each for each in self._streams if each.poll() is None]
            self._streams.append(process)
        return ours

    @contextlib.contextmanager
    def forward(self, host: str, port: int, local_port: int = 0) -> Iterator[int]:
        """Ports here are over there: nothing needs to lead anywhere.

        Only at the address where callers look for them: what listens at 127.0.0.2 or ::1 they would miss.
        """
        if local_port not in (0, port) or host not in ("127.0.0.1", "localhost"):
            raise UsageError(f"{host}:{port} is on this network already", "Connect to it directly.")
        yield port

    def close(self) -> None:
        """End the commands of streams; others have ended."""
        with self._lock:
            self._is_closed = True
            streams, self._streams = self._streams, []
        for process in streams:
            _end_group(process.pid)
            process.wait()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    def _check_open(self) -> None:
        if self._is_closed:
            raise UnreachableError(f"{self.target.shown}: the connection was closed")


class _Children:
    """What `converse` starts processes with."""

    def __init__(self, shell: Sequence[str]) -> None:
        self._shell = shell
        self._started: list[_Child] = []

    async def create_process(self, command: str, *, encoding: None) -> _Child:
        """Start one."""
        del encoding  # as asyncssh has it; here all are bytes
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *self._shell, command,
            stdin=pipe, stdout=pipe, stderr=pipe, cwd=Path.home(), start_new_session=True,
        )  # fmt: skip
        self._started.append(_Child(process))
        return self._started[-1]

    async def run(self, command: str) -> None:
        """Run one that says nothing."""
        await (await asyncio.create_subprocess_exec(*self._shell, command)).wait()

    async def end(self) -> None:
        """End those that still run, with all that they have started."""
        for child in self._started:
            if child.returncode is None:
                child.close()
                await child.wait_closed()
            child.close_pipes()


class _Child:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.stdin: Any = process.stdin
        self.stdout: Any = process.stdout
        self.stderr: Any = process.stderr

    @property
    def returncode(self) -> int | None:
        """Negative if a signal ended it."""
        return self._process.returncode

    async def wait_closed(self) -> None:
        """Until it has ended."""
        await self._process.wait()

    def close(self) -> None:
        """End it."""
        _end_group(self._process.pid)

    def close_pipes(self) -> None:
        """Close our ends: their end may not be seen before the loop is, and asyncio's process has no way."""
        self._process._transport.close()  # type: ignore[attr-defined]


def _end_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
