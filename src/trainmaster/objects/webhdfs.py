"""Objects kept by HDFS, through WebHDFS.

An object is written beside its place and renamed into it, so it appears whole or not at
all; a rename onto something that is there is refused by the namenode, which makes it a
create-only write. A client that reads or writes is sent to a datanode; one that is dead is named to
the namenode and another is asked for. What they answer: `webhdfs_answers`.
"""

from __future__ import annotations

import errno
import getpass
import http.client
import os
import random
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any
from urllib.parse import quote, urlencode, urlsplit

from trainmaster.objects.backend import Backend, ObjectDetail
from trainmaster.objects.errors import ObjectChangedError
from trainmaster.objects.webhdfs_answers import (
    Answer,
    FileStatus,
    WebHdfsError,
    is_passing,
    listed_statuses,
    part_of,
    refusal_of,
    status_of,
)

DEFAULT_PORT = 9870
_BLOCK_BYTES = 1 << 20
_PART_BYTES = 8 << 20
_SCRATCH = ".in-the-making-"
_CONNECT_TIMEOUT_S = 5.0
_TIMEOUT_S = 120.0
# A datanode that dies is noticed by the namenode after half a minute or more.
_PATIENCE_S = 60.0
#: One that has never answered is more likely a wrong address than one that starts again.
_FIRST_PATIENCE_S = 5.0


