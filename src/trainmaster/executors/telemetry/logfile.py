"""The log of one member on disk: bounded, in segments, fed from a pipe without copying.

Segment 0 is ``worker-0.log``, later ones are ``worker-0.log.1``, ``.2``, ...; every segment but the last
is exactly `SEGMENT_BYTES` long, so a place in the whole output is a segment and a place in it.
The first one and the last `KEEP_LAST` are kept: how it began and how it ended.
"""

# ruff: noqa: PTH108, PTH118, PTH208, SIM105 - pathlib and contextlib would slow down the supervisor's start
from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.executors.telemetry.masking import SecretMask

SEGMENT_BYTES = 32 << 20
KEEP_LAST = 3
COPY_BYTES = 1 << 20

#: No room: drop the output, say so, and go on when there is room again.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: The kernel or the file system cannot move pages from this pipe to this file.
_NO_SPLICE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def segment_path(path: str, index: int) -> str:
    """The file of one segment."""
    return f"{path}.{index}" if index else path


class LogFile:
    """Writes what comes out of a pipe.

    Attributes:
        lost_bytes: output that could not be written, not yet noted in the log.
    """

    def __init__(self, path: str, segment_bytes: int = SEGMENT_BYTES, mask: SecretMask | None = None) -> None:
        """Create the file.

        Args:
            path: of its first segment.
            segment_bytes: see the module.
            mask: what is written goes through it, and thus through this process.

        Raises:
            OSError: it cannot be created for another reason than a full disk.
        """
        self.path = path
        self.lost_bytes = 0
        self._segment_bytes = segment_bytes
        self._room_bytes = segment_bytes
        self._index = 0
        self._descriptor = -1
        self._cause = ""
        self._mask = mask
        self._splices = hasattr(os, "splice") and mask is None
        try:
            self._open()
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self._cause = error.strerror or str(error)

    @property
    def size(self) -> int:
        """Bytes written so far, those of dropped segments included."""
        return (self._index + 1) * self._segment_bytes - self._room_bytes

    def take(self, pipe: int, limit_bytes: int) -> int | None:
        """Move up to ``limit_bytes`` from a non-blocking pipe into the log.

        Returns:
            How many bytes left the pipe; 0 at its end; None when it is empty.
        """
        try:
            if self._descriptor < 0:
                self._open()
            if self.lost_bytes:
                self._write_note()
        except OSError as error:
            return self._drop(pipe, error)
        if not self._splices or not self._room_bytes:  # the next segment begins only if there is more
            return self._copy(pipe, limit_bytes)
        count = min(limit_bytes, self._room_bytes)
        try:
            moved = os.splice(pipe, self._descriptor, count, flags=os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in _NO_SPLICE:
                self._splices = False
                return self._copy(pipe, count)
            return self._drop(pipe, error)
        self._room_bytes -= moved
        return moved

    def close(self) -> None:
        """Write what has waited, note what was lost, if there is room now, and close the file."""
        rest = self._mask.rest() if self._mask is not None else b""
        if self.lost_bytes or rest:
            try:
                if self._descriptor < 0:
                    self._open()
                if self.lost_bytes:
                    self._write_note()
                self._write(rest)
            except OSError as error:
                self._lose(error, len(rest))  # still no room; the caller sees it in ``lost_bytes``
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        path = segment_path(self.path, self._index)
        try:
            self._descriptor = os.open(path, flags | os.O_EXCL, 0o644)
        except FileExistsError:  # an earlier try under the same name
            if not self._index:
                self._remove_old()
            # Whatever a script has put there: a named pipe would stop us, with all other members.
            careful = os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
            self._descriptor = os.open(path, flags | careful, 0o644)

    def _remove_old(self) -> None:
        directory, name = os.path.split(self.path)
        for entry in os.listdir(directory or "."):
            if entry.startswith(name + ".") and entry[len(name) + 1 :].isdigit():
                os.unlink(os.path.join(directory, entry))

    def _rotate(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1
        self._index += 1
        self._room_bytes = self._segment_bytes
        old = self._index - KEEP_LAST
        if old > 0:
            try:
                os.unlink(segment_path(self.path, old))
            except FileNotFoundError:
                pass
        self._open()

    def _copy(self, pipe: int, count: int) -> int | None:
        try:
            data = os.read(pipe, min(count, COPY_BYTES))
        except BlockingIOError:
            return None
        try:
            self._write(data if self._mask is None else self._mask.feed(data))
        except OSError as error:
            self._lose(error, len(data))  # what was written of it is noted as lost too: better than silence
        return len(data)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if not self._room_bytes:
                self._rotate()
            written = os.write(self._descriptor, view[: self._room_bytes])
            self._room_bytes -= written
            view = view[written:]

    def say(self, text: str) -> None:
        """Add a line of ours, if there is room."""
        try:
            if self._descriptor >= 0:
                self._write(f"\n[trainmaster: {text}]\n".encode())
        except OSError:
            pass

    def _write_note(self) -> None:
        note = f"\n[trainmaster: {self.lost_bytes} bytes of output could not be written: {self._cause}]\n"
        self._write(note.encode())
        self.lost_bytes = 0

    def _drop(self, pipe: int, error: OSError) -> int | None:
        try:
            data = os.read(pipe, COPY_BYTES)
        except BlockingIOError:
            return None
        self._lose(error, len(data))
        return len(data)

    def _lose(self, error: OSError, count: int) -> None:
        self.lost_bytes += count
        if count:
            self._cause = error.strerror or str(error)
