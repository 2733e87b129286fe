"""What lies in the shards of others: tar files (WebDataset too) and MosaicML's MDS."""

import os
import struct
import tarfile
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from trainmaster.artifacts.unpacking import DAMAGE, Header
from trainmaster.objects.object_store import ObjectDetail, ObjectStore
from trainmaster.objects.range_file import RangeFile
from trainmaster.spec.errors import PublishError
from trainmaster.spec.plain_json import parsed_json, typed
from trainmaster.volumes.packed.packing import SourceFile
from trainmaster.volumes.packed.tar_members import TarContents, members, time_ns

_HINT = "Nothing was indexed. `trainmaster volume push` takes any tar."


class ShardIndex(NamedTuple):
    """What a column of an MDS shard is.

    Attributes:
        detail: the shard's object.
        names: of the columns.
        encodings: of the columns.
        sizes: bytes of each column; None where each sample says it.
    """

    detail: ObjectDetail
    names: list[str]
    encodings: list[str]
    sizes: list[int | None]


def tar_members(store: ObjectStore, detail: ObjectDetail) -> list[SourceFile]:
    """Finds the files in a tar by its headers; they lie in a folder named like the tar.

    Raises:
        PublishError: it is no tar that is not compressed, or has members that cannot be in a volume.
    """
    label = store.url_of(detail.key)
    contents = TarContents(label)
    folder = _folder(detail.key, ".tar")
    found = []
    reader = RangeReader(store, detail)
    try:
        archive = tarfile.open(fileobj=reader, mode="r:", errors="surrogateescape", tarinfo=Header)  # noqa: SIM115
    except DAMAGE as error:
        raise PublishError(f"{label} is no tar, or a compressed one ({error}).", _HINT) from error
    with archive:
        for member in members(label, archive, detail.size_bytes):
            if member.islnk():
                raise PublishError(f"{label}: {member.name!r} is a hard link.", _HINT)
            path = contents.take(member)
            if path is None:
                continue
            name = os.fsencode(f"{folder}/{path}")
            described = (name, member.size, member.mode & 0o777, time_ns(member))
            found.append(SourceFile(*described, start=member.offset_data))
    if contents.links:
        raise PublishError(
            f"{label}: {os.fsdecode(contents.links[0][0])!r} is a symbolic link.",
            _HINT,
        )
    return found


def mds_shards(store: ObjectStore, details: dict[str, ObjectDetail]) -> Iterator[ShardIndex]:
    """Reads every ``index.json`` of MosaicML Streaming, in the order of the shards.

    Args:
        store: where they are.
        details: the objects of the store by key.

    Raises:
        PublishError: a shard is compressed or missing, or an index is none.
    """
    for key in sorted(key for key in details if PurePosixPath(key).name == "index.json"):
        label = store.url_of(key)
        try:
            shards = parsed_json(store.get(key) or b"")["shards"]
            for shard in shards:
                yield _shard(store, details, key, shard)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise PublishError(
                f"{label} is no index of MosaicML Streaming ({type(error).__name__}: {error}).", _HINT
            ) from error


