"""Rows of uploads, on both engines: one of several is heard, and one at a time makes something of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from trainmaster.db import Database, access, uploads
from trainmaster.db.retry_policy import Try


@pytest.fixture
def begun(database):
    access.add_team(database, "red", None, 1.0)

    def begin(name, size_bytes=10, team="red", quota_bytes=100, most=5):
        row = {"id": name, "team": team, "name": name, "kind": "code", "state": "OPEN"}
        row |= {"size_bytes": size_bytes, "created_at": 1.0, "used_at": 1.0}
        return uploads.add(database, row, quota_bytes, most)

    return begin


def test_a_team_has_so_much_at_once(begun, database):
    assert (begun("a", 60), begun("b", 41), begun("b", 40), begun("c", 1)) == (None, (60, 1), None, (100, 2))
    assert begun("own", 100, None) is None, "others have their own room"
    assert (begun("d", 0), begun("e", 0, most=3)) == (None, (100, 3))
    assert [row["id"] for row in uploads.of_teams(database, ["red"])] == ["a", "b", "d"]
    assert len(uploads.of_teams(database, None)) == 4


def test_of_many_that_send_the_same_bytes_one_is_heard(begun, database, url):
    begun("a", 40)
    others = [Database(url) for _ in range(4)]

    def send(number):
        place, heard = 0, 0
        while place < 40:
            heard += uploads.add_part(others[number], "a", place, 8, f"{place}-{number}", 2.0)
            place = uploads.find(others[number], "a")["received_bytes"]
        return heard

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(send, range(4))) == 5
    assert [part["offset"] for part in uploads.parts(database, "a")] == [0, 8, 16, 24, 32]
    assert not uploads.add_part(database, "a", 40, 1, "more", 2.0), "more than was announced"
    for other in others:
        other.close()


def test_one_at_a_time_makes_something_of_whole_ones(begun, database):
    begun("a"), begun("b")
    assert uploads.claim(database, ["a"], 100.0) is None, "bytes are missing"
    for name in ("a", "b"):
        uploads.add_part(database, name, 0, 10, "k", 2.0)
    token = uploads.claim(database, ["a", "b"], 100.0)
    assert uploads.claim(database, ["b"], 100.0 + uploads.CLAIM_S - 1) is None
    assert not uploads.remove(database, "a", 101.0)
    assert uploads.renew(database, ["a", "b"], token, 120.0)
    assert uploads.claim(database, ["b"], 100.0 + uploads.CLAIM_S + 1) is None
    later = uploads.claim(database, ["a", "b"], 121.0 + uploads.CLAIM_S)
    assert later == token + 1, "the first one was killed"
    assert not uploads.renew(database, ["a", "b"], token, 121.0 + uploads.CLAIM_S)
    assert not uploads.end(database, ["a", "b"], token, "DONE", "{}", 3.0), "and has nothing to say any more"
    assert uploads.end(database, ["a", "b"], later, "DONE", "{}", 3.0)
    assert {uploads.find(database, name)["state"] for name in ("a", "b")} == {"DONE"}
    assert uploads.claim(database, ["a"], 1000.0) is None
    assert [row["id"] for row in uploads.unused(database, 2.5)] == []
    assert uploads.remove(database, "a", 1000.0)
    assert uploads.find(database, "a") is None
    assert [row["id"] for row in uploads.unused(database, 2.5)] == ["a"]
    uploads.forget(database, "a")
    assert uploads.unused(database, 2.5) == []


@contextmanager
def unheard():
    """Of each transaction nobody learns that it was committed: it is tried again."""
    write = Database.write

    def twice(database, work, **more):
        write(database, work, **more)
        return write(database, lambda connection, _: work(connection, Try(again=True)), **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "write", twice)
        yield


def test_what_was_done_and_not_heard_of_is_done_once(begun, database):
    with unheard():
        check_begun(begun, database)
    token = uploads.claim(database, ["a"], 100.0)
    with unheard():
        check_ended(database, token)


def check_begun(begun, database):
    assert begun("a", 10, quota_bytes=10, most=1) is None
    assert begun("b", 1, quota_bytes=10) == (10, 1)
    assert uploads.add_part(database, "a", 0, 10, "k", 2.0)
    assert not uploads.add_part(database, "a", 0, 10, "other", 2.0)


def check_ended(database, token):
    assert not uploads.end(database, ["a"], token - 1, "DONE", "{}", 3.0), "another claim's end"
    assert uploads.end(database, ["a"], token, "DONE", "{}", 3.0)
    assert not uploads.end(database, ["a"], token, "FAILED", "{}", 4.0)
    assert uploads.find(database, "a")["used_at"] == 3.0
    assert uploads.remove(database, "a", 5.0)


def test_of_two_uploads_that_do_not_fit_together_one_begins(database, url):
    access.add_team(database, "red", None, 1.0)
    others = [Database(url) for _ in range(4)]
    row = {"team": "red", "name": "n", "kind": "code", "state": "OPEN", "created_at": 1.0, "used_at": 1.0}

    def begin(number):
        new = {**row, "id": f"u-{number}", "size_bytes": 60}
        return uploads.add(others[number % 4], new, 100, 5) is None

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(begin, range(40))) == 1
    for other in others:
        other.close()


def test_the_newest_that_was_found_in_a_version_is_kept(database):
    for found in ("{}", '{"files": 1}'):
        uploads.describe(database, "a", found)
    assert uploads.described(database, "a") == '{"files": 1}'
