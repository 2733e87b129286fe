"""The quote of a job of which nothing is known: as wide as what other jobs take. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from trainmaster.advisor.quote.quote import ClusterShape, ExperimentQuote, Interval, Quote

#: What jobs of any kind may take, in seconds: counted beside those that were seen, so that few say little.
_ANY_JOB_S: Final = (30.0, 300.0, 1200.0, 5400.0, 72_000.0)


def time_of_unknown(past_s: Sequence[float], so_far_s: float = 0.0) -> Interval:
    """What the next job takes if it is one of the kind that were run before, in seconds.

    Of n jobs that were seen the next one is the shortest with a chance of 1 in n + 1, whatever jobs are like.

    Args:
        past_s: what each other job took, seconds; none is an answer, too.
        so_far_s: that it has taken: jobs that were over sooner tell nothing of it.

    >>> time_of_unknown([])
    Interval(p5=30.0, p50=1200.0, p95=72000.0)
    >>> seen = time_of_unknown([100.0] * 200)
    >>> round(seen.p5), round(seen.p95)
    (100, 100)
    >>> time_of_unknown([1.0] * 200, 60.0).p5
    300.0
    """
    seen = sorted(max(each, 1.0) for each in (*past_s, *_ANY_JOB_S) if each > so_far_s) or [so_far_s]
    return Interval(*(round(_quantile(seen, share), 3) for share in (0.05, 0.5, 0.95)))


def _quantile(seen: Sequence[float], share: float) -> float:
    """By Weibull's rule, between two along the logarithm; without NumPy, which a short run does not load."""
    place = min(max(share * (len(seen) + 1), 1.0), float(len(seen)))
    low = seen[int(place) - 1]
    high = seen[min(int(place), len(seen) - 1)]
    return float(low * (high / low) ** (place - int(place)))


def quote_of_unknown(
    clusters: Mapping[str, ClusterShape], why: Mapping[str, str], past_s: Sequence[float], cap_usd: float
) -> Quote:
    """What can be said of a recipe at once.

    Args:
        clusters: of each experiment the smallest that it runs on.
        why: nothing is known of it.
        past_s: what the newest run of each other job took, seconds.
        cap_usd: its budget, which ends it.
    """
    usd_per_s = sum(each.usd_per_hour for each in clusters.values()) / 3600
    longest_s = cap_usd / usd_per_s if usd_per_s else float("inf")
    known = time_of_unknown(past_s)
    time_s = Interval(*(min(each, longest_s) for each in (known.p5, known.p50, known.p95)))

    def cost(per_s: float) -> Interval:
        return Interval(time_s.p5 * per_s, time_s.p50 * per_s, time_s.p95 * per_s)

    many = f"{len(past_s)} other jobs" if len(past_s) > 1 else "other job"
    others = f"your {many} and of " if past_s else ""
    note = f"nothing is known of this job yet: the interval is that of {others}jobs of any kind"
    quoted = {}
    for name, each in clusters.items():
        notes = (f"not measured: {why[name]}",)
        quoted[name] = ExperimentQuote(name, each, time_s, cost(each.usd_per_hour / 3600), notes=notes)
    return Quote(
        quoted,
        time_s,
        cost(usd_per_s),
        notes=(note,),
    )
