"""A volume as the kernel asks for it."""

import errno
import functools
import os
import stat
import sys
import traceback
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import mfusepy

from trainmaster.spec.errors import TrainmasterError
from trainmaster.volumes.mounting.mounts import QUESTION
from trainmaster.volumes.packed.opening import ask_stores
from trainmaster.volumes.reading.volume import Volume

_P = ParamSpec("_P")
_R = TypeVar("_R")
_BLOCK_BYTES = 4096
CRASHED = 70
MAX_READ_BYTES = 1 << 20
_QUESTION = f"/{QUESTION}"
_LOOK_FOR_CHANGES = 1 << 12  # FUSE_CAP_AUTO_INVAL_DATA


def guarded(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """What the store does wrong becomes an input/output error; what we do wrong ends the process.

    A file system that goes on after losing a thread lets its readers hang for ever, in a state
    that no signal ends. One whose process is gone gives them an error.
    """

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except TrainmasterError as error:
            sys.stderr.write(f"error: {error}\n")
            sys.stderr.flush()
            raise mfusepy.FuseOSError(errno.EIO) from error
        except OSError:
            raise
        except BaseException:  # noqa: BLE001 - see above
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(CRASHED)

    return call


class VolumeOperations(mfusepy.Operations):  # type: ignore[misc] # the library is not typed throughout
    """Answers the kernel; see libfuse for what each call means.

    Nothing here changes while it is mounted, so the kernel is told to remember names and
    attributes, and that files need not be opened: reading one that was read before then takes no
    message at all.

    Args:
        volume: what to show.
        ready: called while the kernel is about to accept the mount.
    """

    use_ns = True

    def __init__(self, volume: Volume, ready: Callable[[], None]) -> None:
        self._volume = volume
        self._table = volume.table
        self._ready = ready
        self._owner = {"st_uid": os.getuid(), "st_gid": os.getgid()}

    @guarded
    def init_with_config(self, connection: Any, config: Any) -> None:  # noqa: ANN401 - ctypes structures
        """The kernel is there; it may ask for long pieces of files."""
        connection.max_read = MAX_READ_BYTES
        connection.max_readahead = MAX_READ_BYTES
        connection.want &= ~_LOOK_FOR_CHANGES  # there are none
        self._ready()

    @guarded
    def getattr(self, path: str, fh: Any = None) -> dict[str, Any]:  # noqa: ANN401
        """Attributes of a file, directory or link."""
        if path.startswith(_QUESTION):
            ask_stores(self._volume.uri, self._table)
        row = self._row(path)
        table = self._table
        kind = table.kind(row)
        time_ns = table.mtime_ns(row)
        size_bytes = table.sizes[row]
        mode, links = stat.S_IFREG | (table.mode(row) & 0o555), 1
        if kind == "directory":
            mode, links = stat.S_IFDIR | (table.mode(row) & 0o555 | 0o500), 2
        elif kind == "symlink":
            mode, size_bytes = stat.S_IFLNK | 0o777, len(table.target_bytes(row))
        return {
            "st_ino": row + 2,
            "st_mode": mode,
            "st_nlink": links,
            "st_size": size_bytes,
            "st_blocks": -(-size_bytes // 512),
            "st_mtime": time_ns,
            "st_ctime": time_ns,
            "st_atime": time_ns,
            **self._owner,
        }

    @guarded
    def readdir(self, path: str, fh: Any) -> list[Any]:  # noqa: ANN401
        """Names in a directory, with their kinds, which saves a request for each."""
        row = self._row(path)
        table = self._table
        modes = {"file": stat.S_IFREG, "directory": stat.S_IFDIR, "symlink": stat.S_IFLNK}
        # Programs pass over entries without an inode number.
        entries: list[Any] = [
            (".", {"st_mode": stat.S_IFDIR, "st_ino": row + 2}, 0),
            ("..", {"st_mode": stat.S_IFDIR, "st_ino": table.parent(row) + 2}, 0),
        ]
        for child in table.children(row).tolist():
            name = os.fsdecode(table.path_bytes(child).rpartition(b"/")[2])
            entries.append((name, {"st_mode": modes[table.kind(child)], "st_ino": child + 2}, 0))
        return entries

    @guarded
    def readlink(self, path: str) -> str:
        """Where a link leads."""
        return os.fsdecode(self._table.target_bytes(self._row(path)))

    def open(self, path: str, flags: int) -> int:
        """Not necessary: the kernel asks once, and never again."""
        raise mfusepy.FuseOSError(errno.ENOSYS)

    @guarded
    def read(self, path: str, size: int, offset: int, fh: Any) -> bytes:  # noqa: ANN401
        """Bytes of a file."""
        return self._volume.read_range(self._row(path), offset, size)

    @guarded
    def statfs(self, path: str) -> dict[str, int]:
        """How large the volume is; nothing is free."""
        return {
            "f_bsize": _BLOCK_BYTES,
            "f_frsize": _BLOCK_BYTES,
            "f_blocks": -(-self._table.total_bytes // _BLOCK_BYTES),
            "f_files": self._table.row_count,
            "f_namemax": 255,
        }

    def _row(self, path: str) -> int:
        row = self._table.row_of(path[1:])
        if row < 0:
            raise mfusepy.FuseOSError(errno.ENOENT)
        return row
