import threading
from dataclasses import replace
from pathlib import Path

import pytest

from trainmaster.artifacts import CheckpointSeries, checkpoints, publishing, read_manifest
from trainmaster.artifacts.owner import ForeignArtifactError, Owner
from trainmaster.artifacts.publishing import AlreadyPublished
from trainmaster.artifacts.tree import parts_listing
from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import PublishError

pytest_plugins = ["object_store_fixtures"]


@pytest.fixture
def series(store_url):
    return CheckpointSeries(f"{store_url}/task-0")


@pytest.fixture
def parts(tmp_path):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint/step").write_text("0")
    return {"": tmp_path / "checkpoint"}


def save(parts, step) -> None:
    (parts[""] / "step").write_text(str(step))


def test_they_are_numbered_from_one(series, parts, tmp_path):
    assert series.newest() is None
    assert series.complete() == []
    assert series.prune(2) == []
    for step in (1, 2, 3):
        save(parts, step)
        assert series.publish(parts, attempt=1, extra={"step": step}) == step
    assert series.complete() == [1, 2, 3]
    assert series.newest() == 3
    assert series.restore(2, tmp_path / "back").extra == {"step": 2, "attempt": 1}
    assert (tmp_path / "back/step").read_text() == "2"
    assert series.manifest(4) is None


def test_nothing_and_nothing_new_are_not_published(series, parts, tmp_path):
    assert series.publish({"": tmp_path / "nothing"}, attempt=1) is None
    last = parts_listing(parts)
    assert series.publish(parts, attempt=1, last=last) is None
    assert series.publish(parts, attempt=1) == 1
    save(parts, 1)
    assert series.publish(parts, attempt=1, last=last) == 2


def test_what_is_not_complete_does_not_count(series, parts):
    series.publish(parts, attempt=1)
    store = ObjectStore(series.uri)
    store.put("000002/files-0/step", b"half")
    store.put("7/manifest.json", b"{}")
    store.put("notes/manifest.json", b"{}")
    assert series.complete() == [1]
    assert series.newest() == 1
    save(parts, 1)
    assert series.publish(parts, attempt=1) == 2
    assert len(store.folders("000002")) == 1


def test_pruning_keeps_the_newest(series, parts):
    for step in range(5):
        save(parts, step)
        series.publish(parts, attempt=1)
    store = ObjectStore(series.uri)
    store.delete(["000002/manifest.json"])  # a deletion that was killed half-way
    store.put("000006/files-0/step", b"being published right now")
    assert series.prune(3) == [1, 2]
    assert series.complete() == [3, 4, 5]
    assert list(store.folders()) == ["000003", "000004", "000005", "000006"]
    assert series.prune(0) == [3, 4], "the newest always stays"


def test_all_go_once_nothing_needs_them(series, parts):
    for step in range(3):
        save(parts, step)
        series.publish(parts, attempt=1)
    store = ObjectStore(series.uri)
    store.put("000004/files-0/step", b"never finished")
    series.delete_all()
    series.delete_all()
    assert list(store.folders()) == []


def lose_files(series, number) -> None:
    store = ObjectStore(series.uri_of(number))
    for folder in store.folders():
        store.delete_all(folder)


def test_one_whose_files_are_gone_is_not_complete_and_costs_no_good_one(series, parts, tmp_path):
    for step in (1, 2):
        save(parts, step)
        series.publish(parts, attempt=1)
    lose_files(series, 2)
    assert (series.complete(), series.newest()) == ([1], 1)
    assert series.prune(1) == []
    series.restore(1, tmp_path / "back")
    save(parts, 3)
    assert series.publish(parts, attempt=1) == 3, "its number is never free again"
    assert series.prune(2) == [2], "what is not complete is not counted"
    assert series.complete() == [1, 3]


def test_known_bad_ones_go_first(series, parts):
    for step in (1, 2, 3):
        save(parts, step)
        series.publish(parts, attempt=1)
    assert series.prune(2, bad={2}) == [2]
    assert series.prune(1, bad={3}) == [], "what is good is older than what is bad, and the last of its kind"
    assert series.complete() == [1, 3]
    assert series.prune(1, bad={1, 3}) == []


def test_an_upload_that_is_cleared_under_way_takes_the_next_number(series, parts, tmp_path, monkeypatch):
    save(parts, 1)
    series.publish(parts, attempt=1)
    original = publishing._commit

    def cleared(*args):
        monkeypatch.setattr(publishing, "_commit", original)
        series.clear_unfinished()
        return original(*args)

    monkeypatch.setattr(publishing, "_commit", cleared)
    save(parts, 2)
    number = series.publish(parts, attempt=2)
    assert (number, series.complete(), series.newest()) == (3, [1, 3], 3)
    assert series.prune(1) == [1, 2]
    series.restore(3, tmp_path / "back")
    assert (tmp_path / "back/step").read_text() == "2"


