"""Showing a volume without a process that answers: the kernel reads the cache's slots itself.

It gets three disks: an image with names and places (`erofs`), the file of slots, and the file of the
slots' *locks*. The third is never read. It is there because a disk keeps the open file that it was made
of, and with it the locks taken through that: each slot of the volume is locked for as long as the mount
exists, also when all processes behind it were killed, and with files that are open after it was taken
away. What looks for a slot to reuse finds it in use, as if somebody read it.

Loop devices: files as disks, which end with the process that has them open.

Which mounts are whose: at one place there may be several after each other, and the old ones end late.
"""

import ctypes
import errno
import fcntl
import os
import struct
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainmaster.volumes.errors import CacheError, NoImageError
from trainmaster.volumes.mounting.erofs import BLOCK_BYTES, ChunkPlacement, FileOwner, lay_out, write_image
from trainmaster.volumes.mounting.mounts import detach, is_dead, mounted_at, mounts_at, recorded_devices
from trainmaster.volumes.reading.cache import ChunkCache
from trainmaster.volumes.reading.locks import RangeLocks
from trainmaster.volumes.reading.volume import Volume


def new_record() -> int:
    """Makes what the guard and the server of a mount share: a file in memory with their mounts; close it."""
    return os.memfd_create("mounts", os.MFD_CLOEXEC)


class OwnMounts:
    """The mounts that one guard and its server have made.

    Each is known by its device, which nothing else has for as long as it can be found, or anybody has a
    file open there. After that the next mount may have it: so its end is noted at once.

    Args:
        directory: where they are.
        record: what :func:`new_record` gave to the process that started these.
    """

    def __init__(self, directory: str, record: int) -> None:
        self.directory = directory
        self.record = record
        self._seen: set[str] = set()
        os.set_inheritable(record, False)

    def add(self, device: str) -> None:
        """Notes a mount, if possible before it is there."""
        os.write(self.record, f"{device}\n".encode())

    def look(self) -> None:
        """Notes which have ended. For the server, whenever something was mounted or taken away."""
        there = {mounted.device for mounted in mounts_at(self.directory)} & self.devices()
        for device in self._seen - there:
            os.write(self.record, f"-{device}\n".encode())
        self._seen = there

    def devices(self) -> set[str]:
        """Those noted so far by either process, and not their ends."""
        return recorded_devices(os.pread(self.record, 1 << 16, 0).decode())

    def are_there(self) -> bool:
        """Whether one of them can still be found."""
        devices = self.devices()
        return any(mounted.device in devices for mounted in mounts_at(self.directory))

    def take_away(self) -> None:
        """Detaches them, as far as nothing of others lies above."""
        devices = self.devices()
        while (there := mounted_at(self.directory)) is not None and there.device in devices:
            if not detach(self.directory):
                break

    def take_away_remains(self) -> None:
        """The same when the server is over: it may have ended before it could note anything."""
        self.take_away()
        if not self.devices() and is_dead(self.directory):
            detach(self.directory)


_CONTROL = "/dev/loop-control"
_GET_FREE = 0x4C82
_CONFIGURE = 0x4C0A
# struct loop_config: the file, block size, then struct loop_info64, then 64 bytes of nothing.
_CONFIG = struct.Struct("<II5QIIII64s64s32s2Q64x")
_LOOP_READ_ONLY, _ENDS_BY_ITSELF = 1, 4
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
        *(0, 0, 0, _LOOP_READ_ONLY | _ENDS_BY_ITSELF),  # number, two of encryption, flags
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


# The same numbers on all machines.
_MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 429, 430, 431, 432
_CLOSE_ON_EXEC = 1
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_READ_ONLY, _NO_SUID, _NO_DEVICES = 1, 2, 4
_FROM_DESCRIPTOR, _BENEATH = 0x4, 0x200
_HERE = -100
_OWN_DIRECTORY = 0x200  # CLONE_FS

_libc = ctypes.CDLL(None, use_errno=True)


