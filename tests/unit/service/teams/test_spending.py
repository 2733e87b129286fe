"""What runs have cost, by anything; with warm machines, disks and quotes; and what is unknown."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from trainmaster.cluster.record import ClusterState, Machine, elsewhere, new_record
from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan
from trainmaster.db import AcceptedRun, ActualOutcome, Database, NewQuoteRow, Submission, ledger, removals
from trainmaster.db import tables as t
from trainmaster.db.queries import ALL_RUNS, RunFilter
from trainmaster.service.teams.spending import as_csv, cost_report
from trainmaster.spec.errors import UsageError

NOW = 1_795_651_200.0  # 26 November 2026
DAY = 86400.0
RENTAL = Rental("m", "us", "us-a", usd_per_hour=0.4, extras_usd_per_hour=0.1)


class Office:
    """Runs that were charged on some days."""

    def __init__(self, url):
        self.database = Database(url)
        self.database.clock_s = lambda *_: NOW

    def run(self, run, days_ago, *usd, team=None, by=None, labels=(), provider="aws", clusters=(), over=True):
        """One that was begun so many days ago, and has cost so much on each day from then on."""
        began = NOW - days_ago * DAY
        sent = None if by is None else Submission(by, team)
        new = AcceptedRun(
            run, "job", '{"experiments": {}}', "", provider, "", "file:///x", [("main", 1)],
            submission=sent, labels=json.dumps(dict(labels)), clusters=[each.as_row() for each in clusters],
        )  # fmt: skip
        self.database.create_run(new, began)
        sums = [(began + day * DAY, sum(usd[: day + 1])) for day in range(len(usd))]
        ended = {"state": "DONE", "reason": "SUCCEEDED", "ended_at": began + 3600, "closed_at": began + 3600}

        def write(connection, _):
            mine = t.run.update().where(t.run.c.id == run)
            for at, cost_usd in sums:
                connection.execute(mine.values(cost_usd=cost_usd))
                ledger.charge(connection, run, at)
            if over:
                connection.execute(mine.values(ended))

        self.database.write(write)

    def quote(self, run, p5, p50, p95, actual, *, kept, kind="estimate"):
        data = {"time_s": {}, "cost_usd": {"p5": p5, "p50": p50, "p95": p95}}
        number = self.database.add_quote(NewQuoteRow(run, None, kind, NOW, json.dumps(data)))
        self.database.record_outcome(number, ActualOutcome(60.0, actual, kept))

    def costs(self, by, which=ALL_RUNS, since=""):
        found = cost_report(self.database, which, by, since)
        return {row["key"]: (row["runs"], row["usd"]) for row in found["rows"]}


@pytest.fixture(params=["sqlite", "postgresql"])
def office(request, tmp_path):
    if request.param == "postgresql":
        found = Office(request.getfixturevalue("postgres").new_url())
    else:
        found = Office(f"sqlite:///{tmp_path / 'd.db'}")
    yield found
    found.database.close()


@pytest.fixture
def spent(office):
    office.run("a-1", 40, 1.0, 2.0, by="ann", team="red", labels={"project": "x"})
    office.run("a-2", 2, 4.0, by="ann", team="red", labels={"project": "y"}, provider="lab")
    office.run("b-1", 1, 8.0, labels={"project": "x"})
    office.run("free", 3, provider="local")
    return office


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("run", {"b-1": (1, 8.0), "a-2": (1, 4.0), "a-1": (1, 3.0), "free": (1, 0.0)}),
        ("user", {"ann": (2, 7.0), None: (2, 8.0)}),
        ("team", {"red": (2, 7.0), None: (2, 8.0)}),
        ("provider", {"aws": (2, 11.0), "lab": (1, 4.0), "local": (1, 0.0)}),
        ("month", {"2026-10": (1, 3.0), "2026-11": (3, 12.0)}),
        ("label:project", {"x": (2, 11.0), "y": (1, 4.0), None: (1, 0.0)}),
        ("label:none", {None: (4, 15.0)}),
    ],
)
def test_costs_are_summed_up_by(spent, by, groups):
    found = cost_report(spent.database, ALL_RUNS, by)
    assert spent.costs(by) == groups
    assert [row["key"] for row in found["rows"]] == list(groups)
    assert (found["total"]["runs"], found["total"]["usd"]) == (4, 15.0)


def test_runs_that_were_removed_were_paid_for(spent):
    removals.mark(spent.database, "a-1", "ann")
    removals.empty(spent.database, "a-1")
    assert spent.costs("label:project")["x"] == (2, 11.0)
    assert spent.costs("user", ALL_RUNS.narrowed("run = a-1", spent.database)) == {"ann": (1, 3.0)}


def test_only_what_was_spent_since_then_counts_and_only_of_some_runs(spent):
    spent.run("long", 50, *[1.0] * 51, over=False)
    assert spent.costs("run", since="2d") == {"b-1": (1, 8.0), "a-2": (1, 4.0), "long": (1, 3.0)}
    assert spent.costs("month", since="2026-11-25")["2026-11"] == (2, 10.0)
    assert spent.costs("team", RunFilter(("red",))) == {"red": (2, 7.0)}
    some = ALL_RUNS.narrowed("label:project = x and cost > 5", spent.database)
    assert spent.costs("run", some) == {"b-1": (1, 8.0)}
    assert cost_report(spent.database, RunFilter(()), "run")["total"]["usd"] == 0.0


def test_what_quotes_had_said_stands_beside_it(spent):
    spent.quote("a-1", 1, 2, 4, 3.0, kept=True)
    spent.quote("a-1", 1, 3, 5, 3.0, kept=True, kind="binding")
    spent.quote("b-1", 2, 4, 6, 8.0, kept=False)
    found = {row["key"]: row["quoted"] for row in cost_report(spent.database, ALL_RUNS, "user")["rows"]}
    assert found["ann"] == {
        "runs": 1, "low_usd": 1, "middle_usd": 3, "high_usd": 5, "actual_usd": 3.0, "kept": 1,
    }  # fmt: skip
    assert (found[None]["runs"], found[None]["kept"], found[None]["actual_usd"]) == (1, 0, 8.0)


def cluster(run, state, hours_ago, provider="aws", rental=RENTAL, **more):
    plan = ClusterPlan(f"train-{provider}", ("train",), provider, (RolePlan("worker", 1, (rental,)),))
    machine = Machine(
        "worker-0", "worker", "t", rental, "i-0", "us-a", started_at=NOW - hours_ago * 3600, **more
    )
    values = {"state": state, "machines": (machine,), "keep_s": 3600.0}
    if state is ClusterState.KEPT:
        values["kept_until"] = NOW + 1800  # so it is over since half an hour
    return replace(new_record(run, plan, "home", 3600.0), **values)


def test_warm_machines_and_disks_count(office):
    office.run("warm", 0, 0.2, clusters=[cluster("warm", ClusterState.KEPT, 1)])
    [row] = cost_report(office.database, ALL_RUNS, "run")["rows"]
    assert (row["usd"], row["idle_usd"], row["storage_usd"]) == pytest.approx((0.4, 0.2, 0.1))
    assert row["unknown_runs"] == 0


def test_a_run_in_several_places_is_on_the_bill_of_each(office):
    """By what its machines there cost; those of one's own cost nothing."""
    free = replace(RENTAL, usd_per_hour=0.0, extras_usd_per_hour=0.0)
    there = [
        cluster("both", ClusterState.ENDED, 1, "hosts", free, ended_at=NOW),
        cluster("both", ClusterState.ENDED, 3, ended_at=NOW),
        cluster("both", ClusterState.ENDED, 1, "lab", ended_at=NOW),
    ]
    office.run("both", 0, 1.6, provider="hosts", clusters=there)
    assert office.costs("provider") == {"aws": (1, 1.2), "lab": (1, 0.4)}
    found = cost_report(office.database, ALL_RUNS, "provider")
    assert (found["total"]["runs"], found["total"]["usd"]) == (1, 1.6)
    assert [row["storage_usd"] for row in found["rows"]] == pytest.approx([0.3, 0.1])


