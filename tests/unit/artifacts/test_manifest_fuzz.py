"""Any bytes are a manifest, or are refused in order."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from trainmaster.artifacts.manifest import FileEntry, Manifest
from trainmaster.objects.names import link_stays_inside, stays_inside
from trainmaster.spec.errors import PublishError

GOOD = Manifest(
    kind="model",
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    files=(
        FileEntry("a/b", size_bytes=3, sha256="0" * 64, object="files/a"),
        FileEntry("l", "symlink", target="a/b"),
        FileEntry("d", "directory"),
    ),
    extra={"attempt": 1},
)
paths = st.sampled_from(
    ["a", "a/b", "a/b/c", "../x", "/x", "", ".", "a//b", "l", "l/x", "..", "a\0", "\udc80", "\ud800"]
)
odd = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers(), max_size=2)
)
files = st.fixed_dictionaries(
    {"path": paths | odd},
    optional={
        "kind": st.sampled_from(["file", "symlink", "directory", "x"]) | odd,
        "target": paths | odd,
        "size_bytes": st.integers(0, 5) | odd,
        "sha256": st.just("0" * 64) | odd,
        "mode": st.integers(0, 0o7777) | odd,
        "mtime_ns": st.integers(-1, 1 << 70) | odd,
        "object": paths | odd,
    },
)
documents = st.fixed_dictionaries(
    {},
    optional={
        "version": st.just(GOOD.version) | odd,
        "kind": st.just("model") | odd,
        "created_at": st.just("2026-01-01T00:00:00+00:00") | odd,
        "extra": st.dictionaries(st.text(max_size=3), odd, max_size=2) | odd,
        "notes": st.lists(st.text(max_size=3) | odd, max_size=2) | odd,
        "files": st.lists(files | odd, max_size=5) | odd,
    },
)


def read_or_refused(data: bytes) -> None:
    with contextlib.suppress(PublishError):
        found = Manifest.from_json(data, "s3://b/x")
        links = {entry.path: entry.target for entry in found.files if entry.kind == "symlink"}
        for entry in found.files:
            assert stays_inside(entry.path)
            assert not entry.mode & ~0o777
            assert entry.kind != "symlink" or link_stays_inside(entry.path, links)
        assert Manifest.from_json(found.to_json(), "s3://b/x").files == found.files


@given(documents)
def test_any_document(document: dict[str, Any]) -> None:
    read_or_refused(json.dumps(document).encode())


@given(st.lists(files, max_size=6))
def test_any_files(found: list[dict[str, Any]]) -> None:
    good = json.loads(GOOD.to_json())
    read_or_refused(json.dumps({**good, "files": found}).encode())


@given(st.integers(0, 400), st.integers(0, 9), st.binary(max_size=9))
@example(0, 0, b"[" * 200_000)
@example(0, 0, b"9" * 10_000)
def test_a_good_one_with_a_piece_changed(where: int, count: int, piece: bytes) -> None:
    data = GOOD.to_json()
    read_or_refused(data[:where] + piece + data[where + count :])
