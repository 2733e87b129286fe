"""A month's budget is never passed, whatever runs come to need, and in whatever order."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.control.decide.budget import BOOTING_S, SOON_S, Meter
from trainmaster.db import AcceptedRun, Database, NewQuoteRow, RunChange, Submission, access, ledger
from trainmaster.db.cluster_rows import ClusterRow
from trainmaster.db.ledger import ALL
from trainmaster.service.teams.admission import Application, admit_waiting, entrance, waits_for_turn
from trainmaster.service.teams.team_budget import AHEAD_S, LOOK_S, Allowance, Budgets
from trainmaster.spec.states import EndReason, State

NOW = 86400.0 * 40
MONTHLY = {"red": 30.0, "blue": 20.0, ALL: 40.0}


class Town:
    """Runs of two teams at one cent a second, which draw on the budgets of their team and of all."""

    def __init__(self, place):
        self.database = Database(f"sqlite:///{place / 'a.db'}")
        for team in ("red", "blue"):
            access.add_team(self.database, team, {"monthly_usd": MONTHLY[team]}, NOW)
        self.database.write(
            lambda connection, _: ledger.set_limits(connection, ALL, {"monthly_usd": MONTHLY[ALL]})
        )
        self.database.clock_s = lambda *_: self.now  # type: ignore[method-assign]
        self.now, self.runs, self.sent = NOW, {}, 0

    def send(self, team, p95_usd):
        name = f"{team}-{self.sent}"
        self.sent += 1
        new = AcceptedRun(
            name,
            "r",
            "{}",
            "r.yaml",
            "aws",
            "code",
            "file:///s",
            [("main", 1)],
            submission=Submission("x", team),
        )
        admit = entrance(name, team, p95_usd, Application(0, 0.0, waits=True), self.now)
        self.database.create_run(new, self.now, admit, waits=True)
        meter = Meter()
        allowance = Allowance(self.database, name, team, math.inf, lambda: 0.0)
        self.runs[name] = [allowance, meter, None, 0.0]

    def goes_on(self):
        """Those that a driver has, or could have."""
        for name, run in self.runs.items():
            if run[2] is None and not waits_for_turn(self.database, name):
                run[2] = self.database.acquire(name, self.now)
            if run[2] is not None:
                yield name, run

    def spend(self, number, usd):
        """A run asks for what it will need, and spends it as far as its meter lets it."""
        found = list(self.goes_on())
        if not found:
            return
        _, run = found[number % len(found)]
        allowance, meter, lease, spent = run
        meter.bill = lambda until: spent + usd
        allowance.hurry()
        allowance.look(meter, self.now)
        run[3] = max(spent, min(spent + usd, meter.cap_usd))
        self.database.put_cost(lease, run[3], self.now)

    def quote(self, number, usd):
        found = list(self.goes_on())
        if found:
            name, run = found[number % len(found)]
            self.now += 1
            self.database.add_quote(NewQuoteRow(name, None, "binding", self.now, "{}"), max(usd, run[3]))

    def end(self, number):
        found = list(self.goes_on())
        if found:
            name, run = found[number % len(found)]
            self.database.commit(
                run[2], [RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED)], self.now
            )
            self.database.release(run[2], self.now)
            del self.runs[name]
        admit_waiting(self.database, self.now)

    def pass_time(self, days):
        self.now += days * 86400

    def check(self):
        found = Budgets(self.database.read, self.now)
        for team, most in MONTHLY.items():
            assert found[team].spent_usd + found[team].reserved_usd <= most + 1e-6, (team, found[team])


USD = st.integers(0, 1500).map(lambda cents: cents / 100)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from(["red", "blue"]), USD.filter(bool)),
        st.tuples(st.just("spend"), st.integers(0, 9), USD),
        st.tuples(st.just("spend"), st.integers(0, 9), USD),
        st.tuples(st.just("quote"), st.integers(0, 9), USD),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("pass_time"), st.sampled_from([0.1, 9.0, 25.0])),
    ),
    max_size=20,
)


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_budgets_hold_in_any_order(tmp_path_factory, steps):
    town = Town(tmp_path_factory.mktemp("town"))
    try:
        for what, *how in steps:
            getattr(town, what)(*how)
            town.check()
    finally:
        town.database.close()


@pytest.fixture
def town(tmp_path):
    found = Town(tmp_path)
    yield found
    found.database.close()


def test_a_run_gets_what_is_left_and_then_has_a_cap(town):
    town.send("red", 10.0)
    town.send("red", 15.0)
    town.spend(0, 18.0)
    (_, meter, _, spent), other = town.runs["red-0"], town.runs["red-1"]
    assert (spent, meter.cap_usd) == (15.0, 15.0), "5 were left, beside what the other may need"
    assert meter.why == "of the month's budget there were only $15.00 for it"
    town.end(1)
    town.spend(0, 5.0)
    assert town.runs["red-0"][3] == 20.0, "the other did not need it"
    assert other[3] == 0.0


def test_a_new_month_pays_for_runs_that_go_on_and_then_for_those_that_wait(town):
    town.send("red", 10.0)
    town.spend(0, 50.0)
    assert town.runs["red-0"][3] == 30.0, "all of the month"
    town.send("red", 28.0)
    assert waits_for_turn(town.database, "red-1")
    town.pass_time(25)
    town.spend(0, 5.0)
    assert town.runs["red-0"][3] == 35.0
    town.check()
    assert admit_waiting(town.database, town.now) == [], "5 of 30 are spent"
    town.pass_time(25)
    assert admit_waiting(town.database, town.now) == ["red-1"]
    town.spend(0, 9.0)
    assert town.runs["red-0"][3] == 37.0, "2 are left beside what was set aside for the other"


def test_it_asks_now_and_then_and_before_it_is_too_late(town):
    town.send("red", 1.0)
    list(town.goes_on())
    allowance, meter, *_ = town.runs["red-0"]
    meter.bill = lambda until: until / 1000
    allowance.look(meter, 0.0)
    assert meter.cap_usd == pytest.approx(AHEAD_S / 1000)
    allowance.look(meter, LOOK_S - 1)
    assert meter.cap_usd == pytest.approx(AHEAD_S / 1000)
    allowance.look(meter, LOOK_S)
    assert meter.cap_usd == pytest.approx((LOOK_S + AHEAD_S) / 1000)


def test_it_asks_for_all_that_a_machine_needs_from_its_start_to_its_end(town):
    """Where saving takes long, that is more than a lease; less would refuse machines that can be paid."""
    town.send("red", 1.0)
    list(town.goes_on())
    meter = Meter(bill=lambda until: 0.0, usual_lease_s=900.0)
    meter.publishing.learn(1000.0)
    allowance = Allowance(town.database, "red-0", "red", math.inf, lambda: 3.6)
    allowance.look(meter, 0.0)
    assert meter.cap_usd >= (LOOK_S + BOOTING_S + meter.reserved_s + SOON_S) / 1000


class Watched(Meter):
    """Remembers all caps that it had."""

    __slots__ = ("caps",)

    def __setattr__(self, name, value):
        if name == "cap_usd":
            object.__setattr__(self, "caps", [*getattr(self, "caps", ()), value])
        super().__setattr__(name, value)


def test_clusters_that_read_the_cap_meanwhile_never_see_more_than_was_granted(town):
    town.send("red", 1.0)
    list(town.goes_on())
    meter = Watched(cap_usd=1.0, bill=lambda until: 2.0)
    allowance = Allowance(town.database, "red-0", "red", math.inf, lambda: 0.0)
    allowance.look(meter, 0.0)
    assert meter.caps == [1.0, 2.0]


def test_without_a_budget_for_the_month_its_own_cap_holds(town):
    access.add_team(town.database, "free", {}, NOW)
    town.database.write(lambda connection, _: ledger.set_limits(connection, ALL, {"monthly_usd": None}))
    allowance, meter = Allowance(town.database, "none", "free", 7.0, lambda: 1.0), Meter()
    allowance.look(meter, 0.0)
    assert (meter.cap_usd, meter.why) == (7.0, "")


def test_what_is_set_aside_stays_so_while_machines_are_given_back(town):
    town.send("red", 10.0)
    ((_, run),) = town.goes_on()

    def cluster(state):
        row = ClusterRow("c-1", "aws", "h", state, "{}")
        town.database.put_cluster(run[2], row, town.now)

    cluster("ACTIVE")
    town.database.commit(run[2], [RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED)], town.now)
    assert Budgets(town.database.read, town.now)["red"].reserved_usd == 10.0
    town.database.put_cost(run[2], 4.0, town.now)
    cluster("ENDED")
    town.database.release(run[2], town.now)
    found = Budgets(town.database.read, town.now)["red"]
    assert (found.reserved_usd, found.spent_usd) == (0.0, 4.0)
    kinds = [row["kind"] for row in town.database.read(ledger.entries_query(None, None, 9))]
    assert sorted(kinds) == ["charge", "release", "reserve"]
