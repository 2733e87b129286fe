"""Whoever starts runs from a wallet: a home's client, a server's token, what such a token has made."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from trainmaster.api.embedded import EmbeddedClient
from trainmaster.control.task.layout import Home
from trainmaster.db import RunChange
from trainmaster.service import Service
from trainmaster.service.driving.sessions import requeue
from trainmaster.service.driving.submissions import RunRequest, Submissions
from trainmaster.service.renting import provider_check
from trainmaster.service.renting.offer import RentalOffer
from trainmaster.service.run_planning import PlannedRun, RunPlanner
from trainmaster.service.teams.team_budget import OverBudgetError
from trainmaster.service.teams.team_runs import TeamRuns
from trainmaster.service.teams.wallet import balance_of
from trainmaster.service.users.access import Access
from trainmaster.service.users.accounts import Accounts
from trainmaster.service.users.caller import ForbiddenError, Wallet
from trainmaster.service.workflows.workflows import Workflows
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError
from trainmaster.spec.states import EndReason, State

RECIPE = "name: job\nprovider: aws\nbudget: {{total: ${}}}\nexperiments: {{main: {{command: 'true'}}}}\n"


@pytest.fixture
def service(tmp_path, monkeypatch):
    def plan(self, recipe, **_):
        return PlannedRun(recipe, RentalOffer(recipe, (), 2.0, 3.6))

    monkeypatch.setattr(RunPlanner, "plan", plan)
    monkeypatch.setattr(RentalOffer, "note_down", lambda *_: None)
    monkeypatch.setattr(provider_check, "check_with_provider", lambda *_: [])
    home = Home(tmp_path, tmp_path / "cache", f"file://{tmp_path}/store", f"sqlite:///{tmp_path / 'd.db'}")
    found = Service(home)
    yield found
    found.close()


class AtHome:
    """Runs of a home."""

    def __init__(self, root):
        self.root = root
        self.client = EmbeddedClient(root / "home", wallet=Wallet("mcp", 20.0))
        self.service = self.client._service

    def start(self, usd, keep_s=0.0):
        recipe = Recipe.from_text(RECIPE.format(usd), directory=self.root)
        (*_, plan) = self.client.plan_run(recipe, str(self.root / "r.yaml"))
        how = {"agreed_usd_per_hour": 3.6, "keep_s": keep_s}
        return self.client.accept_run(plan.id, **how).run

    def again(self):
        """As after its process was killed."""
        return AtHome(self.root)


class AtServer:
    """Runs of a token."""

    def __init__(self, service, token=None):
        self.service, self.access = service, Access(service.database)
        made = token or self.access.create_token("bot", ["read", "run"], at_most_usd=20.0)["token"]
        self.caller = self.access.by_token(made)
        self.submissions = Submissions(service, self.access, {}, is_private=True)

    def start(self, usd, keep_s=0.0):
        request = RunRequest(RECIPE.format(usd), max_usd=float(usd), keep_s=keep_s)
        return self.submissions.submit(self.caller, request)[0]

    def again(self):
        """As another token, which this one has made."""
        maker = replace(self.caller, account="ann")
        Accounts(self.service.database).create_user("ann")
        Access(self.service.database).make_team("red", None)
        made = self.access.create_token("child", ["run"], maker=maker)
        assert (made["at_most_usd"], made["scopes"]) == (20.0, ["run"])
        return AtServer(self.service, made["token"])


@pytest.fixture(params=["home", "server"])
def door(request, service, tmp_path):
    return AtHome(tmp_path) if request.param == "home" else AtServer(service)


def test_no_door_passes_it_and_it_is_the_same_after_a_restart(door):
    first = door.start(8)
    door.start(8)
    with pytest.raises(OverBudgetError, match=r"\$4.00 left of \$20.00"):
        door.start(8)
    with pytest.raises(OverBudgetError):
        door.again().start(5)
    row = door.service.database.run_row(first)
    assert row["wallet"] in ("mcp", "token bot")
    assert Recipe.model_validate_json(row["recipe"]).budget.total_usd == 8.0
    with pytest.raises(UsageError, match="warm"):
        door.start(1, keep_s=60.0)


def test_a_run_without_a_cap_gets_one_from_its_quote_or_is_refused(door, monkeypatch):
    monkeypatch.setattr("test_wallet_starts.RECIPE", RECIPE.replace("budget: {{total: ${}}}\n", "# {}\n"))
    if isinstance(door, AtHome):
        with pytest.raises(UsageError, match="known price only"):
            door.start(8)
    else:
        door.start(8)  # max_usd is its cap


def test_a_token_with_a_wallet_starts_nothing_beside_it(service):
    door = AtServer(service)
    workflows = Workflows(service, door.submissions, {}, door.caller)
    with pytest.raises(ForbiddenError, match="has a wallet, and a workflow"):
        workflows.keep(RunRequest(RECIPE.format(1), max_usd=1.0))
    for act in (workflows.trigger, workflows.resume):
        with pytest.raises(ForbiddenError):
            act("other")
    other = AtServer(service, door.access.create_token("human", ["read", "run"])["token"])
    run = other.start(500)
    with pytest.raises(ForbiddenError, match="was not started from it"):
        TeamRuns(service, door.caller).resume(run, {})
    assert balance_of(door.caller.wallet, service.database.read).left_usd == 20.0
    with pytest.raises(UsageError, match="could pass its wallet"):
        door.access.create_token("boss", ["run", "admin"], at_most_usd=5.0)
    with pytest.raises(UsageError, match="draws on the wallet"):
        door.access.create_token("more", ["run"], maker=door.caller, at_most_usd=50.0)
    session = door.access.by_session(door.access.open_session(door.caller))
    assert session.wallet == door.caller.wallet


def test_it_goes_on_with_its_own_run_within_it(service):
    door, now = AtServer(service), time.time()
    run = door.start(12)
    lease = service.database.acquire(run, now)
    service.database.put_cost(lease, 3.0, now)
    service.database.commit(lease, [RunChange(State.WAITING, State.DONE, EndReason.CANCELLED)], now)
    assert balance_of(door.caller.wallet, service.database.read).left_usd == 17.0
    door.start(9)
    row, recipe = service.database.run_row(run), Recipe.from_text(RECIPE.format(12))
    with pytest.raises(OverBudgetError, match=r"may cost \$12.00, and the wallet"):
        requeue(service.database, lease, row, recipe, door.caller.wallet)
    requeue(service.database, lease, row, recipe)  # a person may
    assert balance_of(door.caller.wallet, service.database.read).left_usd == -1.0
