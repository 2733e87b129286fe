# Names are any bytes and files are many: os functions on plain text are exact, and four times as fast.
"""Where the files of a push come from."""

import os
import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from trainmaster.artifacts.tree import UnstableDirectory
from trainmaster.dataclass import dataclass, field
from trainmaster.objects.errors import explained
from trainmaster.volumes.packed.packing import FilePart, SourceFile

CHANGED_HINT = (
    "No version was made. Push again when nothing writes there; what was uploaded is not uploaded again."
)


class Folder(NamedTuple):
    """A directory of a source."""

    mode: int
    mtime_ns: int


@dataclass(slots=True)
class SourceExtras:
    """What a source has beside files.

    Attributes:
        folders: every directory that was met, by path.
        links: path, target and time of every symbolic link that was met.
        notes: what was left out and why.
    """

    folders: dict[bytes, Folder] = field(default_factory=dict)
    links: list[tuple[bytes, bytes, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class PushSource(Protocol):
    """Files in an order, with their directories and links.

    Attributes:
        label: what it is called in messages.
        order: ``path`` or ``archive``.
        is_stream: whether pieces must be loaded one after the other, in order, in one thread.
        extras: what was met beside files.
    """

    label: str
    order: str
    is_stream: bool

    @property
    def extras(self) -> SourceExtras: ...  # noqa: D102

    def survey(self) -> int | None:
        """Looks through it before anything is read.

        Returns:
            Bytes of all files; None if that is not known before.

        Raises:
            PublishError: something in it cannot be pushed.
        """
        ...

    def files(self, limit_bytes: int) -> Iterator[SourceFile]:
        """Gives the files in their order; fills ``extras`` on the way."""
        ...

    def load(self, pieces: Sequence[FilePart], target: memoryview) -> None:
        """Fills a buffer with the bytes of pieces, each at its offset; what lies between them stays.

        Raises:
            UnstableDirectory: a file is no longer what it was.
            PublishError: it cannot be read.
        """
        ...

    def confirm(self) -> None:
        """Looks again at what has been pushed.

        Raises:
            UnstableDirectory: something has changed since the survey.
        """
        ...


def stamp_of(status: os.stat_result) -> tuple[int, ...]:
    """Gives what changes whenever a file does."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def load_pieces(pieces: Sequence[FilePart], target: memoryview) -> None:
    """Reads pieces of files of this machine.

    Raises:
        UnstableDirectory: a file is no longer the one that was seen.
        PublishError: it cannot be read.
    """
    for piece in pieces:
        file, position = piece.file, piece.offset
        try:
            descriptor = os.open(file.place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            raise changed(file.place, "vanished") from None
        except OSError as error:
            raise explained(error, "read", file.place) from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or stamp_of(status) != file.stamp:
                raise changed(file.place)
            done = 0
            while done < piece.length:
                view = target[position + done : position + piece.length]
                count = os.preadv(descriptor, [view], file.start + piece.start + done)
                if not count:
                    raise changed(file.place, "shrank")
                done += count
            if stamp_of(os.fstat(descriptor)) != file.stamp:
                raise changed(file.place)
        except OSError as error:
            raise explained(error, "read", file.place) from error
        finally:
            os.close(descriptor)


def changed(place: str, how: str = "changed") -> UnstableDirectory:
    """Gives the error for a file that is not what it was."""
    return UnstableDirectory(f"{place} {how} while it was pushed.", CHANGED_HINT)
