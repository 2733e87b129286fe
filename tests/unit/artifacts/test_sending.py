"""What nodes upload: it goes on after a cut, is named only if it is there, and comes back once."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.artifacts import CheckpointSeries, FileEntry, UnstableDirectory, Upload, fetch, read_manifest
from trainmaster.artifacts.publishing import publish_uploads
from trainmaster.artifacts.sending import Sender, ToSend, bring_back, entry_list, listed_entry
from trainmaster.objects import ObjectStore
from trainmaster.spec.errors import PublishError


def to_send(place: Path, path: str = "") -> ToSend:
    status = place.stat()
    return ToSend(
        path or place.name,
        str(place),
        status.st_size,
        status.st_mtime_ns,
        status.st_ino,
        status.st_mode & 0o777,
    )


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store/000001"


@pytest.fixture
def files(tmp_path: Path) -> list[ToSend]:
    found = []
    for number in range(5):
        place = tmp_path / f"shard {number}"
        place.write_text(str(number) * 100)
        found.append(to_send(place, f"members/worker-1/shard {number}"))
    return found


def test_what_was_sent_is_not_sent_again(
    uri: str, files: list[ToSend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / ".sent"
    first = Sender(uri, "files-1", journal).send(files[:3])
    with journal.open("a") as file:
        file.write('["members/worker-1/shard 4", 100')  # killed in the middle of a line
    ObjectStore(uri).delete([first[0].object])  # somebody has tidied up
    puts: list[str] = []
    put_blocks = ObjectStore.put_blocks

    def counted(store: ObjectStore, key: str, *what: object) -> None:
        puts.append(key)
        put_blocks(store, key, *what)  # type: ignore[arg-type]

    monkeypatch.setattr(ObjectStore, "put_blocks", counted)
    entries = Sender(uri, "files-1", journal).send(files)
    assert len(puts) == 3
    assert {entry.path for entry in entries} == {file.path for file in files}
    publish_uploads(uri, [Upload("files-1", tuple(entries))], kind="model", extra={"attempt": 1})
    fetch(uri, tmp_path / "back")
    for number in range(5):
        assert (tmp_path / "back/members/worker-1" / f"shard {number}").read_text() == str(number) * 100

    puts.clear()
    Sender(uri, "files-2", journal).send(files)
    assert len(puts) == 5, "another upload"


def test_a_journal_that_is_none_is_written_anew(uri: str, files: list[ToSend], tmp_path: Path) -> None:
    journal = tmp_path / ".sent"
    for text in ("", "no JSON", "[]\n", json.dumps([uri, "files-9"]) + "\n[]\n"):
        journal.write_text(text)
        assert len(Sender(uri, "files-1", journal).send(files)) == 5


def test_a_file_that_is_another_one_by_now_is_not_sent(uri: str, files: list[ToSend], tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.write_text("x" * 100)
    draft.replace(files[2].place)
    with pytest.raises(UnstableDirectory, match="was replaced"):
        Sender(uri, "files-1", tmp_path / ".sent").send(files)


def test_nothing_is_named_that_is_not_there(uri: str, files: list[ToSend], tmp_path: Path) -> None:
    entries = Sender(uri, "files-1", tmp_path / ".sent").send(files)
    store = ObjectStore(uri)
    for wrong in (
        [*entries[1:], replace(entries[0], size_bytes=99)],
        [*entries, FileEntry("more", size_bytes=1, sha256="0" * 64, object="files-1/more")],
    ):
        with pytest.raises(PublishError, match="was uploaded and is not there"):
            publish_uploads(uri, [Upload("files-1", tuple(wrong))], kind="model")
    assert read_manifest(uri) is None
    store.put("files-old/x", b"waste")
    publish_uploads(uri, [Upload("files-1", tuple(entries))], kind="model")
    assert store.folders() == ["files-1"]


def test_the_first_of_two_uploads_wins_and_the_rest_is_united(uri: str, tmp_path: Path) -> None:
    uploads = []
    for number in range(2):
        folder = tmp_path / f"node-{number}"
        folder.mkdir()
        (folder / "same").write_text(f"of {number}")
        (folder / f"only-{number}").write_text(str(number))
        sent = Sender(uri, f"files-{number}", tmp_path / f".sent-{number}").send(
            to_send(place) for place in folder.iterdir()
        )
        uploads.append(Upload(f"files-{number}", tuple(sent)))
    publish_uploads(uri, uploads, kind="checkpoint", extra={"attempt": 1})
    fetch(uri, tmp_path / "back")
    found = {path.name: path.read_text() for path in (tmp_path / "back").iterdir()}
    assert found == {"same": "of 0", "only-0": "0", "only-1": "1"}


def test_it_comes_back_whole_and_once(uri: str, files: list[ToSend], tmp_path: Path) -> None:
    entries = Sender(uri, "files-1", tmp_path / ".sent").send(files)
    link = FileEntry("latest", "symlink", target="members/worker-1/shard 4")
    publish_uploads(uri, [Upload("files-1", (*entries, link, FileEntry("empty", "directory")))], kind="x")
    there = tmp_path / "deep" / "checkpoint"
    bring_back(uri, there)
    assert (there / "latest").read_text() == "4" * 100
    inode = there.stat().st_ino
    bring_back(uri, there)
    assert there.stat().st_ino == inode, "it was there"
    os.utime(there / "members/worker-1/shard 1", ns=(0, 0))
    bring_back(uri, there)
    assert there.stat().st_ino != inode
    (there / "latest").unlink()
    (there / "latest").symlink_to("empty")
    bring_back(uri, there)
    assert (there / "latest").read_text() == "4" * 100


def test_unfinished_uploads_go_when_nobody_publishes_any_more(tmp_path: Path) -> None:
    series = CheckpointSeries(f"file://{tmp_path}/store")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a").write_text("1")
    assert series.publish({"": tmp_path / "files"}, attempt=1) == 1
    for number in (2, 3):
        ObjectStore(series.uri_of(number)).put("files-1/a", b"half")
    series.clear_unfinished()
    left = {info.key for info in ObjectStore(series.uri).list() if not info.key.startswith("000001/")}
    assert left == {"000002/manifest.json", "000003/manifest.json"}, "nobody can commit there any more"
    assert (series.complete(), series.newest()) == ([1], 1)
    assert series.complete() == [1]


@given(
    st.text(min_size=1),
    st.integers(0, 1 << 62),
    st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
    st.integers(0, 0o777),
)
def test_entries_survive_the_way(path: str, number: int, sha256: str, mode: int) -> None:
    entry = FileEntry(path, size_bytes=number, sha256=sha256, mode=mode, mtime_ns=number, object=f"f/{path}")
    assert listed_entry(json.loads(json.dumps(entry_list(entry)))) == entry


@pytest.mark.parametrize("said", [None, {}, [], ["a", "b", "", 1, 1, "c"], ["a", True, "", 1, 1, "c"]])
def test_what_describes_no_file_is_refused(said: object) -> None:
    with pytest.raises(ValueError, match="describes no file"):
        listed_entry(said)  # type: ignore[arg-type]


def test_who_commits_the_same_upload_second_leaves_its_files(tmp_path):
    uri = f"file://{tmp_path}/store/checkpoint"
    (tmp_path / "x").write_bytes(b"one")
    status = (tmp_path / "x").stat()
    file = ToSend("x", str(tmp_path / "x"), 3, status.st_mtime_ns, status.st_ino, status.st_mode & 0o7777)
    entries = tuple(Sender(uri, "files-0123", tmp_path / "journal").send([file]))
    for _ in range(2):  # a driver that slept, and the one that went on in its place
        publish_uploads(uri, [Upload("files-0123", entries)], kind="checkpoint")
    fetch(uri, tmp_path / "back")
    assert (tmp_path / "back/x").read_bytes() == b"one"


said = (
    st.lists(st.text(max_size=3) | st.integers() | st.none() | st.just("0" * 64), max_size=7) | st.integers()
)


@given(
    said
    | st.tuples(st.text(), st.integers(), st.just("0" * 64), st.integers(), st.integers(), st.text()).map(
        list
    )
)
def test_what_a_node_says_it_sent_can_be_in_a_manifest(found):
    try:
        entry = listed_entry(found)
    except ValueError:
        return
    assert 0 <= entry.size_bytes < 1 << 62
    assert 0 <= entry.mode <= 0o777
    assert 0 <= entry.mtime_ns <= 1 << 62
