# ruff: noqa: F811, RUF043 - fixtures are imported
import contextlib
import gc
import os
import pickle
import random
import threading
from pathlib import Path

import numpy as np
import pytest
from read_volumes import CHUNK, home, tree, volume  # noqa: F401 - fixtures

from forked_children import exit_code, forked
from trainmaster.spec.errors import NotFoundError, UsageError
from trainmaster.volumes import Volume
from trainmaster.volumes.errors import CacheError
from trainmaster.volumes.packed.pushing import push


def test_every_file_by_path_and_by_row(volume, tree):
    assert len(volume) == len(tree)
    assert {*volume.paths()} == {*tree}
    for row, path in enumerate(volume.paths()):
        assert volume.read(row) == volume[row] == volume[path] == tree[path]
        assert bytes(volume.view(row)) == tree[path]
        assert volume.open_file(path).read() == tree[path]
    assert volume.cache.fetched_chunks == volume.table.chunk_count


def test_parts_of_files(volume, tree):
    data, row = tree["large"], volume.row_of("large")
    rng = random.Random(2)
    with volume.open_file("large") as file:
        for _ in range(100):
            start, length = rng.randrange(len(data) + 10), rng.randrange(3 * CHUNK)
            assert volume.read_range(row, start, length) == data[start : start + length]
            file.seek(start)
            assert file.read(length) == data[start : start + length]
        for start in (0, 17, len(data), len(data) + 10):
            file.seek(start)
            assert file.read() == data[start:]
        file.seek(-5, os.SEEK_END)
        assert file.read() == data[-5:]
        with pytest.raises(ValueError, match="negative seek"):
            file.seek(-1)
    assert volume.read_range(volume.row_of("empty"), 0, 10) == b""


def test_links_are_followed_inside(volume, tree):
    assert volume["to file"] == tree["d1/f 001"]
    assert volume["to directory/f 002"] == volume["d1/up/f 002"] == tree["d2/f 002"]
    assert volume["./d1/../d1//f 001"] == tree["d1/f 001"]
    assert "round" not in volume
    assert "d1/f 001" in volume
    assert "d1/f 001/x" not in volume
    assert "../../etc/passwd" not in volume


def test_listing(volume):
    assert [entry.path for entry in volume.list("nothing")] == []
    assert {entry.path for entry in volume.list()} >= {"d0", "large", "empty", "to file", "nothing"}
    assert {entry.kind for entry in volume.list("d1")} == {"file", "symlink"}
    with pytest.raises(UsageError, match="'large' in .*is no directory"):
        volume.list("large")


def test_what_is_not_there(volume):
    with pytest.raises(NotFoundError, match=r"'nope' is no such file in file://.*@1"):
        volume.read("nope")
    with pytest.raises(NotFoundError, match="'d1' is a directory"):
        volume.read("d1")
    for row in range(len(volume)):
        volume.read(row)
    for row in (-1, len(volume), len(volume) + 5):
        for read in (volume.read, volume.view, lambda row: volume.read_range(row, 0, 1)):
            with pytest.raises(IndexError, match=f"has rows 0 to {len(volume) - 1}, not {row}"):
                read(row)


def test_a_cache_smaller_than_the_volume(home, tree):
    push(home / "src", "pets", chunk_limit_bytes=CHUNK)
    volume = Volume.open("pets", limit_bytes=2 * CHUNK)
    rows = list(range(len(volume))) * 3
    random.Random(3).shuffle(rows)
    for row in rows:
        assert volume.read(row) == tree[volume.table.path(row)]
    assert volume.cache.fetched_chunks > volume.table.chunk_count


def test_threads(volume, tree):
    errors = []

    def work(seed):
        rows = list(range(len(volume)))
        random.Random(seed).shuffle(rows)
        errors.extend(row for row in rows if volume.read(row) != tree[volume.table.path(row)])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not errors
    assert volume.cache.fetched_chunks == volume.table.chunk_count


