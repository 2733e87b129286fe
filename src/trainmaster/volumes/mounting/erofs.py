"""An image by which the kernel reads a volume's files itself, out of the slots of the cache.

It is an EROFS image without the files' bytes: names, attributes, and for each file where it begins
on a second *device*, which is the file of slots. See the kernel's ``fs/erofs/erofs_fs.h`` for the
format. Blocks have 512 bytes, so that files in chunks need little room between them.

    0                superblock (at 1024), devices
    2048             inodes, 64 bytes each: directories, links, files; the root is the first
                     inodes of files in several chunks, each followed by where its pieces are
                     contents of directories
                     targets of links
                     files that begin, or end beside others, where no block does, copied

A file that lies in one chunk is one run of blocks. Addresses beyond the image are the slots'.

The contents of directories in an EROFS image.

Names are sorted by their bytes, ``.`` and ``..`` among them, and fill blocks one after the other. A
block begins with twelve bytes per name (inode, where the name begins, kind), then come the names.
"""

import struct
from collections.abc import Callable, Iterable
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trainmaster.dataclass import dataclass
from trainmaster.volumes.errors import NoImageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainmaster.volumes.packed.table import FileTable

_ENTRY = struct.Struct("<QHBx")
_KIND_FILE, _KIND_DIRECTORY, _KIND_LINK = 1, 2, 7


@dataclass(frozen=True, slots=True)
class Contents:
    """Where the contents of each directory lie, by their number: the root is 0.

    Attributes:
        sizes: in bytes.
        blocks: the first of each.
        subdirectories: how many directories lie in each.
        end: the block behind all of them.
    """

    sizes: list[int]
    blocks: list[int]
    subdirectories: list[int]
    end: int


def write_directories(
    table: "FileTable", nids: "NDArray[np.int64]", file: IO[bytes], block: int, block_bytes: int
) -> Contents:
    """Writes the contents of all directories, the root's first.

    Args:
        table: the volume's files.
        nids: number of the inode of each row.
        file: where to, from its position on.
        block: the number of the block there.
        block_bytes: how long a block is.
    """
    numbers: list[int] = nids.tolist()
    first_link = table.row_count - table.link_count
    sizes, blocks, subdirectories = [], [], []
    for row in range(table.file_count, first_link):
        own = len(table.path_bytes(row))
        begin = own + 1 if own else 0
        entries = [
            (b".", numbers[row], _KIND_DIRECTORY),
            (b"..", numbers[table.parent(row)], _KIND_DIRECTORY),
        ]
        inside = 0
        for child in table.children(row):
            kind = (
                _KIND_FILE
                if child < table.file_count
                else _KIND_DIRECTORY
                if child < first_link
                else _KIND_LINK
            )
            inside += kind == _KIND_DIRECTORY
            entries.append((table.path_bytes(child)[begin:], numbers[child], kind))
        entries.sort()
        data, size = _packed(entries, block_bytes)
        file.write(data)
        sizes.append(size)
        blocks.append(block)
        subdirectories.append(inside)
        block += len(data) // block_bytes
    return Contents(sizes, blocks, subdirectories, block)


def _packed(entries: Iterable[tuple[bytes, int, int]], block_bytes: int) -> tuple[bytes, int]:
    """Gives whole blocks, and how many of their bytes count: the last block ends with its last name."""
    done: list[bytes] = []
    pending: list[tuple[bytes, int, int]] = []
    used = 0
    for entry in entries:
        cost = _ENTRY.size + len(entry[0])
        if used + cost > block_bytes:
            done.append(_block(pending).ljust(block_bytes, b"\0"))
            pending, used = [], 0
        pending.append(entry)
        used += cost
    size = len(done) * block_bytes + used
    done.append(_block(pending).ljust(block_bytes, b"\0"))
    return b"".join(done), size


def _block(entries: list[tuple[bytes, int, int]]) -> bytes:
    at = _ENTRY.size * len(entries)
    head = []
    for name, nid, kind in entries:
        head.append(_ENTRY.pack(nid, at, kind))
        at += len(name)
    return b"".join(head) + b"".join([entry[0] for entry in entries])


