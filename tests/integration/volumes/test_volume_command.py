"""``trainmaster volume`` as users call it."""

import io
import os
import re
import signal
import subprocess
import tarfile
import time

import pytest


@pytest.fixture
def data(tm):
    """A folder of small files beside a larger one."""
    root = tm.work / "data"
    for number in range(30):
        path = root / f"d{number % 3}/{number:02}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"file {number}\n" * 1000)
    (root / "large").write_bytes(os.urandom(3_000_000))
    (root / "link").symlink_to("d1/01.txt")
    (root / "empty").mkdir()
    return root


def test_a_volume_from_push_to_gc(tm, data):
    first = tm.call("volume", "push", data, "cats", "--chunk-size", "1MiB", "--json", code=0).json
    assert (first["version"], first["files"], first["kind"]) == (1, 31, "packed")
    assert first["sent_chunks"] == first["chunks"] >= 4
    assert first["uri"] == f"file://{tm.home}/store/volumes/cats@1"
    (data / "d0/00.txt").write_text("changed")
    pushed = tm.call("volume", "push", data, "cats", "--chunk-size", "1MiB", code=0)
    assert re.search(r"cats@2: 31 files, .* chunks, of which 1 \(", pushed.err)
    assert pushed.out == ""

    assert tm.call("volume", "ls", code=0).out.split() == ["cats"]
    assert tm.call("volume", "ls", "--json", code=0).json == {"volumes": ["cats"]}
    listed = tm.call("volume", "ls", "cats", code=0).out.splitlines()
    assert [line[16:] for line in listed] == [
        "d0/", "d1/", "d2/", "empty/", "large", "link -> d1/01.txt",
    ]  # fmt: skip
    entries = tm.call("volume", "ls", "cats@1", "d0", "--json", code=0).json["entries"]
    assert entries[0]["path"] == "d0/00.txt"
    assert entries[0]["bytes"] == len("file 0\n" * 1000)
    assert len(tm.call("volume", "ls", "cats", "-r", code=0).out.splitlines()) == 31 + 4 + 1

    assert tm.call("volume", "cat", "cats", "d0/00.txt", code=0).out == "changed"
    assert tm.call("volume", "cat", "cats@1", "d0/00.txt", code=0).out == "file 0\n" * 1000
    assert tm.call("volume", "cat", "cats", "link", code=0).out == "file 1\n" * 1000

    got = tm.call("volume", "get", "cats", tm.work / "out", "--json", code=0).json
    assert got["version"] == 2
    subprocess.run(["diff", "-r", data, tm.work / "out"], check=True)

    versions = tm.call("volume", "versions", "cats", "--json", code=0).json["versions"]
    assert [one["version"] for one in versions] == [1, 2]
    checked = tm.call("volume", "fsck", "cats", "--deep", code=0)
    assert re.search(r"version 1: 31 files, .* chunks, all proved", checked.out)
    lost = next((tm.home / "store/volumes/cats/chunks").rglob("??/*"))
    lost.rename(tm.work / "lost")
    broken = tm.call("volume", "fsck", "cats", "--json", code=1).json
    assert broken["damaged"] >= 1
    assert lost.name in str(broken["versions"])
    told = tm.call("volume", "fsck", "cats", code=1).out
    assert "is missing" in told
    assert "Push the same files again" in told
    (tm.work / "lost").rename(lost)
    assert tm.call("volume", "fsck", "cats@2", "--json", code=0).json["versions"][0]["damage"] == []
    tm.call("volume", "rm", "cats@1", "--yes", code=0)
    assert tm.call("volume", "gc", "cats", "--json", code=0).json["young_chunks"] == 1
    marked = tm.call("volume", "gc", "cats", "--grace", "0s", code=0)
    assert "0 chunks deleted" in marked.err
    assert "1 chunk and 2 tables" in marked.err
    assert "frees them: trainmaster volume gc cats --grace 0s" in marked.err
    freed = tm.call("volume", "gc", "cats", "--grace", "0s", "--json", code=0).json
    assert (freed["deleted_chunks"], freed["free_at_s"], freed["free_with"]) == (1, None, None)
    tm.call("volume", "rm", "cats@2", "--yes", code=0)
    again = tm.call("volume", "gc", "cats", "--grace", "0s", "--json", code=0).json
    assert again["marked_chunks"] >= 4
    assert again["free_with"] == "trainmaster volume gc cats --grace 0s"
    assert tm.call("volume", "gc", "cats", "--now", "--json", code=0).json["deleted_chunks"] >= 4
    tm.call("volume", "rm", "cats", "--yes", code=0)
    assert tm.call("volume", "ls", "--json", code=0).json == {"volumes": []}


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (["push", "nowhere", "cats"], "no such file or directory"),
        (["push", ".", "s4://x/y"], "no object store"),
        (["push", ".", "cats", "--chunk-size", "many"], "no size"),
        (["push", ".", "cats@1"], "makes a new version"),
        (["push", "."], "needs URL"),
        (["ls", "cats"], "there is no volume"),
        (["cat", "cats@7", "x"], "no version 7"),
        (["rm", "cats"], "--yes"),
        (["rm", "cats@1"], "--yes"),
        (["fsck", "cats"], "there is no volume"),
        (["gc", "cats", "--grace", "soon"], "no duration"),
        (["index", "nothing", "cats"], "no objects"),
        (["index", "nothing", "cats", "--as", "zip"], "files, tar or mds"),
    ],
)
def test_calls_that_are_wrong(tm, call, match):
    result = tm.call("volume", *call, code=2)
    assert match in result.err
    assert result.out == ""


