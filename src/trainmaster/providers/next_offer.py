"""Where to try next when there is no capacity. Pure: offers in order and what failed when -> the next one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from trainmaster.dataclass import dataclass
from trainmaster.providers.offer import Offer
from trainmaster.spec.plain_json import EXACTLY

#: A zone without capacity rarely has some again sooner.
COOL_DOWN_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class CapacityFailure:
    """A zone did not give, or took back, machines.

    Attributes:
        region, zone: where; an empty zone is the whole region (a quota, which holds for all of its zones).
        spot: whether machines that may be taken back were asked for.
        at: Unix seconds.
        instance_type: what was asked for; empty if that makes no difference.
    """

    __pydantic_config__ = EXACTLY
    region: str
    zone: str
    spot: bool
    at: float
    instance_type: str = ""

    def covers(self, offer: Offer) -> bool:
        """Whether it tells against an offer.

        A zone without machines on demand has none to lend either; one that takes spot machines back may well
        have them on demand.
        """
        return self.region == offer.region and self.zone in ("", offer.zone) and (not self.spot or offer.spot)

    def is_kind_of(self, offer: Offer) -> bool:
        """Whether machines of an offer's type were asked for."""
        return self.instance_type in ("", offer.instance_type)

    def is_place_of(self, offer: Offer) -> bool:
        """Whether it happened where the offer is, in whichever market."""
        return self.region == offer.region and self.zone in ("", offer.zone)


@dataclass(frozen=True, slots=True)
class NextOffer:
    """What to do.

    Attributes:
        offer: to try now; None if it is time to wait.
        retry_at: Unix seconds at which the first offer may be tried again; None with an offer, or without
            any.
        reason: in words.
    """

    offer: Offer | None
    retry_at: float | None
    reason: str


def next_offer(
    offers: Sequence[Offer],
    failures: Iterable[CapacityFailure],
    now: float,
    cool_down_s: float = COOL_DOWN_S,
) -> NextOffer:
    """The best offer that is worth trying, and never straight back to where it just failed.

    First those where nothing has failed lately; then those on demand in a zone that lacked only spot
    machines; then other types than those that were asked for there; then it is time to wait.

    Args:
        offers: the best first; each with its zone (see `in_zones`).
        failures: what went wrong, in any order.
        now: Unix seconds.
        cool_down_s: a zone is left alone for so long after a failure.
    """
    recent = [failure for failure in failures if now < failure.at + cool_down_s]
    for offer in offers:
        if not any(failure.is_place_of(offer) for failure in recent):
            return NextOffer(offer, None, f"{_place(offer)} is the best where nothing has failed lately")
    for offer in offers:
        if not any(failure.covers(offer) for failure in recent):
            return NextOffer(offer, None, f"{_place(offer)} lacked only spot machines lately")
    for offer in offers:
        if not any(failure.covers(offer) and failure.is_kind_of(offer) for failure in recent):
            return NextOffer(
                offer, None, f"{_place(offer)} is another type than those that failed there lately"
            )
    if not offers:
        return NextOffer(None, None, "there are no offers")
    free_at = {
        index: max(f.at for f in recent if f.covers(offer) and f.is_kind_of(offer)) + cool_down_s
        for index, offer in enumerate(offers)
    }
    first = min(free_at, key=lambda index: (free_at[index], index))
    wait_s = free_at[first] - now
    return NextOffer(
        None,
        free_at[first],
        f"every place has failed lately; {_place(offers[first])} again in {wait_s:.0f} s",
    )


def in_zones(offers: Iterable[Offer], zones: Mapping[str, Sequence[str]]) -> list[Offer]:
    """The same offers, those of a whole region as one per zone, if the region's zones are known."""
    spread: list[Offer] = []
    for offer in offers:
        if offer.zone or not zones.get(offer.region):
            spread.append(offer)
        else:
            spread.extend(replace(offer, zone=zone) for zone in zones[offer.region])
    return spread


def zones_in_order(zones: Sequence[str], failures: Iterable[CapacityFailure], now: float) -> list[str]:
    """Zones of a region: first those without a recent failure, then those that failed longest ago."""
    last = dict.fromkeys(zones, 0.0)
    for failure in failures:
        if now < failure.at + COOL_DOWN_S and failure.zone in last:
            last[failure.zone] = max(last[failure.zone], failure.at)
    return sorted(zones, key=lambda zone: (last[zone], zones.index(zone)))


def _place(offer: Offer) -> str:
    market = "spot" if offer.spot else "on demand"
    return f"{offer.instance_type} {market} in {offer.place or offer.provider}"