class WebHdfsBackend(Backend):
    """The files below one directory of an HDFS.

    Args:
        rest: ``NAMENODE[:PORT]/PATH``; the port is that of WebHDFS, 9870 by default.
        user: who asks; ``HADOOP_USER_NAME``, or who runs this, if it is empty.
        scratch: absolute path of the directory for files in the making, so that those of a process that was
            killed do not lie among the others; empty: each beside its place.
    """

    in_memory_bytes = _PART_BYTES

    def __init__(self, rest: str, user: str = "", scratch: str = "") -> None:
        authority, _, path = rest.partition("/")
        host, _, port = authority.partition(":")
        self._namenode = (host, int(port) if port else DEFAULT_PORT)
        self._root = "/" + path.strip("/")
        self._user = user or os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
        self._scratch = scratch
        #: Folders that are there for sure: a file is not renamed into one that is not.
        self._made: set[str] = set()
        self._has_answered = False
        self._kept = _KeptConnections(*self._namenode)

    def get(self, key: str, limit_bytes: int) -> bytes | None:
        try:
            data = self._read(key, 0, limit_bytes + 1)
            if len(data) > limit_bytes:
                raise OverflowError(len(data))
            return data
        except FileNotFoundError:
            return None

    def get_range(self, key: str, start: int, length: int, etag: str) -> memoryview:
        if etag:
            status = self._status(key)
            if status is None:
                raise FileNotFoundError(errno.ENOENT, "no such object", key)
            if status.etag != etag:
                raise ObjectChangedError("another ETag", "It was written again meanwhile.")
        return memoryview(self._read(key, start, length))

    def info(self, key: str) -> ObjectDetail | None:
        status = self._status(key)
        return None if status is None or status.is_directory else _detail(key, status)

    def details(self, prefix: str) -> Iterator[ObjectDetail]:
        pending = [prefix]
        while pending:
            folder = pending.pop()
            for status in self._listed(folder):
                key = f"{folder}/{status.name}" if folder else status.name
                if status.is_directory:
                    pending.append(key)
                elif not status.name.startswith(_SCRATCH):
                    yield _detail(key, status)

    def blocks(self, key: str) -> Iterator[bytes]:
        status = self._status(key)
        if status is None or status.is_directory:
            raise FileNotFoundError(errno.ENOENT, "no such object", key)
        for start in range(0, status.size_bytes, _PART_BYTES):
            length = min(_PART_BYTES, status.size_bytes - start)
            yield self._read(key, start, length)

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._place(key, self._written(key, [data], len(data)), overwrite=True)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if self._status(key) is not None:
            return False
        return self._place(key, self._written(key, [data], len(data)), overwrite=False)

    def put_file_if_absent(self, key: str, file: IO[bytes], **options: str) -> bool:
        """Writes a file's content only if there is no such object; like :meth:`put_if_absent`.

        Args:
            key: where.
            file: the content.
            options: of WebHDFS, for the new file.
        """
        scratch = self._written(key, file, file.seek(0, os.SEEK_END), **options)
        return self._place(key, scratch, overwrite=False)

    def put_blocks(self, key: str, blocks: Iterable[bytes], size_bytes: int) -> None:
        # Kept here first: a datanode may die in the middle, and then it is sent once more.
        with tempfile.SpooledTemporaryFile(max_size=_PART_BYTES) as spool:
            for block in blocks:
                spool.write(block)
            length = spool.tell()
            spool.seek(0)
            scratch = self._written(key, spool, length)
        self._place(key, scratch, overwrite=True)

    def write(
        self,
        key: str,
        source: Callable[[], Iterable[bytes | memoryview]],
        length: int,
        *,
        looks: bool,
        **options: str,
    ) -> ObjectDetail | None:
        """Writes a file in its place, where it is seen before it is whole.

        Args:
            key: where.
            source: gives its blocks from the beginning, each time that it is called: for a second try nothing
                is kept here.
            length: how many bytes that are, exactly.
            looks: whether HDFS is asked at once if it has them; else somebody else does.
            options: of WebHDFS, for the new file.

        Returns:
            What HDFS has, if it was asked.
        """
        found = self._sent(key, source, length, looks=looks, **options)
        return None if found is None else _detail(key, found)

    def files(self, folder: str) -> Iterator[ObjectDetail]:
        """Gives what is in a folder, but not in those below."""
        for status in self._listed(folder):
            if not status.is_directory:
                yield _detail(f"{folder}/{status.name}" if folder else status.name, status)

    def total_bytes(self) -> int:
        """How many bytes all files have together."""
        try:
            return int(self._said("GET", "", "GETCONTENTSUMMARY", "ContentSummary", "length"))
        except FileNotFoundError:
            return 0

    def folders(self, prefix: str) -> Iterable[str]:
        return [status.name for status in self._listed(prefix) if status.is_directory]

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._ask("DELETE", key, "DELETE", recursive="false")

    def delete_all(self, prefix: str) -> None:
        self._ask("DELETE", prefix, "DELETE", recursive="true")

    def _status(self, key: str) -> FileStatus | None:
        try:
            return status_of(self._said("GET", key, "GETFILESTATUS", "FileStatus"))
        except FileNotFoundError:
            return None

    def _listed(self, folder: str) -> Iterator[FileStatus]:
        with tempfile.SpooledTemporaryFile(max_size=_PART_BYTES) as said:
            try:
                self._asked("GET", folder, {"op": "LISTSTATUS"}, said)
            except FileNotFoundError:
                return
            yield from listed_statuses(said)

    def _place(self, key: str, scratch: str, *, overwrite: bool) -> bool:
        options = {"renameoptions": "OVERWRITE"} if overwrite else {}
        target = self._path(key)
        folder = key.rpartition("/")[0]
        if self._scratch and folder not in self._made:
            self._ask("PUT", folder, "MKDIRS")
            self._made.add(folder)
        try:
            answer = self._ask("PUT", scratch, "RENAME", destination=target, **options)
            if overwrite or part_of(answer.body, "boolean"):
                return True
        except (WebHdfsError, FileNotFoundError):
            # The answer to a first try may have been lost, and the second finds nothing to rename.
            if self._status(scratch) is not None or self._status(key) is None:
                self._ask("DELETE", scratch, "DELETE", recursive="false")
                raise
            return True
        self._ask("DELETE", scratch, "DELETE", recursive="false")
        return False

    def _written(
        self,
        key: str,
        data: Iterable[bytes | memoryview] | IO[bytes] | Callable[[], Iterable[bytes | memoryview]],
        length: int,
        **options: str,
    ) -> str:
        """Writes a file beside the place of ``key``, or with all in the making, and gives its key."""
        name = f"{_SCRATCH}{secrets.token_hex(8)}"
        folder = key.rpartition("/")[0]
        scratch = f"{self._scratch}/{name}" if self._scratch else f"{folder}/{name}".lstrip("/")
        self._sent(scratch, data, length, looks=True, **options)
        return scratch

    def _sent(
        self,
        key: str,
        data: Iterable[bytes | memoryview] | IO[bytes] | Callable[[], Iterable[bytes | memoryview]],
        length: int,
        *,
        looks: bool,
        **options: str,
    ) -> FileStatus | None:
        """Writes a file; nothing of it stays where that fails."""
        found: FileStatus | None = None

        def send(location: str) -> None:
            nonlocal found
            body: Iterator[bytes | memoryview]
            if callable(data):
                body = iter(data())
            elif hasattr(data, "seek") and hasattr(data, "read"):
                data.seek(0)
                body = iter(lambda: data.read(_BLOCK_BYTES), b"")
            else:
                body = iter(data)
            answer = self._request("PUT", location, body, length)
            if answer.status not in (200, 201):
                raise refusal_of(answer, key)
            # Before Hadoop 3 a datanode says so even where it could not close the file: that is empty then.
            found = self._status(key) if looks else None
            if found and found.size_bytes != length:
                raise WebHdfsError(
                    errno.EAGAIN, f"HDFS has {found.size_bytes} of {length} bytes that it said were written"
                )

        try:
            self._through_datanode("PUT", key, "CREATE", send, overwrite="true", **options)
        except BaseException:
            with suppress(OSError):
                self._ask("DELETE", key, "DELETE", recursive="false")
            raise
        return found

    def _read(self, key: str, start: int, length: int) -> bytes:
        options = {"offset": str(start), "length": str(length)}
        if length == 0:
            return b""
        found: list[bytes] = []

        def receive(location: str) -> None:
            answer = self._request("GET", location)
            if answer.status != 200:
                raise refusal_of(answer, key)
            found.append(answer.body)

        self._through_datanode("GET", key, "OPEN", receive, **options)
        return found[0] if found else b""

    def _through_datanode(self, method: str, key: str, operation: str, use: Any, **options: str) -> None:  # noqa: ANN401
        """Asks the namenode where to go, and goes there; somewhere else if that one is dead."""
        deadline = time.monotonic() + _PATIENCE_S
        dead: list[str] = []
        pause_s = 0.2
        while True:
            if dead:
                options["excludedatanodes"] = ",".join(dead)
            try:
                answer = self._ask(method, key, operation, **options)
            except WebHdfsError:
                # All copies may be on nodes that we think dead: then each deserves another try.
                if not dead or time.monotonic() > deadline:
                    raise
                dead.clear()
                options.pop("excludedatanodes", None)
                answer = self._ask(method, key, operation, **options)
            if not answer.location:
                return  # an empty file
            host = urlsplit(answer.location).hostname or ""
            try:
                use(answer.location)
                return
            except (FileNotFoundError, PermissionError):
                raise
            except OSError:
                if time.monotonic() > deadline:
                    raise
                if host in dead:
                    dead.clear()
                else:
                    dead += _names(host)
                time.sleep(pause_s * random.uniform(0.5, 1))  # noqa: S311 - only to spread the load
                pause_s = min(2 * pause_s, 5.0)

    def _said(self, method: str, key: str, operation: str, *names: str) -> Any:  # noqa: ANN401
        return part_of(self._ask(method, key, operation).body, *names)

    def _ask(self, method: str, key: str, operation: str, **options: str) -> Answer:
        return self._asked(method, key, {"op": operation, **options})

    def _asked(
        self, method: str, key: str, options: Mapping[str, str], into: IO[bytes] | None = None
    ) -> Answer:
        """Asks the namenode; one that does not answer is asked again for a while."""
        query = urlencode({"user.name": self._user, **options})
        target = f"/webhdfs/v1{quote(self._path(key))}?{query}"
        began, pause_s = time.monotonic(), 0.2
        while True:
            deadline = began + (_PATIENCE_S if self._has_answered else min(_FIRST_PATIENCE_S, _PATIENCE_S))
            try:
                answer = self._kept.ask(method, target, into)
            except OSError:
                if time.monotonic() > deadline:
                    raise
            else:
                self._has_answered = True
                deadline = began + _PATIENCE_S
                if answer.status < 400:
                    return answer
                if not is_passing(answer) or time.monotonic() > deadline:
                    raise refusal_of(answer, key)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 5.0)

    def _request(
        self, method: str, url: str, body: Iterator[bytes | memoryview] | None = None, length: int = 0
    ) -> Answer:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port or 80, timeout=_CONNECT_TIMEOUT_S
        )
        try:
            return _exchanged(connection, method, f"{parts.path}?{parts.query}", body, length)
        finally:
            connection.close()

    def _path(self, key: str) -> str:
        return key if key.startswith("/") else f"{self._root.rstrip('/')}/{key}".rstrip("/") or "/"


