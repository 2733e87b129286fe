"""The head of a version: a small object that is created once and names everything else."""

import json
import re
import secrets
from bisect import bisect_right
from collections.abc import Container, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from hashlib import sha256
from typing import Any, Literal, TypeAlias

from trainmaster.dataclass import dataclass
from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import NotFoundError, PublishError
from trainmaster.volumes.errors import DamagedVolumeError
from trainmaster.volumes.packed.hashes import HASH_NAME

_FORMAT = 2
# The same with names of a later generation, which a reader of 2 only would look for in the wrong place.
_FORMAT_WITH_GENERATIONS = 3
# No version: reserves a number (see `deletions`).
_FENCE = "fence"
#: How a note begins that names the run whose task made a version.
MADE_BY = "made by run "
_HEAD = re.compile(r"heads/(\d{6,9})\.(json|removed)")
_SHA256 = re.compile(r"[0-9a-f]{64}")
#: Offsets in a chunk have 32 bits.
MOST_CHUNK_BYTES = 1 << 31
_COUNTS = ("version", "chunk_limit_bytes", "file_count", "row_count", "total_bytes", "chunk_count")
VolumeKind: TypeAlias = Literal["packed", "indexed"]


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A Parquet file of a version, in ``manifests/``.

    Attributes:
        sha256: of its bytes, in hexadecimal; its name.
        size_bytes: of the object.
        generation: of its name; not 0 if the first one was given up when it was sent (see `deletions`).
    """

    sha256: str
    size_bytes: int
    generation: int = 0

    @property
    def key(self) -> str:
        """Where it lies in the volume."""
        return f"manifests/{self.sha256}{name_suffix(self.generation)}.parquet"


def name_suffix(generation: int) -> str:
    """What the name of a chunk or table of a later generation has behind its hash."""
    return f".{generation}" if generation else ""


@dataclass(frozen=True, slots=True)
class Head:
    """What a version is.

    Attributes:
        version: its number, from 1.
        created_at: when it was published, in UTC.
        kind: ``packed`` if the volume has the bytes, ``indexed`` if foreign objects have them.
        order: how the files are packed: ``path`` or ``archive``.
        chunk_limit_bytes: no chunk is larger.
        file_count: rows that are files.
        row_count: rows in all.
        total_bytes: of the files.
        chunk_count: rows of the chunk table.
        files: the table of files, directories and links.
        chunks: the table of chunks.
        parts: of an indexed volume: which ranges of which objects the chunks are.
        source_url: of an indexed volume: what the objects' keys are relative to.
        notes: what was left out and why, and which run made it.
        nonce: makes two heads differ that say the same.
        generations: of the names of chunks, as (first chunk, how many, generation), in their order; those
            that are not there have 0.
    """

    version: int
    created_at: datetime
    kind: VolumeKind
    order: str
    chunk_limit_bytes: int
    file_count: int
    row_count: int
    total_bytes: int
    chunk_count: int
    files: StoredTable
    chunks: StoredTable
    parts: StoredTable | None = None
    source_url: str = ""
    notes: tuple[str, ...] = ()
    nonce: str = ""
    generations: tuple[tuple[int, int, int], ...] = ()

    def generation(self, chunk: int) -> int:
        """Gives the generation of the name of a chunk."""
        place = bisect_right(self.generations, chunk, key=lambda run: run[0]) - 1
        if place < 0:
            return 0
        first, count, generation = self.generations[place]
        return generation if chunk < first + count else 0

    @property
    def tables(self) -> tuple[StoredTable, ...]:
        """The objects in ``manifests/`` that it names."""
        return (self.files, self.chunks) if self.parts is None else (self.files, self.chunks, self.parts)

    @property
    def table_id(self) -> str:
        """Names what is made of the tables on a node: the same for versions with the same content."""
        parts = [self.kind, self.source_url, str(self.chunk_limit_bytes)]
        return sha256("\n".join([*parts, *(table.sha256 for table in self.tables)]).encode()).hexdigest()

    def to_json(self) -> bytes:
        """Gives the bytes of the object."""
        has_generations = bool(self.generations) or any(table.generation for table in self.tables)
        document = {
            "format": _FORMAT_WITH_GENERATIONS if has_generations else _FORMAT,
            "hash": HASH_NAME,
            **asdict(self, dict_factory=_document),
        }
        text = json.dumps(document, separators=(",", ":"), default=datetime.isoformat)
        return text.encode("ascii") + b"\n"

    @classmethod
    def from_json(cls, data: bytes, where: str) -> "Head":
        """Reads and checks a head that may come from anybody.

        Args:
            data: the bytes of the object.
            where: its URL, for the messages.

        Raises:
            PublishError: it is no head, or one of a later format.
        """
        try:
            document = json.loads(data)
            if document["format"] not in (_FORMAT, _FORMAT_WITH_GENERATIONS):
                raise PublishError(
                    f"{where}: it has format {document['format']!r}; this Trainmaster reads {_FORMAT} and "
                    f"{_FORMAT_WITH_GENERATIONS}.",
                    "Read it with the Trainmaster that wrote it, or upgrade.",
                )
            if document["hash"] != HASH_NAME:
                raise PublishError(
                    f"{where}: its chunks have the hash {document['hash']!r}, not {HASH_NAME}.",
                    "Read it with the Trainmaster that wrote it, or upgrade.",
                )
            checked: dict[str, Any] = {name: _count(document, name) for name in _COUNTS}
            checked |= {name: _text(document, name) for name in ("order", "source_url", "nonce")}
            head = cls(
                created_at=datetime.fromisoformat(document["created_at"]),
                kind=_kind(document),
                files=_table(document["files"]),
                chunks=_table(document["chunks"]),
                parts=None if document["parts"] is None else _table(document["parts"]),
                notes=tuple(str(note) for note in document["notes"]),
                generations=_generations(document),
                **checked,
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DamagedVolumeError(
                f"{where} is damaged ({type(error).__name__}: {error}).",
                "Use another version (`trainmaster volume versions`), or push again.",
            ) from error
        if not 0 < head.chunk_limit_bytes <= MOST_CHUNK_BYTES or max(head.row_count, head.chunk_count) >> 32:
            raise DamagedVolumeError(f"{where} names impossible sizes.", "Use another version.")
        return head


def head_key(version: int) -> str:
    """Where a head lies in the volume."""
    return f"heads/{version:06d}.json"


def tombstone_key(version: int) -> str:
    """What takes a head's place when its version is removed, so that its number is never used again."""
    return f"heads/{version:06d}.removed"


