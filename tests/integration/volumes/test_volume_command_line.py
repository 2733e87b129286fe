"""What a user of ``trainmaster volume`` meets when it goes another way than planned."""

import os
import pty
import signal
import subprocess
import sys
import tarfile
import time
from multiprocessing.connection import wait

import pytest


@pytest.fixture
def pets(tm):
    """A folder with links and a name that is no text for a terminal, and a volume of it."""
    root = tm.work / "data"
    (root / "d").mkdir(parents=True)
    (root / "d/a.txt").write_text("content")
    (root / "to-d").symlink_to("d")
    (root / "to-a").symlink_to("to-d/a.txt")
    (root / "\x1b[31mred").write_text("")
    tm.call("volume", "push", root, "pets", code=0)
    return root


def test_paths_as_a_shell_has_them(tm, pets):
    for path in ("d/a.txt", "./d/a.txt", "/d//a.txt", "to-d/a.txt", "to-a", "d/../to-d/a.txt"):
        assert tm.call("volume", "cat", "pets", path, code=0).out == "content", path


def test_listing_follows_links_to_directories_only(tm, pets):
    assert tm.call("volume", "ls", "pets", "to-d", code=0).out.split() == ["7", "d/a.txt"]
    assert tm.call("volume", "ls", "pets", "to-a", code=0).out.split() == ["to-a", "->", "to-d/a.txt"]
    assert "is a directory" in tm.call("volume", "cat", "pets", "to-d", code=2).err


def test_names_cannot_command_a_terminal(tm, pets):
    assert "\x1b[31mred" in tm.call("volume", "ls", "pets", code=0).out, (
        "for programs they stay what they are"
    )
    master, terminal = pty.openpty()
    try:
        command = [sys.executable, "-m", "trainmaster", "volume", "ls", "pets"]
        subprocess.run(command, env=tm.env, cwd=tm.work, stdout=terminal, check=True)
        shown = b""
        while wait([master], 0.5):
            shown += os.read(master, 65536)
            if b"to-d" in shown:
                break
    finally:
        os.close(master)
        os.close(terminal)
    assert b"\\x1b[31mred" in shown
    assert b"\x1b" not in shown


REFUSED = [
    (["push", "", "x"], "empty text"),
    (["push", "data", "s3://"], "no bucket"),
    (["push", "/dev/null", "x"], "neither a directory nor a file"),
    (["push", "data", "x", "--chunk-size", "1"], "too small"),
    (["push", "data", "x", "--chunk-size", "2G"], "too large"),
    (["push", "s4://bucket/x", "x"], "no object store"),
    (["ls", "pets@7/"], "no version 7"),
]


def test_what_is_refused(tm, pets):
    for call, match in REFUSED:
        assert match in tm.call("volume", *call, code=2).err, call
        assert not (tm.home / "store/volumes/x").exists(), call


def test_a_cache_that_cannot_be_written(tm, pets):
    blocked = tm.env | {"TRAINMASTER_CACHE": "/proc/no/cache"}
    for call in (
        ["ls", "pets"],
        ["cat", "pets", "d/a.txt"],
        ["get", "pets", "out"],
        ["push", "data", "pets"],
    ):
        result = tm.call("volume", *call, code=0, env=blocked)
        assert "Set TRAINMASTER_CACHE" in result.err
    assert (tm.work / "out/d/a.txt").read_text() == "content"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_push_that_is_told_to_end(tm, number):
    (tm.work / "data").mkdir()
    with (tm.work / "data/huge").open("wb") as file:
        file.truncate(400_000_000)
    call = tm.start("volume", "push", "data", "cats", "--chunk-size", "1MiB", "--jobs", "1")
    place = tm.home / "store/volumes/cats/chunks"
    deadline = time.monotonic() + 60
    while not any("#" not in path.name for path in place.rglob("*/*")) and not call.over:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    call.send(number)
    call.wait(code=130)
    assert "interrupted: no version was made; push again" in call.err
    assert list((tm.home / "store/volumes/cats/pushes").iterdir()) == []
    assert not list((tm.cache / "volumes/tables").glob(".push*"))


def test_a_push_that_is_killed_does_not_hold_up_what_comes_next(tm):
    (tm.work / "data").mkdir()
    with (tm.work / "data/huge").open("wb") as file:
        file.truncate(400_000_000)
    call = tm.start("volume", "push", "data", "cats", "--chunk-size", "1MiB", "--jobs", "1")
    place = tm.home / "store/volumes/cats/chunks"
    deadline = time.monotonic() + 60
    while not any("#" not in path.name for path in place.rglob("*/*")) and not call.over:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    call.kill()
    assert (
        tm.call("volume", "gc", "cats", "--grace", "0s", "--now", "--json", code=0).json["deleted_chunks"]
        >= 1
    )
    assert list((tm.home / "store/volumes/cats/pushes").iterdir()) == []


def test_of_objects_as_they_are_nothing_is_called_verified(tm, pets):
    with tarfile.open(tm.work / "one.tar", "w") as archive:
        archive.add(pets / "d", "d")
    assert "1 object, indexed as tar" in tm.call("volume", "index", "one.tar", "one", code=0).err
    got = tm.call("volume", "get", "one", "out", code=0).err
    assert "unchanged since they were indexed" in got
    assert "verified" not in got
    assert "verified" in tm.call("volume", "get", "pets", "out2", code=0).err
    (tm.work / "packed.tgz").write_bytes(b"x")
    assert "`trainmaster volume push`" in tm.call("volume", "index", "packed.tgz", "tgz", code=0).err


def test_getting_a_part(tm, pets):
    got = tm.call(
        "volume", "get", "pets", tm.work / "part", "--only", "d", "--only", "to-a", "--json", code=0
    ).json
    assert (got["only"], got["got_files"], got["got_bytes"], got["fetched_bytes"]) == (["d", "to-a"], 1, 7, 7)
    assert (tm.work / "part" / "to-a").read_text() == "content"
    assert sorted(path.name for path in (tm.work / "part").iterdir()) == ["d", "to-a", "to-d"]
    said = tm.call("volume", "get", "pets", tm.work / "none", "--only", "cat", code=2).err
    assert "there is no 'cat'" in said
    assert not (tm.work / "none").exists()
    assert (
        "1 file, 7 B in"
        in tm.call("volume", "get", "pets", tm.work / "one", "--only", "/d/a.txt", code=0).err
    )
