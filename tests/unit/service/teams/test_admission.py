"""Whose turn it is: priority, fair share, age; two servers never give the same twice."""

from __future__ import annotations

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.db import AcceptedRun, Database, RunChange, Submission, access, ledger
from trainmaster.db.held_runs import undriven
from trainmaster.db.ledger import ALL
from trainmaster.service.runs.summary import queued_seconds, run_seconds
from trainmaster.service.teams.admission import (
    Application,
    BudgetLeft,
    Request,
    _used_usd,
    admit_waiting,
    decide,
    entrance,
    waits_for_turn,
)
from trainmaster.service.teams.team_budget import OWNER, Budgets, OverBudgetError, set_budget
from trainmaster.spec.states import EndReason, State

NOW = 86400.0 * 40
DAY_S = 86400.0


def request(run, team, priority, asked_at, most_usd=0.0, usd_per_hour=0.0):
    return Request(run, team, priority, asked_at, most_usd, usd_per_hour)


def left(everybody=None, **teams):
    return {name: BudgetLeft(name, **{"used_usd": 0.0} | values) for name, values in teams.items()} | {
        ALL: BudgetLeft("all", **{"used_usd": 0.0} | (everybody or {}))
    }


def started(verdicts):
    return [verdict.request.run for verdict in verdicts if not verdict.waits_for]


def test_priority_then_share_then_age():
    asked = [
        request("old", "red", 0, 1.0, 1.0),
        request("new", "red", 0, 2.0, 1.0),
        request("poor", "blue", 0, 3.0, 1.0),
        request("urgent", "red", 1, 4.0, 1.0),
        request("unimportant", "blue", -1, 0.0, 1.0),
    ]
    found = decide(asked, left(red={"used_usd": 5.0}, blue={"used_usd": 4.5}))
    assert started(found) == ["urgent", "poor", "old", "new", "unimportant"]


def test_teams_take_turns_by_what_they_take():
    asked = [
        request(f"{team}{n}", team, 0, float(n), usd)
        for team, usd in (("a", 1.0), ("b", 3.0))
        for n in range(4)
    ]
    found = decide(asked, left({"runs": 5}, a={}, b={}))
    assert started(found) == ["a0", "b0", "a1", "a2", "b1"]
    assert [(v.request.run, v.place) for v in found if v.place] == [("a3", 1), ("b2", 2), ("b3", 3)]


def test_a_large_run_is_not_passed_by_small_ones_of_what_it_waits_for():
    asked = [request("large", "red", 0, 1.0, 50.0), request("small", "red", 0, 2.0, 1.0)]
    large, small = decide(asked, left(red={"left_usd": 10.0, "limit_usd": 60.0}))
    aside = "($50.00 is set aside for runs, until they end)"
    assert large.waits_for == f"$50.00 of the month's budget: red has $10.00 left of $60.00 {aside}"
    assert small.waits_for == "large, which comes first"
    others = [*asked, request("other", "blue", 0, 3.0, 1.0)]
    assert started(decide(others, left(red={"left_usd": 10.0}, blue={}))) == ["other"]
    per_hour = [request("large", "red", 0, 1.0, 1.0, 8.0), request("other", "blue", 0, 2.0, 1.0, 1.0)]
    found = decide(per_hour, left({"usd_per_hour": 5.0}, red={}, blue={"used_usd": 1.0}))
    assert started(found) == []
    assert found[1].waits_for == "a run of others, which comes first", "what it is called is not told"


def test_a_run_that_takes_all_that_is_left_starts(office):
    exact = {"left_usd": 5.0, "runs": 1, "usd_per_hour": 2.0, "limit_usd": 5.0, "limit_usd_per_hour": 2.0}
    assert started(decide([request("a", "red", 0, 1.0, 5.0, 2.0)], left(exact, red=exact))) == ["a"]
    office.limit("red", monthly_usd=5.0, usd_per_hour=2.0)
    assert office.send("a", most_usd=5.0, usd_per_hour=2.0, waits=False)


request_lists = st.lists(
    st.tuples(
        st.sampled_from(["red", "blue", OWNER]),
        st.integers(-1, 1),
        st.integers(0, 5),
        st.integers(0, 20),
        st.integers(0, 4),
    ),
    max_size=12,
).map(
    lambda rows: [
        request(f"r{n}", team, priority, float(at), float(usd), float(per_hour))
        for n, (team, priority, at, usd, per_hour) in enumerate(rows)
    ]
)
limits = st.fixed_dictionaries(
    {
        "left_usd": st.sampled_from([0.0, 5.0, 30.0, float("inf")]),
        "runs": st.sampled_from([0.0, 1.0, 3.0, float("inf")]),
        "usd_per_hour": st.sampled_from([0.0, 4.0, float("inf")]),
        "used_usd": st.sampled_from([0.0, 7.0]),
    }
)


