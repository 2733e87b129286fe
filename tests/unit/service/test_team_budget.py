"""What a team may still spend."""

from __future__ import annotations

import json

import pytest

from trainmaster.db import Database, NewQuote, NewRun, RunChange, Submission, access
from trainmaster.service.team_budget import OverBudgetError, TeamBudget, budgets
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError
from trainmaster.spec.states import EndReason, State

NOW = 86400.0 * 40


@pytest.fixture
def database(tmp_path):
    found = Database(f"sqlite:///{tmp_path / 'a.db'}")
    access.add_team(found, "red", 100.0, NOW)
    access.add_team(found, "blue", None, NOW)
    yield found
    found.close()


def run(database, name, created_at, cost_usd=0.0, team="red", cap=None, is_over=False):
    content = {"name": "r", "experiments": {"main": {"command": "true"}}}
    if cap is not None:
        content["budget"] = {"total": f"${cap}"}
    recipe = Recipe.from_dict(content).model_dump_json()
    new = NewRun(
        name,
        "r",
        recipe,
        "r.yaml",
        "aws",
        "code",
        "file:///s",
        [("main", 1)],
        submission=Submission("x", team),
    )
    lease = database.create_run(new, created_at)
    database.put_cost(lease, cost_usd)
    if is_over:
        database.commit(lease, [RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED)], created_at + 1)


def red(database):
    return next(budget for budget in budgets(database, NOW) if budget.team == "red")


def test_what_was_spent_and_what_is_promised_counts(database):
    run(database, "earlier", NOW - 86400 * 20, 50.0, is_over=True)
    run(database, "over", NOW - 10, 7.0, cap=30, is_over=True)
    run(database, "from-last-month", NOW - 86400 * 20, 5.0, cap=20)
    run(database, "capped", NOW - 5, 1.0, cap=11)
    run(database, "others", NOW - 5, 60.0, team="blue", cap=70)
    found = red(database)
    assert (found.spent_usd, found.reserved_usd, found.left_usd) == (13.0, 25.0, 62.0)


def test_the_quote_is_reserved_if_it_is_less_than_the_cap(database):
    run(database, "quoted", NOW - 5, 1.0, cap=50)
    interval = {"p5": 2.0, "p50": 3.0, "p95": 4.0}
    data = {"time_s": interval, "cost_usd": interval, "measurements": 1}
    database.add_quote(NewQuote("quoted", None, "estimate", NOW, json.dumps(data)))
    assert red(database).reserved_usd == 3.0


def test_what_does_not_fit_is_refused_with_the_numbers():
    budget = TeamBudget("red", 100.0, 60.0, 30.0)
    budget.admit(10.0)
    budget.admit(0.0)
    with pytest.raises(OverBudgetError, match=r"may cost \$10.01, and team red has \$10.00 left of \$100.00"):
        budget.admit(10.01)
    with pytest.raises(UsageError, match="nobody can say"):
        budget.admit(None)
    TeamBudget("blue", None, 1e6, 0.0).admit(None)
    TeamBudget("red", 1.0, 5.0, 0.0).admit(0.0)
