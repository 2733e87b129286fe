"""The objects of a store as a source: a bucket of small ones is packed without a copy on this machine."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from trainmaster.artifacts.tree import UnstableDirectory
from trainmaster.objects.names import stays_inside
from trainmaster.objects.object_store import ObjectChangedError, ObjectDetail, ObjectStore
from trainmaster.objects.parallel import all_done
from trainmaster.spec.errors import NotFoundError, PublishError
from trainmaster.volumes.packed.packing import FilePart, SourceFile
from trainmaster.volumes.packed.push_source import CHANGED_HINT, SourceExtras, changed

# Of one chunk; several chunks are loaded at the same time.
_THREADS = 8
_RANGE_BYTES = 8 << 20
_COUNTED_EVERY = 1000


class ObjectSource:
    """Every object below a URL, in the order of their keys.

    Objects are told apart by their ETags: one that is written again while it is pushed is
    noticed, and one that stays as it was is not read by the next push.
    """

    order = "path"
    is_stream = False

    def __init__(self, store: ObjectStore) -> None:
        self.label = store.url
        self.extras = SourceExtras()
        self._store = store
        self._details: list[ObjectDetail] = []
        self._etags: dict[str, str] = {}

    def survey(self) -> int:
        """Lists them.

        Raises:
            NotFoundError: there are none.
            PublishError: a key cannot be a path in a volume, or the store fails.
        """
        self._details = found_objects(self._store)
        if not self._details:
            raise NotFoundError(
                f"{self.label}: there are no objects.", "Look at the URL; nothing was pushed."
            )
        keys = self._etags = {detail.key: detail.etag for detail in self._details}
        for key in keys:
            parts = key.split("/")
            above = ("/".join(parts[:count]) for count in range(1, len(parts)))
            twin = next((folder for folder in above if folder in keys), None)
            if twin is not None:
                raise PublishError(
                    f"{self.label}: {twin!r} is an object, and a folder too (of {key!r}).",
                    "Rename one of them; nothing was pushed.",
                )
            if not stays_inside(key):
                raise PublishError(
                    f"{self.label}: {key!r} cannot be a path in a volume.",
                    "Rename the object; nothing was pushed.",
                )
        return sum(detail.size_bytes for detail in self._details)

    def files(self, limit_bytes: int) -> Iterator[SourceFile]:
        """Gives the objects in the order of their keys."""
        for detail in self._details:
            mtime_ns = int(detail.modified_s * 1_000_000_000)
            name = hashlib.sha256(detail.etag.encode()).digest()
            stamp = (int.from_bytes(name[:8], "big"), detail.size_bytes, mtime_ns, mtime_ns)
            path, place = os.fsencode(detail.key), self._store.url_of(detail.key)
            yield SourceFile(path, detail.size_bytes, 0o644, mtime_ns, place, stamp=stamp)

    def load(self, pieces: Sequence[FilePart], target: memoryview) -> None:
        """Reads objects, many at the same time."""
        ranges = [
            (piece, start, min(_RANGE_BYTES, piece.length - start))
            for piece in pieces
            for start in range(0, piece.length, _RANGE_BYTES)
        ]

        def one(part: tuple[FilePart, int, int]) -> None:
            piece, start, length = part
            key = os.fsdecode(piece.file.path)
            try:
                data = self._store.get_range(key, piece.start + start, length, self._etags[key])
            except (FileNotFoundError, ObjectChangedError):
                raise changed(self._store.url_of(key)) from None
            if len(data) != length:
                raise changed(self._store.url_of(key), "shrank")
            target[piece.offset + start : piece.offset + start + length] = data

        with ThreadPoolExecutor(min(_THREADS, len(ranges) or 1), "objects") as pool:
            all_done(pool.submit(one, part) for part in ranges)

    def confirm(self) -> None:
        """Lists them again."""
        before = {detail.key: detail for detail in self._details}
        for detail in found_objects(self._store):
            if before.pop(detail.key, None) != detail:
                raise UnstableDirectory(
                    f"{self._store.url_of(detail.key)} was written while it was pushed.", CHANGED_HINT
                )
        if before:
            raise UnstableDirectory(
                f"{self._store.url_of(next(iter(before)))} vanished while it was pushed.", CHANGED_HINT
            )


def single_object(store: ObjectStore) -> tuple[ObjectStore, list[ObjectDetail]]:
    """Looks whether the URL of a store is that of one object.

    Returns:
        The store one level above, and the object as it has it; the same store and nothing if there is none.
    """
    above, _, name = store.url.rpartition("/")
    if above.partition("://")[2]:
        folder = ObjectStore(above)
        detail = folder.info(name)
        if detail is not None:
            return folder, [detail]
    return store, []


def found_objects(store: ObjectStore, count: Callable[[int], None] = lambda _: None) -> list[ObjectDetail]:
    """Lists the objects of a store in the order of their keys, folder by folder.

    Args:
        store: where.
        count: told now and then how many there are so far.
    """
    found = []
    for detail in store.details():
        if not _is_marker(detail):
            found.append(detail)
            if len(found) % _COUNTED_EVERY == 0:
                count(len(found))
    return sorted(found, key=_components)


def _is_marker(detail: ObjectDetail) -> bool:
    """Some tools keep empty objects that stand for folders."""
    return detail.key.endswith(("/", "_$folder$")) and detail.size_bytes == 0


def _components(detail: ObjectDetail) -> list[bytes]:
    return os.fsencode(detail.key).split(b"/")