BLOCK_BITS = 9
BLOCK_BYTES = 1 << BLOCK_BITS
INODES_AT = 2048
INODE_BYTES = 64
_NID_BYTES = 32
_MAGIC = 0xE0F5E1E2
_SUPERBLOCK = struct.Struct("<IIIBBHQQIIII16s16sIHHHBBIQB23x")
_SUPERBLOCK_AT = 1024
_DEVICE = struct.Struct("<64sII56x")
_DEVICES_AT = 1280
_CHUNKS_AND_DEVICES = 0x4 | 0x8
_FLAT, _IN_PIECES = 1 | 0 << 1, 1 | 4 << 1
_INDEXED = 0x20
_MOST_BLOCKS = 1 << 32
_LEAST_PIECE_BITS, _LARGEST_PIECE_BITS = 12, 31
_MOST_COPIED_BYTES = 256 << 20
_FILE, _DIRECTORY, _LINK = 0o100000, 0o040000, 0o120000
_BATCH_ROWS = 1 << 18
_INODE = np.dtype(
    [
        ("format", "<u2"),
        ("xattrs", "<u2"),
        ("mode", "<u2"),
        ("unused", "<u2"),
        ("size", "<u8"),
        ("place", "<u4"),
        ("number", "<u4"),
        ("uid", "<u4"),
        ("gid", "<u4"),
        ("mtime_s", "<i8"),
        ("mtime_ns", "<u4"),
        ("links", "<u4"),
        ("unused2", "V16"),
    ]
)
_PIECE = np.dtype([("high", "<u2"), ("device", "<u2"), ("block", "<u4")])


@dataclass(frozen=True, slots=True)
class ChunkPlacement:
    """Where the chunks of a volume lie.

    Attributes:
        starts: first byte of each chunk in the file of slots; a multiple of ``BLOCK_BYTES``.
        device_bytes: how long that file is.
        read: gives bytes of that file: first, length.
    """

    starts: "NDArray[np.int64]"
    device_bytes: int
    read: Callable[[int, int], memoryview]


