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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from trainmaster.spec.errors import UsageError
from trainmaster.transport.base import Target, Transport
from trainmaster.transport.process_connection import ProcessConnection


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


class LocalConnection(ProcessConnection):
    """Runs commands in sessions of their own, in the user's home, as an SSH server does.

    Args:
        prefix: see `Local`.

    Attributes:
        target, host_key: see `Connection`.
    """

    lost = (OSError,)
    end_patience_s = 0.0

    def __init__(self, target: Target, prefix: Sequence[str] = ()) -> None:
        super().__init__(target)
        self._shell = [*prefix, "/bin/sh", "-c"]
        self._children: list[subprocess.Popen[bytes]] = []

    async def start(self, command: str) -> _Child:
        """See `ProcessConnection`."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *self._shell, command,
            stdin=pipe, stdout=pipe, stderr=pipe, cwd=Path.home(), start_new_session=True,
        )  # fmt: skip
        return _Child(process)

    async def reach(self, host: str, port: int) -> _Child:
        """Ports are on this network: see `forward`."""
        raise UsageError(f"{host}:{port} is on this network already", "Connect to it directly.")

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
            self._children = [*(each for each in self._children if each.poll() is None), process]
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
        super().close()
        with self._lock:
            children, self._children = self._children, []
        for process in children:
            _end_group(process.pid)
            process.wait()


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

    async def hang_up(self) -> None:
        """End it, with all that it has started, if it still runs."""
        if self.returncode is None:
            self.close()
            await self.wait_closed()
        # The end of our pipes may not be seen before the loop's is, and asyncio's process has no way to it.
        self._process._transport.close()  # type: ignore[attr-defined]


def _end_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
