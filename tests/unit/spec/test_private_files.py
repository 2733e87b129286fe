"""Places that are for their owner only."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from trainmaster.spec.errors import UsageError
from trainmaster.spec.private_files import create_private, make_private, require_private, write_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_new_ones_and_old_ones(tmp_path: Path) -> None:
    place = tmp_path / "above" / "home"
    make_private(place)
    assert mode(place) == 0o700
    place.chmod(0o755)
    make_private(place)
    assert mode(place) == 0o700


def test_what_is_shared_on_purpose_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, temporary, home = tmp_path / "shared", tmp_path / "tmp", tmp_path / "me"
    for path, bits in ((shared, 0o2770), (temporary, 0o1777), (home, 0o755)):
        path.mkdir()
        path.chmod(bits)
    monkeypatch.setenv("HOME", str(home))
    for path in (shared, temporary, home):
        before = mode(path)
        make_private(path)
        assert mode(path) == before


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(NotADirectoryError):
        make_private(tmp_path / "x")


@pytest.mark.parametrize("bits", [0o644, 0o640, 0o660, 0o602])
def test_secrets_that_others_can_read_are_refused(tmp_path: Path, bits: int) -> None:
    file = tmp_path / "secrets"
    file.touch()
    file.chmod(bits)
    with pytest.raises(UsageError) as caught:
        require_private(file)
    assert caught.value.hint == f"chmod 600 {file}"
    file.chmod(0o600)
    require_private(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's file")
def test_a_place_of_another_user_stays_as_it_is(tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    place.mkdir()
    place.chmod(0o755)
    os.chown(place, 12345, 12345)
    make_private(place)
    assert mode(place) == 0o755


def test_a_file_is_written_whole_for_its_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "new" / "key"
    write_private(file, b"1")
    file.chmod(0o644)
    write_private(file, b"22")
    assert (file.read_bytes(), mode(file)) == (b"22", 0o600)
    assert mode(file.parent) == 0o700
    create_private(file, b"333")
    assert file.read_bytes() == b"22", "the one that is there counts"

    def is_full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", is_full)
    with pytest.raises(OSError, match="No space left"):
        write_private(file, b"4444")
    assert file.read_bytes() == b"22"
    assert [path.name for path in file.parent.iterdir()] == ["key"], "no draft is left"


def test_what_is_written_often_waits_for_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(descriptor: int) -> None:
        raise AssertionError("it waited")

    monkeypatch.setattr(os, "fsync", refused)
    write_private(tmp_path / "often", b"1", is_synced=False)
    assert mode(tmp_path / "often") == 0o600