def test_pickled_it_is_opened_again(volume, tree):
    copy = pickle.loads(pickle.dumps(volume))
    assert copy["large"] == tree["large"]
    assert copy.uri == volume.uri


def test_in_a_forked_child(volume, tree):
    held = volume.view("d1/f 001")

    def work():
        assert {path: volume[path] for path in tree} == tree
        assert bytes(held) == tree["d1/f 001"]

    assert exit_code(forked(work)) == 0
    assert volume["large"] == tree["large"]


def test_arrays_of_views(volume, tree):
    arrays = [np.frombuffer(volume.view(row), np.uint8) for row in range(len(volume) - 1)]
    for row, array in enumerate(arrays):
        assert array.tobytes() == tree[volume.table.path(row)]


def test_views_of_many(volume, tree):
    rows = random.Random(1).choices(range(len(volume)), k=500)
    views = volume.views(rows)
    assert [bytes(view) for view in views] == [tree[volume.table.path(row)] for row in rows]
    whole = {volume.table.first_chunks[row] for row in rows if 0 < volume.table.sizes[row] < CHUNK}
    used = {volume.cache.find(volume.chunk(chunk)).slot for chunk in whole}
    assert {*volume.cache.slots.usable().tolist()}.isdisjoint(used), "they stay while they are looked at"
    assert used
    views.clear()
    assert {*volume.cache.slots.usable().tolist()} >= used
    with pytest.raises(IndexError, match="has rows 0 to"):
        volume.views([0, len(volume)])


def test_one_that_nobody_has_any_more_keeps_no_file_open(home, tree):
    def opened():
        for descriptor in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # that of the directory itself
                if (place := descriptor.readlink()).is_relative_to(home):
                    yield place

    def read():
        volume = Volume.open("pets")
        assert volume["large"] == tree["large"]
        assert bytes(volume.view("d1/f 001")) == tree["d1/f 001"]
        assert [*opened()]

    push(home / "src", "pets", chunk_limit_bytes=CHUNK)
    before = [*opened()]
    gc.disable()
    try:
        read()
        assert [*opened()] == before
    finally:
        gc.enable()


def test_versions(home, tree):
    push(home / "src", "pets", chunk_limit_bytes=CHUNK)
    (home / "src/d1/f 001").write_bytes(b"new")
    push(home / "src", "pets", chunk_limit_bytes=CHUNK)
    assert Volume.open("pets")["d1/f 001"] == b"new"
    assert Volume.open("pets", version=1)["d1/f 001"] == tree["d1/f 001"]
    with pytest.raises(NotFoundError):
        Volume.open("pets@3")


def test_a_cache_that_cannot_be_written_is_replaced_aloud(home, tree, monkeypatch):
    push(home / "src", "pets", chunk_limit_bytes=CHUNK)
    (home / "file").write_text("no directory")
    monkeypatch.setenv("TRAINMASTER_CACHE", str(home / "file"))
    with pytest.warns(RuntimeWarning, match="cannot be written.*\n.*this process keeps 8 chunks for itself"):
        volume = Volume.open("pets")
    assert volume["large"] == tree["large"]
    with pytest.raises(CacheError, match="cannot be written"):
        Volume.open("pets", home / "file")


def test_reading_on_fetches_what_follows(volume):
    volume.read_range(volume.row_of("large"), 0, 10)
    volume.read_range(volume.row_of("large"), CHUNK, 10)
    volume.close()  # waits for what is under way
    first = volume.table.first_chunks[volume.row_of("large")]
    assert volume.cache.find(volume.chunk(first + 2)) is not None


def test_an_empty_volume(home):
    (home / "src").mkdir()
    push(home / "src", "none")
    volume = Volume.open("none", limit_bytes=1 << 30)
    assert len(volume) == 0
    assert volume.list() == []


def test_it_shows_what_it_is(volume):
    assert repr(volume).endswith("files, " + f"{volume.table.total_bytes:,} bytes>")
