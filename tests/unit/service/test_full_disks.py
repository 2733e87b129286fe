"""What is told of a full disk: where it is and what to do, in the same words each time."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from trainmaster.service.full_disks import full_disk


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "no space is left"), (errno.EDQUOT, "a quota is used up")]
)
def test_the_file_system_is_named_and_what_to_do(home, monkeypatch, number, words):
    monkeypatch.setattr(Path, "is_mount", lambda path: path == home.root)
    for named in (
        (str(home.root / "a" / "b"),),
        (os.fsencode(home.root / "a"),),
        ("elsewhere", None, str(home.root / "to")),
    ):
        found = full_disk(OSError(number, os.strerror(number), *named), home)
        assert found.args[0] == f"{words} on the file system at {home.root}"
        assert f"df -h {home.root}" in found.hint


def test_an_error_that_does_not_say_where_is_of_the_fullest_place(home, monkeypatch):
    home.cache.mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path == home.cache)
    monkeypatch.setattr(
        "trainmaster.service.full_disks._free_bytes", lambda place: 0 if place == home.cache else 1 << 30
    )
    found = full_disk(OSError(errno.ENOSPC, "No space left on device"), home)
    assert str(found.args[0]).endswith(f" at {home.cache}")


@pytest.mark.parametrize(
    "other", [PermissionError(errno.EACCES, "no", "/x"), ValueError("no"), OSError("?"), None]
)
def test_other_errors_are_none_of_that(home, other):
    assert full_disk(other, home) is None
