"""What other jobs of a home or a team have taken: all that is known of one that was never seen."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt
from statistics import mean
from typing import Final

from trainmaster.advisor.quote.interval import Interval
from trainmaster.db import Database, queries
from trainmaster.service.runs.summary import run_seconds
from trainmaster.spec.states import EndReason
from trainmaster.spec.units import format_duration

_LATEST_RUNS: Final = 100
#: How far a job is from the mean of others (log), before any were compared; counts as so many.
_SPREAD: Final = 2.0
_BELIEF: Final = 4
#: Standard deviations to either side that 90 % are within.
_Z90: Final = 1.645


def other_jobs_s(database: Database, team: str | None) -> list[float]:
    """Seconds of the newest run of each job that succeeded, without what it waited for others.

    Args:
        database: the database.
        team: whose; None for the owner's.
    """
    which = queries.RunFilter((team,), EndReason.SUCCEEDED)
    now, past_s = database.clock_s(), dict[str, float]()
    for row in queries.runs(database, _LATEST_RUNS, which=which):
        past_s.setdefault(row["name"], run_seconds(row, now, is_driven=False) - row["queued_s"])
    return list(past_s.values())


def others_words(past_s: Sequence[float]) -> str:
    """What other jobs took, for people; there must be one.

    >>> others_words([40.0, 300.0]), others_words([40.0])
    ('your 2 other jobs took 40 s to 5 min', 'your other job took 40 s')
    """
    low, high = (format_duration(each) for each in (min(past_s), max(past_s)))
    many = f"{len(past_s)} other jobs" if len(past_s) > 1 else "other job"
    return f"your {many} took {low}" + (f" to {high}" if high != low else "")


def like_others_s(past_s: Sequence[float]) -> Interval | None:
    """Seconds that one more job would run if it were like these; None without any.

    As wide as each of them is away from the others, which are told without it.

    >>> like_others_s([60.0]).words(format_duration)
    '1 min (2.2 s to 27 min)'

    Args:
        past_s: what each of them took, see `other_jobs_s`.
    """
    if not past_s:
        return None
    logs = [log(max(each, 1.0)) for each in past_s]
    apart = [each - mean(logs[:n] + logs[n + 1 :]) for n, each in enumerate(logs) if len(logs) > 1]
    spread = sqrt((_BELIEF * _SPREAD**2 + sum(each**2 for each in apart)) / (_BELIEF + len(apart)))
    middle, far = mean(logs), _Z90 * spread
    return Interval(exp(middle - far), exp(middle), exp(middle + far))
