# ruff: noqa: PTH101, PTH103, PTH115, PTH118, PTH120, PTH123, PTH211 - names are bytes
"""Images for the kernel, read back by a reader of the test's own."""

import io
import os
import shutil
import stat
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from read_erofs import Image

from trainmaster.volumes import Volume
from trainmaster.volumes.errors import NoImageError
from trainmaster.volumes.mounting.erofs import ChunkPlacement, FileOwner, lay_out, write_image
from trainmaster.volumes.packed.pushing import push

CHUNK = 1 << 18
names = st.one_of(
    st.binary(min_size=1, max_size=255).map(lambda name: name.replace(b"/", b"_").replace(b"\0", b"!")),
    st.sampled_from([b"-", b"!", b"...", b"a", b"a.", b"A", b"a" * 255]),
).filter(lambda name: name not in (b".", b".."))
paths = st.lists(names, min_size=1, max_size=3).map(b"/".join)
sizes = st.one_of(st.integers(0, 3000), st.integers(8000, 40_000), st.integers(CHUNK, 4 * CHUNK))
trees = st.dictionaries(paths, st.one_of(sizes, st.none(), names.map(bytes)), max_size=25)


def content(path: bytes, size: int) -> bytes:
    return (path + b"\1") * (size // (len(path) + 1)) + b"x" * (size % (len(path) + 1))


def make(top: bytes, tree: dict) -> None:
    """Makes files (a size), directories (None), links (a target), as far as they fit together."""
    for path, what in tree.items():
        place = os.path.join(top, path)
        try:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            if what is None:
                os.makedirs(place, exist_ok=True)
            elif isinstance(what, int):
                with open(place, "xb") as file:
                    file.write(content(path, what))
                os.chmod(place, 0o400 | len(path) % 0o400)
                os.utime(place, ns=(0, 1_234_567_890_123_456_789 * (len(path) % 3 - 1) // 2))
            else:
                os.symlink(what, place)
        except (FileExistsError, NotADirectoryError, OSError):
            continue


def expected(top: bytes) -> dict:
    found = {b"": os.lstat(top)}
    for directory, folders, files in os.walk(top):
        for name in folders + files:
            place = os.path.join(directory, name)
            found[os.path.relpath(place, top)] = os.lstat(place)
    return found


def placed(volume: Volume) -> ChunkPlacement:
    slots = volume.cache.slots
    starts = [
        volume.cache.obtain(volume.chunk(number)).slot * slots.slot_bytes
        for number in range(volume.table.chunk_count)
    ]
    return ChunkPlacement(
        np.array(starts, np.int64), len(slots.data), lambda at, length: slots.data[at : at + length]
    )


def image_of(volume: Volume, placement: ChunkPlacement | None = None) -> Image:
    file = io.BytesIO()
    write_image(
        volume.table, lay_out(volume.table), placement or placed(volume), file, FileOwner(7, 8), bytes(16)
    )
    return Image(file.getvalue(), volume.cache.slots.data)


@pytest.fixture
def open_tree(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINMASTER_CACHE", os.fspath(tmp_path / "cache"))

    def opened(tree: dict, **how) -> Volume:
        os.makedirs(tmp_path / "src", exist_ok=True)
        make(os.fsencode(tmp_path / "src"), tree)
        how.setdefault("chunk_limit_bytes", CHUNK)
        return Volume.open(
            push(tmp_path / "src", f"file://{tmp_path}/store", **how).uri, limit_bytes=64 * CHUNK
        )

    return opened


@settings(max_examples=25, deadline=None)
@given(trees)
def test_all_that_was_pushed_is_in_the_image(tree):
    home = tempfile.mkdtemp(prefix="trainmaster-image-")
    try:
        top = os.path.join(os.fsencode(home), b"src")
        os.makedirs(top)
        make(top, tree)
        uri = push(Path(home, "src"), f"file://{home}/store", chunk_limit_bytes=CHUNK).uri
        volume = Volume.open(uri, Path(home, "cache"), limit_bytes=64 * CHUNK)
        found = image_of(volume).tree()
        rows = {volume.table.path_bytes(row): row for row in range(volume.table.row_count)}
        assert set(found) == set(rows)
        for path, status in expected(top).items():
            if path not in rows:
                assert stat.S_ISLNK(status.st_mode), "only links that lead outside are left out"
                continue
            inode, place = found[path], os.path.join(top, path)
            assert stat.S_IFMT(inode.mode) == stat.S_IFMT(status.st_mode)
            assert inode.owner == (7, 8)
            assert inode.mtime_ns == volume.table.mtime_ns(rows[path])
            if stat.S_ISREG(status.st_mode):
                with open(place, "rb") as file:
                    assert inode.content == file.read()
                assert inode.mode & 0o777 == status.st_mode & 0o555
                assert inode.mtime_ns == status.st_mtime_ns
                assert inode.links == 1
            elif stat.S_ISLNK(status.st_mode):
                assert inode.content == os.readlink(place)
            else:
                folders = sum(entry.is_dir(follow_symlinks=False) for entry in os.scandir(place))
                assert inode.links == 2 + folders
    finally:
        shutil.rmtree(home)


def test_a_directory_of_many_blocks(open_tree):
    tree = {b"d/%05d%s" % (number, b"x" * (number % 200)): 10 for number in range(3000)}
    found = image_of(open_tree(tree)).tree()
    assert {path for path in found if path.startswith(b"d/")} == set(tree)
    assert all(found[path].content == content(path, 10) for path in tree)


def test_files_of_several_chunks_stay_where_they_are(open_tree):
    volume = open_tree({b"large": 5 * CHUNK + 12_345, b"small": 9000})
    image = image_of(volume)
    assert image.tree()[b"large"].content == content(b"large", 5 * CHUNK + 12_345)
    assert len(image.image) < 16 << 10


def test_small_files_without_room_between_them_are_copied(open_tree):
    volume = open_tree({b"%03d" % number: 1001 for number in range(100)})
    image = image_of(volume)
    assert 100 * 1024 <= len(image.image) < 130 << 10
    assert image.tree()[b"077"].content == content(b"077", 1001)


def test_no_file_shows_bytes_of_another_behind_its_end(open_tree):
    volume = open_tree({b"a": 8300, b"b": 300, b"c": 9000, b"d": 9001, b"e": 5000})
    layout = lay_out(volume.table)
    assert [volume.table.path_bytes(row) for row in layout.copied.tolist()] == []
    offsets = dict(zip("abcde", volume.table.offsets, strict=True))
    size_bytes = volume.table.chunk_sizes[0]
    placed = volume.cache.obtain(volume.chunk(0))
    data = bytes(volume.cache.slots.view(placed.slot, 0, size_bytes + 512))
    for name, size in (("a", 8300), ("c", 9000), ("d", 9001), ("e", 5000)):
        end = offsets[name] + size
        assert not any(data[end : end + -end % 512])


def test_files_that_end_beside_others_are_copied(open_tree, monkeypatch):
    """As in volumes that older versions packed."""
    volume = open_tree({b"a": 8704, b"b": 8700, b"c": 8700, b"d": 0})
    monkeypatch.setattr(volume.table, "offsets", [0, 8704, 8704 + 8700, 0])
    assert lay_out(volume.table).copied.tolist() == [1, 2]


def test_too_much_to_copy_is_refused(open_tree, monkeypatch):
    monkeypatch.setattr("trainmaster.volumes.mounting.erofs._MOST_COPIED_BYTES", 100 * 1024 - 1)
    volume = open_tree({b"%03d" % number: 1001 for number in range(100)})
    with pytest.raises(NoImageError, match="102,400 bytes of files begin or end where no block does"):
        image_of(volume)


def test_a_large_file_cut_where_no_block_ends_is_refused(open_tree):
    volume = open_tree({b"large": 5000}, chunk_limit_bytes=999)
    with pytest.raises(NoImageError, match="cut where no page ends"):
        image_of(volume)


def test_a_cache_beyond_the_format_is_refused(open_tree):
    volume = open_tree({b"a": 9000})
    placement = placed(volume)
    far = ChunkPlacement(placement.starts, 2 << 40, placement.read)
    with pytest.raises(NoImageError, match="more than 2 TiB"):
        image_of(volume, far)


def test_a_volume_without_bytes(open_tree):
    found = image_of(open_tree({b"empty": 0, b"d": None})).tree()
    assert found[b"empty"].content == b""
    assert set(found) == {b"", b"empty", b"d"}
