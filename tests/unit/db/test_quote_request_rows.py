"""Many servers on one database: a request is worked on by one, and a team has no more than it may."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from trainmaster.db import quote_requests as rows
from trainmaster.db.retry_policy import Try


def row(name, team="red"):
    request = {"kind": "quote", "asked_by": "ann", "request": "{}", "told": "[]"}
    return {**request, "id": name, "team": team, "state": "WAITING", "attempts": 0, "created_at": 1.0}


def test_a_team_has_as_many_places_as_it_may_however_many_ask_at_once(database):
    with ThreadPoolExecutor(8) as pool:
        asked = pool.map(lambda n: rows.add(database, row(f"q-{n}"), 3, 0.0), range(12))
        assert sum(asked) == 3
    assert rows.add(database, row("other", "blue"), 3, 0.0)


def test_each_request_is_held_by_one(database):
    for number in range(6):
        assert rows.add(database, row(f"q-{number}", f"team-{number}"), 3, 0.0)
    with ThreadPoolExecutor(8) as pool:
        claimed = list(pool.map(lambda n: rows.claim(database, f"w-{n}", 100.0, 30.0), range(24)))
    held = [each["id"] for each in claimed if each is not None]
    assert len(held) == len(set(held))
    while (more := rows.claim(database, f"late-{len(held)}", 100.0, 30.0)) is not None:
        held.append(more["id"])  # one that asked while another was writing may have got none
    assert sorted(held) == [f"q-{number}" for number in range(6)]


def test_a_claim_whose_answer_was_lost_claims_nothing_more(database, monkeypatch):
    for number in range(2):
        rows.add(database, row(f"q-{number}") | {"created_at": float(number)}, 3, 0.0)
    write = database.write

    def twice(work, **how):
        write(work, **how)
        return write(lambda connection, _: work(connection, Try(again=True)), **how)

    monkeypatch.setattr(database, "write", twice)
    assert rows.claim(database, "w", 100.0, 30.0)["attempts"] == 1
    monkeypatch.undo()
    assert rows.find(database, "q-1")["state"] == "WAITING"


def test_what_is_over_gives_its_place_back_and_is_forgotten_later(database):
    for number in range(3):
        rows.add(database, row(f"q-{number}"), 3, 0.0)
    assert not rows.add(database, row("late"), 3, 0.0)
    assert rows.end(database, rows.named("q-1"), 50.0, answer="{}", error=None)
    assert not rows.end(database, rows.named("q-1"), 60.0, answer=None, error="{}"), "it is over"
    assert rows.add(database, row("late"), 3, 50.0)
    assert rows.find(database, "q-1")["answer"] == "{}"
    rows.end(database, rows.named("late"), 70.0, answer="{}", error=None)
    rows.add(database, row("later"), 3, 51.0)
    assert rows.find(database, "q-1") is None
