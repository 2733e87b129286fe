"""Objects kept by obstore: what S3, Google Cloud, Azure and memory have in common."""

import errno
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from trainmaster.objects.backend import Backend, ObjectDetail
from trainmaster.objects.obstore_errors import (
    is_no_bucket,
    is_of_parts,
    is_timeout,
    no_bucket,
    typed,
)
from trainmaster.objects.parallel import in_order
from trainmaster.spec.errors import PublishError

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta
    from obstore.store import ObjectStore as AnyStore
    from obstore.store import RetryConfig

_PART_BYTES = 8 << 20
_PARTS_IN_FLIGHT = 4
# S3 takes 10,000 parts at most; some room for a file that grows meanwhile.
_MAX_PARTS = 9_000
_DELETED_AT_ONCE = 1_000
_REQUEST_TIMEOUT = timedelta(minutes=5)
# A server that says nothing for so long is away. What is being sent counts as silence too, so that only
# requests without much to send are given up by it.
_SILENCE_TIMEOUT = timedelta(seconds=15)
_SILENCE_RETRIES_TIMEOUT = timedelta(seconds=30)
_SMALL_BYTES = 256 << 10
# The first one tells how wide the line is.
_BLOCK_BYTES = 1 << 20
_RETRIES: "RetryConfig" = {"max_retries": 8, "retry_timeout": timedelta(minutes=2)}

# One connection pool per bucket and set of credentials, for the life of the process. Memory stores must
# stay here too: they are all there is.
_stores: "dict[tuple[str, ...], AnyStore]" = {}


