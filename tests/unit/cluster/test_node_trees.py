"""Directories as streams: what goes in comes out, and nothing comes to lie outside."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainmaster.cluster.node_files.trees import (
    FILE,
    FOLDER,
    LINK,
    OUTWARD,
    TreeDraft,
    TreeEntry,
    TreeError,
    Unpacker,
    digest,
    pack,
    scan,
)


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        place = root / name.replace("__", "/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def contents(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): str(path.readlink()) if path.is_symlink() else path.read_text()
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def move(source: Path, target: Path, size: int = 7) -> int:
    """All that `fetch` does, here; how many bytes of streams it took."""
    entries = scan(str(source))
    draft = TreeDraft(str(target), entries)
    stream = b"".join(pack(str(source), draft.missing()))
    unpacker = Unpacker(draft.root, draft.wanted)
    for start in range(0, len(stream), size):
        unpacker.feed(stream[start : start + size])
    unpacker.close()
    assert unpacker.complete
    assert not unpacker.changed
    draft.exchange()
    return len(stream)


NAMES = st.sampled_from(["a", "b", "c d", "ü", "é\udcff", "-x", "a.b"])
TREES = st.dictionaries(
    st.lists(NAMES, min_size=1, max_size=3).map("/".join), st.binary(max_size=40), max_size=6
)


@given(first=TREES, second=TREES, piece=st.integers(1, 300))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_copy_is_equal_whatever_was_there(tmp_path_factory, first, second, piece):
    place = tmp_path_factory.mktemp("trees")
    source, target = place / "source", place / "target"
    for tree in (first, second):
        for path, data in tree.items():
            try:
                (source / path).parent.mkdir(parents=True, exist_ok=True)
                (source / path).write_bytes(data)
            except OSError:  # a file is where a directory was to be
                continue
        source.mkdir(exist_ok=True)
        move(source, target, piece)
        assert digest(scan(str(target))) == digest(scan(str(source)))
    assert sorted(entry.name for entry in place.iterdir()) == ["source", "target"]


def test_only_what_differs_is_sent_and_the_rest_stays_the_same_file(tmp_path):
    source, target = tmp_path / "s", tmp_path / "t"
    write(source, big="x" * 100_000, deep__small="1")
    assert move(source, target, 1 << 16) > 100_000
    inode = (target / "big").stat().st_ino
    (source / "deep/small").write_text("22")
    (source / "empty").mkdir()
    assert move(source, target) < 200
    assert (target / "big").stat().st_ino == inode
    assert (target / "deep/small").read_text() == "22"
    assert (target / "empty").is_dir()


def test_links_inside_are_links_and_those_that_lead_outside_are_seen(tmp_path):
    source = tmp_path / "s"
    write(source, a__file="1")
    (source / "in").symlink_to("a/file")
    (source / "absolute").symlink_to(source / "a")
    (source / "out").symlink_to("../../etc")
    kinds = {entry.path: (entry.kind, entry.target) for entry in scan(str(source))}
    assert kinds == {
        "a/file": (FILE, ""),
        "in": (LINK, "a/file"),
        "absolute": (LINK, "a"),
        "out": (OUTWARD, "../../etc"),
    }
    (source / "out").unlink()
    move(source, tmp_path / "t")
    assert contents(tmp_path / "t") == {"a/file": "1", "in": "a/file", "absolute": "a"}


def test_links_that_lead_outside_can_be_followed_and_circles_end(tmp_path):
    write(tmp_path, far__data="7", s__own="1")
    (tmp_path / "s/far").symlink_to(tmp_path / "far")
    (tmp_path / "s/one").symlink_to(tmp_path / "far/data")
    (tmp_path / "far/back").symlink_to("../s")
    (tmp_path / "far/again").symlink_to("data")
    (tmp_path / "s/nowhere").symlink_to("/nowhere/at/all")
    found = {entry.path: entry.kind for entry in scan(str(tmp_path / "s"), follow=True)}
    assert found == {"own": FILE, "one": FILE, "far/data": FILE, "far/again": FILE}


@pytest.mark.parametrize(
    "entry",
    [
        TreeEntry("../x", FILE),
        TreeEntry("/x", FILE),
        TreeEntry("a/../../x", FILE),
        TreeEntry("", FILE),
        TreeEntry("a//b", FOLDER),
        TreeEntry("a\0b", FILE),
        TreeEntry("l", LINK, target="/etc"),
        TreeEntry("a/l", LINK, target="../../etc"),
        TreeEntry("l", OUTWARD, target="/etc"),
        TreeEntry("l", "z"),
    ],
)
def test_nothing_may_lie_or_lead_outside(tmp_path, entry):
    with pytest.raises(TreeError, match="outside"):
        TreeDraft(str(tmp_path / "t"), [entry])
    assert list(tmp_path.iterdir()) == []


def test_what_nobody_asked_for_is_refused(tmp_path):
    draft = TreeDraft(str(tmp_path / "t"), [TreeEntry("a", FILE, 1)])
    draft.missing()
    for said in (TreeEntry("b", FILE, 1), TreeEntry("a", LINK, target="b")):
        with pytest.raises(TreeError, match="unasked"):
            Unpacker(draft.root, draft.wanted).feed(json.dumps(said).encode() + b"\n")
    with pytest.raises(TreeError, match="is missing"):
        draft.exchange()


def test_a_file_that_changes_while_it_is_sent_is_told(tmp_path):
    source = tmp_path / "s"
    write(source, a="12345", b="12345", c="12345")
    entries = scan(str(source))
    (source / "a").write_text("123")
    os.utime(source / "b", ns=(0, 0))
    (source / "c").unlink()
    for entry in entries:
        unpacker = Unpacker(str(tmp_path / "x"), {entry.path: entry})
        unpacker.feed(b"".join(pack(str(source), [entry])))
        assert unpacker.complete
        assert unpacker.changed
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


def test_a_draft_that_was_begun_is_used(tmp_path):
    source, target = tmp_path / "s", tmp_path / "t"
    write(source, a="1" * 1000, b="2" * 1000)
    draft = TreeDraft(str(target), scan(str(source)))
    stream = b"".join(pack(str(source), draft.missing()))
    unpacker = Unpacker(draft.root, draft.wanted)
    unpacker.feed(stream[:1500])  # one and a half
    unpacker.close()
    assert not target.exists()
    again = TreeDraft(str(target), scan(str(source)))
    assert [entry.path for entry in again.missing()] == ["b"]
    (source / "b").write_text("3")
    assert move(source, target) < 200


def test_an_exchange_that_was_cut_short_is_mended(tmp_path):
    target = tmp_path / "t"
    write(tmp_path, s__a="new", **{".t.old__a": "old"})
    TreeDraft(str(target), scan(str(tmp_path / "s")))
    assert contents(target) == {"a": "old"}


@pytest.mark.parametrize("changes", [{"size": 1 << 40}, {"mode": 0o4777}, {"mtime_ns": 5}])
def test_a_file_comes_as_it_was_listed(tmp_path, changes):
    draft = TreeDraft(str(tmp_path / "t"), [TreeEntry("a", FILE, 1)])
    draft.missing()
    said = TreeEntry("a", FILE, 1)._replace(**changes)
    with pytest.raises(TreeError, match="not what it was"):
        Unpacker(draft.root, draft.wanted).feed(json.dumps(said).encode() + b"\n")


pieces = st.binary(max_size=30) | st.sampled_from(
    [
        b"null\n",
        b'"words"\n',
        json.dumps(TreeEntry("a", FILE, 3)).encode() + b"\nabc+",
        b"[" * 5000 + b"\n",
        b"-",
    ]
)


@given(st.lists(pieces, max_size=6))
def test_any_stream_is_taken_or_refused(tmp_path_factory, said):
    top = tmp_path_factory.mktemp("fuzz")
    draft = TreeDraft(str(top / "t"), [TreeEntry("a", FILE, 3)])
    draft.missing()
    unpacker = Unpacker(draft.root, draft.wanted)
    with contextlib.suppress(TreeError):
        for data in said:
            unpacker.feed(data)
    unpacker.close()
    assert {path.name for path in top.rglob("*")} <= {".t.draft", "a"}
