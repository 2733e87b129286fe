"""One object store, whatever keeps it: a directory, S3, Google Cloud, Azure, or this process's memory."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from trainmaster.spec.errors import PublishError, UsageError

_REMOTE_SCHEMES = ("s3", "s3a", "gs", "az", "memory", "hdfs")
#: Most bytes of what is read whole, if the caller knows nothing better: documents, not data.
SMALL_BYTES = 64 << 20
#: Variables that name other servers than the public ones.
ENDPOINT_VARIABLES = {"gs": ("GOOGLE_BASE_URL",), "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")}
_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://(.*)", re.DOTALL)


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


class ObjectChangedError(PublishError):
    """An object is no longer the one that was meant: its ETag is another."""


class Backend(Protocol):
    """What a kind of store has to do; see :class:`ObjectStore` for what each call means."""

    in_memory_bytes: int

    def get(self, key: str, limit_bytes: int) -> bytes | None: ...
    def get_range(self, key: str, start: int, length: int, etag: str) -> memoryview: ...
    def range_blocks(self, key: str, start: int, length: int, etag: str) -> Iterator[memoryview]: ...
    def info(self, key: str) -> ObjectDetail | None: ...
    def details(self, prefix: str) -> Iterator[ObjectDetail]: ...
    def blocks(self, key: str) -> Iterator[bytes]: ...
    def put(self, key: str, data: bytes | memoryview) -> None: ...
    def put_if_absent(self, key: str, data: bytes) -> bool: ...
    def put_blocks(self, key: str, blocks: Iterable[bytes], size_bytes: int) -> None: ...
    def exists(self, key: str) -> bool: ...
    def list(self, prefix: str) -> Iterator[ObjectInfo]: ...
    def folders(self, prefix: str) -> Iterable[str]: ...
    def delete(self, keys: Iterable[str]) -> None: ...
    def delete_all(self, prefix: str) -> None: ...


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
        if scheme == "file":
            from trainmaster.objects.local import LocalBackend

            self._backend: Backend = LocalBackend(rest)
            self.url = "file://" + _quoted(rest)
        elif scheme == "hdfs":
            from trainmaster.objects.webhdfs import WebHdfsBackend

            self._backend = WebHdfsBackend(rest)
            self.url = f"hdfs://{rest}"
        else:
            from trainmaster.objects.obstore_backend import RemoteBackend

            self.url = f"{scheme}://{rest}"
            with self._explained("open", ""):
                self._backend = RemoteBackend(scheme, rest)
        self.is_local = scheme == "file"
        self.large_from_bytes = self._backend.in_memory_bytes

    def url_of(self, key: str) -> str:
        """Gives the URL of an object or folder (``""``: of the store itself)."""
        if not key:
            return self.url
        return f"{self.url}/{_quoted(key) if self.is_local else key}"

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
        """Reads like :meth:`get_range`, block by block, with as little copying as the store allows.

        Yields:
            The bytes in their order; a block may be overwritten when the next one is asked for. Some are
            empty: see :class:`~trainmaster.volumes.reading.chunk.RangeSource`.

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

    def blocks(self, key: str) -> Iterator[bytes]:
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

    @contextmanager
    def _explained(self, verb: str, key: str) -> Iterator[None]:
        """Turns what a store raises into a PublishError that says what to do.

        A FileNotFoundError passes: only the caller knows what its absence means.
        """
        try:
            yield
        except (FileNotFoundError, PublishError):
            raise
        except OSError as error:
            raise explained(error, verb, self.url_of(key)) from error
        except Exception as error:
            if not type(error).__module__.startswith("obstore"):
                raise
            if type(error).__name__ == "PreconditionError":
                raise ObjectChangedError(
                    f"{self.url_of(key)} is not the object it was.", "It was written again meanwhile."
                ) from error
            raise explained(error, verb, self.url_of(key)) from error


def split_url(url: str) -> tuple[str, str]:
    """Splits a URL or bare path into a scheme and the rest without a trailing ``/``.

    For ``file`` the rest is an absolute path.

    Raises:
        UsageError: no such kind of store.
    """
    if match := _URL.fullmatch(url):
        scheme, rest = match[1].lower(), match[2]
        if scheme == "file":
            rest = rest.removeprefix("localhost")
            if not rest.startswith("/"):
                raise UsageError(f"{url}: a file:// URL needs an absolute path.", "Write file:///path.")
            return scheme, os.path.normpath(_unquoted(rest)).replace("//", "/", 1)
        if scheme not in _REMOTE_SCHEMES:
            raise UsageError(
                f"{url}: {scheme}:// is no object store Trainmaster knows.",
                "Use file:///path, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix "
                "or hdfs://namenode/path.",
            )
        rest = rest.rstrip("/")
        if ":" in rest.partition("/")[0].rpartition("@")[0]:
            raise UsageError(
                f"{url}: a store's URL holds no password; it would be written down with every object's name.",
                "Credentials come from the environment: AWS_*, GOOGLE_*, AZURE_*.",
            )
        if not rest or rest.startswith("/"):
            raise UsageError(f"{url}: no bucket is named.", f"Write {scheme}://BUCKET/PREFIX.")
        if {".", ".."} & set(rest.split("/")):
            raise UsageError(f"{url}: objects have no `.` and `..` in their names.", "Write the URL without.")
        return ("s3" if scheme == "s3a" else scheme), rest
    if not url:
        raise UsageError(
            "An empty text names no object store.", "Write a path or a URL such as s3://bucket/x."
        )
    return "file", os.path.normpath(Path(url).expanduser().absolute())


