"""`Backend`: what a kind of object store has to do; inherit it, and `ObjectStoreContract` for its tests."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class ObjectInfo(NamedTuple):
    """An object as a listing shows it."""

    key: str
    size_bytes: int


class ObjectDetail(NamedTuple):
    """An object as the store itself describes it.

    Attributes:
        key: relative to the store.
        size_bytes: of the whole object.
        etag: changes whenever the bytes do; empty where the store has none.
        modified_s: when it was written, by the store's clock, in seconds since 1970.
    """

    key: str
    size_bytes: int
    etag: str
    modified_s: float


class Backend(ABC):
    """The objects below one URL.

    It is made with what stands behind ``SCHEME://`` in the URL, without a trailing ``/``; no request is sent.

    Keys are relative to the URL, with ``/`` between folders; they never begin or end with one, and are never
    empty. Any other character may be in one. A *prefix* is a folder: ``a`` has ``a/b`` and not ``ab``, and
    ``""`` has everything. Objects appear whole or not at all, and a listing or read after a write has
    ended sees it. Several threads use a backend at once.

    What goes wrong is told by type. There is no such object: ``FileNotFoundError``, where a method says so.
    Everything else is an error of `trainmaster.objects.errors` (its message the bare reason, without what was
    being done and where), or an ``OSError`` with the ``errno`` that fits. What ``blocks`` raises passes.

    Attributes:
        is_local: whether objects are files of this machine.
        in_memory_bytes: `put_blocks` has objects of this size or more in memory, in part, while it writes.
    """

    is_local: bool = False
    in_memory_bytes: int = 8 << 20

    @abstractmethod
    def get(self, key: str, limit_bytes: int) -> bytes | None:
        """Reads an object; None if there is none.

        Raises:
            OverflowError: it is larger than the limit; its argument is the size.
        """

    @abstractmethod
    def get_range(self, key: str, start: int, length: int, etag: str) -> memoryview:
        """Reads a part, less if the object ends before.

        Raises:
            FileNotFoundError: there is none.
            ObjectChangedError: it has another ETag than the one that is given; ``""`` is any.
        """

    def range_blocks(self, key: str, start: int, length: int, etag: str) -> Iterator[memoryview]:
        """Reads like `get_range`, block by block."""
        yield self.get_range(key, start, length, etag)

    @abstractmethod
    def info(self, key: str) -> ObjectDetail | None:
        """Asks for size, ETag and age of an object; None if there is none."""

    @abstractmethod
    def details(self, prefix: str) -> Iterator[ObjectDetail]:
        """Lists all objects below a folder, in no order; of a folder that is not there: nothing."""

    @abstractmethod
    def blocks(self, key: str) -> Iterator[bytes]:
        """Reads an object block by block, in constant memory.

        Raises:
            FileNotFoundError: there is none.
        """

    @abstractmethod
    def put(self, key: str, data: bytes | memoryview) -> None:
        """Writes an object, in place of one that is there."""

    @abstractmethod
    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Writes an object only if there is none: of several callers at once exactly one is told True."""

    @abstractmethod
    def put_blocks(self, key: str, blocks: Iterable[bytes], size_bytes: int) -> None:
        """Writes an object from blocks in constant memory; an exception in ``blocks`` leaves nothing.

        Args:
            key: where.
            blocks: what comes of them is the object.
            size_bytes: about how much will come, to choose how to send it; no ``Content-Length``, as a file
                may grow while it is read.
        """

    def exists(self, key: str) -> bool:
        """Says whether there is such an object."""
        return self.info(key) is not None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Lists like `details`."""
        for detail in self.details(prefix):
            yield ObjectInfo(detail.key, detail.size_bytes)

    @abstractmethod
    def folders(self, prefix: str) -> Iterable[str]:
        """Names the folders directly below a folder, without their parents."""

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Deletes objects; those that are not there are no error."""

    def delete_all(self, prefix: str) -> None:
        """Deletes every object below a folder, and the folder."""
        self.delete([info.key for info in self.list(prefix)])

    def signed_url(self, key: str, seconds: float) -> str | None:
        """A URL by which anybody may read an object for so long; None where there is no such thing."""
        return None

    def answers(self, limit_s: float) -> bool:
        """Whether the server says anything at all within so long, also a refusal.

        Where it is not known, True: the caller will find out.
        """
        return True
