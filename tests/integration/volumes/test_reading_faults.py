# ruff: noqa: F811 - fixtures are imported
"""Reading volumes from a server that does wrong, and with disks that are full."""

import os
import subprocess
from datetime import timedelta

import pytest
from reading_helpers import CHUNK, counting_s3, home, pictures, python  # noqa: F401 - fixtures

from trainmaster.objects import obstore_backend
from trainmaster.spec.errors import NotFoundError, PublishError
from trainmaster.volumes import Volume
from trainmaster.volumes.errors import CacheError, DamagedChunkError, MissingChunkError
from trainmaster.volumes.packed.pushing import push

URI = "s3://data/pets"


@pytest.fixture
def server(counting_s3, home, pictures):
    push(home / "src", URI, chunk_limit_bytes=CHUNK)
    counting_s3.gets.clear()
    return counting_s3


READ_ALL = """
import sys
from trainmaster.volumes import Volume
volume = Volume.open("s3://data/pets")
print("open", flush=True)
sys.stdin.readline()
for row in range(len(volume)): volume.read(row)
print("read", flush=True)
sys.stdin.readline()
"""


def test_two_cold_readers_ask_the_server_once_for_each_chunk(server):
    readers = [python(READ_ALL) for _ in range(2)]
    for reader in readers:
        assert reader.stdout.readline() == "open\n", reader.stderr.read()
    for reader in readers:
        reader.stdin.write("go\n")
        reader.stdin.flush()
    for reader in readers:
        assert reader.stdout.readline() == "read\n", reader.stderr.read()
        reader.kill()
        reader.communicate()
    assert sorted(server.chunk_gets()) == server.chunk_keys()


def test_a_chunk_that_is_damaged_on_the_way_is_fetched_again(server, pictures, caplog):
    volume = Volume.open(URI)
    first, objects = server.chunk_keys()[0], server.buckets["data"]
    good = objects[first]
    objects[first] = bytes([good[0] ^ 1]) + good[1:]
    seen = []

    class HealsItself(list):
        def append(self, key):
            super().append(key)
            if key == first:
                seen.append(key)
                if len(seen) == 2:
                    objects[first] = good

    server.gets = HealsItself()
    assert {path: volume[path] for path in pictures} == pictures
    assert len(seen) == 2
    assert "has another hash. It is fetched once more." in caplog.text


@pytest.mark.parametrize("fault", ["other bytes", "cut", "longer", "empty"])
def test_a_chunk_that_is_damaged_on_the_server_is_refused(server, pictures, fault):
    volume = Volume.open(URI)
    objects = server.buckets["data"]
    for key in server.chunk_keys():
        data = objects[key]
        wrong = {"other bytes": bytes(len(data)), "cut": data[:100], "longer": b"x" + data, "empty": b""}
        objects[key] = wrong[fault]
    with pytest.raises(DamagedChunkError, match=r"s3://data/pets@1: chunk \d+ \(s3://data/pets/chunks/"):
        volume.read("large.bin")
    assert volume["empty"] == b""


def test_a_chunk_that_was_deleted(server, pictures):
    volume = Volume.open(URI)
    assert volume["train/cat/001.bin"] == pictures["train/cat/001.bin"]
    for key in server.chunk_keys():
        del server.buckets["data"][key]
    assert volume["train/cat/001.bin"] == pictures["train/cat/001.bin"], "what the cache has stays"
    with pytest.raises(MissingChunkError, match=r"chunk \d+ .* is missing.*\n.*push again"):
        volume.read("large.bin")


def test_no_permission_any_more(server):
    volume = Volume.open(URI)
    server.deny = True
    with pytest.raises(PublishError, match="credentials"):
        volume.read("large.bin")
    server.deny = False
    assert len(volume.read("large.bin")) == 3 * CHUNK + 777


def test_a_forked_child_reads_from_the_server(server, pictures):
    # What a DataLoader's workers are; the library that speaks S3 has no threads there.
    volume = Volume.open(URI)
    volume.read("train/cat/001.bin")
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if all(volume[path] == data for path, data in pictures.items()) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sorted(server.chunk_gets()) == server.chunk_keys(), "and the parent finds what it fetched"
    assert {path: volume[path] for path in pictures} == pictures


