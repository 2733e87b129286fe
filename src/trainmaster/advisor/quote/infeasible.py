"""Nothing keeps the limits: the error, and what would do."""

from __future__ import annotations

import math

from trainmaster.advisor.quote.choosing import QuoteLimits
from trainmaster.spec.errors import UsageError
from trainmaster.spec.units import format_duration


class NoFeasibleQuote(UsageError):  # noqa: N818 - the name of what happened
    """Nothing keeps the limits.

    Attributes:
        nearest_budget_usd, nearest_deadline_s: what would do, each with the other as it is; None if that
            alone would not help.
    """

    def __init__(
        self,
        message: str,
        hint: str,
        nearest_budget_usd: float | None = None,
        nearest_deadline_s: float | None = None,
    ) -> None:
        self.nearest_budget_usd = nearest_budget_usd
        self.nearest_deadline_s = nearest_deadline_s
        super().__init__(message, hint)


def no_feasible(
    limits: QuoteLimits,
    budget: float | None,
    deadline: float | None,
    nearest: tuple[float, float],
    *,
    is_cut: bool = False,
) -> NoFeasibleQuote:
    """The error, in words.

    Args:
        limits: that cannot be kept.
        budget: dollars that would do with this deadline.
        deadline: seconds that would do with this budget.
        nearest: seconds and dollars of the cluster that misses least.
        is_cut: not all that might do was looked at.
    """
    asked = []
    if limits.deadline_s < math.inf:
        asked.append(f"a deadline of {format_duration(limits.deadline_s)}")
    if limits.budget_usd < math.inf:
        asked.append(f"a budget of ${limits.budget_usd:g}")
    ways = []
    if budget is not None:
        ways.append(f"budget.total: {_cents(budget)}")
    if deadline is not None:
        ways.append(f"budget.deadline: {_hours(deadline)}")
    both = limits.deadline_s < math.inf and limits.budget_usd < math.inf
    if both and len(ways) == 1:  # the other alone would not do; but less of both may
        time_s, cost = max(nearest[0], limits.deadline_s), max(nearest[1], limits.budget_usd)
        if time_s > limits.deadline_s and cost > limits.budget_usd:
            ways.append(f"budget.total: {_cents(cost)} with budget.deadline: {_hours(time_s)}")
    hint = "Nearest feasible: " + " or ".join(ways) + "." if ways else ""
    if budget is not None and limits.end_s(1):
        hint += " That includes what a run keeps for its end."
    if not ways:
        least = _cents(nearest[1])
        hint = f"The cluster that misses least needs {_hours(nearest[0])} and {least} (with 90 % each)."
    words = "of the clusters that were looked at, none keeps" if is_cut else "no cluster keeps"
    return NoFeasibleQuote(f"{words} {' and '.join(asked)} with 90 %", hint, budget, deadline)


def _cents(usd: float) -> str:
    """Rounded up, as it would be written in a recipe.

    >>> _cents(0.491), _cents(12)
    ('$0.50', '$12.00')
    """
    return f"${math.ceil(usd * 100 - 1e-9) / 100:.2f}"


def _hours(seconds: float) -> str:
    """Rounded up, as it would be written in a recipe.

    >>> _hours(59.2), _hours(200.5), _hours(240), _hours(7300)
    ('60s', '3m21s', '4m', '2.1h')
    """
    if seconds < 120:
        return f"{math.ceil(seconds)}s"
    if seconds < 7200:
        minutes, rest = divmod(math.ceil(seconds), 60)
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    return f"{math.ceil(seconds / 360) / 10:g}h"
