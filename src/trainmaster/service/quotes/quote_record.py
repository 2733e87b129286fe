"""`QuoteRecord`: time and cost that were quoted for a run, and what became of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import RowMapping

from trainmaster.control.decide.budget import end_reserve_s
from trainmaster.dataclass import dataclass, field
from trainmaster.db import ActualOutcome, Database
from trainmaster.spec.states import EndReason, State
from trainmaster.spec.units import QUOTE_RESOLUTION, dollars, format_duration

if TYPE_CHECKING:
    from trainmaster.advisor.quote.interval import Interval
    from trainmaster.advisor.quote.quote import ExperimentQuote
    from trainmaster.spec import Recipe


@dataclass(frozen=True, slots=True)
class QuoteRecord:
    """What was said.

    Attributes:
        kind: ``estimate`` or ``binding``. made_at: Unix seconds. time_s, cost_usd: of the whole run.
        measurements: how many it rests on.
        other: another cluster that was worth a thought, in words; empty if none.
        phases: by experiment p5, p50 and p95 of each, in seconds; empty where they are not told.
    """

    kind: str
    made_at: float
    time_s: Interval
    cost_usd: Interval
    measurements: int = 0
    other: str = ""
    phases: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)

    @classmethod
    def of_row(cls, row: RowMapping) -> QuoteRecord:
        """As it was stored."""
        from trainmaster.advisor.quote.interval import Interval  # most runs have no quote

        data = json.loads(row["data"])
        return cls(
            row["kind"],
            row["made_at"],
            Interval(**data["time_s"]),
            Interval(**data["cost_usd"]),
            data.get("measurements", 0),
            data.get("other", ""),
            _by_experiment(data.get("phases", {})),
        )

    def phases_of(self, experiment: str) -> Mapping[str, Mapping[str, float]]:
        """Of one of its experiments."""
        return self.phases.get(experiment) or self.phases.get("", {})

    def holds(self, time_s: float, cost_usd: float) -> bool:
        """True if neither is more than was promised: early and cheap is no miss."""
        return self.time_s.holds(time_s) and self.cost_usd.holds(cost_usd)

    @property
    def kept_words(self) -> str:
        """When it is kept, in words."""
        within = f"ends within {format_duration(self.time_s.p95)}"
        if self.cost_usd.p95:
            within += f" and costs at most {dollars(self.cost_usd.p95)}"
        return f"it is kept if the run {within}"

    def kept(self, reason: str | None, by_hand: bool, time_s: float, cost_usd: float) -> bool | None:
        """Whether a run has kept it: it succeeded, and neither is more than was promised.

        Args:
            reason: why it ended.
            by_hand: it was cancelled or interrupted by a person, now or before it was resumed.
            time_s: seconds that it took, without the wait for what other runs held: that cannot be promised.
            cost_usd: dollars that it cost.

        Returns:
            None of one that was ended by hand: it says nothing of the promise.
        """
        if by_hand:
            return None
        return reason == EndReason.SUCCEEDED and self.holds(time_s, cost_usd)

    def outside(self, time_s: float, cost_usd: float) -> str | None:
        """On which side of what was promised it came out: ``early`` or ``late``; None if inside.

        A run that is early keeps the promise; but an interval too often left on that side is too wide.
        """
        if not self.holds(time_s, cost_usd):
            return "late"
        short = max(self.time_s.p5 - time_s, self.cost_usd.p5 - cost_usd)
        return "early" if short > QUOTE_RESOLUTION else None

    def as_json(self) -> str:
        """For the database."""
        data = {
            "time_s": self.time_s.as_dict(),
            "cost_usd": self.cost_usd.as_dict(),
            "measurements": self.measurements,
        }
        more = {name: value for name in ("other", "phases") if (value := getattr(self, name))}
        return json.dumps(data | more)


def _by_experiment(phases: Mapping[str, Any]) -> Mapping[str, Any]:
    """As they are kept now: once they were those of the only experiment."""
    return {"": phases} if any("p50" in each for each in phases.values()) else phases


def most_usd(p95_usd: float | None, recipe: Recipe | None) -> float | None:
    """What a run may cost: the p95 of its quote, or its recipe's cap if that is less; None without either."""
    cap_usd = recipe.budget.total_usd if recipe is not None and recipe.budget is not None else None
    return min((usd for usd in (p95_usd, cap_usd) if usd is not None), default=None)


