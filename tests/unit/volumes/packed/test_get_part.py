"""Getting a part of a volume: the files that were asked for, and hardly a byte more."""

import errno
import os
import random
from pathlib import Path

import pytest
from packed_trees import contents

from trainmaster.objects.errors import UnreachableStoreError
from trainmaster.spec.errors import NotFoundError, UsageError
from trainmaster.volumes.errors import DamagedChunkError
from trainmaster.volumes.packed import getting
from trainmaster.volumes.packed.chunk_source import ChunkSource
from trainmaster.volumes.packed.getting import GetProgress, get
from trainmaster.volumes.packed.indexing import index
from trainmaster.volumes.packed.opening import open_volume
from trainmaster.volumes.packed.pushing import push

pytest_plugins = ["volumes_packed"]

LIMIT = 100_000


@pytest.fixture
def volume(tree, packed_url, tmp_path):
    return open_volume(
        push(tree, packed_url, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT).uri, tmp_path / "cache"
    )


@pytest.fixture
def fetched(monkeypatch):
    """The ranges that were asked of the store."""
    found = []
    real = ChunkSource.fetch_into

    def fetch_into(self, chunk, target, start=0, arrived=lambda _: None):
        found.append((chunk, start, len(target)))
        real(self, chunk, target, start, arrived)

    monkeypatch.setattr(ChunkSource, "fetch_into", fetch_into)
    return found


def wanted(tree, only):
    """What of a directory was asked for, with the folders above it."""
    names = [os.fsencode(path.strip("/")) for path in only]
    return {
        path: value
        for path, value in contents(tree).items()
        if any(
            path == name
            or path.startswith(name + b"/")
            or name.startswith(path + b"/")
            or name in (b"", b".")
            for name in names
        )
    }


@pytest.mark.parametrize(
    "only",
    [
        ["d1/f 8"],
        ["d2", "d3/"],
        ["large"],
        ["empty"],
        ["none"],
        ["d1", "d1/f 8", "large"],
        ["./d4"],
        ["."],
        [f"d{number % 7}/f {number}" for number in range(0, 100, 9)],
    ],
)
def test_files_and_folders_keep_their_places(volume, tree, tmp_path, only):
    progress = GetProgress()
    get(volume, tmp_path / "out", only=only, progress=progress)
    expected = wanted(tree, [path.removeprefix("./") for path in only])
    assert contents(tmp_path / "out") == expected
    files = [value for value in expected.values() if isinstance(value[0], bytes)]
    assert progress.file_count == len(files)
    assert progress.file_bytes == sum(len(value[0]) for value in files)
    assert progress.done_bytes == progress.total_bytes
    assert not list(tmp_path.glob(".out*"))


def test_a_link_comes_with_what_it_leads_to(volume, tree, tmp_path):
    get(volume, tmp_path / "out", only=["link"])
    assert set(contents(tmp_path / "out")) == {b"link", b"d1", b"d1/script"}
    assert (tmp_path / "out" / "link").read_text() == "#!/bin/sh"


def test_only_the_bytes_of_a_small_file_are_fetched(volume, tmp_path, fetched):
    row = volume.table.row_of("d5/f 12")
    progress = GetProgress()
    get(volume, tmp_path / "out", only=["d5/f 12"], progress=progress)
    assert fetched == [volume.table.extents(row)[0]]
    assert progress.total_bytes == volume.table.sizes[row] < LIMIT / 2


def test_of_a_large_file_the_chunks_it_lies_in(volume, tmp_path, fetched):
    chunks = {extent.chunk for extent in volume.table.extents(volume.table.row_of("large"))}
    assert 1 < len(chunks) < volume.table.chunk_count
    get(volume, tmp_path / "out", only=["large"])
    assert {chunk for chunk, _, _ in fetched} == chunks


@pytest.mark.parametrize("only", [["nothing"], ["d1/f 8/x"], ["d1", "d9"]])
def test_what_is_not_there(volume, tmp_path, only):
    with pytest.raises(NotFoundError, match="there is no") as caught:
        get(volume, tmp_path / "out", only=only)
    assert "volume ls" in caught.value.hint
    assert not list(tmp_path.glob("*out*"))


