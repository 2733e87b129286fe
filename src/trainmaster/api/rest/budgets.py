"""Routes of budgets, their ledger and the queue."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Response
from pydantic import Field

from trainmaster.api.rest.bodies import TeamLimits
from trainmaster.api.rest.state import Admin, Cursor, Reader, Routes, Runs, State
from trainmaster.service.teams.admission import queue_of
from trainmaster.service.teams.spending import as_csv
from trainmaster.service.teams.team_budget import budgets_of, entries_of, set_budget
from trainmaster.service.teams.team_runs import MAX_PAGE
from trainmaster.service.teams.wallet import balance_of
from trainmaster.spec.labels import joined

router = Routes(tags=["budgets"])


class BudgetLimits(TeamLimits):
    """Limits of a team: those that are not named stay, null takes one away."""

    team: str | None = Field(None, description="null for the owner of the home, * for all together")


@router.get("/budgets")
def budgets(state: State, caller: Reader) -> dict[str, Any]:
    """What was spent this month (UTC), is reserved for runs that go on, and is left."""
    found = budgets_of(state.service.database, caller, state.service.database.clock_s())
    return {"budgets": [budget.as_dict() for budget in found]}


@router.put("/budgets")
def put_budget(body: BudgetLimits, state: State, caller: Admin) -> dict[str, Any]:
    """Change limits."""
    database = state.service.database
    return set_budget(database, body.team, body.limits(), database.clock_s()).as_dict()


@router.get("/wallet")
def wallet(state: State, caller: Reader) -> dict[str, Any]:
    """What may be spent with the token: `wallet` is null if it has none, or its amount, and what is left."""
    if caller.wallet is None:
        return {"wallet": None}
    return {"wallet": balance_of(caller.wallet, state.service.database.read).as_dict()}


@router.get("/cost", response_model=None)
def cost(
    runs: Runs,
    by: Annotated[str, Query(description="month, provider, user, team, run or label:KEY")] = "month",
    since: Annotated[
        str, Query(description="spent within this time, as 30d; since a day; or month: this one")
    ] = "",
    where: Annotated[str, Query(description="of runs with which this condition holds")] = "",
    label: Annotated[list[str] | None, Query(description="of runs with this label, KEY=VALUE")] = None,
    csv: Annotated[bool, Query(description="a table instead of JSON")] = False,
) -> dict[str, Any] | Response:
    """What runs have cost, of that for warm machines and disks, and what their quotes had said.

    What is not known is null, and `unknown_runs` counts of how many runs that is so.
    """
    found = runs.cost(by, since, joined(where, label or ()))
    return Response(as_csv(found), media_type="text/csv; charset=utf-8") if csv else found


@router.get("/ledger")
def entries(
    state: State,
    caller: Reader,
    run: str | None = None,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
) -> dict[str, Any]:
    """What was reserved, charged and released, by run and day: newest first."""
    return entries_of(state.service.database, caller, run, cursor, limit)


@router.get("/queue")
def queue(state: State, caller: Reader) -> dict[str, Any]:
    """Runs that wait for their turn: for what, and how many are before them."""
    return {"queue": queue_of(state.service.database, caller)}