def test_what_is_not_in_it(tm, data):
    tm.call("volume", "push", data, "cats", code=0)
    assert "there is no 'nothing'" in tm.call("volume", "cat", "cats", "nothing", code=2).err
    assert "is a directory" in tm.call("volume", "cat", "cats", "d0", code=2).err
    (tm.work / "full").mkdir()
    (tm.work / "full/x").touch()
    assert "not empty" in tm.call("volume", "get", "cats", tm.work / "full", code=2).err
    assert (
        "newest version is 1, not 7" in tm.call("volume", "push", data, "cats", "--expect", "7", code=1).err
    )
    (data / "bad").symlink_to("/etc/passwd")
    assert "leads outside" in tm.call("volume", "push", data, "cats", code=1).err


def test_an_index_of_tars(tm):
    (tm.work / "shards").mkdir()
    for shard in range(2):
        with tarfile.open(tm.work / f"shards/{shard}.tar", "w") as archive:
            for number in range(5):
                member = tarfile.TarInfo(f"{number}.cls")
                member.size = 1
                archive.addfile(member, io.BytesIO(b"%d" % number))
    made = tm.call("volume", "index", "shards", "wds", "--json", code=0).json
    assert (made["kind"], made["files"]) == ("indexed", 10)
    assert tm.call("volume", "cat", "wds", "1/3.cls", code=0).out == "3"
    with (tm.work / "shards/1.tar").open("ab") as file:
        file.write(b"more")
    refused = tm.call("volume", "cat", "wds", "1/3.cls", code=1).err
    assert "was written again since it was indexed" in refused
    assert "trainmaster volume index" in refused


def test_a_push_that_is_interrupted(tm, data):
    (data / "huge").write_bytes(bytes(400_000_000))
    call = tm.start("volume", "push", data, "cats", "--chunk-size", "1MiB", "--jobs", "1")
    place = tm.home / "store/volumes/cats/chunks"
    deadline = time.monotonic() + 60
    while not place.exists() and not call.over:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    call.send(signal.SIGINT)
    call.wait(code=130)
    assert not (tm.home / "store/volumes/cats/heads").exists()
    assert list((tm.home / "store/volumes/cats/pushes").iterdir()) == []
    assert not list((tm.cache / "volumes/tables").glob(".push*"))
