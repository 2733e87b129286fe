"""`ServedVolume`: a team's volume on a server as an object store that can be read; `mount_served` mounts it.

A server gives the objects of a volume as they are, so what reads and proves volumes does so here as well:
tables and chunks by their hashes, through this machine's cache. They lie below
``trainmaster+https://HOST/volumes/NAME``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import quote

from trainmaster.api.remote.connection import RestConnection, ServerUnreachableError
from trainmaster.api.remote.contexts import Contexts
from trainmaster.api.remote.volumes import RemoteVolume, info_of
from trainmaster.objects import plugins
from trainmaster.objects.backend import Backend, ObjectDetail
from trainmaster.objects.errors import RefusingStoreError, UnreachableStoreError
from trainmaster.spec.errors import NotFoundError, TrainmasterError
from trainmaster.volumes.mounting import mount
from trainmaster.volumes.mounting.mounts import Means
from trainmaster.volumes.mounting.server import main
from trainmaster.volumes.packed.head import head_key

_SCHEME: Final = "trainmaster+"
_PAGE: Final = "/volumes/"


def mount_served(
    connection: RestConnection,
    text: str,
    directory: Path,
    *,
    foreground: bool = False,
    means: Means | None = None,
) -> str:
    """Mount a version of a volume of a server; arguments and errors are those of `volumes.mounting.mount`.

    Its processes ask the server with the token of this connection, which they get in memory.

    Args:
        connection: to the server.
        text: ``NAME`` or ``NAME@VERSION``.
        directory: where.
        foreground: serve until it is ended.
        means: as of `mount`.

    Returns:
        ``NAME@VERSION``.
    """
    found = RemoteVolume(connection, text)
    know_servers()
    os.environ["TRAINMASTER_TOKEN"] = connection.token
    uri = f"{_SCHEME}{connection.url}{_PAGE}{found.uri}"
    mount(uri, directory, foreground=foreground, means=means, module=__name__)
    return found.uri


def know_servers() -> None:
    """Have URLs of volumes of servers mean something in this process."""
    for scheme in ("http", "https"):
        plugins.factories[f"{_SCHEME}{scheme}"] = partial(ServedVolume, scheme)


class ServedVolume(Backend):
    """The objects of a volume, read-only.

    Args:
        scheme: of the server's URL.
        rest: ``HOST[:PORT][/PREFIX]/volumes/NAME``.
    """

    def __init__(self, scheme: str, rest: str) -> None:
        server, _, name = rest.partition(_PAGE)
        found = Contexts().of_url(f"{scheme}://{server}")
        self._to = RestConnection(found.url, found.token, found.fingerprint)
        self._name = quote(name)

    def get(self, key: str, limit_bytes: int) -> bytes | None:
        found = bytearray()
        try:
            for block in self._blocks(key):
                found += block
                if len(found) > limit_bytes:
                    raise OverflowError(len(found))
        except FileNotFoundError:
            return None
        return bytes(found)

    def get_range(self, key: str, start: int, length: int, etag: str) -> memoryview:
        return memoryview(b"".join(self._blocks(key, start, length)))

    def range_blocks(self, key: str, start: int, length: int, etag: str) -> Iterator[memoryview]:
        return map(memoryview, self._blocks(key, start, length))

    def info(self, key: str) -> ObjectDetail | None:
        folder = key.rpartition("/")[0]
        return next((each for each in self.details(folder) if each.key == key), None)

    def details(self, prefix: str) -> Iterator[ObjectDetail]:
        """Its versions: the rest is never listed."""
        if prefix != "heads":
            self._refuse()
        try:
            found = info_of(self._ask(self._to.get, f"/volumes/{self._name}"))
        except FileNotFoundError:  # nothing lies there
            return
        for head in found.versions:
            yield ObjectDetail(head_key(head.version), 0, "", head.created_at.timestamp())

    def blocks(self, key: str) -> Iterator[bytes]:
        return self._blocks(key)

    def folders(self, prefix: str) -> Iterable[str]:
        self._refuse()

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._refuse()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._refuse()

    def put_blocks(self, key: str, blocks: Iterable[bytes], size_bytes: int) -> None:
        self._refuse()

    def delete(self, keys: Iterable[str]) -> None:
        self._refuse()

    def _blocks(self, key: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        end = None if length is None else start + length
        pieces = self._to.pieces(f"/volume-objects/{self._name}", {"key": key, "end": end}, begin=start)
        while piece := self._ask(lambda: list(islice(pieces, 1))):
            yield from piece

    def _ask(self, ask: Any, *words: str) -> Any:  # noqa: ANN401 - what it is answered with
        try:
            return ask(*words)
        except NotFoundError as error:
            raise FileNotFoundError(str(error)) from None
        except ServerUnreachableError as error:
            raise UnreachableStoreError(str(error).rstrip("."), error.hint) from error
        except TrainmasterError as error:
            raise RefusingStoreError(str(error).rstrip("."), error.hint) from error

    def _refuse(self) -> NoReturn:
        raise RefusingStoreError("volumes of a server can only be read so", "Use `trainmaster volume`.")


if __name__ == "__main__":
    know_servers()
    main("trainmaster.api.remote.volume_objects")