@given(request_lists, st.fixed_dictionaries(dict.fromkeys(("red", "blue", OWNER, ALL), limits)))
def test_limits_hold_and_nobody_is_passed_by_his_own(requests, of):
    found = decide(requests, {name: BudgetLeft(name, **values) for name, values in of.items()})
    assert sorted(v.request.run for v in found) == sorted(r.run for r in requests)
    for name, limit in of.items():
        mine = [v.request for v in found if not v.waits_for and name in (v.request.team, ALL)]
        assert sum(r.most_usd for r in mine) <= limit["left_usd"] or not any(r.most_usd for r in mine)
        assert len(mine) <= limit["runs"]
        assert sum(r.usd_per_hour for r in mine) <= max(limit["usd_per_hour"], 0)
    assert [v.place for v in found if v.waits_for] == list(
        range(1, 1 + sum(bool(v.waits_for) for v in found))
    )
    for waiting in found:
        for going in found:
            if waiting.waits_for and not going.waits_for and waiting.request.team == going.request.team:
                one, other = waiting.request, going.request
                assert (-other.priority, other.asked_at) <= (-one.priority, one.asked_at)
    if found and found[0].waits_for == "":
        return
    names = {name for v in found[:1] for name in (v.request.team, ALL)}
    assert not found or any(
        of[name]["left_usd"] < 21 or of[name]["runs"] < 1 or of[name]["usd_per_hour"] < 5 for name in names
    )


# --- in the database ------------------------------------------------------------------------------------


class Office:
    """A database with a team that has limits."""

    def __init__(self, url):
        self.database = Database(url)

    def limit(self, team, **values):
        if team in (OWNER, ALL):
            self.database.write(lambda connection, _: ledger.set_limits(connection, team, values))
        else:
            access.add_team(self.database, team, values, NOW)

    def send(self, run, team="red", most_usd=10.0, now=NOW, **wish):
        new = AcceptedRun(
            run, "r", "{}", "r.yaml", "aws", "code", "file:///s", [("main", 1)], home_id="h",
            submission=Submission("ann", team),
        )  # fmt: skip
        application = Application(**{"priority": 0, "usd_per_hour": 0.0, "waits": True} | wish)
        self.database.create_run(
            new, now, entrance(run, team or OWNER, most_usd, application, now), waits=True
        )
        return not waits_for_turn(self.database, run)

    def end(self, run, now=NOW, cost_usd=0.0):
        lease = self.database.acquire(run, now)
        self.database.put_cost(lease, cost_usd, now)
        self.database.commit(lease, [RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED)], now)
        self.database.release(lease, now)

    def go_on(self, run, team="red", most_usd=10.0, now=NOW):
        lease = self.database.acquire(run, now)
        try:
            self.database.requeue(lease, now, entrance(run, team, most_usd, None, now))
        finally:
            self.database.release(lease, now)

    def move(self, run, usd_per_hour, team="red", now=NOW):
        lease = self.database.acquire(run, now)
        try:
            admit = entrance(run, team, 10.0, None, now, usd_per_hour=usd_per_hour)
            self.database.move_run(lease, "lab", "{}", [], now, "it goes on at lab", admit)
        finally:
            self.database.release(lease, now)

    def queued(self, run):
        return json.loads(self.database.run_row(run)["queued_for"])

    def close(self):
        self.database.close()


@pytest.fixture
def office(tmp_path):
    found = Office(f"sqlite:///{tmp_path / 'a.db'}")
    yield found
    found.close()


def test_what_waits_for_money_of_the_month_that_is_spent_says_when_the_next_one_begins(office):
    office.limit("red", monthly_usd=25.0)
    assert office.send("first", most_usd=20.0)
    office.end("first", cost_usd=20.0)
    assert not office.send("second", most_usd=10.0, now=NOW + 1)
    assert office.queued("second")["waits_for"] == (
        "$10.00 of the month's budget: team red has $5.00 left of $25.00, and an admin raises it: "
        "`trainmaster budget --team red --monthly AMOUNT`; else it goes on as a month begins, on 1970-03-01 "
        "(UTC)"
    )
    assert admit_waiting(office.database, NOW + 30 * 86400) == ["second"]


