"""What WebHDFS answers: of a folder one entry after the other, of a file its status, or why not."""

from __future__ import annotations

import codecs
import errno
import json
import re
from collections.abc import Iterator
from typing import IO, Any, Final, NamedTuple

from trainmaster.objects.errors import StoreTrouble, trouble_of_status
from trainmaster.spec.plain_json import parsed_json, typed

_BLOCK_BYTES: Final = 1 << 20
_SHOWN_BYTES: Final = 200
_START: Final = re.compile(r'\s*\{\s*"FileStatuses"\s*:\s*\{\s*"FileStatus"\s*:\s*\[')
_BETWEEN: Final = re.compile(r"[\s,]*")

_ERRNO = {
    StoreTrouble.UNREACHABLE: errno.EAGAIN,
    StoreTrouble.REFUSED: errno.EACCES,
    StoreTrouble.FULL: errno.ENOSPC,
}


class WebHdfsError(OSError):
    """The namenode or a datanode has refused; `errno` says why, where that is known."""


class NoDatanodeError(WebHdfsError):
    """No datanode takes a block just now, often for want of room."""


class Answer(NamedTuple):
    """Of the namenode or a datanode; where it sends a client on to."""

    status: int
    location: str
    body: bytes


class FileStatus(NamedTuple):
    """Of a file or a folder."""

    name: str
    is_directory: bool
    size_bytes: int
    modified_ms: int
    file_id: int

    @property
    def etag(self) -> str:
        """Changes with each new version of the file."""
        return f"{self.file_id:x}-{self.modified_ms:x}-{self.size_bytes:x}"


def listed_items(said: IO[bytes]) -> Iterator[Any]:
    r"""Reads an answer to ``LISTSTATUS``; of a large folder, all of it need not fit into memory.

    Raises:
        ValueError: it is no such answer, or it is cut off.

    >>> import io
    >>> list(listed_items(io.BytesIO(b'{"FileStatuses":{"FileStatus":[\n{"length":1},{"length":2}\n]}}')))
    [{'length': 1}, {'length': 2}]
    >>> list(listed_items(io.BytesIO(b'{"FileStatuses":{"FileStatus":[')))
    Traceback (most recent call last):
    ValueError: the listing is cut off
    """
    decoder = json.JSONDecoder()
    has_begun, rest = False, ""
    for block in codecs.iterdecode(iter(lambda: said.read(_BLOCK_BYTES), b""), "utf-8"):
        rest += block
        if not has_begun:
            if (start := _START.match(rest)) is None:
                raise ValueError("it is no listing")
            has_begun, rest = True, rest[start.end() :]
        at = 0
        while not rest.startswith("]", at := _end_of(rest, at)):
            try:
                item, at = decoder.raw_decode(rest, at)
            except json.JSONDecodeError:  # the rest of it comes with the next block
                break
            except RecursionError:
                raise ValueError("it is nested too deeply") from None
            yield item
        else:
            return
        rest = rest[at:]
        if len(rest) > _BLOCK_BYTES:  # each block would be read again with all that follow
            raise ValueError("an entry of the listing is none")
    raise ValueError("the listing is cut off")


def listed_statuses(said: IO[bytes]) -> Iterator[FileStatus]:
    """What lies in a folder, by an answer to ``LISTSTATUS``.

    Raises:
        WebHdfsError: it is no such answer, or it is cut off.
    """
    said.seek(0)
    try:
        for status in map(status_of, listed_items(said)):
            if status.name:  # of a file, too, there is a listing: itself, without a name
                yield status
    except ValueError as error:
        said.seek(0)
        raise _no_answer(said.read(_SHOWN_BYTES)) from error


def _end_of(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    return at if found is None else found.end()


def part_of(body: bytes, *names: str) -> Any:  # noqa: ANN401
    """What an answer says under these names."""
    try:
        found = parsed_json(body)
        for name in names:
            found = found[name]
    except (ValueError, LookupError, TypeError) as error:
        raise _no_answer(body) from error
    return found


def status_of(item: dict[str, Any]) -> FileStatus:
    """A status as it stands in an answer.

    Raises:
        WebHdfsError: it is none.
    """
    try:
        return typed(
            FileStatus,
            {
                "name": item["pathSuffix"],
                "is_directory": item["type"] == "DIRECTORY",
                "size_bytes": item["length"],
                "modified_ms": item["modificationTime"],
                "file_id": item.get("fileId", 0),
            },
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _no_answer(repr(item).encode(errors="replace")) from error


def _no_answer(said: bytes) -> WebHdfsError:
    return WebHdfsError(f"HDFS answered {said[:_SHOWN_BYTES]!r}, which means nothing: is it a namenode?")


def is_passing(answer: Answer) -> bool:
    """Whether asking again may help."""
    # 403 is also said while it starts ("safe mode") and to writes that come too early.
    return answer.status >= 500 or b"SafeMode" in answer.body or b"Retriable" in answer.body


def refusal_of(answer: Answer, key: str) -> OSError:
    """Gives the error that an answer stands for."""
    try:
        exception = parsed_json(answer.body)["RemoteException"]
        kind, text = exception["exception"], str(exception["message"]).splitlines()[0]
    except (ValueError, KeyError, TypeError, IndexError):
        kind, text = "", answer.body[:200].decode("utf-8", "replace")
    if kind == "FileNotFoundException" or answer.status == 404:
        return FileNotFoundError(errno.ENOENT, "no such object", key)
    if kind in ("AccessControlException", "SecurityException") or answer.status == 401:
        return PermissionError(errno.EACCES, f"HDFS says: {text}")
    if "QuotaExceeded" in kind:
        return WebHdfsError(errno.EDQUOT, f"Disk quota exceeded: {text}")
    said = f"HDFS says {answer.status} {kind}: {text}"
    trouble = StoreTrouble.UNREACHABLE if is_passing(answer) else trouble_of_status(answer.status)
    error = NoDatanodeError if "replicat" in text else WebHdfsError  # HDFS has no name for it but IOException
    return error(_ERRNO[trouble], said) if trouble in _ERRNO else error(said)
