"""Where to go when a zone has nothing: never straight back."""

from __future__ import annotations

from datetime import date

from hypothesis import given
from hypothesis import strategies as st

from trainmaster.providers import Offer
from trainmaster.providers.next_offer import (
    COOL_DOWN_S,
    CapacityFailure,
    in_zones,
    next_offer,
    zones_in_order,
)

ZONES = {"r1": ["r1a", "r1b", "r1c"], "r2": ["r2a", "r2b"]}


def offer(region: str, zone: str, spot: bool = False, kind: str = "m4.large", price: float = 0.1) -> Offer:
    return Offer(
        provider="aws",
        region=region,
        zone=zone,
        instance_type=kind,
        vcpus=2,
        memory_bytes=2**33,
        accelerator="",
        accelerators=0,
        accelerator_memory_bytes=None,
        nic_gbps=None,
        nic_burst_gbps=None,
        cpu_credits="",
        price_usd_per_hour=price,
        spot=spot,
        billing_quantum_s=1,
        billing_minimum_s=60,
        currency="USD",
        as_of=date(2026, 11, 1),
        source="test",
    )


_PLACES = [(region, zone) for region, zones in ZONES.items() for zone in zones]
_KINDS = ["m4.large", "c4.large"]
OFFERS = st.lists(
    st.builds(
        lambda place, spot, kind: offer(*place, spot, kind),
        st.sampled_from(_PLACES),
        st.booleans(),
        st.sampled_from(_KINDS),
    ),
    max_size=12,
)
FAILURES = st.lists(
    st.builds(
        lambda place, whole, spot, at, kind: CapacityFailure(
            place[0], "" if whole else place[1], spot, at, kind
        ),
        st.sampled_from(_PLACES),
        st.integers(0, 9).map(lambda n: n == 0),
        st.booleans(),
        st.floats(0, 3000),
        st.sampled_from(_KINDS),
    ),
    max_size=8,
)


@given(OFFERS, FAILURES, st.floats(0, 4000))
def test_it_never_goes_back_too_soon(
    offers: list[Offer], failures: list[CapacityFailure], now: float
) -> None:
    chosen = next_offer(offers, failures, now)
    recent = [failure for failure in failures if now < failure.at + COOL_DOWN_S]
    if chosen.offer is None:
        for one in offers:
            assert any(failure.covers(one) and failure.is_kind_of(one) for failure in recent)
        if not offers:
            assert chosen.retry_at is None
            return
        # Waiting ends, and then there is something to try.
        assert chosen.retry_at is not None
        assert now < chosen.retry_at <= now + COOL_DOWN_S + 3000
        assert next_offer(offers, failures, chosen.retry_at).offer is not None
        return
    assert chosen.offer in offers
    assert chosen.retry_at is None
    for failure in recent:
        same_place = failure.region == chosen.offer.region and failure.zone in ("", chosen.offer.zone)
        # The only ways back are from spot machines to those on demand, and to another type; and only if no
        # other place is left.
        if same_place:
            is_other_type = failure.instance_type != chosen.offer.instance_type
            assert is_other_type or (failure.spot and not chosen.offer.spot)
            for other in offers:
                assert any(f.is_place_of(other) for f in recent)


@given(OFFERS, FAILURES, st.floats(0, 4000))
def test_the_best_of_those_that_are_left(
    offers: list[Offer], failures: list[CapacityFailure], now: float
) -> None:
    chosen = next_offer(offers, failures, now).offer
    untouched = [
        one for one in offers if not any(f.is_place_of(one) for f in failures if now < f.at + COOL_DOWN_S)
    ]
    if untouched:
        assert chosen == untouched[0]


@given(OFFERS, st.integers(0, 30))
def test_a_cluster_that_nobody_has_visits_every_place_once(offers: list[Offer], start: int) -> None:
    failures: list[CapacityFailure] = []
    now = float(start)
    visited: list[tuple[str, str]] = []
    while (chosen := next_offer(offers, failures, now).offer) is not None:
        visited.append((chosen.zone, str(chosen.spot)))
        failures.append(CapacityFailure(chosen.region, chosen.zone, chosen.spot, now))
        now += 1
    assert len(visited) == len(set(visited)), "nowhere twice"
    assert {zone for zone, _ in visited} == {one.zone for one in offers}


def test_spot_was_taken_back() -> None:
    """The cheapest is where it was just taken back: another zone first, on demand there last."""
    offers = [offer("r1", "r1a", True), offer("r1", "r1a"), offer("r1", "r1b", True), offer("r1", "r1b")]
    lost = [CapacityFailure("r1", "r1a", True, 100.0)]
    assert next_offer(offers, lost, 101.0).offer == offers[2]
    lost.append(CapacityFailure("r1", "r1b", True, 102.0))
    assert next_offer(offers, lost, 103.0).offer == offers[1]
    lost.append(CapacityFailure("r1", "r1a", False, 104.0))
    assert next_offer(offers, lost, 105.0).offer == offers[3]
    lost.append(CapacityFailure("r1", "r1b", False, 106.0))
    waits = next_offer(offers, lost, 107.0)
    assert waits.offer is None
    assert waits.retry_at == 104.0 + COOL_DOWN_S
    assert "again in 597 s" in waits.reason
    assert next_offer(offers, lost, 106.1 + COOL_DOWN_S).offer == offers[0]


def test_another_type_is_tried_where_no_place_has_the_best_one() -> None:
    """Zones of a region first, then the next type; a cloud behind another service has no zones."""
    for zones in (["r1a", "r1b"], [""]):
        offers = [offer("r1", zone, kind=kind) for kind in ("m4.large", "m4.xlarge") for zone in zones]
        failures: list[CapacityFailure] = []
        while (chosen := next_offer(offers, failures, 1.0).offer) is not None:
            assert chosen == offers[len(failures)]
            failures.append(CapacityFailure("r1", chosen.zone, False, 0.0, chosen.instance_type))
        assert len(failures) == len(offers), "each once"


def test_a_quota_holds_for_the_region() -> None:
    offers = in_zones([offer("r1", ""), offer("r2", "")], ZONES)
    assert [one.zone for one in offers] == ["r1a", "r1b", "r1c", "r2a", "r2b"]
    assert next_offer(offers, [CapacityFailure("r1", "", False, 0.0)], 1.0).offer == offers[3]


def test_a_region_without_known_zones_stays() -> None:
    assert in_zones([offer("r9", ""), offer("r1", "r1b")], ZONES) == [offer("r9", ""), offer("r1", "r1b")]


def test_zones_that_failed_come_last() -> None:
    failures = [CapacityFailure("r1", "r1a", False, 50.0), CapacityFailure("r1", "r1b", True, 20.0)]
    assert zones_in_order(ZONES["r1"], failures, 60.0) == ["r1c", "r1b", "r1a"]
    assert zones_in_order(ZONES["r1"], failures, 60.0 + COOL_DOWN_S) == ["r1a", "r1b", "r1c"]
