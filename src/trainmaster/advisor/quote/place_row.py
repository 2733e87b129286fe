"""`PlaceRow`: what one place would give for a run, in the table of all its places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from trainmaster.advisor.quote.quote import Interval, Quote
from trainmaster.spec.units import dollars, format_duration


@dataclass(frozen=True, slots=True)
class PlaceRow:
    """A place with its quote, if one can be made.

    Attributes:
        place: the provider.
        machines: in words: the quoted cluster, else what is asked for; empty if it would give none.
        usd_per_hour: of all of them.
        time_s, cost_usd: of the run, without its wait; None without a quote.
        is_unknown: nothing is known of the job: the quote is what other jobs take.
        wait: until they begin to start, in words; empty if it does not wait.
        is_taken: the run, or a part of it, is there.
        why_not: why it is not taken; empty if it is.
        no_quote: why there is no quote; empty if there is one, or it would give nothing.
    """

    place: str
    machines: str = ""
    usd_per_hour: float = 0.0
    time_s: Interval | None = None
    cost_usd: Interval | None = None
    is_unknown: bool = False
    wait: str = ""
    is_taken: bool = False
    why_not: str = ""
    no_quote: str = ""

    def quoted(self, quote: Quote) -> PlaceRow:
        """With the quote of that place."""
        clusters = dict.fromkeys(one.cluster.words() for one in quote.experiments.values())
        return replace(
            self,
            machines=" and ".join(clusters),
            time_s=quote.time_s,
            cost_usd=quote.cost_usd,
            is_unknown=quote.is_unknown,
            wait=quote.queue.words if quote.queue is not None else self.wait,
        )

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """For people: the place, its machines, time, price; its wait, and why it is not taken."""
        time, usd = "no quote", f"${self.usd_per_hour:.4g} an hour" if self.machines else ""
        if self.time_s is not None:
            low, middle, high = map(format_duration, (self.time_s.p5, self.time_s.p50, self.time_s.p95))
            time = f"{low} to {high}" if self.is_unknown else f"{middle} ({low} to {high})"
        if self.cost_usd is not None:
            low, middle, high = map(dollars, (self.cost_usd.p5, self.cost_usd.p50, self.cost_usd.p95))
            usd = f"{low} to {high}" if self.is_unknown else f"{middle} ({low} to {high})"
            usd = usd if self.cost_usd.p95 else "$0"
        said = ["taken" if self.is_taken else f"no: {self.why_not}"]
        said += [f"waits {self.wait}" if self.wait[:1].isdigit() else self.wait] * bool(self.wait)
        said += [f"no quote: {self.no_quote}"] * bool(self.no_quote)
        return self.place, self.machines, time if self.machines else "", usd, "; ".join(said)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json`` and REST."""
        spans = {
            name: each and each.as_dict() for name in ("time_s", "cost_usd") for each in [getattr(self, name)]
        }
        return {each.name: getattr(self, each.name) for each in fields(self)} | spans

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> PlaceRow:
        """From `as_dict` of this version or another one."""
        known = {each.name: found[each.name] for each in fields(cls) if each.name in found}
        spans = {name: known[name] and Interval(**known[name]) for name in ("time_s", "cost_usd")}
        return cls(**known | spans)


def wait_words(wait_s: float | None) -> str:
    """How long a place lets one wait.

    >>> wait_words(None), wait_words(0.0), wait_words(5400.0)
    ('it does not say how long its queue is', '', '1 h 30 min in its queue')
    """
    if wait_s is None:
        return "it does not say how long its queue is"
    return f"{format_duration(wait_s)} in its queue" if wait_s else ""
