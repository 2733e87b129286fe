# ruff: noqa: F811 - fixtures are imported
"""Mounts that the kernel reads by itself: how they come to be, what they keep, and how they end."""

import ctypes
import mmap
import os
import struct
import subprocess
import threading
from pathlib import Path

import psutil
import pytest
from reading_helpers import CHUNK, contents, home, kernel_can, pictures, wait_until  # noqa: F401 - fixtures

from trainmaster.volumes import Volume
from trainmaster.volumes.mounting import MountError, available, mount, unmount
from trainmaster.volumes.mounting.kernel import _TURN, _held_slots, fits
from trainmaster.volumes.mounting.lifecycle import mount_log
from trainmaster.volumes.mounting.mounts import SERVER, detach, is_dead, is_ours, means_of, mounted_at
from trainmaster.volumes.packed.opening import open_volume
from trainmaster.volumes.packed.pushing import push
from trainmaster.volumes.reading.locks import RangeLocks

if problem := available():
    pytest.skip(problem, allow_module_level=True)
if not kernel_can():
    pytest.skip("needs root, loop devices and EROFS", allow_module_level=True)

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def uri(home, pictures):
    return push(home / "src", "pets", chunk_limit_bytes=CHUNK).uri


@pytest.fixture
def place(tmp_path):
    directory = tmp_path / "mnt"
    yield directory
    for process in processes(directory):
        process.kill()
    while is_ours(str(directory)):
        assert detach(str(directory))
    wait_until(lambda: not loops(tmp_path))


def processes(directory: Path) -> list[psutil.Process]:
    lines = ((process, process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))
    return [process for process, line in lines if SERVER in line and str(directory) in line]


def loops(below: Path) -> list[str]:
    """Files below a directory that are disks now."""
    found = []
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            found.append(file.read_text().strip())
        except OSError:  # it has just ended
            continue
    return [name for name in found if name.startswith(f"{below}/")]


def held(home: Path) -> set[int]:
    """Slots that are in use by anybody."""
    descriptor = os.open(home / "cache/chunks" / str(CHUNK) / "locks", os.O_RDWR)
    try:
        return _held_slots(descriptor)
    finally:
        os.close(descriptor)


def read_all(uri: str) -> Volume:
    volume = Volume.open(uri)
    for row in range(len(volume)):
        volume.read(row)
    return volume


def kill(directory: Path) -> None:
    found = processes(directory)
    for process in found:  # so that neither sees the other's end
        process.suspend()
    for process in found:
        process.kill()
    wait_until(lambda: not processes(directory))


def test_what_is_cached_is_the_kernels_at_once(uri, place, home, pictures):
    read_all(uri).close()
    mount(uri, place)
    assert means_of(str(place)) == "kernel"
    assert contents(place) == pictures
    assert subprocess.run(["diff", "-r", home / "src", place], check=False).returncode == 0
    for path in (home / "src").rglob("*"):
        local, there = path.lstat(), (place / path.relative_to(home / "src")).lstat()
        assert there.st_mtime_ns == local.st_mtime_ns
        if not path.is_symlink():
            assert there.st_mode == local.st_mode & ~0o222
    assert [path.name for path in (home / "cache/mounts").iterdir() if path.suffix != ".log"] == []
    assert unmount(place)
    wait_until(lambda: not processes(place))
    wait_until(lambda: not loops(home))  # another's mount namespace may be a copy of ours until it ends
    assert held(home) == set()


