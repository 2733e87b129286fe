"""What a server does where there are limits: a run without a cap gets one, and no machine stays warm."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from trainmaster.api.administration import HomeAdministration
from trainmaster.api.embedded import EmbeddedClient
from trainmaster.cluster.record import ClusterState, Machine, new_record
from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan
from trainmaster.control.task.layout import Home
from trainmaster.db import NewQuoteRow, RunChange, ledger, tables
from trainmaster.db.ledger import ALL
from trainmaster.service import Service
from trainmaster.service.driving import provider_connection, sessions
from trainmaster.service.driving.replicas import RunReplicas
from trainmaster.service.driving.submissions import RunRequest, Submissions
from trainmaster.service.on_cluster import hand_over
from trainmaster.service.renting import provider_check
from trainmaster.service.renting.offer import RentalOffer
from trainmaster.service.run_planning import PlannedRun, RunPlanner
from trainmaster.service.runs.stored_recipe import recipe_text
from trainmaster.service.teams.team_budget import OverBudgetError
from trainmaster.service.users.access import Access
from trainmaster.service.users.caller import caller
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError
from trainmaster.spec.states import EndReason, State

RED = caller("ann", "red", ["read", "run"])
RECIPE = """\
name: job
provider: aws
experiments:
  main: {command: 'true'}
