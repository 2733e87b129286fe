"""What a team may still spend this month: its budget without what its runs have cost and may still cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from trainmaster.db import access
from trainmaster.service.quote_record import quote_summary
from trainmaster.service.stored_recipe import stored_recipe
from trainmaster.spec.errors import RunError, StoreError, UsageError
from trainmaster.spec.states import State

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.db import Database
    from trainmaster.service.renting import RentalOffer
    from trainmaster.spec import Recipe


class OverBudgetError(RunError):
    """A run that does not fit in what its team may still spend (HTTP 409)."""


@dataclass(frozen=True, slots=True)
class TeamBudget:
    """Of one calendar month (UTC), US dollars.

    Attributes:
        team: its name.
        monthly_usd: what it may spend; None is no limit.
        spent_usd: what its runs have cost that began this month, or that go on.
        reserved_usd: what those that go on may still cost.
    """

    team: str
    monthly_usd: float | None
    spent_usd: float
    reserved_usd: float

    @property
    def left_usd(self) -> float | None:
        """What is not spoken for; None without a limit."""
        return None if self.monthly_usd is None else self.monthly_usd - self.spent_usd - self.reserved_usd

    def admit(self, most_usd: float | None) -> None:
        """Refuse a run that may cost so much; None if nobody can say how much that is.

        Raises:
            OverBudgetError: it does not fit.
            UsageError: it may cost anything.
        """
        if self.left_usd is None or most_usd == 0:
            return
        if most_usd is None:
            raise UsageError(
                f"team {self.team} has a budget, and nobody can say what this run may cost",
                'Set `budget.total` in the recipe, or "max_usd" in the request.',
            )
        if most_usd > self.left_usd:
            left_usd = max(0.0, self.left_usd)
            raise OverBudgetError(
                f"this run may cost ${most_usd:.2f}, and team {self.team} has ${left_usd:.2f} left of "
                f"${self.monthly_usd:.2f} this month "
                f"(${self.spent_usd:.2f} spent, ${self.reserved_usd:.2f} reserved)",
                "Wait for runs to end, set a lower cap, or have the team's budget raised.",
            )

    def as_dict(self) -> dict[str, Any]:
        """For JSON, rounded to a millionth."""
        values = {**asdict(self), "left_usd": self.left_usd}
        return {key: round(value, 6) if isinstance(value, float) else value for key, value in values.items()}


def budgets(database: Database, now: float) -> list[TeamBudget]:
    """Those of all teams by name."""
    begin = month_begin_s(now)
    found = []
    for row in access.teams(database):
        going_on = access.runs_of_team(database, row["name"])
        spent = access.spent_usd(database, row["name"], begin)
        reserved = sum(max(0.0, _promised_usd(database, run) - run["cost_usd"]) for run in going_on)
        found.append(TeamBudget(row["name"], row["monthly_usd"], spent, reserved))
    return found


def most_usd(recipe: Recipe, offer: RentalOffer | None) -> float | None:
    """What a run may cost: the p95 of its quote, or its cap if that is less; None if neither is known."""
    if offer is None or not offer.costs:
        return 0.0
    cost = offer.quote.cost_usd if offer.quote is not None else None
    return _least(None if cost is None else cost.p95, recipe)


def admit_again(database: Database, run: RowMapping, now: float) -> None:
    """Refuse to go on with a run that is over if what it may still cost does not fit.

    Raises:
        OverBudgetError: it does not.
    """
    still_usd = max(0.0, _promised_usd(database, run) - run["cost_usd"])
    for budget in budgets(database, now):
        if budget.team == run["team"] and run["state"] == State.DONE:
            budget.admit(still_usd)


def _promised_usd(database: Database, run: RowMapping) -> float:
    quote = quote_summary(database, run["id"])
    try:
        recipe = stored_recipe(run)
    except StoreError:
        recipe = None
    return _least(None if quote is None else quote["cost_usd"]["p95"], recipe) or 0.0


def _least(quoted_usd: float | None, recipe: Recipe | None) -> float | None:
    """Of a quote and a recipe's cap the less; None without either."""
    cap_usd = recipe.budget.total_usd if recipe is not None and recipe.budget is not None else None
    return min((usd for usd in (quoted_usd, cap_usd) if usd is not None), default=None)


def month_begin_s(now: float) -> float:
    """When the calendar month began, by UTC, in Unix seconds.

    >>> month_begin_s(86400.0 * 40) == 86400.0 * 31
    True
    """
    day = datetime.fromtimestamp(now, UTC)
    return day.replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()
