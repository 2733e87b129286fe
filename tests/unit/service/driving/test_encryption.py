"""What is sealed is opened with the same key, for the same place, and not otherwise."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.service.driving.encryption import SealedError, SealingKey
from trainmaster.spec.errors import UsageError

KEY = SealingKey(bytes(range(32)), Path("server.key"))


@given(st.binary(max_size=200), st.text(max_size=20))
def test_what_was_sealed_is_opened_for_its_place(plain: bytes, place: str) -> None:
    sealed = KEY.seal(plain, place)
    assert KEY.open(sealed, place) == plain
    assert sealed != KEY.seal(plain, place)  # nobody sees that two are the same


@given(st.binary(max_size=40), st.data())
def test_a_changed_byte_is_noticed(plain: bytes, data: st.DataObject) -> None:
    sealed = bytearray(KEY.seal(plain, "here"))
    sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(SealedError):
        KEY.open(bytes(sealed), "here")


@pytest.mark.parametrize("length", range(20))
def test_what_was_cut_off_is_noticed(length: int) -> None:
    with pytest.raises(SealedError):
        KEY.open(KEY.seal(b"secret", "here")[:length], "here")


def test_it_cannot_be_moved() -> None:
    with pytest.raises(SealedError, match="secret/a/X in the database was changed"):
        KEY.open(KEY.seal(b"secret", "secret/b/X"), "secret/a/X")


def test_another_key_is_named(tmp_path: Path) -> None:
    other = SealingKey.of(tmp_path, {})
    with pytest.raises(SealedError, match=f"sealed with the key {KEY.name}") as caught:
        other.open(KEY.seal(b"secret", "here"), "here")
    assert "TRAINMASTER_KEY_FILE" in caught.value.hint


def test_a_home_makes_one_key_whoever_is_first(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: SealingKey.of(tmp_path, {}).key, range(16)))
    assert len(keys) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["server.key"]
    assert (tmp_path / "server.key").stat().st_mode & 0o777 == 0o600


def test_a_key_says_nothing_of_itself() -> None:
    assert "\\x01" not in repr(KEY)


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        (None, 0o600, "there is no file .*server.key"),
        ("not a key!", 0o600, "holds no key"),
        ("c2hvcnQ=", 0o600, "holds no key"),
        ("A" * 43 + "=", 0o640, "others may read it"),
    ],
)
def test_a_key_file_that_cannot_be_used(tmp_path: Path, text: str | None, mode: int, says: str) -> None:
    file = tmp_path / "server.key"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    with pytest.raises(UsageError, match=says) as caught:
        SealingKey.of(tmp_path, {"TRAINMASTER_KEY_FILE": str(file)})
    assert caught.value.hint
