"""What is at a place, and whether it can be brought there at all."""

import shutil
from types import SimpleNamespace

import pytest

from trainmaster.spec.errors import PublishError
from trainmaster.volumes.mounting import provide, provided, withdraw
from trainmaster.volumes.mounting.lifecycle import mount_log
from trainmaster.volumes.mounting.providing import last_trouble
from trainmaster.volumes.packed.getting import GetProgress
from trainmaster.volumes.packed.pushing import push

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("blake3", reason="blake3 is not installed")


@pytest.fixture
def uri(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_bytes(b"a" * 1000)
    push(source, f"file://{tmp_path}/volume")
    return f"file://{tmp_path}/volume@1"


def test_what_was_fetched_is_known_and_taken_away(uri, tmp_path):
    place, cache, progress = tmp_path / "place", tmp_path / "cache", GetProgress()
    assert provided(uri, place) is None
    assert provide(uri, place, cache=cache, means="fetched", progress=progress) == "fetched"
    assert (place / "a").read_bytes() == b"a" * 1000
    assert progress.done_bytes == progress.total_bytes == 1000
    assert provided(uri, place) == "fetched"
    shutil.rmtree(cache)
    assert provided(uri, place) is None, "a link that leads nowhere"
    assert withdraw(place)
    assert not place.is_symlink()


def test_what_cannot_fit_is_refused_before_it_is_fetched(uri, tmp_path, monkeypatch):
    place, cache = tmp_path / "place", tmp_path / "cache"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=999))
    with pytest.raises(PublishError, match=r"its 1,000 bytes do not fit into .* 999 are free"):
        provide(uri, place, cache=cache, means="fetched")
    assert not place.exists()


def test_the_last_words_of_a_mount(tmp_path):
    place = tmp_path / "place"
    assert last_trouble(place, tmp_path) == ""
    log = mount_log(str(place), tmp_path)
    log.parent.mkdir()
    log.write_text("note: hm\nerror: first\nUse another.\nerror: the token has expired\nsome advice\n")
    assert last_trouble(place, tmp_path) == "the token has expired"
    log.write_text("Ignoring invalid max threads value\n")
    assert last_trouble(place, tmp_path) == ""
