"""`MemberCommand`: a command where a member works, with its input and output, on behalf of somebody else."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
import signal
import struct
import subprocess
import termios
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Final

from trainmaster.dataclass import dataclass
from trainmaster.executors.supervisor.processes import give_back
from trainmaster.spec.errors import MissingPartError, UsageError

if TYPE_CHECKING:
    from trainmaster.service.shells import MemberShell

_TERM: Final = re.compile(r"[A-Za-z0-9._+-]{1,40}")
_MAX_SIZE: Final = 10_000
_QUEUE: Final = 8
_END_S: Final = 2.0
#: As a terminal's user types it.
_END_OF_FILE: Final = b"\x04"


@dataclass(frozen=True, slots=True)
class Terminal:
    """That of who asks.

    Attributes:
        term: its kind, as ``$TERM`` has it.
        columns, rows: its size.

    Raises:
        UsageError: there is no such terminal.
    """

    term: str
    columns: int
    rows: int

    def __post_init__(self) -> None:
        if not _TERM.fullmatch(self.term):
            raise UsageError(f"{self.term!r} is no kind of terminal", "Send what $TERM says, or nothing.")


class MemberCommand:
    """Starts once; close it. All within one event loop, whose turns it never holds up.

    Args:
        shell: what is executed.
        terminal: it gets one; None for pipes.
    """

    def __init__(self, shell: MemberShell, terminal: Terminal | None = None) -> None:
        self._shell, self._terminal = shell, terminal
        self._process: subprocess.Popen[bytes] | None = None
        self._input = -1
        self._outputs: dict[int, bool] = {}  # and whether it is of standard error
        self._said: asyncio.Queue[tuple[bool, bytes]] = asyncio.Queue(_QUEUE)

    async def start(self) -> None:
        """Start it.

        Raises:
            MissingPartError: this machine cannot give it a terminal.
        """
        if self._terminal is not None:
            self._start_on_terminal(self._terminal)
        else:
            pipe = subprocess.PIPE
            # Without a terminal, which would end it, the kernel does so with our thread, the loop's.
            setpriv = shutil.which("setpriv")
            ends_with_us = () if setpriv is None else (setpriv, "--pdeathsig", "TERM", "--")
            command = (*ends_with_us, *self._shell.command)
            process = self._started(command, pipe, pipe, pipe, own_session=True)
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            self._input = os.dup(process.stdin.fileno())
            self._outputs = {os.dup(process.stdout.fileno()): False, os.dup(process.stderr.fileno()): True}
            for each in (process.stdin, process.stdout, process.stderr):
                each.close()
        for descriptor in (self._input, *self._outputs):
            os.set_blocking(descriptor, False)

    def _start_on_terminal(self, terminal: Terminal) -> None:
        setsid = shutil.which("setsid")
        if setsid is None:
            raise MissingPartError("there is no `setsid` on the server's machine", "apt install util-linux")
        self._input, theirs = os.openpty()
        try:
            self._outputs = {os.dup(self._input): False}
            self.resize(terminal.columns, terminal.rows)
            self._started((setsid, "--ctty", *self._shell.command), theirs, theirs, theirs, own_session=False)
        finally:
            os.close(theirs)

    def _started(
        self, command: Sequence[str], stdin: int, stdout: int, stderr: int, *, own_session: bool
    ) -> subprocess.Popen[bytes]:
        term = {} if self._terminal is None else {"TERM": self._terminal.term}
        self._process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=self._shell.directory or None,
            env={**self._shell.environment, **term},
            start_new_session=own_session,
        )
        give_back(self._process.pid)
        return self._process

    async def write(self, data: bytes) -> None:
        """Its input; nothing is its end. What it does not take any more is lost."""
        if self._terminal is not None:
            data = data or _END_OF_FILE
        elif not data:
            self._close_input()
        while data and self._input >= 0:
            try:
                data = data[os.write(self._input, data) :]
            except BlockingIOError:
                await _writable(self._input)
            except OSError:
                return

    def resize(self, columns: int, rows: int) -> None:
        """Its terminal has another size."""
        if self._terminal is not None:
            size = struct.pack("HHHH", _within(rows), _within(columns), 0, 0)
            fcntl.ioctl(self._input, termios.TIOCSWINSZ, size)

    async def read(self, most: int) -> AsyncIterator[tuple[bool, bytes]]:
        """Its output as it comes, at most so many bytes at once, and whether that is from standard error."""
        readers = [asyncio.create_task(self._read(*each, most)) for each in self._outputs.items()]
        try:
            left = len(readers)
            while left:
                is_error, data = await self._said.get()
                if data:
                    yield is_error, data
                else:
                    left -= 1
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    async def _read(self, descriptor: int, is_error: bool, most: int) -> None:
        while True:
            try:
                data = os.read(descriptor, most)
            except BlockingIOError:
                await _readable(descriptor)
                continue
            except OSError:  # of a terminal that the last process has let go of
                data = b""
            await self._said.put((is_error, data))
            if not data:
                return

    async def wait(self) -> int:
        """Its exit code, 128 + the number of the signal that ended it."""
        assert self._process is not None
        if self._process.poll() is None:
            watched = os.pidfd_open(self._process.pid)
            try:
                await _readable(watched)
            finally:
                os.close(watched)
        code = self._process.wait()
        return 128 - code if code < 0 else code

    async def aclose(self) -> None:
        """End it, if it runs, with all that it has started; at once, if the wait is given up."""
        try:
            if self._process is not None and self._process.poll() is None:
                self._signal(signal.SIGHUP)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.wait(), _END_S)
        finally:
            if self._process is not None and self._process.poll() is None:
                self._signal(signal.SIGKILL)
                self._process.wait()
            self._close_input()
            for descriptor in self._outputs:
                os.close(descriptor)
            self._outputs = {}

    def _signal(self, number: int) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):  # `setsid` may not have made it yet
            os.killpg(self._process.pid, number)
        self._process.send_signal(number)

    def _close_input(self) -> None:
        if self._input >= 0:
            os.close(self._input)
            self._input = -1


async def _readable(descriptor: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


async def _writable(descriptor: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_writer(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(descriptor)


def _within(size: int) -> int:
    return min(max(size, 1), _MAX_SIZE)