def mds_members(store: ObjectStore, shard: ShardIndex) -> list[SourceFile]:
    """Finds the columns of the samples in an MDS shard: a file ``00000012.COLUMN.ENCODING`` for each.

    Raises:
        PublishError: it is no MDS shard, or is damaged.
    """
    label = store.url_of(shard.detail.key)
    folder = _folder(shard.detail.key, ".mds")
    reader = RangeReader(store, shard.detail)
    free = [number for number, size in enumerate(shard.sizes) if size is None]
    fixed_bytes = sum(size or 0 for size in shard.sizes)
    members = []
    try:
        (count,) = struct.unpack("<I", reader.read(4))
        ends = struct.unpack(f"<{count + 1}I", reader.read(4 * (count + 1)))
        for sample in range(count):
            start, end = ends[sample], ends[sample + 1]
            position = start + 4 * len(free)
            sizes = list(shard.sizes)
            if len(free) == 1:
                # The last one follows from the length: the shard itself need not be read.
                sizes[free[0]] = end - position - fixed_bytes
            elif free:
                reader.seek(start)
                for column, size in zip(
                    free, struct.unpack(f"<{len(free)}I", reader.read(4 * len(free))), strict=True
                ):
                    sizes[column] = size
            for name, encoding, size in zip(shard.names, shard.encodings, sizes, strict=True):
                if size is None or size < 0 or position + size > end:
                    raise ValueError(f"sample {sample} is longer than it is")
                path = f"{folder}/{sample:08}.{_plain(name)}.{_plain(encoding)}"
                members.append(SourceFile(os.fsencode(path), size, start=position))
                position += size
            if position != end or end > shard.detail.size_bytes:
                raise ValueError(f"sample {sample} is shorter than it is")
    except (struct.error, ValueError) as error:
        raise PublishError(f"{label} is damaged, or no MDS shard ({error}).", _HINT) from error
    return members


def _shard(
    store: ObjectStore, details: dict[str, ObjectDetail], index: str, shard: dict[str, Any]
) -> ShardIndex:
    if shard["format"] != "mds":
        raise ValueError(f"its format is {shard['format']!r}")
    if shard.get("zip_data"):
        raise PublishError(
            f"{store.url_of(index)}: its shards are compressed ({shard.get('compression')}): "
            "no range of them means anything.",
            "Write them without compression, or push the files.",
        )
    key = (PurePosixPath(index).parent / shard["raw_data"]["basename"]).as_posix()
    detail = details.get(key)
    if detail is None or detail.size_bytes != shard["raw_data"]["bytes"]:
        raise PublishError(
            f"{store.url_of(index)} names {key}, which is not there or has another size.", _HINT
        )
    names, encodings = (typed(list[str], shard[key]) for key in ("column_names", "column_encodings"))
    sizes = typed(list[int | None], shard["column_sizes"])
    if not len(names) == len(encodings) == len(sizes):
        raise ValueError("columns without names or sizes")
    return ShardIndex(detail, names, encodings, sizes)


def _folder(key: str, suffix: str) -> str:
    return key.removesuffix(suffix)


def _plain(name: str) -> str:
    return name.replace("/", "_").replace("\0", "_")


_FEW_BYTES = 64 << 10
_MANY_BYTES = 4 << 20
# Objects whose pieces are smaller than this on average are read as a whole: requests cost more than bytes.
_SPARSE_FROM_BYTES = 1 << 20


class RangeReader(RangeFile):
    """Reads an object in windows: large ones where reads are dense, small ones where they are far apart.

    Args:
        store: where it is.
        detail: which; its ETag is checked with each request.
    """

    def __init__(self, store: ObjectStore, detail: ObjectDetail) -> None:
        super().__init__(self._windowed, detail.key, detail.size_bytes)
        self._store = store
        self._detail = detail
        self._window_start = 0
        self._window = memoryview(b"")
        self._fetches = 0

    def _windowed(self, position: int, size: int) -> bytes:
        size = min(size, self.size_bytes - position)
        pieces = []
        while size > 0:
            start = position - self._window_start
            if not 0 <= start < len(self._window):
                self._fetch(position, size)
                start = 0
                if not self._window:
                    break
            piece = bytes(self._window[start : start + size])
            pieces.append(piece)
            position, size = position + len(piece), size - len(piece)
        return b"".join(pieces)

    def _fetch(self, position: int, size: int) -> None:
        self._fetches += 1
        is_sparse = position / self._fetches > _SPARSE_FROM_BYTES + _MANY_BYTES
        length = min(max(size, _FEW_BYTES if is_sparse else _MANY_BYTES), self._detail.size_bytes - position)
        self._window_start = position
        self._window = self._store.get_range(self._detail.key, position, length, self._detail.etag)
