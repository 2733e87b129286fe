"""Objects and volumes on a real HDFS; its jars are fetched once (220 MB), into the cache."""

import os
import secrets
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from trainmaster.hdfs.configuration import data_directory
from trainmaster.hdfs.serving import end, serve
from trainmaster.hdfs.staging import data_path, stage
from trainmaster.objects import webhdfs
from trainmaster.objects.errors import FullStoreError
from trainmaster.objects.object_store import ObjectChangedError, ObjectStore
from trainmaster.objects.webhdfs import WebHdfsBackend
from trainmaster.spec.errors import PublishError
from trainmaster.testing.private_hdfs import NoHdfsError, PrivateHdfs, fetched_jars
from trainmaster.volumes.packed.garbage import collect_garbage
from trainmaster.volumes.packed.getting import get
from trainmaster.volumes.packed.head import head_numbers
from trainmaster.volumes.packed.opening import open_volume
from trainmaster.volumes.packed.pushing import push

pytestmark = [pytest.mark.hdfs, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def hdfs():
    cache = Path(os.environ.get("TRAINMASTER_CACHE") or "~/.cache/trainmaster").expanduser()
    try:
        server = PrivateHdfs(fetched_jars(cache / "hdfs"))
    except NoHdfsError as error:
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def store(hdfs):
    return ObjectStore(f"{hdfs.url}/{secrets.token_hex(4)}")


def test_what_is_put_is_there(store):
    assert store.get("a/b") is None
    store.put("a/b", b"one")
    store.put("a/b", b"two")
    store.put("empty", b"")
    assert (store.get("a/b"), store.get("empty"), store.get("a")) == (b"two", b"", None)
    assert (store.exists("a/b"), store.exists("a"), store.exists("x")) == (True, False, False)
    assert sorted(store.list()) == [("a/b", 3), ("empty", 0)]
    assert store.folders() == ["a"]
    assert bytes(store.get_range("a/b", 1, 1)) == b"w"
    info = store.info("a/b")
    assert bytes(store.get_range("a/b", 0, 3, info.etag)) == b"two"
    store.put("a/b", b"three")
    with pytest.raises(ObjectChangedError):
        store.get_range("a/b", 0, 3, info.etag)
    with pytest.raises(FileNotFoundError):
        store.get_range("x", 0, 1)
    store.delete(["a/b", "never"])
    store.delete_all("a")
    store.delete_all("never")
    assert list(store.list()) == [("empty", 0)]


def test_one_of_many_creates(store):
    won = []

    def create(number):
        if store.put_if_absent("head", b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.get("head") == b"%d" % won[0]
    assert list(store.list()) == [("head", 1)], "nothing is left of those that lost"


def test_an_exception_while_writing_leaves_nothing(store):
    def blocks():
        yield bytes(1 << 20)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        store.put_blocks("x", blocks(), 2 << 20)
    assert list(store.list()) == []


def test_a_volume(store, tmp_path):
    (tmp_path / "src/d").mkdir(parents=True)
    for number in range(10):
        (tmp_path / f"src/d/{number}").write_bytes(os.urandom(300_000))
    push(tmp_path / "src", store.url, cache=tmp_path / "cache", chunk_limit_bytes=400_000, read_back=True)
    (tmp_path / "src/d/3").write_bytes(b"changed")
    report = push(tmp_path / "src", store.url, cache=tmp_path / "cache", chunk_limit_bytes=400_000)
    assert head_numbers(store) == ([1, 2], 2)
    assert report.shared_chunks >= 8
    get(open_volume(store.url, tmp_path / "cache"), tmp_path / "out")
    assert (tmp_path / "out/d/3").read_bytes() == b"changed"
    assert collect_garbage(store, 0, now=True).deleted_chunks == 0


def test_staging_where_there_is_no_room(hdfs, tmp_path):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(shutil.disk_usage(tmp_path).total + (1 << 30))
    web = hdfs.url.removeprefix("hdfs://")
    with pytest.raises(
        FullStoreError, match=r"no room for .* in 2 copies: .* at 127.* \(in /the/data\)"
    ) as error:
        stage(str(tmp_path), web, index=0, count=1, copies=2, directory=Path("/the/data"))
    assert "Free space there" in error.value.hint


@pytest.fixture
def small_disk(hdfs, tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", place]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small disk needs root, and the right to mount")
    try:
        yield place
    finally:
        end(place / "hdfs")
        subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")  # that is what it is for
@pytest.mark.crossings
def test_a_disk_that_fills_up_while_staging_and_has_room_again(hdfs, small_disk, tmp_path, monkeypatch):
    monkeypatch.setattr(webhdfs, "_PATIENCE_S", 5.0)
    source, place, ballast = tmp_path / "source", small_disk / "hdfs", small_disk / "ballast"
    source.mkdir()
    for number in range(40):
        (source / f"{number:02}").write_bytes(os.urandom(1 << 20))
    jars = str(hdfs.jars)
    served = serve(place, "127.0.0.1", None, copies=1, hadoop=jars)

    def fill(*_):
        if not ballast.exists():
            ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free - (2 << 20)))

    def staged(progress):
        where = data_directory(place)
        return stage(str(source), served.web, index=0, count=1, copies=1, directory=where, progress=progress)

    with pytest.raises(FullStoreError, match=r"no room for .* while files are written: .* free at 127\.0"):
        staged(fill)
    path = data_path(str(source))
    notes = WebHdfsBackend(f"{served.web}/trainmaster{path}")
    assert not any("manifest" in each.key for each in notes.details(""))
    ballast.unlink()
    assert serve(place, "127.0.0.1", None, copies=1, hadoop=jars) == served
    assert staged(lambda *_: None).copied == 40
    found = WebHdfsBackend(f"{served.web}{path}")
    assert found.get("07", 2 << 20) == (source / "07").read_bytes()
    assert {each.size_bytes for each in found.details("")} == {1 << 20}


def test_a_namenode_that_is_not_there(monkeypatch):
    monkeypatch.setattr(webhdfs, "_PATIENCE_S", 0.5)
    with pytest.raises(PublishError, match=r"(?s)hdfs://127.0.0.1:1/x.*refused.*Check the network"):
        ObjectStore("hdfs://127.0.0.1:1/x").get("y")


def test_a_datanode_that_dies(hdfs, store):
    """The namenode sends clients to it for half a minute more; nobody hears of that."""
    data = os.urandom(3 << 20)
    for number in range(4):
        store.put(f"before{number}", data)
    hdfs.kill_datanode(0)
    for number in range(4):
        assert store.get(f"before{number}") == data
        store.put(f"after{number}", data)
        assert store.get(f"after{number}") == data
    assert b"".join(store.blocks("before0")) == data
