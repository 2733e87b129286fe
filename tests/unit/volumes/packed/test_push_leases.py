"""Marks of processes of this machine that have ended."""

import json
import subprocess
import sys
import threading

import pytest

from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import PublishError
from trainmaster.volumes.packed.garbage import collect_garbage, remove_volume
from trainmaster.volumes.packed.leases import Clocks, OperationLease, living, owner, wait_for_collections
from trainmaster.volumes.packed.pushing import push

MAKE = """
import sys
from trainmaster.objects.object_store import ObjectStore
from trainmaster.volumes.packed.leases import OperationLease
lease = OperationLease(ObjectStore(sys.argv[1]), sys.argv[2])
print(lease.key, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a").write_bytes(b"1")
    url = f"file://{tmp_path}/v"
    push(tmp_path / "src", url, cache=tmp_path / "cache")
    return ObjectStore(url)


@pytest.fixture
def other(store):
    """A process that has left a lease, by its kind."""
    started = []

    def start(kind):
        process = subprocess.Popen(
            [sys.executable, "-c", MAKE, store.url, kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_push_that_was_killed_here_is_forgotten_at_once(store, other):
    process, key = other("pushes")
    done = collect_garbage(store)
    assert done.under_way == 1
    assert done.owners == (owner(store, key),)
    assert f"process {process.pid} on " in done.owners[0]
    with pytest.raises(PublishError, match=f"a push is under way .process {process.pid} "):
        remove_volume(store)
    process.kill()
    process.wait()
    assert collect_garbage(store).under_way == 0
    assert list(store.list("pushes")) == []
    remove_volume(store)


def test_a_collection_that_was_killed_here_holds_no_push_up(store, other, tmp_path):
    process, _ = other("collections")
    process.kill()
    process.wait()
    said = []
    push(tmp_path / "src", store.url, cache=tmp_path / "cache", say=said.append)
    assert said == []


@pytest.mark.parametrize(
    "change", [{"space": "elsewhere"}, {"started": ""}, {"pid": "7"}, {"pid": -1}, {"pid": 1 << 70}, None]
)
def test_a_mark_that_nobody_can_judge_counts(store, other, change):
    process, key = other("pushes")
    process.kill()
    process.wait()
    document = json.loads(store.get(key))
    store.put(key, b"no JSON" if change is None else json.dumps(document | change).encode())
    assert collect_garbage(store).under_way == 1


def test_a_number_that_another_process_has_now(store):
    lease = OperationLease(store, "pushes")
    document = json.loads(store.get(lease.key))
    now_s = lease.renew()
    assert len(living(store, "pushes", now_s)) == 1
    store.put(lease.key, json.dumps(document | {"started": "1"}).encode())
    assert living(store, "pushes", now_s) == []


def test_a_push_of_hours_is_not_taken_for_dead(store):
    """It is renewed so often that one renewal that fails does no harm."""
    now = 0.0
    failing = iter([False, True] * 1000)

    class Stopped(threading.Event):
        def wait(self, timeout=None):
            nonlocal now
            now += timeout
            if next(failing):
                now += timeout
            return now > 5 * 3600

    lease = OperationLease(store, "pushes", Clocks(boot_s=lambda: now))
    lease.keep(Stopped())
    assert lease.was_fresh(0.0)
    lease.confirm()


@pytest.mark.parametrize("data", [b'{"host":"h"}', b'{"pid":7}', b"[]", b"{"])
def test_a_mark_that_does_not_say_whose_it_is_counts_all_the_same(store, data):
    store.put("pushes/0.json", data)
    assert collect_garbage(store).under_way == 1
    assert owner(store, "pushes/0.json") == ""


def test_who_waits_for_a_collection_does_not_keep_the_store_busy(store):
    now, asked, said = 0.0, 0, []

    def boot_s():
        nonlocal now, asked
        asked += 1
        now += 0.05  # what a question takes
        return now

    def sleep(seconds):
        nonlocal now
        now += seconds

    OperationLease(store, "collections")
    lease = OperationLease(store, "pushes")
    with pytest.raises(PublishError, match="running for too long"):
        wait_for_collections(store, lease, said.append, 60.0, Clocks(boot_s=boot_s, sleep=sleep))
    assert len(said) == 1
    assert asked < 60