def test_a_damaged_file_is_found_and_its_neighbour_is_not_to_blame(tree, tmp_path):
    url = f"file://{tmp_path / 'packed'}"
    volume = open_volume(
        push(tree, url, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT).uri, tmp_path / "cache"
    )
    chunk, offset, _ = volume.table.extents(volume.table.row_of("d5/f 12"))[0]
    digest = volume.table.chunk_hash(chunk).hex()
    with (tmp_path / "packed" / "chunks" / digest[:2] / digest).open("r+b") as file:
        file.seek(offset)
        file.write(b"\0\1\2\3")
    with pytest.raises(DamagedChunkError, match="d5/f 12"):
        get(volume, tmp_path / "out", only=["d5/f 12"])
    get(volume, tmp_path / "out", only=["d5/f 19"])


def test_it_goes_on_where_it_was(volume, tree, tmp_path, fetched, monkeypatch):
    only = [f"d{number % 7}/f {number}" for number in range(0, 100, 3)]
    real, calls = ChunkSource.fetch_into, []

    def failing(self, *args):
        calls.append(args)
        if len(calls) > 3:
            raise UnreachableStoreError("the store is down")
        real(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(ChunkSource, "fetch_into", failing)
        with pytest.raises(UnreachableStoreError, match="down"):
            get(volume, tmp_path / "out", only=only, jobs=1)
    before = list(fetched)
    # Another part is another download; this one waits.
    get(volume, tmp_path / "other", only=["empty"])
    fetched.clear()
    progress = GetProgress()
    get(volume, tmp_path / "out", only=list(reversed(only)), progress=progress)
    whole = [one for one in before if not any(one[0] == later[0] for later in fetched)]
    assert whole
    assert progress.done_bytes == progress.total_bytes
    assert contents(tmp_path / "out") == wanted(tree, only)
    with pytest.raises(UsageError, match="not empty"):
        get(volume, tmp_path / "out", only=only)
    (tmp_path / "a.bin").touch()
    with pytest.raises(UsageError, match="no directory"):
        get(volume, tmp_path / "a.bin", only=only)


def test_a_file_system_without_locks_takes_it(volume, tree, tmp_path, monkeypatch):
    def flock(descriptor, _how):
        if "getting" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(getting.fcntl, "flock", flock)
    get(volume, tmp_path / "copy")
    assert contents(tmp_path / "copy") == contents(tree)


def test_after_a_start_of_the_machine_nothing_counts_as_written(volume, tree, tmp_path, monkeypatch):
    real, calls = ChunkSource.fetch_into, []

    def failing(self, *args):
        calls.append(args)
        if len(calls) > 3:
            raise UnreachableStoreError("the store is down")
        real(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(ChunkSource, "fetch_into", failing)
        with pytest.raises(UnreachableStoreError, match="down"):
            get(volume, tmp_path / "out", jobs=1)
    lost = [path for path in tmp_path.glob(".out.getting-*/files/**/*") if path.is_file()]
    assert lost
    for path in lost:
        path.write_bytes(bytes(path.stat().st_size))
    monkeypatch.setattr(getting, "process_space", lambda: "another pid:[1]")
    get(volume, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tree)


def test_a_part_of_objects_as_they_are(tree, tmp_path, fetched):
    for path in (tree / "up", tree / "link"):
        path.unlink()
    uri = index(f"file://{tree}", f"file://{tmp_path / 'indexed'}", cache=tmp_path / "cache").uri
    get(open_volume(uri, tmp_path / "cache"), tmp_path / "out", only=["d1/f 8", "large"])
    assert {path: value[0] for path, value in contents(tmp_path / "out").items() if value[0] != "folder"} == {
        b"d1/f 8": (tree / "d1/f 8").read_bytes(),
        b"large": (tree / "large").read_bytes(),
    }
    assert sum(length for _, _, length in fetched) <= 2 * (tree / "large").stat().st_size


@pytest.mark.parametrize("seed", range(8))
def test_any_part_of_any_volume(tmp_path, seed):
    rng = random.Random(seed)
    source = tmp_path / "src"
    for number in range(rng.randrange(1, 60)):
        path = source / f"d{rng.randrange(4)}/e{rng.randrange(3)}/{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(rng.choice([0, 1, 511, 8192, 30_000, 140_000])))
    uri = push(source, f"file://{tmp_path / 'v'}", cache=tmp_path / "cache", chunk_limit_bytes=64 << 10).uri
    volume = open_volume(uri, tmp_path / "cache")
    everything = [os.fsdecode(path) for path in contents(source)]
    only = rng.sample(everything, rng.randrange(1, min(len(everything), 6) + 1))
    get(volume, tmp_path / "out", only=only, jobs=rng.randrange(1, 4))
    assert contents(tmp_path / "out") == wanted(source, only)
