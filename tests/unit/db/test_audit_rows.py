"""The audit is a chain: what was changed, put in or taken out is named, also while rows come and go."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from database_nouns import NOW

from trainmaster.db import Database, audit, removals
from trainmaster.db import tables as t
from trainmaster.service.users.audit import Audit

ROW = {"name": "ann", "team": None, "address": "::1", "action": "POST /runs", "status": 201, "token": "ci"}


def fill(database, count, begin=0):
    for number in range(begin, begin + count):
        audit.note(database, {**ROW, "at": NOW + number, "action": f"POST /ä/{number}"})


def rows(database):
    return database.read(sa.select(t.audit).order_by(t.audit.c.id))


def change(database, statement):
    return database.write(lambda connection, _: connection.execute(statement).rowcount)


def ids(database):
    return [row["id"] for row in rows(database)]


def test_a_whole_audit_is_verified(database):
    assert Audit(database).verify().entries == 0
    fill(database, 5)
    found = Audit(database).verify()
    assert (found.entries, found.broken, found.why) == (5, None, "")
    assert found.head == rows(database)[-1]["hash"]
    assert not Audit(database).verify(rows(database)[2]["hash"]).why
    assert "no entry has the hash beef" in Audit(database).verify("beef").why


@pytest.mark.parametrize("field", audit.FIELDS)
@pytest.mark.parametrize("number", [0, 2, 4])
def test_the_first_row_that_was_changed_is_named(database, field, number):
    fill(database, 5)
    row = ids(database)[number]
    other = {"at": NOW + 0.5, "status": 202}.get(field, "other")
    assert change(database, t.audit.update().where(t.audit.c.id == row).values({field: other})) == 1
    found = Audit(database).verify()
    assert (found.broken, found.entries) == (row, number + 1)
    assert "it was changed" in found.why


def test_rows_that_were_taken_out_or_put_in_are_found(database):
    fill(database, 6)
    first, second, third, *_, last = ids(database)
    change(database, t.audit.delete().where(t.audit.c.id == third))
    assert Audit(database).verify().broken == third + 1
    change(database, t.audit.delete().where(t.audit.c.id.in_([first, second])))
    found = Audit(database).verify()
    assert (found.broken, "entries before it are missing" in found.why) == (third + 1, True)
    alien = {**ROW, "id": last + 1, "at": NOW, "hash": "beef"}
    change(database, t.audit.delete())
    fill(database, 2)
    change(database, t.audit.insert().values({**alien, "id": ids(database)[-1] + 1}))
    assert Audit(database).verify().broken == ids(database)[-1]


def test_rows_of_another_order_do_not_fit(database):
    fill(database, 4)
    (_, second, third, _), c = rows(database), t.audit.c
    for row, content in ((second, third), (third, second)):
        values = {name: content[name] for name in (*audit.FIELDS, "hash")}
        change(database, t.audit.update().where(c.id == row["id"]).values(values))
    assert Audit(database).verify().broken == second["id"]


def test_the_newest_that_is_missing_is_found_by_what_was_kept_elsewhere(database):
    fill(database, 4)
    kept = rows(database)[-1]
    change(database, t.audit.delete().where(t.audit.c.id == kept["id"]))
    assert not Audit(database).verify().why
    assert "the newest are missing" in Audit(database).verify(kept["hash"]).why


@pytest.mark.parametrize("number", [0, 2, 4])
def test_no_row_is_without_a_hash(database, number):
    fill(database, 5)
    change(database, t.audit.update().where(t.audit.c.id == ids(database)[number]).values(hash=""))
    assert Audit(database).verify().broken == ids(database)[number]


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_old_rows_go_and_the_rest_is_verified(database, monkeypatch, at_once):
    monkeypatch.setattr(audit, "_AT_ONCE", at_once)
    fill(database, 10)
    assert removals.remove_older(database, "audit", NOW + 7) == 7
    assert not Audit(database).verify().why
    fill(database, 3, 10)
    assert removals.remove_older(database, "audit", NOW + 7) == 0
    assert removals.remove_older(database, "audit", NOW + 12) >= 5
    assert [row["at"] for row in rows(database) if row["name"] == "ann"] == [NOW + 12]
    assert not Audit(database).verify().why
    change(database, t.audit.delete().where(t.audit.c.id == ids(database)[0]))
    assert Audit(database).verify().broken == ids(database)[0], "removed by somebody else"


def test_an_id_is_never_given_twice(database):
    fill(database, 3)
    last = ids(database)[-1]
    assert removals.remove_older(database, "audit", NOW + 1000) == 3
    assert [row["name"] for row in rows(database)] == ["retention"]
    assert ids(database) > [last]
    fill(database, 2)
    assert not Audit(database).verify().why


def test_a_clock_that_was_set_back_makes_no_hole(database):
    for at in (NOW, NOW + 100, NOW + 1, NOW + 2, NOW + 101):
        audit.note(database, {**ROW, "at": at})
    assert removals.remove_older(database, "audit", NOW + 50) == 1
    assert [row["at"] for row in rows(database)][:4] == [NOW + 100, NOW + 1, NOW + 2, NOW + 101]
    assert not Audit(database).verify().why


def test_nobody_forges_what_says_that_rows_were_removed(database):
    fill(database, 4)
    kept = rows(database)[1]["hash"]
    audit.note(database, {**ROW, "at": NOW, "action": f"GET {audit.PRUNED}{kept}"})
    change(database, t.audit.delete().where(t.audit.c.id <= ids(database)[1]))
    assert Audit(database).verify().broken == ids(database)[0]


def test_several_write_at_once_and_others_verify_and_remove(url, database, monkeypatch):
    monkeypatch.setattr(audit, "_AT_ONCE", 7)
    others = [Database(url) for _ in range(3)]
    try:
        with ThreadPoolExecutor(8) as pool:
            writers = [pool.submit(fill, each, 25, 100 * number) for number, each in enumerate(others)]
            removing = pool.submit(removals.remove_older, others[0], "audit", NOW + 10)
            looks = [Audit(others[1]).verify() for _ in range(5)]
            for each in writers:
                each.result()
            removing.result()
        assert [each.why for each in looks] == [""] * 5
        assert not Audit(database).verify().why
        hashes = [row["hash"] for row in rows(database)]
        assert len(set(hashes)) == len(hashes) >= 65
    finally:
        for each in others:
            each.close()


def test_a_walk_begins_anew_when_rows_are_removed_below_it(database, monkeypatch):
    monkeypatch.setattr(audit, "_AT_ONCE", 4)
    fill(database, 20)
    following, left = audit.following, [True]

    def meanwhile(of, after, limit):
        if after and left.pop():
            left.append(False)
            removals.remove_older(of, "audit", NOW + 12)
        elif after:
            left.append(False)
        return following(of, after, limit)

    monkeypatch.setattr(audit, "following", meanwhile)
    assert not Audit(database).verify().why