def quote_summary(database: Database, run: str) -> dict[str, Any] | None:
    """What was promised for a run and whether it was kept, as ``--json`` shows it; None without a quote.

    The binding quote counts; without one, the estimate.
    """
    rows = list(database.quotes_of(run))
    if not rows:
        return None
    shown = {row["kind"]: row for row in rows}
    main = shown.get("binding") or rows[-1]
    promise = QuoteRecord.of_row(main)
    # one that was resumed has yet to show it
    is_over = database.run_row(run)["state"] == State.DONE and main["time_s"] is not None
    by_hand = is_over and main["kept"] is None
    passed = json.loads(database.forecast_of(run) or "{}").get("passed", {})
    why = "" if is_over and main["kept"] else "; ".join(passed.values())
    actual: dict[str, Any] = {"time_s": main["time_s"], "cost_usd": main["cost_usd"] or 0.0}
    is_broken = is_over and not by_hand and not main["kept"]
    if is_broken and (failed := database.failed_attempts(run)):
        actual["failed_attempts"] = failed
    if is_broken and (held := _held_in(database, run)):
        actual["held"] = held
    return {
        "kind": promise.kind,
        "time_s": promise.time_s.as_dict(),
        "cost_usd": promise.cost_usd.as_dict(),
        "measurements": promise.measurements,
        "kept": bool(main["kept"]) if is_over and not by_hand else None,
        "ended_by_hand": by_hand,
        "outside": promise.outside(main["time_s"], main["cost_usd"] or 0.0)
        if is_over and not by_hand
        else None,
        "actual": actual if is_over else None,
        **({"passed": why} if why else {}),
    }


def _held_in(database: Database, run: str) -> str:
    """What others have held of the processors of a run's attempts, in words; empty if little, or unknown."""
    from statistics import median

    from trainmaster.advisor.model.measurement import held_words

    shares = (json.loads(row["data"]).get("held") for row in database.measured_in(run))
    known = [share for share in shares if share is not None]
    return held_words(median(known)) if known else ""


def record_outcomes(database: Database, run: str, reason: str | None, time_s: float, cost_usd: float) -> None:
    """Put what a run came to beside what was promised; see `QuoteRecord.kept`."""
    rows = database.quotes_of(run)
    by_hand = bool(rows) and database.was_cancelled(run)
    for row in rows:
        kept = QuoteRecord.of_row(row).kept(reason, by_hand, time_s, cost_usd)
        database.record_outcome(row["id"], ActualOutcome(time_s, cost_usd, kept))


def told_in_full(time_s: Interval, cost_usd: Interval) -> str:
    """Time and, where anything is to be paid, cost.

    >>> from trainmaster.advisor.quote.interval import Interval
    >>> told_in_full(Interval(50, 60, 75), Interval(0.5, 0.6, 0.75))
    '1 min (50 s to 1 min 15 s), $0.60 ($0.50 to $0.75)'
    """
    if not cost_usd.p95:
        return told(time_s)
    span = f"{dollars(cost_usd.p50)} ({dollars(cost_usd.p5)} to {dollars(cost_usd.p95)})"
    return f"{told(time_s)}, {span}"


def told(interval: Interval) -> str:
    """A span for people.

    >>> from trainmaster.advisor.quote.interval import Interval
    >>> told(Interval(50, 60, 75))
    '1 min (50 s to 1 min 15 s)'
    """
    return (
        f"{format_duration(interval.p50)} ({format_duration(interval.p5)} to {format_duration(interval.p95)})"
    )


def cap_usd(recipe: Recipe) -> float:
    """What a run may cost. Of a month's budget its driver has only as much at a time as it soon needs."""
    return (recipe.budget and recipe.budget.total_usd) or math.inf


