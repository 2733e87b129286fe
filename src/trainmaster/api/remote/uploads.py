"""`PieceUpload`: a file on its way to a server, in pieces; what broke off goes on where the server is.

`send_code`: a large tar becomes code.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import IO, Any, Final, TypeVar

from trainmaster.api.remote.connection import RestConnection, ServerUnreachableError, quoted
from trainmaster.spec.errors import AccessError, RunError, StoreError
from trainmaster.spec.units import format_bytes, format_duration

T = TypeVar("T")
_PIECE: Final = "application/offset+octet-stream"
#: Code comes over slow lines too, on which it is told how far it is; and proxies take as much without a word.
CODE_PIECE_BYTES: Final = 1 << 20
#: A server that does not answer is asked again after these pauses, in seconds; about ten minutes in all.
_PAUSES_S: Final = (1.0, 2.0, 5.0, 10.0, *([30.0] * 20))
_FINISH_S: Final = 1.0
#: After so long one is told how far code is, and then so often.
_FIRST_TOLD_S: Final = 3.0
_TOLD_EACH_S: Final = 10.0


class PieceUpload:
    """A file on its way to a server; what has arrived is asked of the server, whichever process sent it."""

    def __init__(
        self,
        connection: RestConnection,
        name: str,
        size_bytes: int,
        kind: str,
        say: Callable[[str], object] = str,
        pauses_s: Sequence[float] = _PAUSES_S,
    ) -> None:
        self._to, self._say, self._pauses_s = connection, say, pauses_s
        self._wish: dict[str, Any] = {"name": name, "size_bytes": size_bytes, "kind": kind}
        self._path = f"/uploads/{quoted(self.patiently(self._begun))}"

    def _begun(self) -> str:
        for each in self._to.get("/uploads", name=self._wish["name"])["uploads"]:
            if self._wish.items() <= each.items():
                return str(each["upload"])
        return str(self._to.post("/uploads", self._wish)["upload"])

    def pieces(self, read: Callable[[int, int], bytes], piece_bytes: int) -> Iterator[int]:
        """Send what the server does not have; where it is, before each piece and at the end."""
        offset = int(self.patiently(lambda: self._to.get(self._path))["offset"])
        while offset < self._wish["size_bytes"]:
            yield offset
            data = read(offset, piece_bytes)
            offset = self.patiently(lambda at=offset, piece=data: self._add(at, piece))  # type: ignore[misc]
        yield offset

    def _add(self, offset: int, data: bytes) -> int:
        """Send a piece; where the server is then, which may be behind or before the end of it."""
        try:
            self._to.ask("PATCH", self._path, {}, data, kind=_PIECE, headers={"Upload-Offset": str(offset)})
        except RunError:
            # An answer was lost, a piece came in part, or somebody else pushes the same.
            if (there := int(self._to.get(self._path)["offset"])) == offset:
                raise
            return there
        except AccessError:
            self._to.get(self._path)  # a token that ended in the middle of a piece is told as that
            raise
        return offset + len(data)

    def finish(self, wish: dict[str, Any]) -> dict[str, Any]:
        """What the server has made of it."""
        while True:
            found = self.patiently(lambda: self._to.post(f"{self._path}/finish", wish, repeats=True))
            if found["state"] == "DONE":
                return dict(found["result"])
            self._to.sleep(_FINISH_S)

    def patiently(self, ask: Callable[[], T]) -> T:
        """Ask until the server answers, for some minutes."""
        for pause_s in self._pauses_s:
            try:
                return ask()
            except (ServerUnreachableError, StoreError) as error:
                self._say(f"{error.args[0]}; trying again in {pause_s:.0f} s")
                self._to.sleep(pause_s)
        return ask()


def send_code(connection: RestConnection, digest: str, packed: IO[bytes]) -> Generator[str, None, str]:
    """Send a large tar, from where the server is, also if another process has begun; tells how far it is.

    Args:
        connection: to the server.
        digest: SHA-256 of the tar.
        packed: the tar.

    Returns:
        What the server calls the code.

    Raises:
        UsageError: the server does not take it.
        UnreachableError: the server has not answered for minutes.
    """
    for pause_s in (*_PAUSES_S, None):
        try:
            return (yield from _code_sent(connection, digest, packed))
        except (ServerUnreachableError, StoreError) as error:
            if pause_s is None:
                raise
            yield f"{error.args[0]}; trying again in {pause_s:.0f} s"
            connection.sleep(pause_s)
    raise AssertionError("the last pause is None")


def _code_sent(connection: RestConnection, digest: str, packed: IO[bytes]) -> Generator[str, None, str]:
    size_bytes, whole = packed.seek(0, 2), format_bytes(packed.tell())

    def read(offset: int, count: int) -> bytes:
        packed.seek(offset)
        return packed.read(count)

    upload = PieceUpload(connection, f"{digest}.tar", size_bytes, "code", pauses_s=())
    began_s, first, due_s = time.monotonic(), -1, _FIRST_TOLD_S
    for offset in upload.pieces(read, CODE_PIECE_BYTES):
        took_s = time.monotonic() - began_s
        if first < 0:
            first = offset
            if offset:
                yield f"code: {format_bytes(offset)} of {whole} were sent before"
        elif took_s >= due_s and offset < size_bytes:
            left_s = took_s * (size_bytes - offset) / (offset - first) if offset > first else None
            left = f", about {format_duration(left_s)} left" if left_s is not None else ""
            yield f"code: {format_bytes(offset)} of {whole} sent{left}"
            due_s = took_s + _TOLD_EACH_S
    return str(upload.finish({})["code"])
