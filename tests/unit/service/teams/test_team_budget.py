"""What a team may still spend."""

from __future__ import annotations

import pytest

from trainmaster.db import AcceptedRun, Database, RunChange, Submission, access, ledger
from trainmaster.db.ledger import ALL
from trainmaster.service.driving.sessions import requeue
from trainmaster.service.teams.team_budget import (
    OWNER,
    Budgets,
    OverBudgetError,
    TeamBudget,
    budgets,
    set_aside,
)
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError
from trainmaster.spec.states import EndReason, State

NOW = 86400.0 * 40


@pytest.fixture
def database(tmp_path):
    found = Database(f"sqlite:///{tmp_path / 'a.db'}")
    access.add_team(found, "red", {"monthly_usd": 100.0}, NOW)
    access.add_team(found, "blue", {}, NOW)
    yield found
    found.close()


def run(database, name, most_usd, team="red", cost_usd=0.0, is_over=False, now=NOW):
    new = AcceptedRun(
        name, "r", "{}", "r.yaml", "aws", "code", "file:///s", [("main", 1)], submission=Submission("x", team)
    )
    lease = database.create_run(
        new, now, lambda connection: set_aside(connection, name, team or OWNER, most_usd, now)
    )
    database.put_cost(lease, cost_usd, now)
    if is_over:
        database.commit(lease, [RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED)], now)
    return lease


def test_what_was_spent_and_what_is_promised_counts(database):
    run(database, "earlier", 50.0, cost_usd=50.0, is_over=True, now=NOW - 86400 * 20)
    run(database, "over", 30.0, cost_usd=7.0, is_over=True)
    run(database, "from-last-month", 20.0, cost_usd=5.0, now=NOW - 86400 * 20)
    run(database, "goes-on", 11.0, cost_usd=1.0)
    run(database, "others", 70.0, team="blue", cost_usd=60.0)
    blue, red = budgets(database, NOW)
    assert (red.spent_usd, red.reserved_usd, red.left_usd) == (8.0, 25.0, 67.0)
    assert (blue.team, blue.spent_usd, blue.left_usd) == ("blue", 60.0, None)


def test_what_does_not_fit_is_not_accepted(database):
    run(database, "fits", 60.0)
    with pytest.raises(OverBudgetError, match=r"budget of team red has \$40.00 left of \$100.00: ") as caught:
        run(database, "does-not", 40.01)
    assert caught.value.hint == (
        "Lower its cap, or have it wait (`run --queue`); else an admin raises it: "
        "`trainmaster budget --team red --monthly AMOUNT`. "
        "`trainmaster cost --by run --since month` says what used it."
    )
    assert not database.has_run("does-not")
    with pytest.raises(UsageError, match="nobody can say"):
        run(database, "endless", None)
    run(database, "nothing", 0.0)
    run(database, "others", None, team="blue")
    run(database, "rest", 40.0)


def test_everybody_together_may_have_a_budget_and_a_home_without_teams_too(database):
    access.add_team(database, "blue", {"monthly_usd": 10.0}, NOW)
    limit = {"monthly_usd": 5.0}
    database.write(lambda connection, _: ledger.set_limits(connection, OWNER, limit))
    with pytest.raises(OverBudgetError, match="the owner of the home has"):
        run(database, "at-home", 6.0, team=None)
    run(database, "small", 5.0, team=None)
    found = Budgets(database.read, NOW)
    assert found[OWNER].as_dict()["team"] is None
    assert (found[ALL].reserved_usd, found[ALL].left_usd) == (5.0, None)


def test_going_on_needs_what_is_left_of_it_only(database):
    lease = run(database, "r", 90.0, cost_usd=60.0, is_over=True)
    run(database, "meanwhile", 15.0)

    def again(most_usd):
        database.requeue(lease, NOW, lambda connection: set_aside(connection, "r", "red", most_usd, NOW))

    with pytest.raises(OverBudgetError, match=r"may cost \$30.00"):
        again(90.0)
    assert database.run_row("r")["state"] == State.DONE
    again(85.0)
    assert budgets(database, NOW)[1].left_usd == 0.0
    again(85.0)  # its driver was killed, and it is taken over


def test_what_nobody_can_say_the_cost_of_does_not_go_on_for_nothing(database, tmp_path):
    access.add_team(database, "later", {}, NOW)
    lease = run(database, "r", None, team="later", is_over=True)
    database.write(lambda connection, _: ledger.set_limits(connection, "later", {"monthly_usd": 5.0}))

    def go_on(serve=None, **keys):
        main = {"command": "true"} | ({} if serve is None else {"serve": serve})
        content = {"name": "a", "experiments": {"main": main}, **keys}
        requeue(
            database, lease, {"team": "later", "wallet": None}, Recipe.from_dict(content, directory=tmp_path)
        )

    with pytest.raises(UsageError, match="nobody can say"):
        go_on(provider="aws")
    with pytest.raises(UsageError, match="nobody can say"):
        go_on(serve={"replicas": 2}, provider="aws")
    with pytest.raises(OverBudgetError, match=r"\$6.00"):
        go_on(provider="aws", budget={"total": "$6"})
    go_on(provider="hosts")


def test_a_refusal_has_the_numbers():
    budget = TeamBudget("red", 100.0, 60.0, 30.0)
    budget.admit(10.0)
    budget.admit(0.0)
    numbers = (
        r"may cost \$10.01, and this month's budget of team red has \$10.00 left of \$100.00: "
        r"\$60.00 spent, \$30.00 reserved for runs that go on"
    )
    with pytest.raises(OverBudgetError, match=numbers):
        budget.admit(10.01)
    for team, who, how in (("", "the owner of the home", " "), ("*", "all teams together", " --team '*' ")):
        with pytest.raises(OverBudgetError, match=f"budget of {who} has") as caught:
            TeamBudget(team, 1.0, 0.0, 0.0).admit(2.0)
        assert f"`trainmaster budget{how}--monthly AMOUNT`" in caught.value.hint
    with pytest.raises(UsageError, match="nobody can say"):
        budget.admit(None)
    TeamBudget("blue", None, 1e6, 0.0).admit(None)
    TeamBudget("red", 1.0, 5.0, 0.0).admit(0.0)