def test_what_does_not_fit_waits_and_starts_when_money_comes_back(office):
    office.limit("red", monthly_usd=25.0)
    assert office.send("first", most_usd=20.0)
    assert not office.send("second", most_usd=10.0, now=NOW + 1)
    assert office.queued("second") == {
        "waits_for": "$10.00 of the month's budget: team red has $5.00 left of $25.00 ($20.00 is set aside "
        "for runs, until they end), and an admin raises it: `trainmaster budget --team red --monthly AMOUNT`",
        "place": 1
    }  # fmt: skip
    assert undriven(office.database, "h") == ["first"]
    assert admit_waiting(office.database, NOW + 2) == []
    office.end("first", cost_usd=4.0)
    assert admit_waiting(office.database, NOW + 3) == ["second"]
    assert office.database.run_row("second")["queued_for"] is None
    assert undriven(office.database, "h") == ["second"]
    assert Budgets(office.database.read, NOW)["red"].left_usd == 11.0
    assert admit_waiting(office.database, NOW + 4) == []


def test_all_of_the_wait_for_its_turn_is_told_and_none_of_it_is_the_run_s_own(office):
    begun = office.database.clock_s()  # what nobody drives is not counted beyond its lease, of this clock

    def times(after_s):
        row = office.database.run_row("second")
        return [round(of(row, begun + after_s)) for of in (run_seconds, queued_seconds)]

    office.limit("red", runs_at_once=1)
    assert office.send("first", now=begun)
    assert not office.send("second", now=begun)
    assert times(400.0) == [400, 400]
    office.end("first", begun + 499)
    assert admit_waiting(office.database, begun + 500.0) == ["second"]
    lease = office.database.acquire("second", begun + 501.0)
    assert times(507.0) == [506, 500], "it is driven since 501"
    office.database.commit(lease, [RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED)], begun + 508.0)
    office.database.release(lease, begun + 508.0)
    assert times(9000.0) == [507, 500]
    assert times(-86_400.0) == times(600.0), "also where the clock was set back since"


def test_who_does_not_wait_is_refused_and_what_never_fits_always(office):
    office.limit("red", monthly_usd=25.0, usd_per_hour=5.0)
    with pytest.raises(OverBudgetError, match=r"\$25.00 left"):
        office.send("large", most_usd=26.0, waits=False)
    with pytest.raises(OverBudgetError, match=r"may cost \$26.00, and the limit of team red is \$25.00"):
        office.send("large", most_usd=26.0)
    with pytest.raises(OverBudgetError, match="per hour"):
        office.send("fast", most_usd=1.0, usd_per_hour=6.0)
    assert not office.database.has_run("large")


def test_limits_of_what_goes_on_at_once_make_runs_wait(office):
    office.limit("red", runs_at_once=1)
    office.limit(ALL, runs_at_once=2)
    assert office.send("a", waits=False)
    assert not office.send("b", waits=False)
    assert office.send("c", team=None)
    assert not office.send("d", team="blue")
    assert office.queued("d")["waits_for"].startswith("the end of a run: all teams together")
    office.end("c")
    assert admit_waiting(office.database, NOW) == ["d"]


def test_a_run_that_moves_counts_with_what_it_costs_there(office):
    office.limit("red", usd_per_hour=5.0)
    assert office.send("moves", usd_per_hour=1.0)
    assert office.send("stays", usd_per_hour=2.0)
    with pytest.raises(OverBudgetError, match="per hour"):
        office.move("moves", 3.5)
    office.move("moves", 3.0)
    assert not office.send("another", usd_per_hour=0.5, now=NOW + 1)
    office.move("moves", 0.0)
    assert admit_waiting(office.database, NOW + 2) == ["another"]


def test_a_team_that_has_had_nothing_comes_before_one_that_has_had_a_little(office):
    office.limit(ALL, runs_at_once=1)
    office.send("earlier", "blue")
    office.end("earlier", cost_usd=0.25)
    office.send("holds it up", None)
    for number, team in enumerate(("blue", "red")):
        assert not office.send(f"of {team}", team, now=NOW + number)
    office.end("holds it up")
    assert admit_waiting(office.database, NOW + 2) == ["of red"]


def test_what_a_team_has_set_aside_counts_as_what_it_has_spent(office):
    office.limit(ALL, runs_at_once=2)
    office.send("earlier", "blue")
    office.end("earlier", cost_usd=5.0)
    office.send("goes on", "red", most_usd=10.0)
    office.send("holds it up", None)
    for number, team in enumerate(("red", "blue")):
        assert not office.send(f"of {team}", team, now=NOW + number)
    office.end("holds it up")
    assert admit_waiting(office.database, NOW + 2) == ["of blue"]


def test_a_new_month_has_new_money(office):
    office.limit("red", monthly_usd=25.0)
    office.send("first", most_usd=20.0)
    office.end("first", cost_usd=20.0)
    assert not office.send("second", most_usd=10.0)
    assert admit_waiting(office.database, NOW + 40 * DAY_S) == ["second"]


def test_a_run_that_waits_can_be_ended(office):
    office.limit("red", monthly_usd=5.0)
    office.send("first", most_usd=4.0)
    office.send("second", most_usd=4.0)
    office.end("second")
    assert admit_waiting(office.database, NOW) == []


