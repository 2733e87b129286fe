"""Lists of names that are to be deleted, which no later version names: so a delete can never be too late.

Chunks and tables are named by their content, and a version may name what others have sent. No store deletes
an object only if no new reader counts on it, and between the last look and a delete any time may pass:
processes are halted, machines sleep, requests get stuck. So a name is given up before it is deleted:

1. A collection writes the names that no version names into a list, ``collections/000001.deletions``.
   **A name on a list is never taken into a new version.** A push that has content of that name sends it
   again under another one: names have a generation, ``<hash>``, then ``<hash>.1``, and so on.
2. The number that a version gets is chosen before its names are compared with the lists, and its head is
   created only if nothing has that number (:func:`~trainmaster.volumes.packed.releasing.create_head`).
3. Before a collection frees names of a list, it sees to it that a number is taken which was chosen after
   the list was complete: that of a version, if one was made meanwhile, else one that it takes itself.
4. Then it reads all versions that there are, and deletes the names of the list that none of them names.

Why that is enough: let a push name something on a list. It has not seen the list, so it chose its number
before the list was complete, so that number is taken when (3) is done. Either the push has taken it: then (4)
finds its version and keeps what it names. Or somebody else has: then its head cannot be created, or does not
count, and it chooses another number and compares again, now with the list. So after (4) no version names
what is deleted, and none ever will. That holds for a process that is halted at any line for any time, for
deletes that arrive late, and for any number of collections at once; no clock is asked.

A list is forgotten when all its names were gone and it was at rest for :data:`FORGOTTEN_AFTER_S`; this alone
rests on time, and only on this, that no delete is on its way for longer. The newest list stays: by it a push
that slept notices that others were forgotten.
"""

import json
import re
from collections.abc import Callable, Iterable, Set
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from trainmaster.objects.object_store import ObjectDetail, ObjectStore
from trainmaster.spec.errors import PublishError
from trainmaster.volumes.errors import DamagedVolumeError

#: How long a list is kept whose names are gone.
FORGOTTEN_AFTER_S = 30 * 24 * 3600.0
#: One list has no more names; what is left comes onto the next one.
MOST_NAMES = 500_000
_MOST_BYTES = 64 << 20
_FORMAT = 1
_LIST = re.compile(r"collections/(\d{6,9})\.deletions")
_NAME = re.compile(r"(chunks|manifests)/[^\0]{1,500}")
_READERS = 8


class DeletionList(NamedTuple):
    """Names that were given up together.

    Attributes:
        key: of the list.
        made_s: when, by the store's clock.
        names: keys of chunks and tables.
        newest: the largest number of a version when the list was complete; None if unknown.
    """

    key: str
    made_s: float
    names: frozenset[str]
    newest: int | None


class Deletions:
    """The names that a new version must not have, as far as the lists were read."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lists: dict[ObjectDetail, DeletionList | None] = {}
        self._names: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def refresh(self, listing: Iterable[ObjectDetail] | None = None) -> bool:
        """Reads the lists that are new.

        Args:
            listing: of ``collections/``, if it was made a moment ago.

        Returns:
            Whether there are other lists than at the last time.

        Raises:
            DamagedVolumeError: a list cannot be read, so that what it names is unknown.
            PublishError: the store fails.
        """
        listing = self._store.details("collections") if listing is None else listing
        found = {detail for detail in listing if is_list(detail.key)}
        new = found - self._lists.keys()
        if not new and len(found) == len(self._lists):
            return False
        if len(new) > 1:
            with ThreadPoolExecutor(_READERS) as pool:
                read = dict(zip(new, pool.map(self._read, new), strict=True))
        else:
            read = {detail: self._read(detail) for detail in new}
        self._lists = {detail: read[detail] if detail in new else self._lists[detail] for detail in found}
        self._names.update(*(one.names for one in read.values() if one is not None))
        return True

    @property
    def lists(self) -> list[DeletionList]:
        """The lists, the oldest first."""
        return sorted(
            (one for one in self._lists.values() if one is not None), key=lambda one: _number(one.key)
        )

    def generation(self, key_of: Callable[[int], str]) -> int:
        """Gives the first generation of a name that may be used."""
        generation = 0
        while key_of(generation) in self._names:
            generation += 1
        return generation

    def _read(self, detail: ObjectDetail) -> DeletionList | None:
        where = self._store.url_of(detail.key)
        data = self._store.get(detail.key) if detail.size_bytes <= _MOST_BYTES else b""
        if data is None:
            return None  # forgotten a moment ago, so its names are gone
        return _list_of(data, detail, where)


def write_list(store: ObjectStore, names: Iterable[str], newest: Callable[[], int]) -> None:
    """Gives up names: no push that begins now takes them into a version.

    Args:
        store: the volume.
        names: keys of chunks and tables.
        newest: looks up the largest number of a version.

    Raises:
        PublishError: the store fails. Then the names may be given up.
    """
    known = sorted(names)
    number = 0
    while True:
        numbers = [_number(info.key) for info in store.list("collections") if is_list(info.key)]
        number = max([number, *numbers]) + 1
        key = f"collections/{number:06d}.deletions"
        if store.put_if_absent(key, _bytes(known, None)):
            break
    # Only now: a number that was looked up before could be older than the list.
    store.put(key, _bytes(known, newest()))


def forget_lists(store: ObjectStore, lists: list[DeletionList], there: Set[str], now_s: float) -> None:
    """Takes away lists of which nothing is left, but for the newest.

    Raises:
        PublishError: the store fails.
    """
    spent = [
        one.key
        for one in lists[:-1]
        if now_s - one.made_s >= FORGOTTEN_AFTER_S and one.names.isdisjoint(there)
    ]
    if spent:
        store.delete(spent)


def is_list(key: str) -> bool:
    """Whether this is the key of a list, not of a lease."""
    return _LIST.fullmatch(key) is not None


def _list_of(data: bytes, detail: ObjectDetail, where: str) -> DeletionList:
    try:
        document = json.loads(data)
        if document["format"] != _FORMAT:
            raise PublishError(
                f"{where}: it has format {document['format']!r}; this Trainmaster reads {_FORMAT}.",
                "Use the Trainmaster that wrote it, or upgrade.",
            )
        names, newest = document["names"], document["newest"]
        if not all(isinstance(name, str) and _NAME.fullmatch(name) for name in names):
            raise ValueError("it names what is no chunk and no table")
        if newest is not None and (type(newest) is not int or newest < 0):
            raise ValueError(f"newest is {newest!r}")
        return DeletionList(detail.key, detail.modified_s, frozenset(names), newest)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedVolumeError(
            f"{where} is damaged ({type(error).__name__}: {str(error)[:200]}).",
            "It says what is being deleted; without it nothing can be pushed or collected safely. Restore "
            "it if the store keeps old states of objects; else get the versions and push them elsewhere.",
        ) from error


def _bytes(names: list[str], newest: int | None) -> bytes:
    document = {"format": _FORMAT, "newest": newest, "names": names}
    return json.dumps(document, separators=(",", ":")).encode()


def _number(key: str) -> int:
    found = _LIST.fullmatch(key)
    return int(found[1]) if found else 0
