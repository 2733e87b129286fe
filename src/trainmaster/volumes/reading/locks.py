"""Locks on parts of a file that end with the process that holds them, between processes.

They are the kernel's *open file description* locks: unlike the older kind they belong to
a descriptor and not to a process, so that closing some other descriptor of the same file
does not drop them, and two caches in one process exclude each other too.
"""

import errno
import fcntl
import os
import struct

from trainmaster.volumes.reading.renewal import renew_after_fork

_LAYOUT = struct.Struct("hhqqi4x")
_KEPT = 1 << 16
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


class RangeLocks:
    """Locks on single offsets of one file.

    All threads that use one object share its locks: it excludes other objects and other
    processes only. A lock that is held shared and asked for exclusively is converted. They end with
    the object, too.
    """

    descriptor = -1

    def __init__(self, path: str) -> None:
        self._path = path
        # A pin and its end are two of these: packing them again would take as long as the kernel does.
        self._packed: dict[tuple[int, int], bytes] = {}
        self.descriptor = os.open(path, _FLAGS, 0o666)
        renew_after_fork(self)

    def after_fork(self) -> None:
        """In a forked child: takes a description of its own, without any locks."""
        inherited, self.descriptor = self.descriptor, -1
        if inherited < 0:
            return
        try:
            # The same file, even if its name is gone by now, or another one's.
            own = os.open(f"/proc/self/fd/{inherited}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # no /proc here, or as many open files as are allowed
            own = -1
        # By the parent's description both would hold the same locks, and fill the same slot: none is better.
        os.close(inherited)
        self.descriptor = own if own >= 0 else os.open(self._path, _FLAGS, 0o666)

    def try_shared(self, offset: int) -> bool:
        """Takes or keeps a lock that others may hold as well; False where somebody excludes us."""
        return self._try(fcntl.F_RDLCK, offset)

    def try_exclusive(self, offset: int) -> bool:
        """Takes a lock alone; False where anybody else holds it."""
        return self._try(fcntl.F_WRLCK, offset)

    def exclusive(self, offset: int) -> None:
        """Waits until the lock is ours alone."""
        fcntl.fcntl(self.descriptor, fcntl.F_OFD_SETLKW, self._request(fcntl.F_WRLCK, offset))

    def unlock(self, offset: int) -> None:
        """Gives a lock back; none held is no error."""
        fcntl.fcntl(self.descriptor, fcntl.F_OFD_SETLK, self._request(fcntl.F_UNLCK, offset))

    def close(self) -> None:
        """Gives all locks back."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        self.close()

    def _try(self, kind: int, offset: int) -> bool:
        try:
            fcntl.fcntl(self.descriptor, fcntl.F_OFD_SETLK, self._request(kind, offset))
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            return False
        return True

    def _request(self, kind: int, offset: int) -> bytes:
        packed = self._packed.get((kind, offset))
        if packed is None:
            packed = _LAYOUT.pack(kind, os.SEEK_SET, offset, 1, 0)
            if offset < _KEPT:
                self._packed[kind, offset] = packed
        return packed