def head_numbers(store: ObjectStore) -> tuple[list[int], int]:
    """Lists the versions of a volume.

    Returns:
        Those that are there, sorted, and the largest number ever used (0: none).
    """
    alive: set[int] = set()
    removed: set[int] = set()
    for info in store.list("heads"):
        if found := _HEAD.fullmatch(info.key):
            (alive if found[2] == "json" else removed).add(int(found[1]))
    return sorted(alive - removed), max(alive | removed, default=0)


def remove_version(store: ObjectStore, version: int) -> None:
    """Removes a version; its number is never used again, its chunks stay until a collection.

    Raises:
        NotFoundError: there is no such version.
        PublishError: the store fails.
    """
    if version not in head_numbers(store)[0]:
        raise NotFoundError(
            f"{store.url}: there is no version {version}.", "See `trainmaster volume versions`."
        )
    store.put(tombstone_key(version), b"{}")
    store.delete([head_key(version)])


def take_number(store: ObjectStore, number: int) -> None:
    """Sees to it that no version is made with this number any more, if none has it.

    Raises:
        PublishError: the store fails.
    """
    fence = {"format": _FENCE, "nonce": new_nonce()}
    is_ours = store.put_if_absent(head_key(number), json.dumps(fence).encode())
    if is_ours or is_fence(store.get(head_key(number)) or b""):
        store.put(tombstone_key(number), b"{}")


