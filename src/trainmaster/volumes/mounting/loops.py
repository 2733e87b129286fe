"""Loop devices: files as disks, which end with the process that has them open."""

import errno
import fcntl
import os
import struct
from contextlib import suppress

_CONTROL = "/dev/loop-control"
_GET_FREE = 0x4C82
_CONFIGURE = 0x4C0A
# struct loop_config: the file, block size, then struct loop_info64, then 64 bytes of nothing.
_CONFIG = struct.Struct("<II5QIIII64s64s32s2Q64x")
_READ_ONLY, _ENDS_BY_ITSELF = 1, 4
_BLOCK_BYTES = 512
_SET_READAHEAD = 0x1262  # BLKRASET, in sectors
_TRIES = 64


def usable() -> bool:
    """Whether this process may ask for one; it may still be refused."""
    return os.access(_CONTROL, os.R_OK | os.W_OK)


def attach(descriptor: int, label: str) -> tuple[int, str]:
    """Makes a read-only disk of an open file.

    The disk holds on to the *open file* behind the descriptor, not to its name: the file's locks that
    were taken through it stay held until the disk ends. It ends when its last file descriptor is closed.

    Args:
        descriptor: of the file.
        label: a name for those who list such disks; 63 bytes count.

    Returns:
        The disk, opened, and its path.

    Raises:
        OSError: this process may not, or there is none.
    """
    config = _CONFIG.pack(
        *(descriptor, _BLOCK_BYTES),
        *(0, 0, 0, 0, 0),  # device, inode, rdevice, offset, limit
        *(0, 0, 0, _READ_ONLY | _ENDS_BY_ITSELF),  # number, two of encryption, flags
        *(os.fsencode(label)[:63], b"", b"", 0, 0),
    )
    control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_TRIES):
            path = f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}"
            disk = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.ioctl(disk, _CONFIGURE, config)
            except OSError as error:
                os.close(disk)
                if error.errno != errno.EBUSY:  # somebody else was given the same one
                    raise
            else:
                return disk, path
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), _CONTROL)


def read_ahead(disk: int, length_bytes: int) -> None:
    """Says how far to read ahead in long files; only a wish."""
    with suppress(OSError):
        fcntl.ioctl(disk, _SET_READAHEAD, length_bytes // _BLOCK_BYTES)
