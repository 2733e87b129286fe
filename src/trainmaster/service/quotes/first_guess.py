"""`FirstGuess`: what is known of a recipe at once, without measuring: also where that is little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trainmaster.service.quotes.quote_service import Quoter
from trainmaster.service.teams.team_runs import TeamRuns
from trainmaster.spec.errors import UsageError
from trainmaster.spec.states import EndReason

if TYPE_CHECKING:
    from trainmaster.advisor.quote.quote import Interval
    from trainmaster.service.service import Service
    from trainmaster.service.users.caller import Caller
    from trainmaster.spec import Recipe

#: So many of the newest say how long runs take.
_PAST_RUNS: Final = 100
#: Of fewer runs the shortest and the longest are told; of more, what nine of ten took.
_MANY: Final = 20
Range = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class FirstGuess:
    """Of a recipe, while it is written.

    Attributes:
        time_s, cost_usd: p5, p50 and p95 of the run, by what earlier runs of this job have shown; None where
            nothing is known of it.
        why: what is not in that, or why there is none.
        past_runs: how many other runs say how long runs take; 0 where the job is known.
        past_s: what they took: the shortest and the longest, of many what nine of ten took; None of none.
        usd_per_hour: the cheapest machine on which a worker of each experiment runs; 0 where none is rented.
    """

    time_s: Range | None
    cost_usd: Range | None
    why: str
    past_runs: int = 0
    past_s: tuple[float, float] | None = None
    usd_per_hour: float = 0.0

    @classmethod
    def of(cls, service: Service, caller: Caller, recipe: Recipe, environ: Mapping[str, str]) -> FirstGuess:
        """What is known now; nothing is measured.

        Args:
            service: of the home.
            caller: by whose runs it is judged how long runs take.
            recipe: of any provider.
            environ: of the caller.

        Raises:
            UsageError: no machine can run it, or prices are not known.
        """
        quoter = Quoter(service.of_team(caller.team or None), lambda _: None, measures=False)
        quote, why = quoter.estimate(recipe, environ)
        if quote is not None and quote.time_s is not None:
            not_in_it = "; ".join(f"{name}: {each}" for name, each in quote.not_quoted.items())
            return cls(_range(quote.time_s), _range(quote.cost_usd) if quote.cost_usd else None, not_in_it)
        if all(each.serve is not None for each in recipe.experiments.values()):
            raise UsageError("a service has no end")
        past = TeamRuns(service, caller).page(_PAST_RUNS, state=EndReason.SUCCEEDED)["runs"]
        past_s = [each["seconds"] - each.get("queued_s", 0.0) for each in past]
        usd_per_hour = quoter.cheapest_usd_per_hour(recipe, environ)
        return cls(None, None, why, len(past_s), most_of(past_s), usd_per_hour)


def _range(interval: Interval) -> Range:
    return interval.p5, interval.p50, interval.p95


def most_of(past_s: Sequence[float]) -> tuple[float, float] | None:
    """The shortest and the longest; of many those between which nine of ten lie.

    >>> most_of([]), most_of([3.0, 1.0]), most_of([float(n) for n in range(100)])
    (None, (1.0, 3.0), (5.0, 94.0))
    """
    if not past_s:
        return None
    ordered = sorted(past_s)
    out = len(ordered) // 20 if len(ordered) >= _MANY else 0
    return ordered[out], ordered[-1 - out]