def is_fence(data: bytes) -> bool:
    """Whether this is no version, but takes its number only."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("format") == _FENCE


def alive_heads(store: ObjectStore, known: Container[int] = ()) -> Iterator[Head]:
    """Reads the heads of all versions that there are.

    Args:
        store: the volume.
        known: versions that need not be read.

    Raises:
        PublishError: one is damaged, or the store fails.
    """
    for version in head_numbers(store)[0]:
        if version not in known and (head := head_of(store, version)) is not None:
            yield head


def newest_version(store: ObjectStore, alive: list[int]) -> int:
    """Gives the newest of these versions that is one; 0 for none.

    Raises:
        PublishError: the store fails.
    """
    for version in reversed(alive):
        data = store.get(head_key(version))
        if data is not None and not is_fence(data):
            return version
    return 0


def read_head(store: ObjectStore, version: int | None) -> Head:
    """Reads a version's head; the newest for None.

    Raises:
        NotFoundError: there is no such version, or no volume at all.
        PublishError: it is damaged, or the store fails.
    """
    alive, newest = head_numbers(store)
    wanted = [*reversed(alive)] if version is None else [version] if version in alive else []
    for number in wanted:
        if (head := head_of(store, number)) is not None:
            return head
    if version is None:
        gone = "all its versions were removed" if newest else "there is no volume"
        raise NotFoundError(
            f"{store.url}: {gone}.", "Look at the URL; `trainmaster volume push SRC URL` makes one."
        )
    known = ", ".join(map(str, alive[-10:])) or "none"
    raise NotFoundError(
        f"{store.url}: there is no version {version}.",
        f"The newest ones are: {known}." if alive else "There is no volume at this URL.",
    )


def head_of(store: ObjectStore, version: int) -> Head | None:
    """Reads a head; None if it was removed meanwhile, or only takes a number.

    Raises:
        PublishError: it is damaged, or the store fails.
    """
    data = store.get(head_key(version))
    if data is None or is_fence(data):
        return None
    where = store.url_of(head_key(version))
    head = Head.from_json(data, where)
    if head.version != version:
        raise DamagedVolumeError(f"{where} says that it is version {head.version}.", "Use another version.")
    return head


def new_nonce() -> str:
    """Gives a text that no other head has."""
    return secrets.token_hex(8)


def _document(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """A head, or a table of it; generations only where there are some, as earlier versions wrote it."""
    return {name: value for name, value in fields if value or not name.startswith("generation")}


def _table(document: Mapping[str, Any]) -> StoredTable:
    digest = _text(document, "sha256")
    if not _SHA256.fullmatch(digest):
        raise ValueError(f"{digest!r} is no SHA-256")
    generation = _count(document, "generation") if "generation" in document else 0
    return StoredTable(digest, _count(document, "size_bytes"), generation)


def _generations(document: Mapping[str, Any]) -> tuple[tuple[int, int, int], ...]:
    runs = []
    end = 0
    for run in document.get("generations", ()):
        first, count, generation = run
        if not all(type(value) is int for value in run) or first < end or count < 1 or generation < 1:
            raise ValueError(f"generations of chunks {run!r}")
        end = first + count
        runs.append((first, count, generation))
    if end > document["chunk_count"]:
        raise ValueError(f"generations of {end} chunks")
    return tuple(runs)


def _kind(document: Mapping[str, Any]) -> VolumeKind:
    kind = document["kind"]
    if kind not in ("packed", "indexed"):
        raise ValueError(f"kind {kind!r}")
    if (kind == "indexed") != (document["parts"] is not None):
        raise ValueError(f"a {kind} volume {'without' if kind == 'indexed' else 'with'} parts")
    return "packed" if kind == "packed" else "indexed"


def _count(document: Mapping[str, Any], name: str) -> int:
    value = document[name]
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{name} is {value!r}")
    return value


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}")
    return value