def _quoted(path: str) -> str:
    # Only what the way back would misread: a URL that a person can read and paste is worth more.
    return path.replace("%", "%25")


def _unquoted(path: str) -> str:
    if "%" not in path:
        return path
    from urllib.parse import unquote

    return unquote(path, errors="surrogateescape")


_CREDENTIALS = (
    "Check the credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE and ~/.aws (s3://), "
    "GOOGLE_APPLICATION_CREDENTIALS (gs://), AZURE_STORAGE_ACCOUNT_NAME and _KEY, or "
    "AZURE_STORAGE_SAS_TOKEN (az://)."
)
_HINTS = (
    (
        r"No space left|ENOSPC|Disk quota|File too large",
        "Free some space there, or use another place.",
    ),
    (
        r"NoSuchBucket|bucket does not exist",
        "Create the bucket first, or correct its name.",
    ),
    (r"ContainerNotFound", "Create the container first, or correct its name."),
    (r"Read-only file system", "It can only be read; use another TRAINMASTER_STORE."),
    (r"File name too long", "Use a shorter path for the store."),
    (
        r"Not a directory|File exists",
        "A file is where a directory is needed; move it away or use another path.",
    ),
    (
        r"Unauth|credential|Account must|AccessDenied|Forbidden|InvalidAccessKey|SignatureDoesNotMatch"
        r"|\b40[13]\b",
        _CREDENTIALS,
    ),
    (r"incorrectly configured region", "Set AWS_REGION to the region that the bucket is in."),
    (
        r"certificate",
        "Its certificate is not trusted here: name the file of its authority (PEM) in AWS_CA_BUNDLE "
        "or SSL_CERT_FILE.",
    ),
    (
        r"connect|dns|timed out|timeout|reset by peer|error sending request",
        "Check the network and the address (AWS_ENDPOINT_URL, GOOGLE_BASE_URL or "
        "AZURE_STORAGE_ENDPOINT, where one is set), then try again: nothing half-written is visible.",
    ),
)


_XML_ERROR = re.compile(
    r"(?:<\?xml.*?\?>\s*)?<Error\b.*?<Code>(.*?)</Code>(?:.*?<Message>(.*?)</Message>)?.*</Error>", re.DOTALL
)
# What Azure adds to each message, in lines of its own.
_AZURE_TRACE = re.compile(r"\s*RequestId:\S+\s+Time:[\w:.-]+(?<!\.)")
# An error of ours, from the one who gives the keys: its words and its hint.
_PROVIDER = re.compile(r".*External AWS credential provider: \w+: (.*?)\s*\n\s*\.?\s*\n?(.*)", re.DOTALL)
# Why a request could not be sent is said only in the dump behind the text.
_DUMPED = (
    (re.compile(r"InvalidCertificate\(\s*(\w+)"), "its certificate is not trusted ({})"),
    (re.compile(r"\b(ConnectionRefused|HostUnreachable|NetworkUnreachable)\b"), "{}"),
)


def _plain_reason(text: str) -> str:
    """What the library of a store has said, without what only its authors read."""
    reason, _, dump = text.partition("\n\nDebug")
    if "169.254." in reason:  # the library asked a cloud's machine for its role, as its last hope
        return "no credentials were found"
    reason = _XML_ERROR.sub(lambda found: ": ".join(filter(None, found.groups())), reason)
    reason = _AZURE_TRACE.sub("", reason).strip().rstrip(".:")
    for pattern, words in _DUMPED:
        if found := pattern.search(dump):
            return f"{reason}: {words.format(found[1])}"
    return reason


def explained(error: Exception, verb: str, where: str) -> PublishError:
    """Gives the PublishError for what a store, or the file system, has raised.

    Args:
        error: what was raised.
        verb: what was being done, as in "cannot VERB WHERE".
        where: a URL or a path.
    """
    kind = type(error).__name__
    if isinstance(error, OSError) and error.errno is not None:
        reason = error.strerror or kind
    else:
        reason = _plain_reason(str(error)) or kind
    if found := _PROVIDER.fullmatch(reason):
        return PublishError(f"Cannot {verb} {where}: {found[1].rstrip('.')}.", f"{found[2].rstrip('.')}.")
    if isinstance(error, PermissionError) and error.errno is not None:
        hint = "Change the permissions there, or use another directory."
    elif kind in ("PermissionDeniedError", "UnauthenticatedError"):
        hint = _CREDENTIALS
    else:
        hint = next(
            (text for pattern, text in _HINTS if re.search(pattern, reason, re.IGNORECASE)),
            "Try again; if it stays, look at the store itself.",
        )
    return PublishError(f"Cannot {verb} {where}: {reason}.", hint)
