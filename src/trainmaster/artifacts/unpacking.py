"""Where archives of others are unpacked: tar and zip, with limits, never outside of a directory.

Nothing is believed: names are walked from an open directory, component by component, and no symbolic link is
followed. Links are made last of all, only if none of them can lead outside whatever the others are, so that
nothing is ever written through one. `tarfile`'s own filters are not relied on: those of Python before
3.11.13, 3.12.11 and 3.13.4 can be fooled.
"""

import bz2
import errno
import gzip
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Self

from trainmaster.objects.names import link_stays_inside, stays_inside
from trainmaster.spec.errors import UsageError

TAR_SUFFIXES: Final = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
ARCHIVE_SUFFIXES: Final = (*TAR_SUFFIXES, ".zip")

_BLOCK_BYTES: Final = 1 << 20
# A header of tar may announce any size, and `tarfile` reads headers whole.
_MOST_AT_ONCE_BYTES: Final = 16 << 20
_LONG_HEADERS: Final = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
_NAME_BYTES: Final = 255
_PATH_BYTES: Final = 3000
_TARGET_BYTES: Final = 4095
_OPENERS: Final = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\x00", lzma.open))
#: What the libraries raise when bytes are not what they ought to be.
DAMAGE: Final = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    ValueError,
    OverflowError,
    RecursionError,
    LookupError,
    struct.error,
    NotImplementedError,
    RuntimeError,  # a zip with a password
)


class UnpackError(UsageError):
    """An archive that is not unpacked: it is none, is too large, or holds what no archive should."""


class TooLargeError(UnpackError):
    """It becomes more than it may."""


class UnpackLimits(NamedTuple):
    """What an archive may become.

    Attributes:
        most_bytes: of all files together.
        most_entries: files, directories and links.
        most_components: of a path.
    """

    most_bytes: int
    most_entries: int = 20_000_000
    most_components: int = 100


def unpack(archive: Path | IO[bytes], name: str, directory: Path, limits: UnpackLimits) -> None:
    """Unpacks a tar or a zip into an empty directory of its own.

    Permissions become 0755 for what the owner may execute and 0644 for the rest; owners, devices, pipes and
    bits such as setuid are no part of data.

    Args:
        archive: the file, or it opened.
        name: what it is called; says of which kind it is, and stands in messages.
        directory: where.
        limits: what it may become.

    Raises:
        UnpackError: something is wrong with it; what was unpacked so far is still there.
        OSError: it cannot be read, or the directory not be written.
    """
    if name.endswith((".zip", ".whl")):
        with _understood(name), zipfile.ZipFile(archive) as packed:
            unpack_zip(packed, name, directory, limits)
        return
    with _understood(name), _decompressed(archive) as stream:
        _unpack_tar(stream, name, directory, limits)


def unpack_zip(archive: zipfile.ZipFile, name: str, directory: Path, limits: UnpackLimits) -> None:
    """Unpacks a zip that is open already; see `unpack`."""
    with _Writer(name, directory, limits) as writer:
        for member in archive.infolist():
            path, mode = writer.path_of(member.filename), member.external_attr >> 16
            if member.is_dir():
                writer.folder(path)
            elif stat.S_ISLNK(mode):
                with archive.open(member) as packed:
                    writer.link(path, os.fsdecode(packed.read(_TARGET_BYTES + 1)))
            elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
                # What the archive says of the size is not believed: the bytes are counted as they come.
                with archive.open(member) as packed:
                    writer.file(path, _blocks(packed), mode)
            else:
                raise writer.refusal(path, "is neither a file nor a directory nor a link")


def _unpack_tar(stream: IO[bytes], name: str, directory: Path, limits: UnpackLimits) -> None:
    with (
        _Writer(name, directory, limits) as writer,
        tarfile.open(fileobj=stream, mode="r:", errors="surrogateescape", tarinfo=Header) as archive,
    ):
        offset = -1
        for member in archive:
            archive.members = []  # type: ignore[attr-defined] # else it remembers them all
            if member.size < 0 or member.offset <= offset:
                raise tarfile.ReadError("its headers lie in a circle")
            offset = member.offset
            path = writer.path_of(member.name)
            if member.isdir():
                writer.folder(path)
            elif member.issym():
                writer.link(path, member.linkname)
            elif member.islnk():
                writer.hard_link(path, writer.path_of(member.linkname))
            elif member.isreg():
                writer.require_room(member.size)
                content = archive.extractfile(member)
                assert content is not None
                with content:
                    writer.file(path, _blocks(content), member.mode, int(member.mtime * 1_000_000_000))
            else:
                raise writer.refusal(path, "is neither a file nor a directory nor a link")
        # Behind the last member lie empty blocks, and then the checksum: a reader that is not read to its
        # end does not compare it, and a changed byte would pass.
        rest_bytes = 0
        for block in _blocks(stream):
            rest_bytes += len(block)
            writer.require_room(rest_bytes - _BLOCK_BYTES)


