"""How quotes turned out: how many runs of a home kept theirs, and how good the intervals were."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.db import Database
from trainmaster.service.quotes.quote_record import QuoteRecord
from trainmaster.spec.states import EndReason

#: The quantile of the normal distribution that leaves 2.5 % on either side.
_Z: Final = 1.96
#: The share of truths that belong between p5 and p95.
NOMINAL: Final = 0.9
KINDS: Final = ("estimate", "binding")


@dataclass(frozen=True, slots=True)
class QuoteOutcome:
    """What was promised for one finished run, and what became of it.

    Attributes:
        run: its id. provider: name. job: kind of job, see `job_of`.
        promise: what was said.
        succeeded: whether the run did all that it was to do; the time of others says nothing of intervals.
        kept: it succeeded within p95 of time and cost; None if it was ended by hand.
        time_s: seconds it took. cost_usd: dollars it cost.
    """

    run: str
    provider: str
    job: str
    promise: QuoteRecord
    succeeded: bool
    kept: bool | None
    time_s: float
    cost_usd: float

    @property
    def side(self) -> str:
        """``inside`` the interval, or ``early`` or ``late``: both are outside."""
        return self.promise.outside(self.time_s, self.cost_usd) or "inside"


@dataclass(frozen=True, slots=True)
class Score:
    """Of some outcomes.

    Attributes:
        runs: that ended by themselves. kept: of those. by_hand: apart from them, ended by hand.
        judged: runs that succeeded, whose truth can be held against the interval.
        inside: of those, inside the intervals of time and of cost; early, late: outside, below or above.
        time_width: median of p95/p5 of the time; None without runs.
    """

    runs: int
    kept: int
    by_hand: int
    judged: int
    inside: int
    early: int
    late: int
    time_width: float | None

    @classmethod
    def of(cls, outcomes: Sequence[QuoteOutcome]) -> Score:
        """Count them."""
        from statistics import median  # every run asks for the line of its quote, few have any

        told = [each for each in outcomes if each.kept is not None]
        sides = [each.side for each in told if each.succeeded]
        times = [each.promise.time_s for each in outcomes]
        widths = [time_s.p95 / time_s.p5 for time_s in times if time_s.p5 > 0]
        return cls(
            len(told),
            sum(bool(each.kept) for each in told),
            len(outcomes) - len(told),
            len(sides),
            sides.count("inside"),
            sides.count("early"),
            sides.count("late"),
            median(widths) if widths else None,
        )

    @property
    def line(self) -> str:
        """For people, beside a quote; empty if there is nothing to tell.

        >>> Score(13, 12, 2, 12, 11, 1, 0, 1.4).line
        'how good such quotes were: of 12 runs here, 11 came out inside the interval, 1 below it'
        """
        if not self.judged:
            return ""
        runs = f"{self.judged} run{'s' * (self.judged != 1)}"
        early = f", {self.early} below it" if self.early else ""
        late = f", {self.late} above it" if self.late else ""
        said = f"of {runs} here, {self.inside} came out inside the interval{early}{late}"
        return f"how good such quotes were: {said}"

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``: shares are null where there was nothing to count."""
        return {
            "runs": self.runs,
            "kept": _share(self.kept, self.runs),
            "ended_by_hand": self.by_hand,
            "coverage": {**_share(self.inside, self.judged), "nominal": NOMINAL},
            "early": self.early,
            "late": self.late,
            "time_p95_over_p5": None if self.time_width is None else _rounded(self.time_width),
        }


def binomial_interval(hits: int, trials: int) -> tuple[float, float]:
    """Wilson's interval of 95 %: what share the hits may stand for.

    Args:
        hits: of the trials.
        trials: at least 1.

    >>> [round(share, 2) for share in binomial_interval(11, 12)]
    [0.65, 0.99]
    """
    share, square = hits / trials, _Z**2 / trials
    middle = (share + square / 2) / (1 + square)
    half = _Z / (1 + square) * math.sqrt(share * (1 - share) / trials + square / trials / 4)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def job_of(recipe: Mapping[str, Any], tasks: int) -> str:
    """The kind of job: what its intervals depend on most.

    Args:
        recipe: the stored model, as JSON.
        tasks: of all its experiments.

    Returns:
        ``ps``, ``gang``, ``sweep``, ``workflow`` (several experiments) or ``single``, the first that is true.
    """
    experiments = list(recipe.get("experiments", {}).values())
    gangs = [each["distributed"] for each in experiments if each.get("distributed")]
    if any(gang.get("parameter_servers") for gang in gangs):
        return "ps"
    if any(gang.get("workers", 1) != 1 for gang in gangs):
        return "gang"
    if tasks > len(experiments):
        return "sweep"
    return "workflow" if len(experiments) > 1 else "single"


def outcomes(
    database: Database, home_id: str, sees: Callable[[str | None], bool] = lambda _: True
) -> list[QuoteOutcome]:
    """One for each finished run of a home and kind of quote; of several quotes of a kind the last.

    Args:
        database: the database.
        home_id: of the home; runs of others that share the database do not count.
        sees: whether runs of a team count (None: of the owner of the home).
    """
    found = {}
    for row in database.judged_quotes():
        if row["home_id"] not in ("", home_id) or not sees(row["team"]):
            continue
        promise = QuoteRecord.of_row(row)
        found[row["run_id"], promise.kind] = QuoteOutcome(
            row["run_id"],
            row["provider"],
            job_of(json.loads(row["recipe"]), row["tasks"]),
            promise,
            row["reason"] == EndReason.SUCCEEDED,
            row["kept"] if row["kept"] is None else bool(row["kept"]),
            row["time_s"],
            row["cost_usd"] or 0.0,
        )
    return list(found.values())


def report(found: Iterable[QuoteOutcome]) -> dict[str, Any]:
    """What ``trainmaster score --json`` prints: by kind of quote, and of each by provider and job."""
    found = list(found)
    shown: dict[str, Any] = {}
    for kind in KINDS:
        some = [each for each in found if each.promise.kind == kind]
        groups = sorted({(each.provider, each.job) for each in some})
        shown[kind] = {
            **Score.of(some).as_dict(),
            "by": [
                {
                    "provider": provider,
                    "job": job,
                    **Score.of([o for o in some if (o.provider, o.job) == (provider, job)]).as_dict(),
                }
                for provider, job in groups
            ],
        }
    return shown


def score_line(
    database: Database,
    home_id: str,
    kind: str,
    provider: str | None = None,
    sees: Callable[[str | None], bool] = lambda _: True,
) -> str:
    """The one line that stands beside a quote; empty before any run has ended.

    Args:
        database: the database.
        home_id: of the home.
        kind: ``estimate`` or ``binding``: like is held against like.
        provider: of the runs that count; None for all.
        sees: whether runs of a team count (None: of the owner of the home).
    """

    def counts(one: QuoteOutcome) -> bool:
        return one.promise.kind == kind and provider in (None, one.provider)

    return Score.of(list(filter(counts, outcomes(database, home_id, sees)))).line


def _share(hits: int, trials: int) -> dict[str, Any]:
    low, high = map(_rounded, binomial_interval(hits, trials)) if trials else (None, None)
    return {"of": trials, "n": hits, "share": _rounded(hits / trials) if trials else None,
            "low": low, "high": high}  # fmt: skip


def _rounded(value: float) -> float:
    return round(value, 4)
