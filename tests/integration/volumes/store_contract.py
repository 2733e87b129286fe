"""What volumes, artifacts and checkpoints need of every object store, as tests to inherit."""

import os
import signal
import subprocess
import threading
from datetime import timedelta
from urllib.parse import unquote

import pytest
from reading_helpers import contents, python, wait_until

from trainmaster.artifacts import CheckpointSeries
from trainmaster.objects import obstore_backend
from trainmaster.objects.errors import StoreTrouble
from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import PublishError
from trainmaster.testing.object_store_contract import ObjectStoreContract
from trainmaster.volumes import Volume
from trainmaster.volumes.errors import SourceChangedError
from trainmaster.volumes.mounting import available, mount, unmount
from trainmaster.volumes.packed.garbage import collect_garbage
from trainmaster.volumes.packed.getting import get
from trainmaster.volumes.packed.head import head_numbers
from trainmaster.volumes.packed.indexing import index
from trainmaster.volumes.packed.opening import open_volume
from trainmaster.volumes.packed.pushing import push

MIB = 1 << 20
PUSH = """
import sys
from pathlib import Path
from trainmaster.volumes.packed.pushing import push
push(sys.argv[1], sys.argv[2], cache=Path(sys.argv[3]), chunk_limit_bytes=1 << 20, jobs=2)
"""
CHECKPOINT = """
import sys
from pathlib import Path
from trainmaster.artifacts import CheckpointSeries
CheckpointSeries(sys.argv[2]).publish({"": Path(sys.argv[1])}, attempt=1)
"""

CALLS = {
    "push": lambda url, place: push(place / "src", url, cache=place / "cache"),
    "open": lambda url, place: open_volume(url, place / "cache"),
    "newest checkpoint": lambda url, _: CheckpointSeries(url).newest(),
    "checkpoint": lambda url, place: CheckpointSeries(url).publish({"": place / "src"}, attempt=1),
    "get": lambda url, _: ObjectStore(url).get("x"),
    "range": lambda url, _: ObjectStore(url).get_range("x", 0, 1),
    "put in parts": lambda url, _: ObjectStore(url).put_blocks("x", iter([bytes(9 * MIB)]), 9 * MIB),
}


def killed_after(program, proxy, puts, *arguments):
    """Kills another process when it has asked for so many uploads."""
    process = python(program, *arguments)
    try:
        before = len(proxy.asked("PUT"))
        wait_until(lambda: len(proxy.asked("PUT")) - before >= puts or process.poll() is not None)
    finally:
        process.kill()
    _, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors
    proxy.wait_until_idle()