def test_reading_it_makes_it_the_kernels(uri, place, pictures):
    mount(uri, place)
    assert means_of(str(place)) == "fuse"
    inside = os.open(place / "train", os.O_RDONLY)
    with (place / "large.bin").open("rb") as file:
        assert file.read(100) == pictures["large.bin"][:100]
        trouble: list[BaseException] = []
        ended = threading.Event()

        def hammer() -> None:
            try:
                while not ended.is_set():
                    assert len(os.listdir(place / "train/cat")) == 60  # noqa: PTH208
                    assert (place / "train/dog/007.bin").read_bytes() == pictures["train/dog/007.bin"]
            except BaseException as error:  # noqa: BLE001 - for the test to see
                trouble.append(error)

        thread = threading.Thread(target=hammer)
        thread.start()
        try:
            assert contents(place) == pictures
            wait_until(lambda: means_of(str(place)) == "kernel")
            assert contents(place) == pictures
        finally:
            ended.set()
            thread.join()
        assert trouble == []
        # What was open before is still served.
        assert file.read() == pictures["large.bin"][100:]
        again = os.open("dog/003.bin", os.O_RDONLY, dir_fd=inside)
        assert os.read(again, 1 << 20) == pictures["train/dog/003.bin"]
        os.close(again)
        os.close(inside)
    assert len(processes(place)) == 2
    assert unmount(place)
    wait_until(lambda: not processes(place) and not is_ours(str(place)))
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(("role", "end"), [("guard", "terminate"), ("guard", "kill"), ("serve", "kill")])
def test_ending_both_while_an_old_file_is_open(uri, place, pictures, role, end):
    """Below the kernel's mount there is still the server's, which nobody finds any more."""
    mount(uri, place)
    with (place / "large.bin").open("rb"):
        assert contents(place) == pictures
        wait_until(lambda: means_of(str(place)) == "kernel" and len(processes(place)) == 2)
        one = next(process for process in processes(place) if role in process.cmdline())
        getattr(one, end)()
        wait_until(lambda: not is_ours(str(place)) and not processes(place))
        assert list(place.iterdir()) == []