def require(kind: str) -> None:
    """Asks whether this process may mount disks with a kind of file system.

    Raises:
        OSError: it may not, or the kernel does not know the kind.
    """
    context = _call(_FSOPEN, kind.encode(), _CLOSE_ON_EXEC)
    try:
        _call(_FSCONFIG, context, _CREATE, None, None, 0)
    except OSError as error:
        if error.errno != errno.EINVAL:  # which says that no disk was named
            raise
    finally:
        os.close(context)


def mounted_aside(kind: str, source: str, disk: str, devices: Sequence[str], scratch: Path) -> int:
    """Mounts disks read-only, nowhere yet.

    Args:
        kind: of file system.
        source: what the table of mounts shall say instead of the path of the disk.
        disk: the disk.
        devices: of further disks.
        scratch: an empty directory for a while.

    Returns:
        A descriptor of the mount, which ends with it unless it is put somewhere.

    Raises:
        OSError: the kernel refused.
    """
    name = Path(source)
    if ".." in name.parts or name.is_absolute():
        raise OSError(0, "the volume's address cannot be shown in the table of mounts", source)

    def make() -> int:
        # The kernel shows the path by which it found the disk: so there has to be one with that name.
        place = scratch / name
        place.parent.mkdir(parents=True)
        place.symlink_to(disk)
        _checked(_libc.unshare(_OWN_DIRECTORY))
        os.chdir(scratch)
        context = _call(_FSOPEN, kind.encode(), _CLOSE_ON_EXEC)
        try:
            _set(context, "source", source)
            for device in devices:
                _set(context, "device", device)
            _call(_FSCONFIG, context, _SET_FLAG, b"ro", None, 0)
            _call(_FSCONFIG, context, _CREATE, None, None, 0)
            return _call(_FSMOUNT, context, _CLOSE_ON_EXEC, _READ_ONLY | _NO_SUID | _NO_DEVICES)
        finally:
            os.close(context)

    with ThreadPoolExecutor(1) as pool:  # what is not shared any more ends with its thread
        return pool.submit(make).result()


def put(mount: int, directory: str, *, beneath: bool) -> None:
    """Puts a mount to a directory.

    Args:
        mount: what :func:`mounted_aside` gave.
        directory: where.
        beneath: below what is mounted there already, and shows when that is taken away.

    Raises:
        OSError: the kernel refused.
    """
    flags = _FROM_DESCRIPTOR | (_BENEATH if beneath else 0)
    _call(_MOVE_MOUNT, mount, b"", _HERE, os.fsencode(directory), flags)


def _set(context: int, name: str, value: str) -> None:
    _call(_FSCONFIG, context, _SET_STRING, name.encode(), os.fsencode(value), 0)


def _call(number: int, *arguments: int | bytes | None) -> int:
    return _checked(_libc.syscall(number, *arguments))


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


KERNEL_TYPE = "erofs"
_READ_AHEAD_BYTES = 1 << 20
_LEAST_FREE_SLOTS = 2
_FREE_SHARE = 4
_LOCK = struct.Struct("hhqqi4x")
# Of the file of locks, behind those of slots: held by the mount that looks what there is, and takes of it.
_TURN = 1 << 59


def fits(volume: Volume) -> bool:
    """Whether the cache may keep all of a volume: a quarter is left to others, two slots at least."""
    return volume.table.chunk_count <= _room(volume.cache)


def require_room(volume: Volume) -> None:
    """Refuses a volume of which the cache may not keep all, before anything is fetched.

    Raises:
        NoImageError: it is such a one.
    """
    if not fits(volume):
        cache = volume.cache
        raise NoImageError(
            f"it has {volume.table.chunk_count:,} chunks of up to {cache.slots.slot_bytes:,} bytes, and "
            f"mounts may hold {_room(cache):,} of them in the cache {cache.directory}",
            "Raise TRAINMASTER_CACHE_BYTES.",
        )