"""


class Office:
    """Submissions whose plans cost what is said here, and whose runs are not written down."""

    def __init__(self, service, monkeypatch):
        self.service = service
        self.access = Access(service.database)
        self.submissions = Submissions(service, self.access, {}, is_private=True)
        self.p95_usd = 1.0
        monkeypatch.setattr(RunPlanner, "plan", self.plan)
        monkeypatch.setattr(Service, "start", self.start)

    def plan(self, recipe, **_):
        quote = SimpleNamespace(cost_usd=self.p95_usd and SimpleNamespace(p95=self.p95_usd))
        return PlannedRun(recipe, RentalOffer(recipe, (), 2.0, 3.6, quote))

    def start(self, recipe, *_, **__):
        self.started = recipe.budget and recipe.budget.total_usd
        return SimpleNamespace(run="job-1", notes=[])

    def send(self, recipe=RECIPE, **request):
        """The cap that a run has, and what is told of it."""
        notes = self.submissions.submit(RED, RunRequest(recipe, agreed_usd_per_hour=3.6, **request))[2]
        return self.started, notes


@pytest.fixture
def office(tmp_path, monkeypatch):
    home = Home(tmp_path, tmp_path / "cache", f"file://{tmp_path}/store", f"sqlite:///{tmp_path / 'd.db'}")
    service = Service(home)
    yield Office(service, monkeypatch)
    service.close()


@pytest.mark.parametrize("is_of_all", [False, True])
def test_a_run_without_a_cap_gets_one_where_there_is_a_budget_for_the_month(office, is_of_all):
    office.access.make_team("red", None if is_of_all else 20.0)
    if is_of_all:
        office.service.database.write(
            lambda connection, _: ledger.set_limits(connection, ALL, {"monthly_usd": 20.0})
        )
    usd, notes = office.send()
    assert usd == 1.8 + 1.01, "at the highest price, and a lease"
    assert notes == [
        "its cap is $2.81, as there is a budget for the month; budget.total, or max_usd, sets a lower one"
    ]
    assert office.send(max_usd=5.0) == (5.0, [])
    assert office.send(RECIPE + "budget: {total: $4}\n") == (4.0, [])
    both = office.send(RECIPE + "budget: {total: $4}\n", max_usd=5.0)
    assert both == (4.0, ["budget.total of the recipe, $4.00, holds: it is less than the $5.00 agreed to"])
    assert office.send(max_usd=1e9)[0] == 20.0, "nor may one run cost more than there is for all"
    office.p95_usd = None
    assert office.send() == (None, []), "nobody can say: the budget does not admit it"


def test_without_a_budget_nothing_is_capped(office):
    office.access.make_team("red", None)
    assert office.send() == (None, [])
    for amount in (float("inf"), float("nan"), -1.0):
        with pytest.raises(UsageError, match="no amount to spend"):
            office.send(max_usd=amount)


@pytest.mark.parametrize("limit", ["monthly_usd", "runs_at_once", "usd_per_hour"])
@pytest.mark.parametrize("whose", ["red", ALL])
def test_machines_that_no_limit_counts_do_not_stay_warm(office, whose, limit):
    office.access.make_team("red", None)
    office.send(keep_s=600.0)
    office.service.database.write(lambda connection, _: ledger.set_limits(connection, whose, {limit: 20.0}))
    has = "all teams together have" if whose == ALL else "team red has"
    with pytest.raises(UsageError, match=rf"next run \(`--keep`, by REST `keep_s`\): {has} limits"):
        office.send(keep_s=600.0)
    office.send()


def test_nothing_is_rented_for_more_than_was_agreed_to(office):
    office.access.make_team("red", None)
    with pytest.raises(UsageError, match=r"\$3.6 per hour now, and \$3.5 was agreed to"):
        office.submissions.submit(RED, RunRequest(RECIPE, agreed_usd_per_hour=3.5))
    assert not hasattr(office, "started")


class Offer:
    """What a run may cost, and no machines."""

    plans = ()

    def __init__(self, most_usd):
        self.most_usd, self.costs = most_usd, most_usd != 0

    def note_down(self, *_):
        """Nothing was estimated."""


@pytest.fixture
def home(tmp_path):
    client = EmbeddedClient(tmp_path / "home")
    HomeAdministration(client._service).set_budget(None, {"monthly_usd": 20.0})
    yield client
    client.close()


def begin(home, most_usd, text="experiments: {main: {command: 'true'}}\n", **how):
    recipe = Recipe.from_text(text, directory=home.directory.parent)
    run = home._service.start(recipe, home.directory / "r.yaml", {}, Offer(most_usd), **how).run
    return run, HomeAdministration(home._service).budget(None)["left_usd"]


def test_a_home_without_a_server_has_a_month_s_budget_too(home):
    run, left_usd = begin(home, 15.0)
    assert left_usd == 5.0
    with pytest.raises(
        OverBudgetError,
        match=r"may cost \$6.00, and .* of the owner of the home has \$5.00 left",
    ):
        begin(home, 6.0)
    with pytest.raises(UsageError, match="nobody can say what this run may cost") as unknown:
        begin(home, None)
    assert "budget.total=$5" in unknown.value.hint
    assert begin(home, 0.0)[1] == 5.0  # machines of one's own
    assert [row["run"] for row in home.listed()["runs"]][-1] == run


def test_a_run_that_its_own_machine_drives_has_its_whole_cap_set_aside(home, monkeypatch):
    monkeypatch.setattr(RunReplicas, "prepare", lambda *_, **__: {})
    text = "budget: {total: $8}\nexperiments: {main: {command: 'true'}}\n"
    assert begin(home, 2.0, text)[1] == 18.0
    assert begin(home, 2.0, text, moves=True)[1] == 10.0


def test_that_a_machine_drives_is_told_where_it_costs_more_than_its_work(home, monkeypatch):
    monkeypatch.setattr(RunReplicas, "prepare", lambda *_, **__: {})
    text = "experiments: {main: {command: 'true'}, eval: {command: 'true'}}\n"
    recipe = Recipe.from_text(text, directory=home.directory.parent)
    plans = (ONE_MACHINE, replace(ONE_MACHINE, name="eval", experiments=("eval",)))
    words = "until its end, also while all is on others"
    for count, usd, told in ((1, 0.5, []), (2, 0.5, [f"paid for {words}"]), (2, 0.0, [f"held {words}"])):
        monkeypatch.setattr(Offer, "plans", plans[:count])
        session = home._service.start(recipe, home.directory / "r.yaml", {}, Offer(usd), moves=True)
        found = [each.partition(" is ")[2] for each in session.notes if "that drives" in each]
        assert found == told


def test_a_short_run_has_set_aside_what_its_machines_need_from_start_to_end(home, monkeypatch):
    """With less, it would end at once: they could not be given back in order."""
    monkeypatch.setattr(Offer, "plans", (ONE_MACHINE,))
    assert begin(home, 0.01)[1] == pytest.approx(20 - 0.33, abs=0.005)
    assert begin(home, 19.4)[1] < 0.3
    with pytest.raises(
        OverBudgetError,
        match=r"may cost \$0.33, and .* of the owner of the home has \$0.27 left",
    ):
        begin(home, 0.01)


@pytest.mark.parametrize("end", ["taken", "ended", "by itself"])
def test_what_warm_machines_may_cost_stays_set_aside_until_they_are_taken_or_end(home, end):
    """Another run got it, and both together passed the month's budget."""
    run, left_usd = begin(home, 15.0)
    database, now = home._service.database, time.time()
    lease = database.acquire(run, now + 1000)
    machine = Machine("worker-0", "worker", "t", ONE_MACHINE.roles[0].rentals[0], "i-1", started_at=now - 60)
    kept_until = now + (-1 if end == "by itself" else 900)
    record = replace(
        new_record(run, ONE_MACHINE, home._service.home.identity(), 900.0),
        state=ClusterState.KEPT,
        machines=(machine,),
        kept_until=kept_until,
    )
    database.put_cluster(lease, record.as_row(), now)
    database.put_cost(lease, 1.0, now)
    database.commit(lease, [RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED)], now)
    database.release(lease, now)

    def left():
        return HomeAdministration(home._service).budget(None)["left_usd"]

    if end != "by itself":
        assert left() == left_usd == 5.0
        with pytest.raises(OverBudgetError):
            begin(home, 6.0)
    if end == "taken":
        other = database.acquire(begin(home, 1.0)[0], now + 2000)
        assert database.take_kept_cluster(
            other, replace(record, state=ClusterState.ACTIVE).as_row(), now, 0.5
        )
        assert left() == 20.0 - 1.5 - 1.0
        return
    if end == "ended":
        assert database.end_unused_cluster(replace(record, state=ClusterState.ENDED).as_row(), now, 0.5)
        assert left() == 20.0 - 1.5
        return
    assert left() == 20.0 - 1.0