class FileOwner(NamedTuple):
    """Whose the files are."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """Which files cannot simply stay where they are, and where the areas of the image are.

    Attributes:
        spanning: rows of files in several chunks.
        copied: rows of files that begin, or end beside others, where no block does.
        piece_bits: of the length of pieces of files in several chunks.
        spanning_at: byte of the inode of each of those.
        directories_at: block where the directories begin.
    """

    spanning: "NDArray[np.int64]"
    copied: "NDArray[np.int64]"
    piece_bits: int
    spanning_at: "NDArray[np.int64]"
    directories_at: int


def write_image(
    table: "FileTable",
    layout: ImageLayout,
    placement: ChunkPlacement,
    file: IO[bytes],
    owner: FileOwner,
    identity: bytes,
) -> None:
    """Writes an image.

    Args:
        table: the volume's files.
        layout: of the image, see :func:`lay_out`.
        placement: where its chunks lie.
        file: where to; empty, and it can be seeked.
        owner: of everything.
        identity: 16 bytes that name the volume.

    Raises:
        NoImageError: the cache is too large.
        OSError: the file cannot be written.
    """
    file.seek(layout.directories_at * BLOCK_BYTES)
    contents = write_directories(table, _nids(table, layout), file, layout.directories_at, BLOCK_BYTES)
    targets = [table.target_bytes(row) for row in range(table.row_count - table.link_count, table.row_count)]
    link_blocks, end = _write_blocks(file, targets, contents.end)
    begins = (
        placement.starts[np.asarray(table.first_chunks)[layout.copied]]
        + np.asarray(table.offsets)[layout.copied]
    )
    lengths = np.asarray(table.sizes)[layout.copied]
    copies = map(placement.read, begins.tolist(), lengths.tolist())
    copy_blocks, end = _write_blocks(file, copies, end)
    device_blocks = placement.device_bytes // BLOCK_BYTES
    if end + device_blocks >= _MOST_BLOCKS:
        raise NoImageError(f"the cache has more than {_MOST_BLOCKS * BLOCK_BYTES >> 40} TiB")

    file.seek(INODES_AT)
    inodes = _inodes(table, range(table.file_count, table.row_count), owner)
    folders, links = np.split(inodes, [len(contents.sizes)])
    folders["mode"] = folders["mode"] & 0o555 | 0o500 | _DIRECTORY
    folders["size"], folders["place"] = contents.sizes, contents.blocks
    folders["links"] = np.array(contents.subdirectories) + 2
    links["mode"] = 0o777 | _LINK
    links["size"], links["place"] = list(map(len, targets)), link_blocks
    file.write(inodes.tobytes())
    for first in range(0, table.file_count, _BATCH_ROWS):
        rows = range(first, min(first + _BATCH_ROWS, table.file_count))
        inodes = _files(table, placement, rows, end, owner)
        some = slice(*np.searchsorted(layout.copied, [rows.start, rows.stop]).tolist())
        inodes["place"][layout.copied[some] - first] = copy_blocks[some]
        file.write(inodes.tobytes())
    for row, at in zip(layout.spanning.tolist(), layout.spanning_at.tolist(), strict=True):
        file.seek(at)
        file.write(_spanning(table, placement, row, layout.piece_bits, owner))
    file.seek(_SUPERBLOCK_AT)
    file.write(_superblock(table.row_count, end, identity))
    file.seek(_DEVICES_AT)
    # The second one has no blocks: it is there for its locks, see `kernel`.
    file.write(_DEVICE.pack(b"slots", device_blocks, end) + _DEVICE.pack(b"locks", 0, 0))
    file.truncate(end * BLOCK_BYTES)


def lay_out(table: "FileTable") -> ImageLayout:
    """Decides which files can stay where they are.

    Raises:
        NoImageError: too many cannot, or large ones.
    """
    files = table.file_count
    sizes = np.asarray(table.sizes)[:files].astype(np.int64)
    offsets, chunks = np.asarray(table.offsets).astype(np.int64), np.asarray(table.first_chunks)
    chunk_sizes = np.asarray(table.chunk_sizes).astype(np.int64)
    full = np.flatnonzero(sizes)
    room = np.zeros(files, np.int64)
    room[full] = chunk_sizes[chunks[full]] - offsets[full]
    spanning = np.flatnonzero(sizes > room)
    is_crooked = (offsets % BLOCK_BYTES != 0) & (sizes > 0)
    is_crooked[full] |= _share_their_last_block(table, full, spanning)
    if is_crooked[spanning].any():
        raise NoImageError("a file of several chunks begins or ends where no block does")
    copied = np.flatnonzero(is_crooked)
    copied_bytes = int((-(-sizes[copied] // BLOCK_BYTES)).sum()) * BLOCK_BYTES
    if copied_bytes > _MOST_COPIED_BYTES:
        raise NoImageError(f"{copied_bytes:,} bytes of files begin or end where no block does")
    piece_bits = _piece_bits(table, spanning)
    pieces = -(-sizes[spanning] >> piece_bits)
    lengths = -(-(INODE_BYTES + pieces * _PIECE.itemsize) // INODE_BYTES) * INODE_BYTES
    ends = INODES_AT + table.row_count * INODE_BYTES + np.cumsum(lengths)
    end = int(ends[-1]) if len(ends) else INODES_AT + table.row_count * INODE_BYTES
    return ImageLayout(spanning, copied, piece_bits, ends - lengths, -(-end // BLOCK_BYTES))


def _share_their_last_block(
    table: "FileTable", full: "NDArray[np.int64]", spanning: "NDArray[np.int64]"
) -> "NDArray[np.bool_]":
    """Says of which files the last block has bytes of another one: programs that map them would see those."""
    stride = int(np.max(np.asarray(table.chunk_sizes), initial=0)) // BLOCK_BYTES * BLOCK_BYTES + BLOCK_BYTES
    starts = np.asarray(table.first_chunks)[full].astype(np.int64) * stride + np.asarray(table.offsets)[full]
    ends = starts + np.asarray(table.sizes)[full]
    for position, row in zip(np.searchsorted(full, spanning).tolist(), spanning.tolist(), strict=True):
        *_, (chunk, offset, length) = table.extents(row)
        ends[position] = chunk * stride + offset + length
    next_starts = np.append(np.sort(starts), np.iinfo(np.int64).max)
    found: NDArray[np.bool_] = next_starts[np.searchsorted(next_starts, ends)] < ends + -ends % BLOCK_BYTES
    return found


def _piece_bits(table: "FileTable", spanning: "NDArray[np.int64]") -> int:
    """Finds the largest power of two that the parts of all files are multiples of, but for their last ones.

    Raises:
        NoImageError: it is less than a page, which the kernel reads too slowly.
    """
    common = 1 << _LARGEST_PIECE_BITS
    for row in spanning.tolist():
        for _, _, length in table.extents(row)[:-1]:
            common |= length
    bits = (common & -common).bit_length() - 1
    if bits < _LEAST_PIECE_BITS:
        raise NoImageError("a large file was cut where no page ends")
    return bits


def _nids(table: "FileTable", layout: ImageLayout) -> "NDArray[np.int64]":
    """Gives the number by which directories name each row: where its inode is."""
    rows = np.arange(table.row_count)
    others = table.row_count - table.file_count
    position = np.where(rows >= table.file_count, rows - table.file_count, rows + others)
    nids: NDArray[np.int64] = position * (INODE_BYTES // _NID_BYTES)
    nids[layout.spanning] = (layout.spanning_at - INODES_AT) // _NID_BYTES
    return nids


def _inodes(table: "FileTable", rows: range, owner: FileOwner) -> "NDArray[Any]":
    """Gives inodes with what all kinds have."""
    inodes = np.zeros(len(rows), _INODE)
    times_ns = np.asarray(table.mtimes[rows.start : rows.stop])
    inodes["format"], inodes["links"] = _FLAT, 1
    inodes["mode"] = table.modes[rows.start : rows.stop]
    inodes["number"] = np.arange(rows.start, rows.stop) + 2
    inodes["uid"], inodes["gid"] = owner
    inodes["mtime_s"], inodes["mtime_ns"] = np.divmod(times_ns, 1_000_000_000)
    return inodes


def _files(
    table: "FileTable", placement: ChunkPlacement, rows: range, slots_at: int, owner: FileOwner
) -> "NDArray[Any]":
    """Gives inodes of files, each as if it were one run of blocks on the device that begins at a block."""
    inodes = _inodes(table, rows, owner)
    inodes["mode"] = inodes["mode"] & 0o555 | _FILE
    inodes["size"] = table.sizes[rows.start : rows.stop]
    full = np.flatnonzero(inodes["size"])
    chunks, offsets = (
        np.asarray(c[rows.start : rows.stop])[full] for c in (table.first_chunks, table.offsets)
    )
    inodes["place"][full] = (placement.starts[chunks] + offsets) // BLOCK_BYTES + slots_at
    return inodes


def _spanning(
    table: "FileTable", placement: ChunkPlacement, row: int, piece_bits: int, owner: FileOwner
) -> bytes:
    """Gives the inode of a file that lies in several chunks, and where its pieces are."""
    inode = _files(table, placement, range(row, row + 1), 0, owner)
    inode["format"], inode["place"] = _IN_PIECES, piece_bits - BLOCK_BITS | _INDEXED
    blocks = []
    for chunk, offset, length in table.extents(row):
        begin = int(placement.starts[chunk]) + offset
        blocks.append((begin + np.arange(0, length, 1 << piece_bits)) // BLOCK_BYTES)
    pieces = np.zeros(sum(map(len, blocks)), _PIECE)
    pieces["block"], pieces["device"] = np.concatenate(blocks), 1
    return inode.tobytes() + pieces.tobytes()


def _write_blocks(
    file: IO[bytes], contents: "Iterable[bytes | memoryview]", block: int
) -> "tuple[NDArray[np.int64], int]":
    """Writes contents into blocks of their own from a block on; gives the first of each, and the end."""
    blocks = []
    for data in contents:
        blocks.append(block)
        file.write(data)
        file.write(bytes(-len(data) % BLOCK_BYTES))
        block += -(-len(data) // BLOCK_BYTES)
    return np.array(blocks, np.int64), block


def _superblock(row_count: int, blocks: int, identity: bytes) -> bytes:
    return _SUPERBLOCK.pack(
        _MAGIC,
        0,
        0,
        BLOCK_BITS,
        0,
        0,  # the root's number
        row_count,
        0,
        0,
        blocks,
        INODES_AT // BLOCK_BYTES,
        0,
        identity,
        b"trainmaster",
        _CHUNKS_AND_DEVICES,
        0,
        2,  # devices beside the image
        _DEVICES_AT // _DEVICE.size,
        0,
        0,
        0,
        0,
        0,
    )
