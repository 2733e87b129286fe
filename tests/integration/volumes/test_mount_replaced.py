# ruff: noqa: F811 - fixtures are imported
"""A mount that is made anew while readers hold the one before, and whether that is necessary at all."""

import io
from pathlib import Path

import pytest
from reading_helpers import CHUNK, home, kernel_can, pictures, wait_until  # noqa: F401 - fixtures
from test_mount_volume import place, processes, volume  # noqa: F401 - fixtures

from trainmaster.cluster.node_files import data_orders
from trainmaster.cluster.node_files.order_output import OrderOutput
from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import TrainmasterError
from trainmaster.volumes.mounting import available, mount, unmount
from trainmaster.volumes.mounting.lifecycle import mount_log
from trainmaster.volumes.mounting.mounts import mounted_at
from trainmaster.volumes.mounting.providing import answers, last_trouble
from trainmaster.volumes.packed.addresses import volume_address
from trainmaster.volumes.packed.getting import GetProgress
from trainmaster.volumes.packed.head import read_head
from trainmaster.volumes.packed.indexing import index
from trainmaster.volumes.reading.place import cache_directory

if problem := available():
    pytest.skip(problem, allow_module_level=True)
pytestmark = pytest.mark.timeout(60)


def a_file(place):
    return next(path for path in sorted(place.rglob("*")) if path.is_file() and path.stat().st_size)


def noted(place, line):
    with mount_log(str(place)).open("a") as log:
        log.write(f"{line}\n")


def test_the_end_of_the_old_one_leaves_the_new_one(volume, place):
    mount(volume, place, means="fuse")
    old = processes(place)
    with a_file(place).open("rb") as held:
        held.read(10)
        log = mount_log(str(place))
        assert unmount(place)
        mount(volume, place, means="fuse")
        new = mounted_at(str(place))
        assert len(processes(place)) == 4, "the old one serves its reader"
        noted(place, "of the new one")
    wait_until(lambda: not set(old) & set(processes(place)))
    assert mounted_at(str(place)) == new
    assert "of the new one" in log.read_text()
    assert a_file(place).read_bytes()
    assert unmount(place)
    wait_until(lambda: not processes(place))
    assert not log.exists()


@pytest.fixture
def ordered(volume, place):
    """What a node is told."""
    address = volume_address(volume)
    head = read_head(ObjectStore(address.url), address.version)
    return {"uri": volume, "cache": str(cache_directory()), "table": head.table_id, "is_contained": False}


def provided(order, place):
    return data_orders._volume(order, place, GetProgress(), OrderOutput(io.BytesIO()))


@pytest.fixture
def trouble(volume, place):
    """Makes the store fail, as its readers see it, and notes it in the mount's log."""
    heads = Path(volume_address(volume).url.removeprefix("file://"), "heads")

    def fail():
        noted(place, "error: 503")
        heads.rename(f"{heads}-away")

    def mend():
        Path(f"{heads}-away").rename(heads)

    return fail, mend


def test_a_mount_that_works_again_stays(ordered, place):
    mount(ordered["uri"], place, means="fuse")
    before = mounted_at(str(place))
    noted(place, "error: 503 once")
    assert last_trouble(place) == "503 once"
    assert provided(ordered, place) == "kept"
    assert mounted_at(str(place)) == before
    assert last_trouble(place) == ""
    assert answers(place)


def test_as_long_as_another_one_would_not_work_either_it_stays_too(ordered, place, trouble):
    fail, mend = trouble
    mount(ordered["uri"], place, means="fuse")
    before = mounted_at(str(place))
    fail()
    try:
        assert not answers(place)
        with pytest.raises(TrainmasterError):
            provided(ordered, place)
    finally:
        mend()
    assert mounted_at(str(place)) == before
    assert provided(ordered, place) == "kept"
    assert mounted_at(str(place)) == before


def test_one_that_does_not_work_any_more_is_made_anew(ordered, place, monkeypatch):
    mount(ordered["uri"], place, means="fuse")
    before = processes(place)
    noted(place, "error: the token has expired")
    monkeypatch.setattr(data_orders, "answers", lambda _: False)
    assert provided(ordered, place) == "mounted"
    wait_until(lambda: len(processes(place)) == 2)
    assert not set(before) & set(processes(place))
    assert last_trouble(place) == ""
    assert a_file(place).read_bytes()


@pytest.fixture
def indexed(home, tmp_path):
    """A volume over files of another place, and what a node is told of it."""
    source = tmp_path / "objects"
    source.mkdir()
    (source / "a").write_bytes(b"a" * 1000)
    uri = index(f"file://{source}", f"file://{tmp_path}/store/indexed", chunk_limit_bytes=CHUNK).uri
    address = volume_address(uri)
    head = read_head(ObjectStore(address.url), address.version)
    order = {"uri": uri, "cache": str(cache_directory()), "table": head.table_id, "is_contained": False}
    return source, order


def test_of_an_indexed_one_the_store_of_its_objects_is_asked_too(indexed, place):
    source, order = indexed
    mount(order["uri"], place, means="fuse")
    before = mounted_at(str(place))
    noted(place, "error: 403")
    away = source.rename(f"{source}-away")
    source.symlink_to(source)  # its objects cannot be read, though they are not known to be gone
    try:
        assert not answers(place)
        with pytest.raises(TrainmasterError):
            provided(order, place)
        assert mounted_at(str(place)) == before, "another one could not read them either"
    finally:
        source.unlink()
        away.rename(source)
    assert answers(place)
    assert provided(order, place) == "kept"
    assert mounted_at(str(place)) == before