def test_experiments_side_by_side_have_set_aside_what_the_machines_of_all_need(home, monkeypatch):
    both = replace(ONE_MACHINE, name="other", experiments=("other",))
    monkeypatch.setattr(Offer, "plans", (ONE_MACHINE, both))
    text = "experiments: {main: {command: 'true'}, other: {command: 'true'}}\n"
    assert begin(home, 0.01, text)[1] == pytest.approx(20 - 2 * 0.325, abs=0.001)


def test_what_goes_on_has_that_set_aside_too(home, monkeypatch):
    run = ended_at_its_cap(home, monkeypatch)
    quote = {"time_s": {}, "cost_usd": {"p5": 1.0, "p50": 1.5, "p95": 1.81}, "measurements": 1}
    quote["time_s"] = quote["cost_usd"]
    home._service.database.add_quote(NewQuoteRow(run, None, "estimate", time.time(), json.dumps(quote)))
    home.take_run(run, max_usd=3.0)
    assert HomeAdministration(home._service).budget(None)["left_usd"] == pytest.approx(18.2 - 0.33, abs=0.005)


#: For $3.60 an hour.
ONE_MACHINE = ClusterPlan(
    "main", ("main",), "aws", (RolePlan("worker", 1, (Rental("m", usd_per_hour=3.6),)),)
)


def ended_at_its_cap(home, monkeypatch):
    """A run whose one machine, of $3.60 an hour, has cost $1.80 of $2."""
    now = time.time()
    rental = ONE_MACHINE.roles[0].rentals[0]
    over = Machine("worker-0", "worker", "t", rental, "i-1", "a", now - 1800, now, is_over=True)
    return ended_with(home, monkeypatch, over, 1.8)


def ended_with(home, monkeypatch, machine, cost_usd):
    """A run of at most $2 that had this machine, and ended at its cap."""
    plan, now = ONE_MACHINE, time.time()
    monkeypatch.setattr(Offer, "plans", (plan,))
    monkeypatch.setattr(provider_connection, "check_provider", lambda *_, **__: None)
    session = home._service.start(
        Recipe.from_text(RECIPE + "budget: {total: $2}\n", directory=home.directory),
        home.directory / "r.yaml",
        {},
        Offer(2.0),
    )
    record = replace(new_record(session.run, plan, "home"), state=ClusterState.ENDED, machines=(machine,))
    database = home._service.database
    database.put_cluster(session.lease, record.as_row(), now)
    database.put_cost(session.lease, cost_usd, now)
    database.commit(session.lease, [RunChange(State.WAITING, State.DONE, EndReason.BUDGET)], now)
    database.release(session.lease, now)
    return session.run