def test_files_that_vanish_before_the_commit_are_sent_again(series, parts, tmp_path, monkeypatch):
    save(parts, 1)
    series.publish(parts, attempt=1)
    original = publishing._commit

    def without_files(store, *args):
        monkeypatch.setattr(publishing, "_commit", original)
        for folder in store.folders():
            store.delete_all(folder)
        return original(store, *args)

    monkeypatch.setattr(publishing, "_commit", without_files)
    save(parts, 2)
    number = series.publish(parts, attempt=1)
    assert series.newest() == number
    assert series.prune(1) == [1]
    series.restore(number, tmp_path / "back")


OURS = Owner("digits-0123456789", "a" * 32, 1000.5)
THEIRS = Owner("digits-0123456789", "b" * 32, 1000.5)


@pytest.mark.parametrize("other", [THEIRS, replace(OURS, created_at=1001.5), None])
def test_what_is_of_another_run_is_neither_taken_nor_restored_nor_deleted(store_url, parts, tmp_path, other):
    uri = f"{store_url}/task-0"
    theirs = CheckpointSeries(uri, other)
    for step in (1, 2, 3):
        save(parts, step)
        theirs.publish(parts, attempt=1)
    ours = CheckpointSeries(uri, OURS)
    calls = [
        lambda: ours.publish(parts, attempt=2),
        ours.newest,
        ours.complete,
        lambda: ours.prune(1),
        lambda: ours.restore(3, tmp_path / "back"),
    ]
    for call in calls:
        with pytest.raises(ForeignArtifactError) as caught:
            call()
        assert "of run digits-0123456789 of home aaaaaaaa" in str(caught.value)
        assert ("does not name" if other is None else f"home {other.home[:8]}") in str(caught.value)
    assert not (tmp_path / "back").exists()
    assert theirs.complete() == [1, 2, 3]


def test_two_publishers_never_get_one_number(store_url, tmp_path):
    numbers = []

    def publish(who):
        mine = tmp_path / str(who)
        mine.mkdir()
        series = CheckpointSeries(f"{store_url}/task-0")
        for step in range(3):
            (mine / "step").write_text(f"{who} {step}")
            try:
                numbers.append(series.publish({"": mine}, attempt=1))
            except PublishError:
                numbers.append(None)  # five times another publisher was faster

    threads = [threading.Thread(target=publish, args=(who,)) for who in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    published = [number for number in numbers if number is not None]
    assert sorted(published) == CheckpointSeries(f"{store_url}/task-0").complete()
    assert len(set(published)) == len(published) >= 3


def test_an_earlier_attempt_cannot_publish_any_more(series, parts):
    series.publish(parts, attempt=1)
    save(parts, 1)
    series.publish(parts, attempt=2)
    save(parts, 2)
    with pytest.raises(PublishError, match="Checkpoint 2 is of attempt 2: attempt 1 is over"):
        series.publish(parts, attempt=1)
    assert series.complete() == [1, 2]


def test_a_later_attempt_that_commits_first_fences_too(series, parts, tmp_path, monkeypatch):
    original = checkpoints.publish

    def late(mine, uri, **options):
        if options["extra"]["attempt"] == 1:
            other = tmp_path / "other"
            other.mkdir()
            (other / "step").write_text("newer")
            series.publish({"": other}, attempt=2)
        return original(mine, uri, **options)

    monkeypatch.setattr(checkpoints, "publish", late)
    with pytest.raises(PublishError, match="attempt 1 is over"):
        series.publish(parts, attempt=1)
    assert read_manifest(series.uri_of(1)).extra["attempt"] == 2


def test_one_that_others_overtook_does_not_appear_behind_their_backs(series, parts, tmp_path, monkeypatch):
    original = checkpoints.publish
    other = tmp_path / "other"
    other.mkdir()

    def slow(mine, uri, **options):
        if mine is parts and uri.endswith("000001"):
            for step in range(3):
                (other / "step").write_text(str(step))
                series.publish({"": other}, attempt=1)
            series.prune(1)
        return original(mine, uri, **options)

    monkeypatch.setattr(checkpoints, "publish", slow)
    assert series.publish(parts, attempt=1) == 4
    assert series.complete() == [3, 4]


def test_the_uri_of_a_bare_path_is_a_url(tmp_path):
    series = CheckpointSeries(str(tmp_path / "c"))
    assert series.uri_of(12) == f"file://{tmp_path}/c/000012"
    assert not Path(tmp_path / "c").exists()


def test_folders_of_others_are_no_checkpoints(series, parts):
    save(parts, 1)
    assert series.publish(parts, attempt=1) == 1
    ObjectStore(series.uri).put("lost-and-found/000001", b"")
    assert series.complete() == [1]
    assert series.newest() == 1


def test_who_always_comes_second_is_told_that_nothing_was_published(series, parts):
    save(parts, 1)
    assert series.publish(parts, attempt=1) == 1
    manifest = series.manifest(1)

    def overtaken(uri):
        raise AlreadyPublished(uri, manifest)

    with pytest.raises(PublishError, match="another publisher was faster"):
        series.publish_made(overtaken, attempt=1)
