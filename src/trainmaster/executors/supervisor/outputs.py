"""Moves what members write into their logs: fairly, and without waking up for every line."""

# ruff: noqa: SIM105 - contextlib would slow down the supervisor's start
from __future__ import annotations

import fcntl
import os
import select
import time
from collections import deque

from trainmaster.executors.telemetry.logfile import LogFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmaster.executors.telemetry.masking import SecretMask

#: Most bytes taken from one pipe, and from all pipes, before the sockets are looked at again.
TAKE_BYTES = 1 << 20
TURN_BYTES = 8 << 20
#: A pipe that gave less than this is left alone for a moment, so that a member that prints line
#: by line does not wake us for each.
BUSY_BYTES = 16 << 10
PAUSE_S = 0.01
_BIG_PIPE_BYTES = 1 << 20
_READY = select.EPOLLIN | select.EPOLLONESHOT


class Output:
    """The reading end of one member's standard output and error.

    Attributes:
        key: attempt and member, for clients that watch.
        bytes: taken so far.
    """

    def __init__(self, key: tuple[str, str], pipe: int, log: LogFile) -> None:
        self.key = key
        self.pipe = pipe
        self.log = log
        self.bytes = 0
        self.enlarged = False


class Outputs:
    """All pipes that are open."""

    def __init__(
        self, epoll: select.epoll, grew: Callable[[Output, bool], None], note: Callable[[str], None]
    ) -> None:
        self._epoll = epoll
        self._grew = grew
        self._note = note
        self._by_pipe: dict[int, Output] = {}
        self._resting: deque[tuple[float, Output]] = deque()
        self._turn = 0

    def open(self, key: tuple[str, str], path: str, mask: SecretMask | None = None) -> tuple[Output, int]:
        """A log and the pipe into it; the caller closes the writing end once the member has it.

        Raises:
            OSError: the log cannot be created.
        """
        log = LogFile(path, mask=mask)
        try:
            reading, writing = os.pipe2(os.O_CLOEXEC)
        except OSError:
            log.close()
            raise
        os.set_blocking(reading, False)
        output = Output(key, reading, log)
        self._by_pipe[reading] = output
        self._epoll.register(reading, _READY)
        return output, writing

    def holds(self, descriptor: int) -> bool:
        """It is one of the pipes."""
        return descriptor in self._by_pipe

    def serve(self, pipes: list[int]) -> None:
        """Take from those that are ready, each in its turn."""
        self._turn += 1
        start = self._turn % len(pipes)
        left_bytes = TURN_BYTES
        for pipe in pipes[start:] + pipes[:start]:
            output = self._by_pipe.get(pipe)
            if output is None:
                continue
            if left_bytes > 0:
                left_bytes -= self._take(output)
            else:
                self._epoll.modify(pipe, _READY)

    def wake(self, now: float) -> float | None:
        """Look again at those that rested long enough; seconds until the next one has."""
        while self._resting:
            due, output = self._resting[0]
            if due > now:
                return due - now
            self._resting.popleft()
            if output.pipe >= 0:
                self._epoll.modify(output.pipe, _READY)
        return None

    def drain(self, output: Output) -> None:
        """Take what is in the pipe now; its member has ended."""
        left_bytes = 2 * _BIG_PIPE_BYTES  # others may still be writing, without end
        while output.pipe >= 0 and left_bytes > 0:
            count = self._move(output)
            if count is None:
                return
            left_bytes -= count

    def close(self, output: Output) -> None:
        """Take what is left and close the pipe and the log."""
        self.drain(output)
        self._shut(output)

    def _take(self, output: Output) -> int:
        count = self._move(output)
        if output.pipe < 0:
            return 0
        if count is not None and count >= BUSY_BYTES:
            if not output.enlarged:
                output.enlarged = True
                try:
                    fcntl.fcntl(output.pipe, fcntl.F_SETPIPE_SZ, _BIG_PIPE_BYTES)
                except OSError:
                    pass  # this user has too many big ones already
            self._epoll.modify(output.pipe, _READY)
        else:
            self._resting.append((time.monotonic() + PAUSE_S, output))
        return count or 0

    def _move(self, output: Output) -> int | None:
        count: int | None
        try:
            count = output.log.take(output.pipe, TAKE_BYTES)
        except OSError:
            count = 0  # no such thing should happen to a pipe; it must not end the supervisor
        if count:
            first = not output.bytes
            output.bytes += count
            self._grew(output, first)
        elif count == 0:
            self._shut(output)
        return count

    def _shut(self, output: Output) -> None:
        if output.pipe < 0:
            return
        del self._by_pipe[output.pipe]
        os.close(output.pipe)  # which takes it out of the epoll too: this end has no other owner
        output.pipe = -1
        output.log.close()
        if output.log.lost_bytes:
            self._note(f"{output.log.path}: the last {output.log.lost_bytes} bytes could not be written")