def test_a_run_that_ended_at_its_cap_goes_on_with_more(home, monkeypatch):
    run = ended_at_its_cap(home, monkeypatch)
    with pytest.raises(UsageError, match=r"of \$2.00, job-\w+ has cost \$1.80: .* up to \$0.33") as refused:
        home.take_run(run)
    assert refused.value.hint.startswith("Give it $2.16 or more in all. `trainmaster resume job-")
    with pytest.raises(UsageError, match=r"\$1.90"):
        home.take_run(run, max_usd=1.9)
    with pytest.raises(UsageError, match="no amount"):
        home.take_run(run, max_usd=float("nan"))
    with pytest.raises(
        OverBudgetError,
        match=r"may cost \$38.20, and .* of the owner of the home has \$18.20",
    ):
        home.take_run(run, max_usd=40.0)
    assert home.status(run).state == "DONE", "nothing was changed"
    assert home.take_run(run, max_usd=3.0).run == run
    assert HomeAdministration(home._service).budget(None)["left_usd"] == 20.0 - 3.0
    row = home._service.database.run_row(run)
    assert Recipe.model_validate_json(row["recipe"]).budget.total_usd == 3.0
    assert 'total: "$3.0"' in recipe_text(row), "as what it is run with is shown"
    assert "its budget.total is $3.00 from now on" in [each["message"] for each in home._service.events(run)]
    with pytest.raises(UsageError, match="is not over") as refused:
        home.take_run(run, max_usd=4.0)
    assert "cancel" in refused.value.hint


def test_a_run_that_cost_nothing_as_far_as_is_known_is_told_so(home, monkeypatch):
    """Its provider never said whether the machine that it had asked for began: `status` says $0."""
    rental = ONE_MACHINE.roles[0].rentals[0]
    unseen = Machine("worker-0", "worker", "t", rental, "i-1", asked_at=time.time() - 1700, is_over=True)
    run = ended_with(home, monkeypatch, unseen, 0.0)
    assert home.status(run).json["cost_usd"] == 0
    with pytest.raises(
        UsageError, match=r"job-\w+ is known to have cost \$0, and may have cost up to \$1.13: to start"
    ):
        home.take_run(run, max_usd=1.2)


def test_who_is_later_is_told_that_the_total_stays(home, monkeypatch):
    """Two give it more at once: the second one's amount is not left out in silence."""
    run, first, has_begun = ended_at_its_cap(home, monkeypatch), sessions._acquire, []

    def acquire(*given):
        if has_begun:
            return first(*given)
        has_begun.append(True)
        assert home.take_run(run, max_usd=3.0).run == run
        return None  # as for another process

    monkeypatch.setattr(sessions, "_acquire", acquire)
    with pytest.raises(UsageError, match="is not over"):
        home.take_run(run, max_usd=4.0)
    row = home._service.database.run_row(run)
    assert Recipe.model_validate_json(row["recipe"]).budget.total_usd == 3.0


def test_what_only_has_its_gate_asked_again_needs_no_money(home, monkeypatch):
    run = ended_at_its_cap(home, monkeypatch)
    database = home._service.database
    (row,) = database.experiment_rows(run)
    done = {"experiment_id": row["id"], "number": 0, "state": State.DONE, "reason": EndReason.SUCCEEDED}
    database.write(lambda connection, _: connection.execute(tables.task.insert().values(done)))
    assert home.take_run(run).run == run


def test_it_gets_a_cap_before_it_goes_there(home, monkeypatch):
    started = []
    monkeypatch.setattr(hand_over, "check_moves", lambda *_, **__: None)
    monkeypatch.setattr(provider_check, "check_with_provider", lambda *_: [])
    session = SimpleNamespace(run="job-1", notes=[])
    monkeypatch.setattr(Service, "start", lambda _, recipe, *__, **___: started.append(recipe) or session)
    recipe = Recipe.from_text(RECIPE, directory=home.directory)
    session.recipe = recipe
    quote = SimpleNamespace(cost_usd=SimpleNamespace(p95=1.0))
    for on_cluster in (False, True):
        home._plans["p"] = PlannedRun(recipe, RentalOffer(recipe, (), 2.0, 3.6, quote)), home.directory
        accepted = home.accept_run("p", agreed_usd_per_hour=3.6, on_cluster=on_cluster)
    assert [each.budget and each.budget.total_usd for each in started] == [None, 2.81]
    assert "its cap is $2.81" in accepted.notes[0]