def test_a_run_that_has_moved_on_is_on_the_bill_of_both_places(office):
    """Its cluster is in the second place; the machines of the first one are written in it."""
    before = cluster("moved", ClusterState.ACTIVE, 3, "lab", ended_at=NOW - 3600)
    after = cluster("moved", ClusterState.ENDED, 1, "aws", ended_at=NOW)
    there = elsewhere(before, after.plan)
    office.run("moved", 0, 1.2, clusters=[replace(there, machines=(*there.machines, *after.machines))])
    assert office.costs("provider") == {"lab": (1, 0.8), "aws": (1, 0.4)}
    found = cost_report(office.database, ALL_RUNS, "provider")
    assert [row["storage_usd"] for row in found["rows"]] == pytest.approx([0.2, 0.1])
    assert found["total"]["storage_usd"] == pytest.approx(0.3)


def test_what_is_not_known_is_unknown_and_never_nothing(office):
    office.run("bad", 0, clusters=[replace(cluster("bad", ClusterState.ENDED, 1))])
    office.database.write(lambda to, _: to.execute(t.cluster.update().values(data="{")))
    other = cluster("im", ClusterState.ENDED, 1, "im", replace(RENTAL, extras_usd_per_hour=0.0), ended_at=NOW)
    office.run("im", 0, 0.4, provider="im", clusters=[other])
    found = cost_report(office.database, ALL_RUNS, "run")
    assert [(row["key"], row["usd"], row["storage_usd"], row["unknown_runs"]) for row in found["rows"]] == [
        ("im", 0.4, None, 0), ("bad", None, None, 1)
    ]  # fmt: skip
    assert (found["total"]["usd"], found["total"]["unknown_runs"]) == (0.4, 1)
    lines = as_csv(found).splitlines()
    assert lines[0].startswith("run,runs,usd,idle_usd,storage_usd,unknown_runs,quoted_runs")
    assert lines[2].startswith("bad,1,unknown,0.0,unknown,1,0")


def test_a_place_of_which_only_a_damaged_record_tells_is_unknown_and_not_left_out(office):
    there = [cluster("both", ClusterState.ENDED, 1, each, ended_at=NOW) for each in ("aws", "lab")]
    office.run("both", 0, 0.8, clusters=there)
    lost = t.cluster.c.provider == "lab"
    office.database.write(lambda to, _: to.execute(t.cluster.update().where(lost).values(data="{")))
    found = cost_report(office.database, ALL_RUNS, "provider")
    assert [(row["key"], row["usd"], row["storage_usd"], row["unknown_runs"]) for row in found["rows"]] == [
        ("aws", 0.8, 0.1, 1), ("lab", None, None, 1)
    ]  # fmt: skip
    assert found["total"]["usd"] == 0.8


def test_a_label_is_no_formula_of_a_spreadsheet(office):
    office.run("one", 0, labels={"a": "=1+1"})
    assert as_csv(cost_report(office.database, ALL_RUNS, "label:a")).splitlines()[1].startswith("'=1+1,1,")


@pytest.mark.parametrize(("by", "since"), [("colour", ""), ("label:", ""), ("label:a b", ""), ("month", "x")])
def test_what_means_nothing_is_refused(tmp_path, by, since):
    office = Office(f"sqlite:///{tmp_path / 'd.db'}")
    with pytest.raises(UsageError):
        cost_report(office.database, ALL_RUNS, by, since)
    office.database.close()