def test_a_forked_child_opens_volumes_of_the_server(server, pictures):
    Volume.open(URI).read("train/cat/001.bin")
    child = os.fork()
    if child == 0:
        try:
            volume = Volume.open(f"{URI}@1")
            same = all(volume[path] == data for path, data in pictures.items())
            try:
                Volume.open(f"{URI}@7")
            except NotFoundError:
                os._exit(0 if same else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_child_that_cannot_push_says_so(server, tmp_path):
    child = os.fork()
    if child == 0:
        try:
            push(tmp_path / "src", URI)
        except PublishError as error:
            os._exit(0 if "before this process was forked" in str(error) else 3)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_child_hears_of_a_missing_chunk(server, pictures):
    volume = Volume.open(URI)
    volume.read("train/cat/001.bin")
    for key in server.chunk_keys():
        del server.buckets["data"][key]
    child = os.fork()
    if child == 0:
        try:
            volume.read("large.bin")
        except MissingChunkError as error:
            os._exit(0 if error.hint else 3)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_real_server_behind_a_line_that_breaks(faulty_s3, home, pictures):
    proxy, url = faulty_s3
    push(home / "src", f"{url}/pets", chunk_limit_bytes=CHUNK)
    volume = Volume.open(f"{url}/pets")
    proxy.fail("cut", times=2, path="/chunks/", after_bytes=5000)
    proxy.fail("status", times=2, path="/chunks/", status=503)
    proxy.fail("refuse", times=1, path="/chunks/")
    assert {path: volume[path] for path in pictures} == pictures


def test_a_server_that_is_down_for_a_while(faulty_s3, home, pictures, monkeypatch):
    proxy, url = faulty_s3
    push(home / "src", f"{url}/pets", chunk_limit_bytes=CHUNK)
    monkeypatch.setattr(obstore_backend, "_stores", {})
    monkeypatch.setattr(
        obstore_backend, "_RETRIES", {"max_retries": 2, "retry_timeout": timedelta(seconds=2)}
    )
    volume = Volume.open(f"{url}/pets")
    assert volume["train/cat/001.bin"] == pictures["train/cat/001.bin"]
    down = proxy.fail("refuse", times=10_000)
    with pytest.raises(PublishError, match=r"(?s)Cannot read s3://.*Check the network"):
        volume.read("large.bin")
    assert volume["train/cat/001.bin"] == pictures["train/cat/001.bin"], "what is here stays"
    with pytest.raises(PublishError, match="Check the network"):
        Volume.open(f"{url}/pets")
    down.times = 0
    assert {path: volume[path] for path in pictures} == pictures


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk(home, pictures, small_disk, monkeypatch):
    push(home / "src", "pets", chunk_limit_bytes=CHUNK)
    monkeypatch.setenv("TRAINMASTER_CACHE", str(small_disk))
    # Room for the tables and some slots only, though the limit says more: it goes on with those.
    volume = Volume.open("pets")
    assert {path: volume[path] for path in pictures} == pictures
    slots = volume.cache.slots
    assert 2 <= int(slots.table.reserved().sum()) < 8
    volume.close()


def test_a_disk_without_room_for_two_slots(home, pictures, small_disk, monkeypatch):
    push(home / "src", "pets", chunk_limit_bytes=CHUNK)
    monkeypatch.setenv("TRAINMASTER_CACHE", str(small_disk))
    volume = Volume.open("pets")
    left = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    (small_disk / "other").write_bytes(bytes(left - CHUNK // 2))
    with pytest.raises(CacheError, match=r"disk of the chunk cache .* is full.*\n.*Free some space"):
        volume.read("large.bin")


def test_a_read_only_disk(home, pictures, small_disk, monkeypatch):
    push(home / "src", "pets", chunk_limit_bytes=CHUNK)
    monkeypatch.setenv("TRAINMASTER_CACHE", str(small_disk))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.warns(RuntimeWarning, match="Read-only file system"):
        volume = Volume.open("pets")
    assert volume["large.bin"] == pictures["large.bin"]
    with pytest.raises(CacheError, match="cannot be written"):
        Volume.open("pets", small_disk)