def test_most_of_it_is_enough(uri, place, pictures):
    """The last eighth is fetched without being asked for."""
    volume = Volume.open(uri)
    count = volume.table.chunk_count
    for number in range(-(-count * 7 // 8)):
        volume.cache.obtain(volume.chunk(number))
    assert not volume.cache.resident(volume.chunk_prefixes()).all()
    mount(uri, place)
    wait_until(lambda: means_of(str(place)) == "kernel")
    assert contents(place) == pictures


def test_the_end_of_an_old_one_leaves_the_next_one(uri, place, pictures):
    """Also if the old one had become the kernel's meanwhile, and its guard is asked to end."""
    mount(uri, place)
    with (place / "large.bin").open("rb") as file:
        assert contents(place) == pictures
        wait_until(lambda: means_of(str(place)) == "kernel")
        old = processes(place)
        assert unmount(place)
        mount(uri, place, means="kernel")
        there = mounted_at(str(place))
        assert file.read() == pictures["large.bin"]
        assert len(processes(place)) == 4
    wait_until(lambda: not set(old) & set(processes(place)))
    assert mounted_at(str(place)) == there
    assert unmount(place)
    mount(uri, place, means="fuse")
    with (place / "large.bin").open("rb") as file:
        file.read(10)
        old = processes(place)
        assert unmount(place)
        mount(uri, place, means="kernel")
        there = mounted_at(str(place))
        next(process for process in old if "guard" in process.cmdline()).terminate()
        wait_until(lambda: not set(old) & set(processes(place)))
    assert mounted_at(str(place)) == there
    assert not is_dead(str(place))


def test_a_dead_one_is_not_taken_for_an_older_ones(uri, place, pictures):
    mount(uri, place, means="fuse")
    with (place / "large.bin").open("rb") as file:
        file.read(10)
        old = processes(place)
        assert unmount(place)
        mount(uri, place, means="kernel")
        young = [process for process in processes(place) if process not in old]
        for process in young:
            process.suspend()
        for process in young:
            process.kill()
        wait_until(lambda: is_dead(str(place)))
        assert set(processes(place)) == set(old)
        mount(uri, place, means="kernel")
        assert contents(place) == pictures


def test_behind_the_end_of_a_file_there_are_zeros(home, place):
    """Of the file in the next bytes, and of what lay in the slot before."""
    chunk = 1 << 16
    for name, size in (("a.bin", 8300), ("b.bin", 300), ("c.bin", 9001)):
        (home / "src" / name).parent.mkdir(exist_ok=True)
        (home / "src" / name).write_bytes(b"x" * size)
    (home / "secret").mkdir()
    for number in range(64 * CHUNK // chunk):
        (home / f"secret/{number}").write_bytes(f"{number:08}".encode() * (chunk // 8))
    read_all(push(home / "secret", "secret", chunk_limit_bytes=chunk).uri).close()
    uri = push(home / "src", "tail", chunk_limit_bytes=chunk).uri
    mount(uri, place, means="kernel")
    for path in place.iterdir():
        with path.open("rb") as file:
            size = path.stat().st_size
            page = mapped(file.fileno(), -(-size // 4096) * 4096)
            assert page[:size] == b"x" * size
            assert not any(page[size:]), path


def mapped(descriptor: int, length: int) -> bytes:
    """What a program sees that maps a file with the rest of its last page."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    address = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor, 0)
    try:
        return ctypes.string_at(address, length)
    finally:
        libc.munmap(address, length)


def test_one_at_a_time_takes_its_share_of_the_cache(uri, place, home):
    volume = read_all(uri)
    turns = RangeLocks(f"{volume.cache.directory}/locks")
    turns.exclusive(_TURN)
    mount(uri, place)
    assert means_of(str(place)) == "fuse"
    wait_until(lambda: "Another mount takes its share" in mount_log(str(place)).read_text())
    assert unmount(place)
    turns.close()
    mount(uri, place)
    assert means_of(str(place)) == "kernel"


def test_killed_mounts_keep_their_slots(home, place, pictures, monkeypatch):
    (home / "other").mkdir()
    others = {f"{number}.bin": os.urandom(CHUNK) for number in range(40)}
    for name, data in others.items():
        (home / "other" / name).write_bytes(data)
    uri = push(home / "src", "pets", chunk_limit_bytes=CHUNK).uri
    count = open_volume(uri).table.chunk_count
    monkeypatch.setenv("TRAINMASTER_CACHE_BYTES", str((count * 4 // 3 + 4) * CHUNK))
    read_all(uri).close()
    mount(uri, place)
    assert means_of(str(place)) == "kernel"
    kill(place)
    assert len(held(home)) == count

    other = read_all(push(home / "other", "others", chunk_limit_bytes=CHUNK).uri)
    assert other.cache.fetched_chunks >= 40
    assert contents(place) == pictures  # read for the first time

    with (place / "large.bin").open("rb") as file:
        assert is_dead(str(place))
        assert unmount(place)
        assert len(held(home)) == count, "somebody has a file open"
        read_all(other.uri)
        assert file.read() == pictures["large.bin"]
    wait_until(lambda: not held(home))
    assert not loops(home)


def test_what_was_killed_is_cleared_by_the_next_mount(uri, place, home, pictures):
    mount(uri, place, means="kernel")
    kill(place)
    assert is_dead(str(place))
    (home / "src/new").write_bytes(b"more")
    newer = push(home / "src", "pets", chunk_limit_bytes=CHUNK).uri
    mount(newer, place)
    assert contents(place) == {**pictures, "new": b"more"}
    assert not is_dead(str(place))
    assert unmount(place)
    assert not is_ours(str(place)), "nothing lies below"


def test_chunks_from_before_a_restart_are_proved_first(uri, place, home, pictures):
    read_all(uri).close()
    cache = home / "cache/chunks" / str(CHUNK)
    with (cache / "table").open("r+b") as table:
        table.seek(24)
        table.write(b"another boot....")
    with (cache / "slots").open("r+b") as slots:
        slots.seek(1000)
        slots.write(struct.pack("<Q", 0xDEADBEEF))
    mount(uri, place)
    assert contents(place) == pictures
    wait_until(lambda: means_of(str(place)) == "kernel")
    assert contents(place) == pictures


def test_a_cache_that_is_too_small(home, pictures, place, monkeypatch):
    uri = push(home / "src", "pets", chunk_limit_bytes=CHUNK).uri
    count = open_volume(uri).table.chunk_count
    monkeypatch.setenv("TRAINMASTER_CACHE_BYTES", str((count + 1) * CHUNK))
    assert not fits(read_all(uri))
    mount(uri, place)
    assert means_of(str(place)) == "fuse"
    assert contents(place) == pictures
    unmount(place)
    with pytest.raises(
        MountError, match=r"13 chunks .* mounts may hold 11 of them in the cache [^\n]*BYTES\.\n"
    ):
        mount(uri, place, means="kernel")
    assert not is_ours(str(place))
    assert not loops(home)


def test_a_volume_that_does_not_lie_in_blocks(home, pictures, place):
    uri = push(home / "src", "pets", chunk_limit_bytes=CHUNK - 1).uri
    read_all(uri).close()
    mount(uri, place)
    assert means_of(str(place)) == "fuse"
    assert contents(place) == pictures
    (log,) = (home / "cache/mounts").iterdir()
    assert "a large file was cut where no page ends" in log.read_text()


def test_whoever_insists_gets_it(uri, place, pictures):
    read_all(uri).close()
    mount(uri, place, means="fuse")
    assert means_of(str(place)) == "fuse"
    assert unmount(place)
    wait_until(lambda: not processes(place))
    mount(uri, place, means="kernel")
    assert means_of(str(place)) == "kernel"
    assert contents(place) == pictures