class StoreContract(ObjectStoreContract):
    """Inherit and give the two fixtures.

    Attributes:
        completion: method of the request that makes an object of its parts, and a piece of its path.
    """

    completion = "POST", "uploadId"

    @pytest.fixture
    def bucket(self):
        """The URL of an empty bucket."""
        raise NotImplementedError

    @pytest.fixture
    def faulty(self):
        """A `FaultProxy` and the URL of an empty bucket behind it."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _impatient(self, monkeypatch, tmp_path):
        """Errors that stay are told after a second; caches are the test's own."""
        backoff = {
            "init_backoff": timedelta(milliseconds=20),
            "max_backoff": timedelta(milliseconds=200),
            "base": 2,
        }
        retries = {"max_retries": 8, "retry_timeout": timedelta(seconds=20), "backoff": backoff}
        monkeypatch.setattr(obstore_backend, "_RETRIES", retries)
        monkeypatch.setattr(obstore_backend, "_stores", {})
        monkeypatch.setenv("TRAINMASTER_CACHE", str(tmp_path / "cache"))

    @pytest.fixture
    def source(self, tmp_path):
        root = tmp_path / "src"
        for number in range(30):
            path = root / f"d{number % 3}/{number:02} ü&%"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(100_000))
        (root / "large").write_bytes(os.urandom(5 * MIB))
        return root

    @pytest.fixture
    def store(self, bucket):
        return ObjectStore(f"{bucket}/some where")

    @pytest.fixture
    def troubles(self, bucket):
        return {StoreTrouble.MISSING: ObjectStore(f"{bucket}-not/v")}

    def test_etags_are_those_of_headers(self, store):
        store.put("x", b"1")
        assert store.info("x").etag.startswith('"')

    def test_a_creation_that_is_refused_by_its_condition(self, faulty):
        """Azure answers 409 mostly and 412 at times; Azurite never does the latter."""
        proxy, url = faulty
        store = ObjectStore(url)
        proxy.fail("status", status=412, method="PUT")
        assert not store.put_if_absent("head", b"1")
        assert store.put_if_absent("head", b"1")

    def test_a_volume_by_the_command_line(self, bucket, source, tm):
        environment = tm.env | {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))
        }
        url = f"{bucket}/team/cats"

        def volume(*arguments):
            return tm.call("volume", *arguments, env=environment, code=0)

        assert volume("push", source, url, "--chunk-size", "1MiB", "--json").json["version"] == 1
        (source / "d0/new").write_text("new")
        pushed = volume("push", source, url, "--chunk-size", "1MiB", "--read-back", "--json").json
        assert (pushed["version"], pushed["sent_chunks"] < pushed["chunks"]) == (2, True)
        assert volume("ls", url).out.splitlines()[0].endswith("d0/")
        assert volume("cat", url, "d0/new").out == "new"
        volume("get", f"{url}@2", tm.work / "out")
        subprocess.run(["diff", "-r", source, tm.work / "out"], check=True)
        assert [one["version"] for one in volume("versions", url, "--json").json["versions"]] == [1, 2]
        (source / "large").unlink()
        volume("push", source, url, "--chunk-size", "1MiB")
        volume("rm", f"{url}@1", "--yes")
        volume("rm", f"{url}@2", "--yes")
        assert volume("gc", url, "--grace", "0s", "--now", "--json").json["deleted_chunks"] >= 4
        volume("get", url, tm.work / "again")
        subprocess.run(["diff", "-r", source, tm.work / "again"], check=True)
        volume("rm", url, "--yes")
        assert list(ObjectStore(url).list("heads")) == []

    def test_of_pushes_at_once_each_gets_its_number(self, bucket, source, tmp_path):
        url = f"{bucket}/v"
        reports = []

        def run(number):
            cache = tmp_path / f"cache{number}"
            reports.append(push(source, url, cache=cache, chunk_limit_bytes=2 * MIB))

        threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(report.version for report in reports) == [1, 2, 3]
        assert collect_garbage(ObjectStore(url), 0, now=True).deleted_chunks == 0

    def test_reading_and_mounting(self, faulty, source, tmp_path):
        proxy, url = faulty
        uri = push(source, f"{url}/v", chunk_limit_bytes=MIB).uri
        expected = contents(source)
        assert {path: Volume.open(uri)[path] for path in expected} == expected
        asked = len(proxy.asked("GET", "chunks"))
        assert {path: Volume.open(uri)[path] for path in expected} == expected
        assert len(proxy.asked("GET", "chunks")) == asked, "it is in the node's cache"
        if problem := available():
            pytest.skip(problem)
        place = tmp_path / "mnt"
        mount(uri, place, cache=tmp_path / "empty", means="fuse")
        try:
            assert contents(place) == expected
        finally:
            assert unmount(place)
        assert len(proxy.asked("GET", "chunks")) > asked

    def test_an_index_over_objects(self, bucket, source, tmp_path):
        objects = ObjectStore(f"{bucket}/images")
        for path, data in contents(source).items():
            objects.put(path, data)
        index(objects.url, f"{bucket}/v", cache=tmp_path / "cache", chunk_limit_bytes=2 * MIB)
        volume = open_volume(f"{bucket}/v", tmp_path / "cache")
        get(volume, tmp_path / "out")
        assert contents(tmp_path / "out") == contents(source)
        objects.put("large", os.urandom(5 * MIB))
        with pytest.raises(SourceChangedError, match="images/large was written again"):
            volume.chunks.fetch(*volume.table.extents(volume.table.row_of("large"))[0])

    @pytest.mark.parametrize("status", [429, 503])
    def test_a_server_that_fails_now_and_then(self, faulty, source, tmp_path, status):
        proxy, url = faulty
        proxy.fail("status", status=status, times=2, method="PUT", path="chunks")
        proxy.fail("status", status=status, times=1, method="PUT", path="heads")
        proxy.fail("refuse", times=2, method="PUT", path="chunks")
        report = push(source, f"{url}/v", cache=tmp_path / "cache", chunk_limit_bytes=2 * MIB)
        proxy.fail("status", status=status, times=2, method="GET", path="chunks")
        proxy.fail("cut", times=2, method="GET", path="chunks", after_bytes=100_000)
        get(open_volume(report.uri, tmp_path / "other"), tmp_path / "out")
        assert contents(tmp_path / "out") == contents(source)

    def test_answers_that_are_lost(self, faulty, source, tmp_path):
        proxy, url = faulty
        proxy.fail("lose", method="PUT", path="heads")
        proxy.fail("lose", method="PUT", path="chunks", times=2)
        report = push(source, f"{url}/v", cache=tmp_path / "cache", chunk_limit_bytes=2 * MIB)
        assert report.version == 1, "its own head is no other's"
        assert head_numbers(ObjectStore(f"{url}/v")) == ([1], 1)

    def test_the_answer_to_the_last_request_of_many_is_lost(self, faulty):
        """Sent again it names parts that are no longer there, as the object is."""
        proxy, url = faulty
        store = ObjectStore(url)
        method, path = self.completion
        data = os.urandom(20 * MIB)
        proxy.fail("lose", method=method, path=path)
        store.put_blocks("large", iter([data]), 20 * MIB)
        assert b"".join(store.blocks("large")) == data
        assert len(proxy.asked(method, path)) >= 2

    def test_a_push_that_is_killed_sends_nothing_twice(self, faulty, source, tmp_path):
        proxy, url = faulty
        proxy.bytes_per_s = 8e6
        killed_after(PUSH, proxy, 7, source, f"{url}/v", tmp_path / "cache")
        store = ObjectStore(f"{url}/v")
        assert head_numbers(store) == ([], 0)
        there = sorted(key for key, _ in store.list("chunks"))
        assert len(there) >= 2
        proxy.heal()
        before = len(proxy.asked("PUT"))
        report = push(source, f"{url}/v", cache=tmp_path / "cache", chunk_limit_bytes=MIB)
        again = [unquote(path) for _, path, _ in proxy.asked("PUT")[before:]]
        assert not [key for key in there if any(key in path for path in again)]
        assert report.sent_chunks + len(there) == report.head.chunk_count
        get(open_volume(f"{url}/v", tmp_path / "cache"), tmp_path / "out")
        assert contents(tmp_path / "out") == contents(source)

    @pytest.mark.parametrize("puts", [3, pytest.param(6, marks=pytest.mark.crossings)])
    def test_a_checkpoint_that_is_killed_is_none(self, faulty, tmp_path, puts):
        """Once among small files, once within a large one."""
        proxy, url = faulty
        source = tmp_path / "state"
        source.mkdir()
        for name, size in (("optimizer", 2 * MIB), ("scaler", 100), ("step", 10), ("weights", 36 * MIB)):
            (source / name).write_bytes(os.urandom(size))
        proxy.bytes_per_s = 40e6
        killed_after(CHECKPOINT, proxy, puts, source, f"{url}/run/checkpoints")
        proxy.heal()
        series = CheckpointSeries(f"{url}/run/checkpoints")
        assert (series.newest(), series.complete()) == (None, [])
        assert [series.publish({"": source}, attempt=attempt) for attempt in (2, 2)] == [1, 2]
        with pytest.raises(PublishError):
            series.publish({"": source}, attempt=1)
        assert series.prune(1) == [1]
        assert {key.partition("/")[0] for key, _ in ObjectStore(series.uri).list()} == {"000002"}
        assert len(ObjectStore(series.uri_of(2)).folders()) == 1, "nothing is left of the one that was killed"
        series.restore(2, tmp_path / "back")
        assert contents(tmp_path / "back") == contents(source)

    @pytest.mark.parametrize("call", CALLS, ids=str)
    def test_a_bucket_that_is_not_there(self, bucket, tmp_path, call):
        (tmp_path / "src").mkdir()
        (tmp_path / "src/x").write_bytes(b"x")
        with pytest.raises(PublishError, match=r"Create the (bucket|container) first") as caught:
            CALLS[call](f"{bucket}-not/v", tmp_path)
        assert "\n" not in caught.value.args[0]
