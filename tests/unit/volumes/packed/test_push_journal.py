import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forked_children import exit_code, forked
from hostile_bytes import changed_bytes
from trainmaster.volumes.packed.journal import PushJournal, Remembered, plan_key
from trainmaster.volumes.packed.packing import FilePart, SourceFile

VALUE = Remembered(b"c" * 32, 100, b"h" * 32)


@pytest.fixture
def journal(tmp_path):
    made = []

    def opened():
        made.append(PushJournal(tmp_path, "/data/source"))
        return made[-1]

    yield opened
    for one in made:
        one.close()


def test_it_remembers(journal):
    first = journal()
    first.put(b"k" * 32, VALUE)
    first.put(b"l" * 32, VALUE._replace(hashes=b""))
    assert first.get(b"k" * 32) == VALUE
    first.close()
    second = journal()
    assert second.get(b"k" * 32) == VALUE
    assert second.get(b"l" * 32).hashes == b""
    assert second.get(b"m" * 32) is None


@pytest.mark.parametrize("lost", [1, 20, 50, 110, 4096, 5000])
def test_one_that_was_cut_off_begins_anew(journal, tmp_path, lost):
    first = journal()
    first.put(b"k" * 32, VALUE)
    first.close()
    (path,) = tmp_path.glob("*.journal")
    path.write_bytes(path.read_bytes()[:-lost])
    second = journal()
    second.put(b"m" * 32, VALUE)
    second.close()
    third = journal()
    assert third.get(b"m" * 32) == VALUE
    assert third.get(b"k" * 32) in (None, VALUE)


def test_a_damaged_record_is_forgotten(journal, tmp_path):
    first = journal()
    first.put(b"k" * 32, VALUE)
    first.close()
    (path,) = tmp_path.glob("*.journal")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert journal().get(b"k" * 32) is None


def test_a_second_push_at_once_remembers_nothing(journal):
    first, second = journal(), journal()
    first.put(b"k" * 32, VALUE)
    second.put(b"l" * 32, VALUE)
    assert second.get(b"k" * 32) is second.get(b"l" * 32) is None


def test_what_is_not_used_is_forgotten(journal, tmp_path):
    first = journal()
    for number in range(2000):
        first.put(number.to_bytes(32, "big"), VALUE)
    first.close()
    second = journal()
    assert second.get((7).to_bytes(32, "big")) == VALUE
    second.close(forget_unused=True)
    third = journal()
    assert third.get((7).to_bytes(32, "big")) == VALUE
    assert third.get((8).to_bytes(32, "big")) is None
    third.close()
    assert [path.suffix for path in tmp_path.iterdir()] == [".journal"]


def test_a_key_tells_files_apart():
    def key(**changes):
        fields = {"path": b"x", "size_bytes": 5, "place": "/x", "stamp": (1, 2, 5, 3, 4)}
        return plan_key([FilePart(SourceFile(**(fields | changes)), 0, 5)])

    assert key() == key()
    assert len({key(), key(stamp=(1, 2, 5, 3, 5)), key(place="/y"), key(start=1)}) == 4
    assert key(stamp=()) is None, "streams are not remembered"


def written():
    with tempfile.TemporaryDirectory() as scratch:
        one = PushJournal(Path(scratch), "x")
        for number in range(3):
            one.put(b"%d" % number * 32, VALUE._replace(hashes=b"h" * 16 * number))
        one.close()
        (path,) = Path(scratch).glob("*.journal")
        return path.name, path.read_bytes()


@settings(max_examples=80)
@given(st.deferred(lambda: changed_bytes(written()[1])))
def test_whatever_it_says_was_said_by_us(data):
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / written()[0]).write_bytes(data)
        one = PushJournal(Path(scratch), "x")
        for number in range(3):
            assert one.get(b"%d" % number * 32) in (None, VALUE._replace(hashes=b"h" * 16 * number))
        one.put(b"9" * 32, VALUE)
        one.close(forget_unused=True)
        one = PushJournal(Path(scratch), "x")
        assert one.get(b"9" * 32) == VALUE
        one.close()


def test_damage_that_is_no_text_begins_anew(tmp_path):
    PushJournal(tmp_path, "x").close()
    (path,) = tmp_path.glob("*.journal")
    said = b"CREATE TABLE chunks (key BLOB"
    assert said in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(said, b"CREATE TABLE chunks \x80key BLOB"))
    one = PushJournal(tmp_path, "x")
    one.put(b"9" * 32, VALUE)
    assert one.get(b"9" * 32) == VALUE
    one.close()


def test_what_earlier_versions_have_left_is_replaced(journal, tmp_path):
    journal().close()
    (path,) = tmp_path.glob("*.journal")
    path.write_bytes(struct.pack("<4sII", b"TMJ2", 100, 0) + bytes(100))
    anew = journal()
    assert anew.get(b"k" * 32) is None
    anew.put(b"k" * 32, VALUE)
    assert anew.get(b"k" * 32) == VALUE


def test_a_push_that_was_killed_is_remembered(tmp_path):
    assert exit_code(forked(lambda: PushJournal(tmp_path, "x").put(b"k" * 32, VALUE))) == 0
    assert PushJournal(tmp_path, "x").get(b"k" * 32) == VALUE
