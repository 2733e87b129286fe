"""How many machines for a batch size and a latency: Anwar's question, answered by three rules.

Anwar et al., "Recommender system for optimal distributed deep learning in cloud datacenters", 2021,
section 4, minimise ``alpha * time + beta * price`` over what they measured, below a budget C. ``lookup`` does
that, word for word. ``carried`` also takes one machine's rows for all latencies: it has no network. ``model``
answers by the step-time model where nothing was measured, for all sizes, batches and latencies. An answer
says what the other rules would have said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from decimal import Decimal
from functools import lru_cache
from statistics import median
from typing import Any, Final

from trainmaster.advisor.model.measurement import Point
from trainmaster.advisor.model.steptime import StepTimeModel
from trainmaster.advisor.model.tables import MOST
from trainmaster.advisor.papers.measured_table import EPOCH_STEPS, MeasuredTable, Row, nearest
from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import NotFoundError, UsageError, one_line

#: Names of the rules, and what each looks at.
RULES: Final = {
    "lookup": "rows of exactly that batch and latency, as the paper does",
    "carried": "the same, and a single machine's rows at any latency: it has no network",
    "model": "what was measured, and the step-time model for all other sizes",
}
#: Latencies that a probe has measured are the same if they differ by no more than this.
_CLOSE_MS: Final = 0.5
_CLOSE: Final = 0.05
_MOST_MS: Final = 60_000.0
#: Of machines that are compared: each costs a millisecond of a processor.
MOST_WORKERS: Final = 1000


@dataclass(frozen=True, slots=True)
class RecommendQuery:
    """What is asked.

    Attributes:
        batch: global batch, samples per step of all workers.
        latency_ms: between machines, one way; None is that of the table, or 0 if it has several.
        epochs: that the time is told for; of 70 steps where the table is what was measured of runs.
        alpha: weight of the time, per second.
        beta: weight of the price, per US dollar and hour.
        usd_per_hour: price of the first machine, the second, ...; the last is that of all others, too.
        max_usd_per_hour: what all machines may cost an hour; None is no cap.
        max_usd: what all machines may cost for that time (C in the paper's table 1); None is no cap.
        max_workers: at most `MOST_WORKERS`; None for as many as were measured.
        rule: of `RULES`.
    """

    batch: float
    latency_ms: float | None = None
    epochs: float = 1.0
    alpha: float = 1.0
    beta: float = 0.0
    usd_per_hour: tuple[float, ...] = ()
    max_usd_per_hour: float | None = None
    max_usd: float | None = None
    max_workers: int | None = None
    rule: str = "model"

    def check(self) -> None:
        """Refuse what cannot be.

        Raises:
            UsageError: with what is wrong.
        """
        for name, least, most in (
            ("batch", 1, MOST),
            ("latency_ms", 0, _MOST_MS),
            ("epochs", 0, MOST),
            ("alpha", 0, MOST),
            ("beta", 0, MOST),
            ("max_usd_per_hour", 0, MOST),
            ("max_usd", 0, MOST),
            ("max_workers", 1, MOST_WORKERS),
        ):
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise UsageError(f"{name}: found {value:g}", f"Give a number from {least:g} to {most:g}.")
        for price in self.usd_per_hour:
            if not 0 <= price <= MOST:
                raise UsageError(f"usd_per_hour: found {price:g}", f"Give US dollars from 0 to {MOST:g}.")
        if self.rule not in RULES:
            raise UsageError(f"rule: there is no rule {self.rule!r}", f"Take one of {', '.join(RULES)}.")
        if self.epochs == 0 or self.alpha == self.beta == 0:
            raise UsageError("epochs, or alpha and beta, are 0", "Give more than 0.")

    def price_of(self, workers: int) -> Decimal | None:
        """US dollars per hour of so many machines, without the traps of binary fractions; None: unknown."""
        if not self.usd_per_hour:
            return None
        prices = [Decimal(str(price)) for price in self.usd_per_hour[:workers]]
        return sum(prices, Decimal(0)) + (workers - len(prices)) * Decimal(str(self.usd_per_hour[-1]))


@dataclass(frozen=True, slots=True)
class SizeCandidate:
    """A number of workers, each on a machine of its own.

    Attributes:
        workers: how many.
        time_s: of the wished epochs, seconds: as it was measured, else the model's best guess.
        low_s, high_s: 5 % and 95 % quantiles of the model.
        is_measured: whether this number was measured with this batch and latency.
        usd_per_hour: of all of them; None where no price is known.
        usd: of all of them, for that time.
        objective: what is minimised.
        bottleneck: what limits it, in words.
        note: where its time is from, if it is not simply a row of the table.
    """

    workers: int
    time_s: float
    low_s: float
    high_s: float
    is_measured: bool
    usd_per_hour: float | None
    usd: float | None
    objective: float
    bottleneck: str
    note: str = ""


def recommend(table: MeasuredTable, wish: RecommendQuery) -> dict[str, Any]:
    """What a rule says, all numbers of workers that may be had, and what the other rules say, as JSON has it.

    Args:
        table: what was measured of the job.
        wish: what is asked.

    Raises:
        UsageError: a wish that cannot be, or caps that nothing keeps.
        NotFoundError: nothing was measured there, naming the nearest row.
    """
    wish.check()
    if not table.measured:
        raise NotFoundError(
            f"{table.name}: nothing was measured", "Run the job, or `trainmaster quote` it: that measures it."
        )
    candidates, notes = by_rule(table, wish)
    best = candidates[0]
    others: list[dict[str, Any]] = []
    for rule in RULES:
        try:
            other = by_rule(table, replace(wish, rule=rule))[0][0]
        except (NotFoundError, UsageError) as error:
            others.append({"rule": rule, "machines": None, "seconds": None, "why": one_line(error)})
            continue
        if other.workers != best.workers:
            found = {"machines": other.workers, "seconds": other.time_s, "why": other.note}
            others.append({"rule": rule, **found})
    return {
        "profile": table.name,
        "points": len(table.measured),
        "rule": wish.rule,
        "machines": best.workers,
        "seconds": best.time_s,
        "is_measured": best.is_measured,
        "usd": best.usd,
        "usd_per_hour": best.usd_per_hour,
        "workers": best.workers,
        "candidates": [asdict(candidate) for candidate in candidates],
        "others": others,
        "notes": list(notes),
    }


def by_rule(table: MeasuredTable, wish: RecommendQuery) -> tuple[list[SizeCandidate], tuple[str, ...]]:
    """What `recommend` says, without what the others do; for a rule that looks up, without the model.

    Raises:
        UsageError: caps that nothing keeps.
        NotFoundError: nothing was measured there, naming the nearest row.
    """
    latency_ms, notes = _latency(table, wish)
    found, left_out = _looked_up(table, wish, latency_ms), list[str]()
    if wish.rule == "model":
        most = wish.max_workers or max(row.workers for row in table.measured)
        all_sizes = range(1, int(min(most, wish.batch)) + 1)
        sizes = [n for n in all_sizes if table.fits(n, wish.batch)]
        left_out = _too_large(table, wish.batch, [n for n in all_sizes if n not in sizes])
        notes = (*notes, *left_out)
    else:
        sizes = sorted(found)
        if not found:
            raise NotFoundError(
                f"batch {wish.batch:g} at {latency_ms or 0:g} ms was not measured",
                nearest(table.measured, wish.batch, latency_ms or 0.0),
            )
    if not sizes:
        raise UsageError(
            f"batch {wish.batch:g} does not fit: "
            + (" ".join(left_out) or "the table has it as failed on as many machines, or more"),
            "Take a smaller batch, or allow more machines.",
        )
    prices = {n: table_price(table, n, wish) for n in sizes}
    if (
        wish.beta or wish.max_usd_per_hour is not None or wish.max_usd is not None
    ) and None in prices.values():
        raise UsageError(
            "a cap in dollars, or beta, needs what a machine costs, which is not known",
            "Give usd_per_hour, or a column usd_per_hour in the table.",
        )
    if wish.rule == "model":
        times = _predicted(table, wish, latency_ms, sizes)
    else:
        times = {n: _Time(found[n].time_s, found[n].time_s, found[n].time_s, "") for n in sizes}
    candidates = []
    for n in sizes:
        known, time = found.get(n), times[n]
        time_s = (known.time_s if known else time.typical_s) * wish.epochs
        price = prices[n]
        usd_per_hour = None if price is None else float(price)
        candidates.append(
            SizeCandidate(
                n,
                time_s,
                time.low_s * wish.epochs,
                time.high_s * wish.epochs,
                known is not None and known.is_literal,
                usd_per_hour,
                None if usd_per_hour is None else usd_per_hour * time_s / 3600,
                wish.alpha * time_s + wish.beta * (usd_per_hour or 0.0),
                time.bottleneck,
                known.note if known else "",
            )
        )
    kept = [each for each in candidates if _keeps(each, prices[each.workers], wish)]
    if not kept:
        raise _too_dear(candidates, wish)
    kept.sort(key=lambda candidate: (candidate.objective, candidate.workers))
    return kept, notes


def _keeps(candidate: SizeCandidate, usd_per_hour: Decimal | None, wish: RecommendQuery) -> bool:
    """Whether it is below the caps; dollars of a time are compared with a tolerance, prices exactly."""
    if wish.max_workers is not None and candidate.workers > wish.max_workers:
        return False
    if usd_per_hour is None or candidate.usd is None:  # then there is no cap of dollars
        return True
    if wish.max_usd_per_hour is not None and usd_per_hour > Decimal(str(wish.max_usd_per_hour)):
        return False
    return wish.max_usd is None or candidate.usd <= wish.max_usd * (1 + 1e-9)


def _too_dear(candidates: Sequence[SizeCandidate], wish: RecommendQuery) -> UsageError:
    allowed = [each for each in candidates if each.workers <= (wish.max_workers or math.inf)]
    if not allowed:
        fewest = min(each.workers for each in candidates)
        return UsageError(
            f"this batch was measured on {fewest} machines or more, and max_workers is {wish.max_workers}",
            "Raise max_workers, or take the rule `model`.",
        )
    rate = min(each.usd_per_hour or 0.0 for each in allowed)
    usd = min(each.usd or 0.0 for each in allowed)
    caps = [
        f"${cap:g}{unit}"
        for cap, unit in ((wish.max_usd_per_hour, " per hour"), (wish.max_usd, ""))
        if cap is not None
    ]
    plural = "" if wish.epochs == 1 else "s"
    return UsageError(
        f"no number of machines costs at most {' and '.join(caps)}: "
        f"the cheapest are ${rate:.4g} per hour, and ${usd:.4g} for {wish.epochs:g} epoch{plural}",
        "Raise the caps (max_usd_per_hour, max_usd).",
    )


def _too_large(table: MeasuredTable, batch: float, left_out: Sequence[int]) -> list[str]:
    """Why sizes are left out whose memory is too small by what was measured."""
    if not left_out or not table.machine_bytes:
        return []
    most = max(left_out)
    each = "1 machine is" if most == 1 else f"1 to {most} machines are"
    needed = table.needs_bytes(most, batch)
    return [
        f"{each} left out: of {most} each would need {needed / 1e9:.3g} GB of memory for this batch, by what "
        f"was measured, and has {table.machine_bytes / 1e9:.3g} GB"
    ]


def table_price(table: MeasuredTable, workers: int, wish: RecommendQuery) -> Decimal | None:
    """US dollars per hour of so many machines: as the table has it, else as it was told, else None."""
    for row in table.rows:
        if row.workers == workers and row.usd_per_hour is not None:
            return Decimal(str(row.usd_per_hour))
    return wish.price_of(workers)


# --- what was measured ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _EpochTime:
    """Seconds of an epoch; whether rows of exactly this batch and latency say so, and a note."""

    time_s: float
    is_literal: bool
    note: str


def _latency(table: MeasuredTable, wish: RecommendQuery) -> tuple[float | None, tuple[str, ...]]:
    """That of the wish, or of the table; None if unknown."""
    if wish.latency_ms is not None:
        return wish.latency_ms, ()
    known = sorted({r.latency_ms for r in table.measured if r.workers > 1 and r.latency_ms is not None})
    if not known or _same(known[0], known[-1]):
        return (median(known) if known else None), ()
    some = ", ".join(f"{each:g}" for each in known[:8])
    return 0.0, (f"0 ms is taken, as no latency was given; the table has {some} ms",)


def _same(one_ms: float, other_ms: float) -> bool:
    return abs(one_ms - other_ms) <= max(_CLOSE_MS, _CLOSE * max(one_ms, other_ms))


def _looked_up(table: MeasuredTable, wish: RecommendQuery, latency_ms: float | None) -> dict[int, _EpochTime]:
    """Medians of the rows of the batch and the latency, by number of workers."""
    by_size: dict[int, list[Row]] = {}
    for row in table.measured:
        if math.isclose(row.batch, wish.batch):
            by_size.setdefault(row.workers, []).append(row)
    found = {}
    for workers, rows in by_size.items():
        if latency_ms is None:
            found[workers] = _known(rows, wish, "")
            continue
        near = [row for row in rows if row.latency_ms is not None]
        exact = [row for row in near if math.isclose(row.latency_ms or 0.0, latency_ms, abs_tol=1e-9)]
        close = [row for row in near if _same(row.latency_ms or 0.0, latency_ms)]
        if exact:
            found[workers] = _known(exact, wish, "")
        elif close:
            at_ms = median(row.latency_ms or 0.0 for row in close)
            found[workers] = _known(close, wish, f"measured at {at_ms:.3g} ms")
        elif workers == 1 and wish.rule != "lookup":
            known = _known(rows, wish, "measured without the latency: one machine has no network")
            found[1] = replace(known, is_literal=False)
    return found


def _known(rows: Sequence[Row], wish: RecommendQuery, note: str) -> _EpochTime:
    """The median: of the seconds as they are written for ``lookup``, else of the same number of steps."""
    written = median(row.time_s or 0.0 for row in rows)
    if wish.rule == "lookup":
        return _EpochTime(written, True, note)
    epoch_s = median(row.epoch_s or 0.0 for row in rows)
    if not math.isclose(epoch_s, written):
        said = f"the table says {written:g} s, of {rows[0].steps:g} steps: {epoch_s:.4g} s are {EPOCH_STEPS}"
        note = f"{note}; {said}" if note else said
    return _EpochTime(epoch_s, True, note)


# --- the model -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Time:
    """Seconds of an epoch by the model."""

    typical_s: float
    low_s: float
    high_s: float
    bottleneck: str


def _predicted(
    table: MeasuredTable, wish: RecommendQuery, latency_ms: float | None, sizes: Sequence[int]
) -> dict[int, _Time]:
    points = tuple(row.point for row in table.measured if row.point is not None)
    like = points[0]  # a job has one way of training together
    answer = _fitted(points).predict(
        [
            Point(
                like.sync,
                n,
                nodes=n,
                parameter_servers=like.parameter_servers,
                local_batch=wish.batch / n,
                latency_ms=latency_ms if n > 1 else 0.0,
                nic_mbps=like.nic_mbps,
                gradient_bytes=like.gradient_bytes,
            )
            for n in sizes
        ]
    )
    scale = float(EPOCH_STEPS)
    return {
        n: _Time(
            float(answer.typical[i]) * scale,
            float(answer.low[i]) * scale,
            float(answer.high[i]) * scale,
            answer.bottleneck[i],
        )
        for i, n in enumerate(sizes)
    }


@lru_cache(maxsize=8)
def _fitted(points: tuple[Point, ...]) -> StepTimeModel:
    """A fit of a hundred points takes about a second; the same profile is asked again and again."""
    return StepTimeModel.fit(points)