def show(
    volume: Volume,
    directory: str,
    *,
    when_ready: Callable[[str], bool],
    beneath: bool,
    patient: bool = False,
) -> bool:
    """Mounts a volume whose chunks are fetched where they are not there yet.

    Args:
        volume: which.
        directory: where.
        when_ready: told the device when all is there and nothing is mounted yet; says whether to go on.
        beneath: below what is mounted there; it shows when that is taken away.
        patient: wait while another mount takes its share of the cache.

    Returns:
        Whether it was mounted.

    Raises:
        NoImageError: it cannot be; the message says why.
        OSError: this machine cannot.
        PublishError: the store fails.
        CacheError: no slot can be had, or another mount takes its share.
    """
    slots = volume.cache.slots
    layout = lay_out(volume.table)  # nothing is fetched for a volume or on a machine with which it cannot be
    require(KERNEL_TYPE)
    with ExitStack() as stack:
        # Not through the descriptor below, which the mount keeps.
        turns = RangeLocks(f"{slots.directory}/locks")
        stack.callback(turns.close)
        if patient:
            turns.exclusive(_TURN)
        elif not turns.try_exclusive(_TURN):
            raise CacheError(f"Another mount takes its share of the cache {volume.cache.directory}.", "Wait.")
        locks = RangeLocks(f"{slots.directory}/locks")
        stack.callback(locks.close)
        starts = _locked(volume, locks)
        names = stack.enter_context(tempfile.TemporaryDirectory(prefix=".names-", dir=slots.directory))
        image = stack.enter_context(tempfile.TemporaryFile(dir=slots.directory))
        data = os.open(slots.path, os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, data)
        placement = ChunkPlacement(
            starts, os.fstat(data).st_size, lambda at, length: slots.data[at : at + length]
        )
        identity = bytes.fromhex(volume.head.table_id)[:16]
        write_image(volume.table, layout, placement, image, FileOwner(os.getuid(), os.getgid()), identity)
        image.flush()
        disks = []
        for descriptor in (image.fileno(), data, locks.descriptor):
            disk, path = attach(descriptor, f"trainmaster:{directory}")
            stack.callback(os.close, disk)
            read_ahead(disk, _READ_AHEAD_BYTES)
            disks.append(path)
        mount = mounted_aside(KERNEL_TYPE, f"trainmaster:{volume.uri}", disks[0], disks[1:], Path(names))
        stack.callback(os.close, mount)
        device = os.fstat(mount).st_dev
        if not when_ready(f"{os.major(device)}:{os.minor(device)}"):
            return False
        put(mount, directory, beneath=beneath)
    return True


def _locked(volume: Volume, locks: RangeLocks) -> NDArray[np.int64]:
    """Locks the slots of all chunks; gives where they begin."""
    cache, sizes = volume.cache, volume.table.chunk_sizes
    taken = _held_slots(locks.descriptor)
    starts = np.zeros(volume.table.chunk_count, np.int64)
    for number in range(volume.table.chunk_count):
        placed = cache.obtain(volume.chunk(number), pinned=True)  # proved, if not by now then here
        try:
            if not locks.try_shared(placed.slot):
                raise NoImageError("a slot that is read is being changed")
            size_bytes = sizes[number]
            if any(cache.slots.view(placed.slot, size_bytes, size_bytes + -size_bytes % BLOCK_BYTES)):
                raise NoImageError("behind a chunk that an older version cached lie other bytes")
        finally:
            cache.unpin(placed)
        taken.add(placed.slot)
        if len(taken) > _room(cache):
            raise CacheError(
                f"Other mounts and readers hold too much of the cache {cache.directory}.",
                "Raise TRAINMASTER_CACHE_BYTES, or end a mount.",
            )
        starts[number] = placed.slot * cache.slots.slot_bytes
    return starts


def _room(cache: ChunkCache) -> int:
    """How many slots mounts may hold."""
    count = cache.limit_bytes // cache.slots.slot_bytes
    return count - max(_LEAST_FREE_SLOTS, count // _FREE_SHARE)


def _held_slots(locks: int) -> set[int]:
    """The slots that somebody reads or keeps, as far as that is seen from a descriptor without locks."""
    found: set[int] = set()
    at, end = 0, _TURN
    while at < end:
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, end - at, 0)
        kind, _, start, length, _ = _LOCK.unpack(fcntl.fcntl(locks, fcntl.F_OFD_GETLK, asked))
        if kind == fcntl.F_UNLCK:
            break
        found.update(range(max(start, at), start + length))
        at = start + length
    return found
