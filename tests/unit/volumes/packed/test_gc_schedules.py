"""Garbage collection, pushes and removals, halted anywhere: what a version names stays."""

import pytest

from trainmaster.testing.stepped_store import Stage
from trainmaster.volumes.objects import ObjectStore
from trainmaster.volumes.packed import collect_garbage, get, head_numbers, open_volume, push, remove_version

URL = "memory://v"
LIMIT = 10_000


@pytest.fixture
def stage():
    with Stage() as stage:
        yield stage


@pytest.fixture
def trees(tmp_path):
    """Two directories of which one chunk is the same."""
    made = []
    for name in "ab":
        folder = tmp_path / name
        folder.mkdir()
        (folder / "own").write_bytes(name.encode() * 9_000)
        made.append(folder)
    return made


def pushed(source, cache):
    return push(source, URL, cache=cache, chunk_limit_bytes=LIMIT, jobs=1)


def check_readable(tmp_path):
    store = ObjectStore(URL)
    for version in head_numbers(store)[0]:
        fresh = tmp_path / f"read{len(list(tmp_path.iterdir()))}"
        get(open_volume(f"{URL}@{version}", fresh / "cache"), fresh / "out")


def at_its_deletes(stage):
    """Gives the first collection that is about to delete a chunk or table."""
    while True:
        stage.clock.sleep(30 * 3600)
        collector = stage.start("gc", lambda: collect_garbage(ObjectStore(URL)))
        if stage.run(collector, until=lambda step: step.name == "delete" and step.key[:2] in ("ch", "ma")):
            return collector


def test_a_collection_that_sleeps_for_two_hours(stage, trees, tmp_path):
    first, second = trees
    for source in (first, second):
        pushed(source, tmp_path / "cache")
    remove_version(ObjectStore(URL), 1)
    collector = at_its_deletes(stage)
    stage.clock.sleep(2 * 3600)
    pushed(first, tmp_path / "cache2")
    stage.run(collector, until=lambda _: False)
    check_readable(tmp_path)