class _Writer:
    """Writes below a directory, following no link, and counts; links are made when it is left in order."""

    def __init__(self, name: str, directory: Path, limits: UnpackLimits) -> None:
        self._name = name
        self._limits = limits
        self._left_bytes = limits.most_bytes
        self._entries = 0
        self._links: dict[str, str] = {}
        self._top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # The directory that was written to last: archives name those of one directory one after another.
        self._last: tuple[str, int] = ("", os.dup(self._top))

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, kind: object, _error: object, _trace: object) -> None:
        try:
            if kind is None:
                self._make_links()
        finally:
            os.close(self._last[1])
            os.close(self._top)

    def refusal(self, path: str, what: str) -> UnpackError:
        return UnpackError(
            f"{self._name}: {path!r} {what}",
            "Unpack it yourself, look at it, and make a volume of what is good.",
        )

    def path_of(self, name: str) -> str:
        """The path of a member, relative; ``""`` for the top itself."""
        self._entries += 1
        if self._entries > self._limits.most_entries:
            raise self._too_much(f"{self._limits.most_entries:,} entries")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        path = "/".join(parts)
        if path and not stays_inside(path):
            raise self.refusal(name, "would lie outside")
        if len(parts) > self._limits.most_components:
            raise self.refusal(f"{path[:60]}...", f"lies {len(parts)} directories deep")
        size_bytes = len(path.encode("utf-8", "surrogateescape"))
        if size_bytes > _PATH_BYTES or any(
            len(part.encode("utf-8", "surrogateescape")) > _NAME_BYTES for part in parts
        ):
            raise self.refusal(f"{path[:60]}...", f"has a name that is too long ({size_bytes} bytes)")
        return path

    def require_room(self, size_bytes: int) -> None:
        if size_bytes > self._left_bytes:
            raise self._too_much(f"{self._limits.most_bytes:,} bytes")

    def folder(self, path: str) -> None:
        self._folder(path)

    def file(self, path: str, blocks: Iterable[bytes], mode: int, mtime_ns: int | None = None) -> None:
        folder, name = self._place(path)
        self._forget(path, folder, name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._at(path):
            descriptor = os.open(name, flags, 0o600, dir_fd=folder)
        with open(descriptor, "wb", buffering=0) as file:  # noqa: PTH123 - a descriptor
            for block in blocks:
                self.require_room(len(block))
                self._left_bytes -= len(block)
                view = memoryview(block)
                while view:
                    view = view[file.write(view) :]
            os.fchmod(descriptor, 0o755 if mode & 0o100 else 0o644)
            if mtime_ns is not None:
                limit = 1 << 62
                mtime_ns = max(-limit, min(limit, mtime_ns))
                os.utime(descriptor, ns=(mtime_ns, mtime_ns))

    def link(self, path: str, target: str) -> None:
        if not path or len(os.fsencode(target)) > _TARGET_BYTES:
            raise self.refusal(path, "is a link that leads nowhere")
        folder, name = self._place(path)
        self._forget(path, folder, name)
        self._links[path] = target

    def hard_link(self, path: str, of: str) -> None:
        if path == of:
            return
        if of in self._links:
            self.link(path, self._links[of])
            return
        source, source_name = self._place(of, is_kept=True)
        try:
            with self._at(of):
                status = os.stat(source_name, dir_fd=source, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                raise self.refusal(path, f"is a hard link to {of!r}, which is no file")
            folder, name = self._place(path)
            self._forget(path, folder, name)
            with self._at(path):
                os.link(source_name, name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(source)

    def _make_links(self) -> None:
        for path, target in self._links.items():
            if not link_stays_inside(path, self._links):
                raise self.refusal(path, f"is a symbolic link that leads outside, to {target[:200]!r}")
        for path, target in self._links.items():
            folder, name = self._place(path)
            with self._at(path):
                os.symlink(target, name, dir_fd=folder)

    def _place(self, path: str, *, is_kept: bool = False) -> tuple[int, str]:
        """The open directory in which a path lies, and its last component."""
        parent, _, name = path.rpartition("/")
        if not name:
            raise self.refusal(path, "has no name")
        folder = self._folder(parent)
        return (os.dup(folder) if is_kept else folder), name

    def _folder(self, path: str) -> int:
        """A directory, made if need be; open until the next one is asked for."""
        if path == self._last[0]:
            return self._last[1]
        at = os.dup(self._top)
        try:
            for part in path.split("/") if path else ():
                with self._at(path):
                    try:
                        deeper = _open_folder(part, at)
                    except FileNotFoundError:
                        os.mkdir(part, 0o755, dir_fd=at)
                        deeper = _open_folder(part, at)
                os.close(at)
                at = deeper
        except BaseException:
            os.close(at)
            raise
        os.close(self._last[1])
        self._last = (path, at)
        return at

    def _forget(self, path: str, folder: int, name: str) -> None:
        """A name that comes again means its last content; what was there is not written through."""
        self._links.pop(path, None)
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        except (IsADirectoryError, PermissionError):
            raise self.refusal(path, "is there already, as a directory") from None

    @contextmanager
    def _at(self, path: str) -> Iterator[None]:
        try:
            yield
        except (NotADirectoryError, FileExistsError, FileNotFoundError) as error:
            raise self.refusal(path, f"does not fit what came before ({error.strerror})") from None
        except OSError as error:
            if error.errno == errno.ELOOP:  # a link, where a directory was to be
                raise self.refusal(path, "lies behind a link") from None
            raise

    def _too_much(self, what: str) -> UnpackError:
        return TooLargeError(
            f"{self._name} becomes more than {what} when it is unpacked",
            "If that is right, allow it (`data: {NAME: {url: URL, size_limit: 2TB}}`) and have the room.",
        )


class Header(tarfile.TarInfo):
    """A header of anybody's tar: what it announces is bounded, as `tarfile` reads headers whole.

    Only the mark of an archive's end ends it: `tarfile` takes a damaged or a missing header for the end, too,
    and what lies behind it would be left out without a word.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str | None, errors: str) -> Self:
        """Reads one.

        Raises:
            tarfile.ReadError: it is damaged, or not there, or announces an absurd size.
        """
        try:
            found = super().frombuf(buf, encoding, errors)  # type: ignore[arg-type]
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            words = "one of its headers is damaged" if len(buf) == tarfile.BLOCKSIZE else "its end is missing"
            raise tarfile.ReadError(words) from error
        if found.size < 0 or (found.type in _LONG_HEADERS and found.size > _MOST_AT_ONCE_BYTES):
            raise tarfile.ReadError("one of its headers is out of all measure")
        return found


def decompressed(raw: Any, begin: bytes) -> Any:  # noqa: ANN401 - whatever can be read
    """Gives the stream of what gzip, bzip2 or xz packed, by its first bytes; ``raw`` itself if none did.

    Read to its end it has compared the checksums, which `tarfile` does not do with gzip.
    """
    opener = next((opener for magic, opener in _OPENERS if begin.startswith(magic)), None)
    return raw if opener is None else opener(raw, "rb")


@contextmanager
def _decompressed(archive: Path | IO[bytes]) -> Iterator[IO[bytes]]:
    raw: Any = archive.open("rb") if isinstance(archive, Path) else archive
    try:
        begin = raw.read(6)
        raw.seek(0)
        stream = decompressed(raw, begin)
        try:
            yield stream
        finally:
            if stream is not raw:
                stream.close()
    finally:
        if isinstance(archive, Path):
            raw.close()


@contextmanager
def _understood(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if isinstance(error, UnpackError) or not is_damage(error):
            raise
        raise UnpackError(
            f"{name} is no archive that can be unpacked: {error}", "Look at the URL."
        ) from error


def is_damage(error: Exception) -> bool:
    """Whether a library has met bytes that are not what they ought to be; errors of gzip have no errno."""
    return isinstance(error, DAMAGE) or (isinstance(error, OSError) and error.errno is None)


def _open_folder(name: str, folder: int) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)


def _blocks(content: IO[bytes]) -> Iterator[bytes]:
    while block := content.read(_BLOCK_BYTES):
        yield block
