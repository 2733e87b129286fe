"""Files of runs in the database: read on from any place, only by the driver; nothing lost or repeated."""

from __future__ import annotations

from uuid import uuid4

import pytest
from database_nouns import NOW, new_run
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.db import Database, run_files
from trainmaster.db.leases import LEASE_S
from trainmaster.db.run_files import PIECE_BYTES, Piece
from trainmaster.spec.errors import LeaseLostError


def told(database, run, after=0):
    """All pieces after one, and the id of the last."""
    found = []
    while page := run_files.pieces(database, run, after):
        found += [piece for _, piece in page]
        after = page[-1][0]
    return found, after


def test_pieces_come_in_the_order_in_which_they_were_written(database, lease):
    run_files.put_pieces(database, lease, [Piece("b", 0, b"one"), Piece("a", 0, b"two")])
    found, last = told(database, lease.run)
    assert [piece.data for piece in found] == [b"one", b"two"]
    run_files.put_pieces(database, lease, [Piece("b", 3, b"three")])
    assert told(database, lease.run, last)[0] == [Piece("b", 3, b"three")]
    assert run_files.sizes(database, lease.run) == {"a": 3, "b": 8}


def test_a_piece_that_comes_twice_is_there_once(database, lease):
    for _ in range(2):
        run_files.put_pieces(database, lease, [Piece("a", 0, b"one"), Piece("a", 3, b"two")])
    assert [piece.data for piece in told(database, lease.run)[0]] == [b"one", b"two"]


def test_a_file_begins_anew_or_goes(database, lease):
    run_files.put_pieces(database, lease, [Piece("a", 0, b"one"), Piece("a", 3, b"two"), Piece("b", 0, b"x")])
    run_files.put_pieces(database, lease, [Piece("a", 0, b"1")], gone=["b"])
    assert told(database, lease.run)[0] == [Piece("a", 0, b"1")]


def test_who_has_lost_the_lease_writes_nothing(database, lease):
    other = database.acquire(lease.run, NOW + 2 * LEASE_S) or database.acquire(lease.run, NOW + 9 * LEASE_S)
    if other is None:  # this process lives, so its lease is good: as another machine's would not be
        database.release(lease, NOW)
        other = database.acquire(lease.run, NOW)
    assert other is not None
    for write in (
        lambda: run_files.put_pieces(database, lease, [Piece("a", 0, b"one")]),
        lambda: run_files.put_private(database, lease, {"key": b"sealed"}),
        lambda: run_files.keep_here(database, lease, "here"),
    ):
        with pytest.raises(LeaseLostError):
            write()
    assert told(database, lease.run)[0] == []
    assert run_files.private(database, lease.run) == {}
    assert database.run_row(lease.run)["kept_by"] is None


def test_private_things_are_replaced_and_removed(database, lease):
    run_files.put_private(database, lease, {"a": b"1", "b": b"2"})
    run_files.put_private(database, lease, {"a": b"3"}, gone=["b", "never there"])
    assert run_files.private(database, lease.run) == {"a": b"3"}


def test_files_of_a_run_that_is_over_are_put_together(database, lease):
    other = database.create_run(new_run("r-2"), NOW)
    large = bytes(range(256)) * (PIECE_BYTES // 100)
    for offset in range(0, len(large), PIECE_BYTES // 3):
        data = large[offset : offset + PIECE_BYTES // 3]
        run_files.put_pieces(database, lease, [Piece("large", offset, data)])
    run_files.put_pieces(database, lease, [Piece("small", 0, b"1")])
    run_files.put_pieces(database, other, [Piece("large", 0, b"a"), Piece("large", 1, b"b")])
    run_files.compact(database, lease)
    found = [piece for piece in told(database, lease.run)[0] if piece.path == "large"]
    assert b"".join(piece.data for piece in found) == large
    assert len(found) == -(-len(large) // PIECE_BYTES)
    assert [piece.data for piece in told(database, "r-2")[0]] == [b"a", b"b"]
    before = told(database, lease.run)
    run_files.compact(database, lease)
    assert told(database, lease.run) == before, "there is nothing left to do"


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    found = Database(f"sqlite:///{tmp_path_factory.mktemp('db') / 'x.db'}")
    yield found
    found.close()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.binary(min_size=1, max_size=9)), max_size=8), st.data())
def test_a_reader_that_looks_now_and_then_has_all(quick, written, data):
    database = quick
    lease = database.create_run(new_run(f"r-{uuid4()}"), NOW)
    whole: dict[str, bytes] = {}
    seen: dict[str, bytes] = {}
    last = 0
    for path, more in written:
        begins = path in whole and data.draw(st.booleans())
        before = b"" if begins else whole.get(path, b"")
        whole[path] = before + more
        run_files.put_pieces(database, lease, [Piece(path, len(before), more)])
        if data.draw(st.booleans()):
            run_files.compact(database, lease)
        if data.draw(st.booleans()):
            pieces, last = told(database, lease.run, last)
            for piece in pieces:
                seen[piece.path] = seen.get(piece.path, b"")[: piece.offset] + piece.data
    for piece in told(database, lease.run, last)[0]:
        seen[piece.path] = seen.get(piece.path, b"")[: piece.offset] + piece.data
    assert seen == whole
