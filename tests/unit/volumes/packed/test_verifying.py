import os
import secrets

import pytest

from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import NotFoundError
from trainmaster.volumes.packed.garbage import collect_garbage
from trainmaster.volumes.packed.head import remove_version
from trainmaster.volumes.packed.indexing import index
from trainmaster.volumes.packed.pushing import push
from trainmaster.volumes.packed.verifying import verified

LIMIT = 10_000


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "src"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number:02}").write_bytes(os.urandom(2000))
    return folder


@pytest.fixture
def store(source, tmp_path):
    """A volume with two versions, which share all chunks but one."""
    url = f"memory://{secrets.token_hex(8)}/v"
    for _ in range(2):
        (source / "00").write_bytes(os.urandom(2000))
        push(source, url, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT)
    return ObjectStore(url)


def damage(store, *arguments, **options):
    """Version -> what is wrong with it."""
    return {
        one.version: [fault.what for fault in one.damage] for one in verified(store, *arguments, **options)
    }


def test_all_is_well(store):
    assert damage(store, deep=True) == {1: [], 2: []}
    assert damage(store, 2) == {2: []}
    collect_garbage(store, 0, now=True)
    remove_version(store, 1)
    collect_garbage(store, 0, now=True)
    assert damage(store, deep=True) == {2: []}, "nor is the number that was taken a version"
    with pytest.raises(NotFoundError, match="no version 1"):
        damage(store, 1)
    with pytest.raises(NotFoundError, match="no volume"):
        damage(ObjectStore("memory://nothing/here"))


def test_chunks_that_are_gone_or_short_or_others(store):
    keys = sorted(info.key for info in store.list("chunks"))
    whole = {key: store.get(key) for key in keys}
    for key in keys:
        for data, deep, fault in (
            (None, False, "is missing"),
            (whole[key][:-1], False, f"has {len(whole[key]) - 1:,} bytes instead of {len(whole[key]):,}"),
            (bytes(len(whole[key])), True, "has another hash"),
        ):
            store.delete([key])
            if data is not None:
                store.put(key, data)
            found = [fault for faults in damage(store, deep=deep).values() for fault in faults]
            assert found
            assert all(key in one and fault in one for one in found)
            assert len(found) <= 2
            if deep:
                assert damage(store) == {1: [], 2: []}, "only a reader sees it"
        store.put(key, whole[key])
    assert damage(store, deep=True) == {1: [], 2: []}


@pytest.mark.parametrize("folder", ["heads", "manifests"])
def test_what_cannot_be_read_is_told_by_version(store, folder):
    keys = sorted(info.key for info in store.list(folder))
    for key in keys:
        data = store.get(key)
        for other in (data[:-7], b""):
            store.put(key, other)
            faults = damage(store)
            assert sorted(faults) == [1, 2]
            assert sorted(map(len, faults.values())) == [0, 1]
            assert key in str(faults)
        store.put(key, data)


def test_the_advice_heals(store, source, tmp_path):
    doomed = next(iter(store.list("chunks"))).key
    store.delete([doomed])
    advice = {fault.advice for one in verified(store) for fault in one.damage}
    assert all("Push the same files again" in one and "trainmaster volume rm" in one for one in advice)
    if damage(store)[2]:
        push(source, store.url, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT)
        assert damage(store)[2] == []


def test_objects_as_they_are(tmp_path):
    raw = ObjectStore(f"memory://{secrets.token_hex(8)}/raw")
    for number in range(5):
        raw.put(f"d/{number}", os.urandom(3000))
    url = f"memory://{secrets.token_hex(8)}/v"
    index(raw.url, url, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT)
    store = ObjectStore(url)
    assert damage(store, deep=True) == {1: []}
    raw.put("d/1", os.urandom(3000))
    raw.delete(["d/3"])
    found = damage(store)[1]
    assert len(found) == 2
    assert "d/1 was written again" in found[0]
    assert "d/3 is no longer there" in found[1]
    assert {fault.advice for one in verified(store) for fault in one.damage} == {
        f"Index it again: trainmaster volume index {raw.url} {url}"
    }