def run_end_s(recipe: Recipe, most_bytes: float = 0.0) -> Callable[[int], float]:
    """For how long a run always has money of ``budget.total`` for its end, by its tasks at once.

    Args:
        recipe: of the run, if it has a cap.
        most_bytes: of the largest model and checkpoint that are to be published at the end, if known.
    """
    from trainmaster.control.loop.jobs import THREADS  # what shows a run needs no loop

    grace_s = max(each.grace_s for each in recipe.experiments.values())
    return lambda tasks: end_reserve_s([grace_s], most_bytes, math.ceil(tasks / THREADS))


def cap_words(recipe: Recipe, cost_usd: Interval, usd_per_hour: float, most_usd_per_hour: float) -> str:
    """What the cap of a run does to what is quoted for it; empty if it is kept.

    Args:
        recipe: of the run.
        cost_usd: that is quoted.
        usd_per_hour: of the machines that are there.
        most_usd_per_hour: the same at the highest price, which the cap counts.
    """
    cap_usd = recipe.budget.total_usd if recipe.budget else None
    if cap_usd is None:
        return ""
    rise = most_usd_per_hour / usd_per_hour if usd_per_hour else 1.0
    end_usd = (rise - 1) * cost_usd.p95 + most_usd_per_hour * run_end_s(recipe)(1) / 3600
    if cost_usd.p95 + end_usd <= cap_usd:
        return ""
    will = "will" if cost_usd.p50 + end_usd > cap_usd else "may"
    kept = f", {dollars(end_usd)} of which it keeps for its end," if cost_usd.p95 <= cap_usd else ""
    return f"; its cap of {dollars(cap_usd)}{kept} {will} end it before (BUDGET)"


def keeping_words(recipe: Recipe, keep_s: float, usd_per_hour: float) -> str:
    """What machines that stay warm after a run cost; empty if nothing.

    Args:
        recipe: of the run.
        keep_s: how long they stay.
        usd_per_hour: of them, had in the dearest way that is planned.
    """
    if not (usd := usd_per_hour * keep_s / 3600):
        return ""
    is_capped = recipe.budget is not None and recipe.budget.total_usd is not None
    return (
        f"afterwards machines are kept warm for {format_duration(keep_s)}, which costs up to {dollars(usd)} "
        f"more{', within budget.total' * is_capped}; giving back is not counted"
    )


def limit_notes(
    recipe: Recipe,
    time_s: Interval | None,
    cost_usd: Interval | None,
    end_usd: float,
    quoted: Mapping[str, ExperimentQuote] | None = None,
) -> list[str]:
    """Which limits of its budget, and which timeouts, a run may exceed.

    Args:
        recipe: of the run.
        time_s: that is quoted.
        cost_usd: the same.
        end_usd: what it keeps of ``budget.total`` for its end.
        quoted: its experiments.
    """
    budget, found = recipe.budget, list[str]()
    if budget is not None and budget.deadline_s is not None and time_s and time_s.p95 > budget.deadline_s:
        least = format_duration(budget.deadline_s)
        found.append(f"it may take {format_duration(time_s.p95)}, and budget.deadline is {least}")
    if budget is not None and budget.total_usd is not None and cost_usd:
        most, may = dollars(budget.total_usd), f"it may cost {dollars(cost_usd.p95)}"
        if cost_usd.p95 > budget.total_usd:
            found.append(f"{may}, and budget.total is {most}: no more is spent")
        elif cost_usd.p95 + end_usd > budget.total_usd:
            kept = f"{dollars(end_usd)} of budget.total ({most}) is kept for its end"
            found.append(f"{may}, and {kept}: it may be ended before")
    for name, one in (quoted or {}).items():
        timeout_s, takes = recipe.experiments[name].timeout_s, one.attempt_s
        if timeout_s is not None and takes is not None and takes.p95 > timeout_s:
            will = takes.p50 > timeout_s
            may = f"will take {told(takes)}" if will else f"may take {format_duration(takes.p95)}"
            found.append(f"{name}: an attempt {may}, and timeout ends it after {format_duration(timeout_s)}")
    return found
