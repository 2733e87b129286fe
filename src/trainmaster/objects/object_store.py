"""One object store, whatever keeps it: a directory, S3, Google Cloud, Azure, HDFS, a plug-in, or memory."""

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager

from trainmaster.objects.backend import Backend as Backend
from trainmaster.objects.backend import ObjectDetail as ObjectDetail
from trainmaster.objects.backend import ObjectInfo as ObjectInfo
from trainmaster.objects.errors import ERRORS, ObjectStoreError, explained
from trainmaster.objects.errors import ObjectChangedError as ObjectChangedError
from trainmaster.objects.plugins import backend_of, joined_url, quoted, split_url
from trainmaster.spec.errors import PublishError

#: Most bytes of what is read whole, if the caller knows nothing better: documents, not data.
SMALL_BYTES = 64 << 20


class ObjectStore:
    """The objects below one URL.

    Keys are relative to the URL, with ``/``, never empty. Objects appear whole or not at
    all. Credentials come from the environment (``AWS_*``, ``GOOGLE_*``, ``AZURE_*``;
    ``AWS_ENDPOINT_URL`` names another S3 server, also by plain http), and for S3 from
    profiles as boto3 reads them. Safe to use from several threads; connections are shared by
    all stores of a process.

    Attributes:
        url: the URL without a trailing ``/``; a bare path has become ``file://``.
        is_local: whether the objects are files of this machine.
        large_from_bytes: an object of this size or more costs memory while it is written.
    """

    def __init__(self, url: str) -> None:
        scheme, rest = split_url(url)
        self.url = joined_url(scheme, rest)
        with self._explained("open", ""):
            self._backend: Backend = backend_of(scheme, rest)
        self.is_local = self._backend.is_local
        self.large_from_bytes = self._backend.in_memory_bytes

    def url_of(self, key: str) -> str:
        """Gives the URL of an object or folder (``""``: of the store itself)."""
        if not key:
            return self.url
        return f"{self.url}/{quoted(key) if self.is_local else key}"

    def get(self, key: str, limit_bytes: int = SMALL_BYTES) -> bytes | None:
        """Reads a whole object into memory; None if there is none.

        Args:
            key: which.
            limit_bytes: most that it may have: whoever can write to a store must not fill our memory.

        Raises:
            PublishError: it is larger, or cannot be read.
        """
        try:
            with self._explained("read", key):
                return self._backend.get(key, limit_bytes)
        except OverflowError as error:
            raise PublishError(
                f"{self.url_of(key)} has {error.args[0]:,} bytes, and at most {limit_bytes:,} are read.",
                "Nothing of Trainmaster's is so large there: look who wrote it.",
            ) from error

    def get_range(self, key: str, start: int, length: int, etag: str = "") -> memoryview:
        """Reads a part of an object; less than ``length`` bytes if the object ends before.

        Args:
            key: which.
            start: of the first byte.
            length: in bytes, at least 1.
            etag: of the object that is meant, as :meth:`info` gave it; empty: any.

        Raises:
            FileNotFoundError: there is none.
            ObjectChangedError: it has another ETag.
            PublishError: it cannot be read.
        """
        with self._explained("read", key):
            return self._backend.get_range(key, start, length, etag)

    def range_blocks(self, key: str, start: int, length: int, etag: str = "") -> Iterator[memoryview]:
        """Reads like :meth:`get_range`, block by block.

        Yields:
            The bytes in their order; an empty block may come first, when the store answers.

        Raises:
            The same as :meth:`get_range`.
        """
        with self._explained("read", key):
            yield from self._backend.range_blocks(key, start, length, etag)

    def info(self, key: str) -> ObjectDetail | None:
        """Asks for size, ETag and age of an object; None if there is none."""
        with self._explained("look for", key):
            return self._backend.info(key)

    def details(self, prefix: str = "") -> Iterator[ObjectDetail]:
        """Lists like :meth:`list`, with ETags and ages."""
        with self._explained("list", prefix):
            yield from self._backend.details(prefix)

    def blocks(self, key: str) -> Generator[bytes, None, None]:
        """Reads an object block by block, in constant memory.

        Raises:
            FileNotFoundError: there is none.
            PublishError: it cannot be read.
        """
        with self._explained("read", key):
            yield from self._backend.blocks(key)

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Writes an object, in place of one that is there."""
        with self._explained("write", key):
            self._backend.put(key, data)

    def check_writable(self) -> None:
        """Writes an object and removes it again.

        Raises:
            PublishError: it cannot be written.
        """
        key = f"probe-{os.getpid()}"
        self.put(key, b"probe")
        self.delete([key])

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Writes an object only if there is none: of several callers exactly one is told True.

        A caller whose ``data`` is there already is told True too: the answer to its first
        try may have been lost on the way. Make ``data`` unique where that matters.
        """
        with self._explained("create", key):
            if self._backend.put_if_absent(key, data):
                return True
            try:
                return self._backend.get(key, len(data)) == data
            except OverflowError:
                return False

    def put_blocks(self, key: str, blocks: Iterable[bytes], size_bytes: int) -> None:
        """Writes an object from blocks in constant memory; an exception in ``blocks`` leaves nothing.

        Args:
            key: where.
            blocks: never mutated after they were yielded.
            size_bytes: about how much will come; decides how it is sent.
        """
        with self._explained("write", key):
            self._backend.put_blocks(key, blocks, size_bytes)

    def exists(self, key: str) -> bool:
        """Says whether there is such an object."""
        with self._explained("look for", key):
            return self._backend.exists(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Lists all objects below the folder ``prefix`` (``""``: all), in no order."""
        with self._explained("list", prefix):
            yield from self._backend.list(prefix)

    def folders(self, prefix: str = "") -> Sequence[str]:
        """Names the folders directly below the folder ``prefix``, sorted, without their parents."""
        with self._explained("list", prefix):
            return sorted(self._backend.folders(prefix))

    def delete(self, keys: Iterable[str]) -> None:
        """Deletes objects; those that are not there are no error."""
        with self._explained("delete from", ""):
            self._backend.delete(keys)

    def delete_all(self, prefix: str) -> None:
        """Deletes every object below the folder ``prefix`` (``""``: all), and the folder."""
        with self._explained("delete", prefix):
            self._backend.delete_all(prefix)

    def signed_url(self, key: str, seconds: float) -> str | None:
        """A URL by which anybody may read an object for so long; None where there is no such thing.

        Raises:
            PublishError: our own keys are not good for it.
        """
        with self._explained("sign", key):
            return self._backend.signed_url(key, seconds)

    def answers(self, limit_s: float = 8.0) -> bool:
        """Whether its server says anything at all within so long. A refusal is an answer, too."""
        return self._backend.answers(limit_s)

    @contextmanager
    def _explained(self, verb: str, key: str) -> Iterator[None]:
        """Says of what an error is, and types errors of the operating system.

        A FileNotFoundError passes: only the caller knows what its absence means.
        """
        try:
            yield
        except FileNotFoundError:
            raise
        except PublishError as error:
            # What blocks that are being written come from has raised has been explained there.
            if not isinstance(error, ObjectStoreError) or error.url or type(error) not in ERRORS.values():
                raise
            raise explained(error, verb, self.url_of(key)) from error
        except OSError as error:
            raise explained(error, verb, self.url_of(key)) from error
