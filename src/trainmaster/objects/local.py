# ruff: noqa: PTH103, PTH104, PTH108, PTH113, PTH116, PTH123
# Names are any bytes and files are many: os functions on plain text are exact, and four times as fast.
"""Objects kept as files of this machine.

obstore could do it too, but importing it costs more than publishing a small model here,
and it tells a full disk from a missing one only in prose. The layout is the same: either
reads what the other wrote.
"""

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from trainmaster.objects.backend import Backend, ObjectDetail
from trainmaster.objects.errors import ObjectChangedError

_BLOCK_BYTES = 1 << 20


class LocalBackend(Backend):
    """The files below one directory, which is made when the first object is written."""

    is_local = True
    in_memory_bytes = 1 << 62  # files are copied block by block, whatever their size

    def __init__(self, root: str) -> None:
        self._root = root

    def get(self, key: str, limit_bytes: int) -> bytes | None:
        try:
            with open(self._path(key), "rb") as file:
                if (size := os.fstat(file.fileno()).st_size) > limit_bytes:
                    raise OverflowError(size)
                return file.read(limit_bytes)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def get_range(self, key: str, start: int, length: int, etag: str) -> memoryview:
        with self._object(key, etag) as (descriptor, size_bytes):
            end, pieces = min(start + length, size_bytes), list[bytes]()
            # One call moves 2 GiB at most, and a network file system less.
            while start < end and (data := os.pread(descriptor, end - start, start)):
                pieces.append(data)
                start += len(data)
            return memoryview(b"".join(pieces))

    def range_blocks(self, key: str, start: int, length: int, etag: str) -> Iterator[memoryview]:
        with self._object(key, etag) as (descriptor, _):
            while length and (block := os.pread(descriptor, min(length, _BLOCK_BYTES), start)):
                yield memoryview(block)
                start, length = start + len(block), length - len(block)

    @contextmanager
    def _object(self, key: str, etag: str) -> Iterator[tuple[int, int]]:
        """Opens an object; gives its descriptor and size."""
        path = self._path(key)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except NotADirectoryError as error:
            raise FileNotFoundError(errno.ENOENT, "no such object", key) from error
        try:
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                raise FileNotFoundError(errno.ENOENT, "no such object", key)
            if etag and etag != _etag(status):
                raise ObjectChangedError("another ETag", "It was written again meanwhile.")
            yield descriptor, status.st_size
        finally:
            os.close(descriptor)

    def info(self, key: str) -> ObjectDetail | None:
        try:
            status = os.stat(self._path(key))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return None if stat.S_ISDIR(status.st_mode) else _detail(key, status)

    def details(self, prefix: str) -> Iterator[ObjectDetail]:
        for key, entry in self._walk(prefix):
            with suppress(FileNotFoundError):
                yield _detail(key, entry.stat(follow_symlinks=False))

    def blocks(self, key: str) -> Iterator[bytes]:
        try:
            file = open(self._path(key), "rb", buffering=0)  # noqa: SIM115
        except (NotADirectoryError, IsADirectoryError) as error:
            raise FileNotFoundError(errno.ENOENT, "no such object", key) from error
        with file:
            while block := file.read(_BLOCK_BYTES):
                yield block

    def put(self, key: str, data: bytes | memoryview) -> None:
        path = self._path(key)
        os.rename(self._write(path, (data,)), path)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        path = self._path(key)
        for tries_left in (2, 1, 0):
            scratch = path
            try:
                scratch = self._write(path, (data,))
                os.link(scratch, path)  # unlike rename, it fails where something is
            except FileExistsError:
                return False
            except FileNotFoundError:  # others have removed the folder meanwhile; object stores have none
                if not tries_left:
                    raise
            else:
                return True
            finally:
                if scratch != path:
                    with suppress(FileNotFoundError):
                        os.unlink(scratch)
        raise AssertionError("unreachable")

    def put_blocks(self, key: str, blocks: Iterable[bytes], size_bytes: int) -> None:
        path = self._path(key)
        os.rename(self._write(path, blocks), path)

    def _write(self, path: str, blocks: Iterable[bytes | memoryview]) -> str:
        """Writes a file beside ``path`` and gives its name, which no listing shows (nor obstore's)."""
        folder, name = os.path.split(path)
        scratch = f"{folder}/{name[:200]}#{secrets.randbits(63)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            descriptor = os.open(scratch, flags, 0o644)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
            descriptor = os.open(scratch, flags, 0o644)
        try:
            for block in blocks:
                view = memoryview(block)
                while view:
                    view = view[os.write(descriptor, view) :]
        except BaseException:
            os.close(descriptor)
            with suppress(OSError):
                os.unlink(scratch)
            raise
        try:
            os.close(descriptor)  # some network file systems tell of a full disk only now
        except OSError:
            with suppress(OSError):
                os.unlink(scratch)
            raise
        return scratch

    def exists(self, key: str) -> bool:
        return os.path.isfile(self._path(key))

    def _walk(self, prefix: str) -> "Iterator[tuple[str, os.DirEntry[str]]]":
        pending = [prefix]
        while pending:
            folder = pending.pop()
            for entry in self._scan(folder):
                key = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    pending.append(key)
                elif not _is_scratch(entry.name):
                    yield key, entry

    def folders(self, prefix: str) -> Iterable[str]:
        return [entry.name for entry in self._scan(prefix) if entry.is_dir(follow_symlinks=False)]

    def _scan(self, folder: str) -> "Sequence[os.DirEntry[str]]":
        try:
            with os.scandir(self._path(folder)) as entries:
                return tuple(entries)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:  # else nothing of that name was ever written
                raise
            return ()

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(self._path(key))

    def delete_all(self, prefix: str) -> None:
        def passed_over(function: object, path: str, info: tuple[type, BaseException, object]) -> None:
            if not isinstance(info[1], FileNotFoundError):  # somebody else deletes the same
                raise info[1]

        shutil.rmtree(self._path(prefix), onerror=passed_over)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root


def _is_scratch(name: str) -> bool:
    return name.rpartition("#")[2].isdigit() and "#" in name


def _etag(status: os.stat_result) -> str:
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"


def _detail(key: str, status: os.stat_result) -> ObjectDetail:
    return ObjectDetail(key, status.st_size, _etag(status), status.st_mtime)
