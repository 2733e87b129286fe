"""The hard cap: what is set aside for the end, and how long machines may live without their driver."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.control.decide.budget import LEAST_LEASE_S, SWITCH_OFF_S, USUAL_LEASE_S, Meter, Publishing
from trainmaster.spec import Budget

CENT_A_SECOND = 0.01


def metered(cap_usd: float, **more: object) -> Meter:
    """A cent a second since 0."""
    return Meter(cap_usd, lambda until: CENT_A_SECOND * until, **more)  # type: ignore[arg-type]


def test_without_a_cap_nothing_ends_and_leases_are_as_usual() -> None:
    meter = Meter.of(None)
    meter.usual_lease_s = 900.0
    meter.bill = lambda until: until
    assert not meter.must_end(1e9)
    assert meter.lease_s(1e9) == 900.0
    assert math.isinf(meter.must_be_over(1e9))


def test_a_free_machine_may_be_used_for_ever() -> None:
    meter = Meter(5.0, usual_lease_s=900.0)
    assert not meter.must_end(1e9)
    assert meter.lease_s(1e9) == 900.0
    assert math.isinf(meter.must_be_over(1e9))


def test_the_cap_is_that_of_the_recipe() -> None:
    assert Meter.of(Budget(total_usd=20.0)).cap_usd == 20.0
    assert math.isinf(Meter.of(Budget(deadline_s=10_800.0)).cap_usd)


def test_what_was_measured_of_publishing_is_set_aside() -> None:
    """A checkpoint that took 5 minutes: a run that ends just before its cap would go far above it."""
    meter = metered(10.0, stopping_s=20.0)
    assert not meter.must_end(790.0)
    meter.publishing.learn(300.0)
    assert meter.must_end(790.0)
    assert not meter.must_end(10 / CENT_A_SECOND - 20.0 - 1.5 * 300.0 - meter.releasing_s - 1)


def test_saves_that_wait_for_each_other_are_counted_one_after_the_other() -> None:
    publishing = Publishing(longest_s=100.0, rounds=3)
    assert publishing.expected_s == 450.0


def test_a_model_that_is_larger_than_any_checkpoint_takes_longer() -> None:
    publishing = Publishing()
    publishing.learn(100.0, 1e9)
    assert publishing.expected_s == pytest.approx(150.0)
    publishing.most_bytes = 3e9
    assert publishing.expected_s == pytest.approx(450.0)


def test_before_anything_was_measured_the_size_tells() -> None:
    assert Publishing(most_bytes=5e9).expected_s == pytest.approx(1500.0)


@given(
    cap_usd=st.floats(0.01, 1e4),
    usd_per_s=st.floats(1e-6, 1.0),
    now=st.floats(0, 1e6),
    usual_s=st.floats(10, 3600),
)
def test_whoever_dies_after_a_renewal_leaves_a_bill_below_the_cap(
    cap_usd: float, usd_per_s: float, now: float, usual_s: float
) -> None:
    meter = Meter(cap_usd, lambda until: usd_per_s * until, usual_lease_s=usual_s)
    lease_s = meter.lease_s(now)
    assert 0 <= lease_s <= usual_s
    if lease_s:
        assert meter.bill(now + lease_s + SWITCH_OFF_S) <= cap_usd * (1 + 1e-9)
    if not meter.must_end(now):
        assert lease_s >= min(usual_s, LEAST_LEASE_S) - 1, "it can still be renewed"


@given(cap_usd=st.floats(0.01, 1e4), usd_per_s=st.floats(1e-4, 1.0), now=st.floats(0, 1e6))
def test_saving_is_cut_in_time_and_not_before(cap_usd: float, usd_per_s: float, now: float) -> None:
    meter = Meter(cap_usd, lambda until: usd_per_s * until)
    over_at = meter.must_be_over(now)
    assert over_at >= now
    if over_at > now:
        assert meter.bill(over_at + meter.releasing_s) <= cap_usd * (1 + 1e-9)
    if math.isfinite(over_at):
        assert meter.bill(over_at + meter.releasing_s + 1) > cap_usd * (1 - 1e-9)
    if not meter.must_end(now):
        assert over_at >= now + meter.stopping_s + meter.publishing.expected_s - 1


def test_what_is_published_without_a_known_size_leaves_the_measured_speed_as_it_is() -> None:
    """A line of 1 MB/s is not taken for a faster one by a checkpoint of which only the time is known."""
    publishing = Publishing()
    publishing.learn(100.0, 1e8)
    publishing.most_bytes = 1e9
    before_s = publishing.expected_s
    publishing.learn(5.0)
    assert publishing.expected_s == before_s == pytest.approx(1500.0)


def test_machines_without_a_driver_live_for_a_quarter_of_an_hour() -> None:
    meter = Meter(usual_lease_s=USUAL_LEASE_S)
    assert meter.lease_s(1000.0) == 15 * 60


def test_why_a_run_ends_is_told_in_numbers_also_of_a_cap_too_small_to_begin() -> None:
    """Two cents, and a machine of 3.60 dollars an hour: no lease that can be renewed is paid by them."""
    spent, bill = (lambda until: 0.001 * until), lambda until: 0.001 * (until + 5)
    meter = Meter(0.02, bill, spent, usual_lease_s=900.0)
    assert meter.must_end(0.0)
    said = meter.why_over(0.0)
    is_unseen = "it is known to have cost $0, and may have cost up to $0.005,"
    for number in ("may cost $0.02", is_unseen, "200 s", "be $0.21", "up to $3.60"):
        assert number in said
    meter.why = "of the month's budget there were only $0.02 for it"
    assert meter.why_over(0.0).startswith(f"{meter.why}; {is_unseen} and with 200 s more")
