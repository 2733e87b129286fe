"""The ledger: what was spent is what was billed, whatever is repeated and whatever is killed."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from database_nouns import NOW, new_run
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.db import ClusterRow, Database, NewQuoteRow, RunChange, Submission, ledger, queries, tables
from trainmaster.db.ledger import ALL, Balance, micro
from trainmaster.spec.states import EndReason, State

DAY_S = 86400.0
RUNS = ("r-0", "r-1", "r-2")
TEAMS = {"r-0": "red", "r-1": "red", "r-2": None}


class KilledError(Exception):
    """The process is gone in the middle of a transaction."""


class Killer:
    """Ends the process at a statement."""

    def __init__(self, database: Database) -> None:
        self.left = -1
        sa.event.listen(database.engine, "before_cursor_execute", self.look)

    def look(self, *_: object) -> None:
        self.left -= 1
        if self.left == 0:
            raise KilledError


def spent(database, now=NOW):
    return ledger.balances(database.read(ledger.balances_query(now)))


def began(database, run="r-1", team="red", most=None, now=NOW):
    def admit(connection):
        ledger.reserve(connection, run, micro(most or 0), now)

    new = replace(new_run(run), submission=Submission("ann", team))
    return database.create_run(new, now, admit)


def end(database, lease, now=NOW):
    database.commit(lease, [RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED)], now)


def limit(database, team, monthly_usd):
    database.write(lambda connection, _: ledger.set_limits(connection, team, {"monthly_usd": monthly_usd}))


def test_money_is_set_aside_spent_and_given_back(database):
    lease = began(database, most=10)
    assert spent(database)["red"] == Balance(0, micro(10))
    database.put_cost(lease, 4.0, NOW)
    database.put_cost(lease, 4.0, NOW)
    assert spent(database)["red"] == spent(database)[ALL] == Balance(micro(4), micro(6))
    database.add_quote(NewQuoteRow("r-1", None, "binding", NOW, "{}"), 5.5)
    assert spent(database)["red"] == Balance(micro(4), micro(1.5))
    database.put_cost(lease, 7.0, NOW)
    assert spent(database)["red"] == Balance(micro(7), 0), "it costs more than was set aside"
    end(database, lease)
    database.put_cost(lease, 7.25, NOW + DAY_S)  # its machines are given back after its end
    assert spent(database, NOW + DAY_S)["red"] == Balance(micro(7.25), 0)
    kinds = [(row["kind"], row["micro_usd"]) for row in database.read(ledger.entries_query(["red"], None, 9))]
    assert kinds == [("charge", 250_000), ("charge", micro(7)), ("reserve", micro(5.5))]


def test_a_run_that_goes_on_after_its_end_has_what_is_left_set_aside_again(database):
    lease = began(database, most=10)
    database.put_cost(lease, 4.0, NOW)
    end(database, lease)
    assert spent(database)["red"] == Balance(micro(4), 0)
    database.requeue(lease, NOW, lambda connection: ledger.reserve(connection, "r-1", micro(10), NOW))
    assert spent(database)["red"] == Balance(micro(4), micro(6))


@pytest.mark.parametrize(
    ("state", "minutes", "is_held"), [("ACTIVE", 19, True), ("ACTIVE", 21, False), ("KEPT", 0, False)]
)
def test_what_machines_may_cost_that_live_on_without_a_driver_stays_set_aside(
    database, state, minutes, is_held
):
    """It is over, and its driver was killed before it had given the machines back."""
    lease = began(database, most=10)
    database.put_cluster(lease, ClusterRow("r-1.a", "lab", "h", state, "{}"), NOW)
    end(database, lease)
    lost_at = database.run_row("r-1")["lease_expires_at"]
    assert spent(database, lost_at + 60 * minutes)["red"].reserved == (micro(10) if is_held else 0)


def test_what_is_spent_belongs_to_the_month_in_which_it_is(database):
    lease = began(database, most=10)
    database.put_cost(lease, 4.0, NOW)
    later = NOW + 40 * DAY_S
    assert spent(database, later)["red"] == Balance(0, micro(6)), "what may still come burdens every month"
    database.put_cost(lease, 5.0, later)
    assert spent(database, later)["red"] == Balance(micro(1), micro(5))


def test_people_are_warned_once_a_month_at_each_share(database):
    limit(database, "red", 10.0)
    limit(database, ALL, 100.0)
    limit(database, "blue", None)
    lease = began(database)

    def warnings():
        return [row["message"] for row in queries.last_notes(database, "r-1", 9)]

    for usd in (4.99, 5.0, 5.5, 11.0, 12.0):
        database.put_cost(lease, usd, NOW)
    first, second = sorted(warnings())
    assert "team red has spent 100 % of the month's $10.00 ($11.00)" in first
    assert "team red has spent 50 % of the month's $10.00 ($5.00)" in second
    database.put_cost(lease, 12.5, NOW + 2 * DAY_S)
    assert len(warnings()) == 2, "another day of the month is nothing new"
    database.put_cost(lease, 17.5, NOW + 40 * DAY_S)
    assert len(warnings()) == 3, "each month anew"
    other = began(database, "r-2", "blue")
    database.put_cost(other, 60.0, NOW)
    (told,) = (row["message"] for row in queries.last_notes(database, "r-2", 9))
    assert "all teams together have spent 50 %" in told


amounts = st.integers(0, 20_000_000).map(lambda value: value / 1e6)
steps = st.lists(
    st.tuples(
        st.sampled_from(["cost", "quote", "end", "requeue", "idle"]),
        st.sampled_from(RUNS),
        amounts,
        st.integers(0, 40),  # days later
        st.sampled_from([0, 0, 1, 2, 3, 4, 5, 6, 7, 9, 11]),  # killed at which statement
        st.booleans(),  # done once more, as when the answer got lost
    ),
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(steps)
def test_what_is_spent_is_what_was_billed_however_it_came_about(story):
    with tempfile.TemporaryDirectory() as directory:
        database = Database(f"sqlite:///{Path(directory, 'a.db')}")
        try:
            play(database, story)
        finally:
            database.close()


def play(database, story):
    killer, now = Killer(database), NOW
    leases = {run: began(database, run, TEAMS[run], most=8.0) for run in RUNS}
    for run, lease in leases.items():
        database.put_cluster(lease, ClusterRow(f"{run}.a", "lab", "h", "KEPT", "{}"), now)
    promised = dict.fromkeys(RUNS, micro(8.0))
    for what, run, usd, days, killed_at, is_repeated in story:
        now += days * DAY_S
        is_over = database.run_row(run)["state"] == State.DONE
        if (what in ("requeue", "idle")) != is_over:
            continue
        if what == "cost":  # a bill does not shrink
            usd += database.run_row(run)["cost_usd"]
        did = deed(database, leases[run], what, run, usd, now)
        killer.left = killed_at
        turn = leases[run].turn
        try:
            did()
        except KilledError:
            leases[run].turn = turn
            killer.left = -1
            check(database, promised, now)
            did()
        killer.left = -1
        if is_repeated and what in ("cost", "quote"):
            did()
        if what in ("quote", "requeue"):
            promised[run] = micro(usd)
        check(database, promised, now)


def deed(database, lease, what, run, usd, now):
    row = ClusterRow(f"{run}.a", "lab", "h", "KEPT", "{}")
    made = {
        "cost": lambda: database.put_cost(lease, usd, now),
        "quote": lambda: database.add_quote(NewQuoteRow(run, None, "binding", now, "{}"), usd),
        "end": lambda: end(database, lease, now),
        "requeue": lambda: database.requeue(
            lease, now, lambda connection: ledger.reserve(connection, run, micro(usd), now)
        ),
        "idle": lambda: database.end_unused_cluster(row, now, usd),
    }
    return made[what]


def check(database, promised, now):
    rows = {row["id"]: row for row in database.read(sa.select(tables.run))}
    of_run = sa.select(tables.ledger.c.run_id, sa.func.sum(tables.ledger.c.micro_usd).label("sum"))
    charged = {
        row["run_id"]: row["sum"]
        for row in database.read(of_run.where(tables.ledger.c.kind == "charge").group_by("run_id"))
    }
    assert {run: charged.get(run, 0) for run in rows} == {
        run: micro(row["cost_usd"]) for run, row in rows.items()
    }
    found = spent(database, now)
    for team in ("red", ""):
        going = [run for run, row in rows.items() if (row["team"] or "") == team and row["state"] != "DONE"]
        reserved = sum(max(0, promised[run] - micro(rows[run]["cost_usd"])) for run in going)
        assert found.get(team, Balance()).reserved == reserved


@pytest.mark.parametrize("killed_at", range(1, 12))
def test_a_run_is_accepted_with_what_is_set_aside_for_it_or_not_at_all(tmp_path, killed_at):
    database = Database(f"sqlite:///{tmp_path / 'a.db'}")
    killer = Killer(database)
    killer.left = killed_at
    with contextlib.suppress(KilledError):
        began(database, most=3)
    killer.left = -1
    assert spent(database).get("red", Balance()).reserved == (micro(3) if database.has_run("r-1") else 0)
    database.close()