class _KeptConnections:
    """Connections to one server, as many as there were threads at the same time. Threads share it."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._idle: list[http.client.HTTPConnection] = []

    def __del__(self) -> None:
        for connection in self._idle:
            connection.close()

    def ask(self, method: str, target: str, into: IO[bytes] | None) -> Answer:
        """Asks once; only if a connection has been closed since it was last used, once more by a new one."""
        while True:
            connection, is_new = self._taken()
            try:
                answer = _exchanged(connection, method, target, into=into)
            except ConnectionError:
                connection.close()
                if is_new:
                    raise
            except BaseException:
                connection.close()
                raise
            else:
                if connection.sock is not None:  # the server keeps it, too
                    self._idle.append(connection)
                return answer

    def _taken(self) -> tuple[http.client.HTTPConnection, bool]:
        try:
            return self._idle.pop(), False
        except IndexError:
            return http.client.HTTPConnection(*self._address, timeout=_CONNECT_TIMEOUT_S), True


def _exchanged(
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    body: Iterator[bytes | memoryview] | None = None,
    length: int = 0,
    into: IO[bytes] | None = None,
) -> Answer:
    try:
        if connection.sock is None:
            connection.connect()
        connection.sock.settimeout(_TIMEOUT_S)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(length)}
        connection.request(method, target, body=body, headers=headers if body is not None else {})
        response = connection.getresponse()
        found = response.read() if into is None or response.status >= 400 else _kept_in(into, response)
        return Answer(response.status, response.getheader("Location") or "", found)
    except http.client.HTTPException as error:
        if isinstance(error, OSError):
            raise
        raise ConnectionResetError(f"the answer was cut off: {type(error).__name__}") from error


def _kept_in(file: IO[bytes], response: http.client.HTTPResponse) -> bytes:
    file.seek(0)
    file.truncate()
    shutil.copyfileobj(response, file)
    if response.length:
        raise ConnectionResetError("the answer was cut off")
    return b""


def _names(host: str) -> Sequence[str]:
    """The namenode knows its datanodes by address, and sends clients to names."""
    try:
        return list(dict.fromkeys([host, socket.gethostbyname(host)]))
    except OSError:
        return [host]


_SCRATCH = ".in-the-making-"


def _detail(key: str, status: FileStatus) -> ObjectDetail:
    return ObjectDetail(key, status.size_bytes, status.etag, status.modified_ms / 1000)