@pytest.mark.parametrize(
    ("whose", "limit", "why"),
    [
        ("red", {"runs_at_once": 1}, "the end of a run: team red"),
        (ALL, {"usd_per_hour": 0.5}, r"\$0.30 per hour: all teams together have \$0.20 left"),
    ],
)
def test_to_go_on_is_no_way_around_limits_of_what_goes_on_at_once(office, whose, limit, why):
    office.limit(whose, **limit)
    assert office.send("first", usd_per_hour=0.3)
    office.go_on("first")  # its driver was killed: it has its place
    office.end("first")
    assert office.send("second", usd_per_hour=0.3)
    with pytest.raises(OverBudgetError, match=why):
        office.go_on("first")
    assert office.database.run_row("first")["state"] == State.DONE
    office.end("second")
    office.go_on("first")
    assert not office.send("third", usd_per_hour=0.3)


def test_a_run_that_waits_and_is_cancelled_is_given_to_a_driver_and_holds_nobody_back(office):
    office.limit("red", monthly_usd=5.0)
    office.send("first", most_usd=4.0)
    assert not office.send("second", most_usd=4.0, now=NOW + 1)
    assert not office.send("third", most_usd=1.0, now=NOW + 2)
    office.database.want_stop("second", EndReason.CANCELLED)
    assert undriven(office.database, "h") == ["first", "second"]
    assert office.database.run_row("second")["queued_for"] is None
    assert Budgets(office.database.read, NOW)["red"].reserved_usd == 4.0
    assert admit_waiting(office.database, NOW + 3) == ["third"]


def test_a_run_beyond_a_limit_that_was_lowered_waits_for_it_alone(office):
    office.limit(ALL, monthly_usd=50.0)
    office.limit("red", monthly_usd=25.0)
    assert office.send("first", most_usd=10.0)
    assert not office.send("large", most_usd=20.0, now=NOW + 1)
    assert not office.send("small", most_usd=5.0, now=NOW + 2)
    set_budget(office.database, "red", {"monthly_usd": 15.0}, NOW)
    assert admit_waiting(office.database, NOW + 3) == ["small"]
    why = "a higher limit: it may cost $20.00, and that of team red is $15.00"
    assert office.queued("large") == {"waits_for": why, "place": 1}
    office.limit(ALL, monthly_usd=18.0, usd_per_hour=1.0)
    assert office.send("other", team="blue", most_usd=1.0, now=NOW + 4)
    set_budget(office.database, "red", {"monthly_usd": 40.0}, NOW)
    office.limit(ALL, monthly_usd=50.0)
    assert admit_waiting(office.database, NOW + 5) == ["large"]


@pytest.fixture(params=["sqlite", "postgresql"])
def servers(request, tmp_path):
    """Several on one database."""
    is_file = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'b.db'}" if is_file else request.getfixturevalue("postgres").new_url()
    found = [Office(url) for _ in range(4)]
    yield found
    for server in found:
        server.close()


def test_many_servers_that_decide_at_once_give_nothing_twice(servers):
    office = servers[0]
    office.limit("red", monthly_usd=50.0)
    office.limit("blue", monthly_usd=50.0, runs_at_once=2)
    office.send("first", most_usd=50.0)

    def work(server, number):
        for run in range(3):
            server.send(f"r{number}-{run}", most_usd=10.0)
            server.send(f"b{number}-{run}", "blue", most_usd=10.0)
        if number == 0:
            server.end("first")
        for _ in range(3):
            admit_waiting(server.database, NOW)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(servers, range(4), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    admit_waiting(office.database, NOW)
    found = Budgets(office.database.read, NOW)
    assert (found["red"].reserved_usd, found["red"].left_usd) == (50.0, 0.0)
    assert found["blue"].reserved_usd == 20.0
    started = [run[0] for run in undriven(office.database, "h")]
    assert (started.count("r"), started.count("b")) == (5, 2)


def test_what_was_spent_a_week_ago_counts_half(monkeypatch):
    charged = [("red", 0, 8.0), ("red", 7, 8.0), ("blue", 14, 8.0), ("blue", -1, 1.0)]

    def by_day(_, since):
        assert since == ledger.day_of(NOW - 70 * DAY_S)
        return [
            {"team": team, "day": ledger.day_of(NOW - days * DAY_S), "micro_usd": int(usd * 1e6)}
            for team, days, usd in charged
        ]

    monkeypatch.setattr(ledger, "charged_by_day", by_day)
    assert _used_usd(None, NOW) == {"red": 12.0, "blue": 3.0}, (
        "what is of tomorrow, by another clock, counts whole"
    )
