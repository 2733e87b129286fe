"""What a server does where there are limits: a run without a cap gets one, and no machine stays warm."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from trainmaster.control.task.layout import Home
from trainmaster.db import ledger
from trainmaster.db.ledger import ALL
from trainmaster.service import Service
from trainmaster.service.driving.submissions import RunRequest, Submissions
from trainmaster.service.renting import RentalOffer
from trainmaster.service.run_planning import PlannedRun, RunPlanner
from trainmaster.service.users.access import Access
from trainmaster.service.users.caller import caller
from trainmaster.spec.errors import UsageError

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

    def plan(self, recipe, path, **_):
        quote = SimpleNamespace(cost_usd=self.p95_usd and SimpleNamespace(p95=self.p95_usd))
        return PlannedRun(recipe, path, RentalOffer(recipe, (), 2.0, 3.6, quote))

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
    assert notes == ["its cap is $2.81, as there is a budget for the month; max_usd sets a lower one"]
    assert office.send(max_usd=5.0) == (5.0, [])
    assert office.send(RECIPE + "budget: {total: $4}\n") == (4.0, [])
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
    with pytest.raises(UsageError, match=r"keep_s: .* has limits"):
        office.send(keep_s=600.0)
    office.send()


def test_nothing_is_rented_for_more_than_was_agreed_to(office):
    office.access.make_team("red", None)
    with pytest.raises(UsageError, match=r"\$3.6 per hour now, and \$3.5 was agreed to"):
        office.submissions.submit(RED, RunRequest(RECIPE, agreed_usd_per_hour=3.5))
    assert not hasattr(office, "started")