class ObstoreBackend(Backend):
    """The objects below one prefix of a bucket; a kind of store says what it is called and how it is opened.

    Attributes:
        scheme: of its URLs.
    """

    scheme: ClassVar[str]
    in_memory_bytes = _PART_BYTES

    def __init__(self, rest: str) -> None:
        self._bucket, _, prefix = rest.partition("/")
        self._url = f"{self.scheme}://{self._bucket}"
        with typed():
            self._opened = self._shared(sends_much=False)
            self._sender = self._shared(sends_much=True)
        self._is_slow = False
        self._prefix = "/".join(part for part in prefix.split("/") if part)

    @abstractmethod
    def identity(self) -> tuple[str, ...]:
        """What decides how it is opened, but for the bucket: stores that are the same share connections."""

    @abstractmethod
    def opened(self, bucket: str, options: dict[str, Any]) -> "AnyStore":
        """Opens a bucket, with these options for obstore's class and more of its own."""

    def _shared(self, *, sends_much: bool) -> "AnyStore":
        key = (self.scheme, self._bucket, "sends" if sends_much else "", *self.identity())
        store = _stores.get(key)
        if store is None:
            # setdefault: two threads may come here at once, and share what the first one has made.
            store = _stores.setdefault(key, self.opened(self._bucket, _options(sends_much)))
        return store

    def answers(self, limit_s: float) -> bool:
        import obstore

        try:
            asked_once = self.opened(self._bucket, _asked_once(timedelta(seconds=limit_s)))
            obstore.head(asked_once, f"{self._prefix}/answers".lstrip("/"))
        except Exception as error:  # noqa: BLE001 - every other error is an answer, or told elsewhere
            return not is_timeout(error)
        return True

    @property
    def _store(self) -> "AnyStore":
        return self._checked(self._opened)

    def _checked(self, store: "AnyStore") -> "AnyStore":
        global _runtime_pid
        if runtime_is_lost():
            raise PublishError(
                f"{self._url} cannot be reached from here: the library that speaks with it was used before "
                "this process was forked, and its threads stayed with the parent.",
                "Start the process by 'spawn' (multiprocessing.get_context), or do this in the parent.",
            )
        _runtime_pid = os.getpid()
        return store

    @typed()
    def get(self, key: str, limit_bytes: int) -> bytes | None:
        import obstore

        try:
            found = obstore.get(self._store, self._key(key))
            if found.meta["size"] > limit_bytes:  # it comes with the head of the answer
                raise OverflowError(found.meta["size"])
            return bytes(found.bytes())
        except FileNotFoundError as error:
            _require_bucket(error)
            return None

    @typed()
    def get_range(self, key: str, start: int, length: int, etag: str) -> memoryview:
        return memoryview(self._answer(key, start, length, etag).bytes())

    @typed()
    def _answer(self, key: str, start: int, length: int, etag: str) -> "GetResult":
        import obstore

        options: GetOptions = {"range": (start, start + length), **({"if_match": etag} if etag else {})}
        try:
            return obstore.get(self._store, self._key(key), options=options)
        except FileNotFoundError as error:
            _require_bucket(error)
            raise

    def range_blocks(self, key: str, start: int, length: int, etag: str) -> Iterator[memoryview]:
        answer = self._answer(key, start, length, etag)
        yield memoryview(b"")
        with typed():
            for block in answer.stream(min_chunk_size=_BLOCK_BYTES):
                yield memoryview(block)

    @typed()
    def info(self, key: str) -> ObjectDetail | None:
        import obstore

        try:
            return self._detail(obstore.head(self._store, self._key(key)))
        except FileNotFoundError as error:
            _require_bucket(error)
            return None

    def details(self, prefix: str) -> Iterator[ObjectDetail]:
        for meta in self._listed(prefix):
            yield self._detail(meta)

    def _detail(self, meta: "ObjectMeta") -> ObjectDetail:
        key = meta["path"][len(self._prefix) + 1 if self._prefix else 0 :]
        return ObjectDetail(
            key, meta["size"], _quoted(meta["e_tag"] or ""), meta["last_modified"].timestamp()
        )

    def blocks(self, key: str) -> Iterator[bytes]:
        # Ranges rather than one stream: each is tried again by itself when the connection breaks, and
        # none has to outlive the client's timeout.
        import obstore

        info = self.info(key)
        if info is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", key)
        size_bytes = info.size_bytes
        if size_bytes <= _PART_BYTES:
            with typed():
                data = bytes(obstore.get(self._store, self._key(key)).bytes())
            yield data
            return
        from concurrent.futures import ThreadPoolExecutor

        def part(start: int) -> bytes:
            return bytes(self.get_range(key, start, min(_PART_BYTES, size_bytes - start), ""))

        with ThreadPoolExecutor(_PARTS_IN_FLIGHT) as pool:
            starts = range(0, size_bytes, _PART_BYTES)
            yield from (block for _, block in in_order(pool, part, starts, _PARTS_IN_FLIGHT))

    def put(self, key: str, data: bytes | memoryview) -> None:
        with _into_bucket():
            self._put(key, data)

    def _put(self, key: str, data: bytes | memoryview) -> None:
        import obstore

        is_large = len(data) > _PART_BYTES
        if not (is_large and self._is_slow):
            try:
                store = self._store if len(data) <= _SMALL_BYTES else self._checked(self._sender)
                obstore.put(store, self._key(key), data, use_multipart=False)
            except Exception as error:
                if not is_large or not is_timeout(error):
                    raise
                # A line on which one request is too much to ask: from now on in parts.
                self._is_slow = True
            else:
                return
        whole = memoryview(data)
        # Block by block: those of one that is larger than a part would all be sent at once.
        blocks = (whole[start : start + _PART_BYTES] for start in range(0, len(whole), _PART_BYTES))
        self._put_parts(key, blocks, _PART_BYTES, 1)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            with _into_bucket():
                obstore.put(self._store, self._key(key), data, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def put_blocks(self, key: str, blocks: Iterable[bytes], size_bytes: int) -> None:
        if size_bytes <= _PART_BYTES:
            self.put(key, b"".join(blocks))
            return
        with _into_bucket():
            part_bytes = max(_PART_BYTES, -(-size_bytes // _MAX_PARTS))
            self._put_parts(key, blocks, part_bytes, _PARTS_IN_FLIGHT)

    def _put_parts(
        self, key: str, blocks: Iterable[bytes | memoryview], part_bytes: int, in_flight: int
    ) -> None:
        import obstore

        sent_bytes = 0

        def counted() -> Iterator[bytes | memoryview]:
            nonlocal sent_bytes
            for block in blocks:
                sent_bytes += len(block)
                yield block

        try:
            obstore.put(
                self._checked(self._sender),
                self._key(key),
                counted(),
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=in_flight,
            )
        except (FileNotFoundError, obstore.exceptions.BaseError) as error:
            # The answer to the request that makes an object of the parts may be lost: it is sent again, and
            # names parts that have become the object meanwhile.
            info = self.info(key) if is_of_parts(error) else None
            if info is None or info.size_bytes != sent_bytes:
                raise

    @typed()
    def signed_url(self, key: str, seconds: float) -> str | None:
        import obstore

        store: Any = self._store  # every kind but those of this machine
        return obstore.sign(store, "GET", self._key(key), timedelta(seconds=seconds))

    def _listed(self, prefix: str) -> "Iterator[ObjectMeta]":
        import obstore

        full = self._key(prefix)
        with typed():
            for page in obstore.list(self._store, f"{full}/" if full else None):
                yield from page

    @typed()
    def folders(self, prefix: str) -> Iterable[str]:
        import obstore

        full = self._key(prefix)
        result = obstore.list_with_delimiter(self._store, f"{full}/" if full else None)
        return [folder.rstrip("/").rpartition("/")[2] for folder in result["common_prefixes"]]

    @typed()
    def delete(self, keys: Iterable[str]) -> None:
        import obstore

        rest = iter(keys)
        while batch := [self._key(key) for key in islice(rest, _DELETED_AT_ONCE)]:
            try:
                # Not every server that speaks S3 knows the request for many.
                obstore.delete(self._store, batch if len(batch) > 1 else batch[0])
            except FileNotFoundError:
                # Somebody else deletes the same; what comes after it is still to be deleted.
                for name in batch:
                    try:
                        obstore.delete(self._store, name)
                    except FileNotFoundError:
                        continue

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}".strip("/") if self._prefix else key


_runtime_pid: int | None = None


def runtime_is_lost() -> bool:
    """Whether a request to a remote store would wait for ever, in a fork of a process that made some."""
    return _runtime_pid not in (None, os.getpid())


def _options(sends_much: bool) -> dict[str, Any]:
    # One request moves at most a part, so a long one is a dead one; the default of 30 s in all would
    # cut parts off on a slow line.
    options: dict[str, Any] = {
        "client_options": {"timeout": _REQUEST_TIMEOUT, "connect_timeout": timedelta(seconds=5)},
        "retry_config": _RETRIES,
    }
    if not sends_much:
        options["client_options"]["read_timeout"] = _SILENCE_TIMEOUT
        options["retry_config"] = {
            **_RETRIES,
            "retry_timeout": min(_RETRIES["retry_timeout"], _SILENCE_RETRIES_TIMEOUT),
        }
    return options


def _asked_once(limit: timedelta) -> dict[str, Any]:
    return {
        "client_options": {"timeout": limit, "connect_timeout": limit, "read_timeout": limit},
        "retry_config": {"max_retries": 0, "retry_timeout": limit},
    }


def settings_of(*beginnings: str) -> tuple[str, ...]:
    """The variables that begin so, with their values."""
    return tuple(
        f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(beginnings)
    )


def _quoted(etag: str) -> str:
    """An ETag as headers have it: Azure's listings leave the quotes out."""
    return f'"{etag}"' if etag and not etag.endswith('"') else etag


@contextmanager
def _into_bucket() -> Iterator[None]:
    """What is not found when something is written is the bucket."""
    try:
        with typed():
            yield
    except FileNotFoundError as error:
        raise no_bucket(error) from error


def _require_bucket(error: FileNotFoundError) -> None:
    """A missing bucket is no missing object: the user must hear of it."""
    if is_no_bucket(error):
        raise no_bucket(error) from error
