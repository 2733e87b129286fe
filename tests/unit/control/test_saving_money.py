"""How long machines wait for what cannot be saved."""

from __future__ import annotations

import pytest
from control_nouns import task

from trainmaster.control.decide.budget import SavingMoney
from trainmaster.spec.states import State

WAITS = task(State.SAVING, tries=3)
HOUR_S = 3600.0


def waited(tasks, hours, usd_per_hour, **money):
    found = SavingMoney(**money)
    for look in range(6 * hours + 1):
        found.look(tasks, usd_per_hour, look * HOUR_S / 6)
    return found


@pytest.mark.parametrize(
    ("usd_per_hour", "given", "enough", "too_long"),
    [(0.5, None, 23, 24), (10.0, None, 1, 2), (12.0, 50.0, 4, 5), (1.0, 0.0, -1, 0)],
)
def test_a_days_rent_or_twenty_dollars_or_what_the_recipe_says(usd_per_hour, given, enough, too_long):
    if enough >= 0:
        assert not waited([WAITS], enough, usd_per_hour, given_usd=given).is_used
    assert waited([WAITS], too_long, usd_per_hour, given_usd=given).is_used


def test_what_costs_nothing_waits_without_end():
    found = waited([WAITS], 1000, 0.0)
    assert not found.is_used
    assert found.left_s() is None


def test_the_price_is_known_before_anything_waits():
    """The first note is to say for how long."""
    found = waited([task(State.SAVING)], 0, 10.0)
    assert found.left_s() == pytest.approx(2 * HOUR_S)


def test_machines_that_work_do_not_wait():
    busy = waited([WAITS, task(State.RUNNING)], 1000, 10.0)
    assert (busy.spent_usd, busy.is_used) == (0.0, False)


def test_what_an_earlier_driver_has_waited_counts_and_all_is_forgotten_once_it_is_saved():
    found = waited([task(State.SAVING, tries=3, saving_usd=15.0)], 0, 10.0)
    assert (found.spent_usd, found.is_used) == (15.0, False)
    assert found.left_s() == pytest.approx(HOUR_S / 2)
    for look in range(1, 4):
        found.look([WAITS], 10.0, look * HOUR_S / 6)
    assert found.is_used
    found.look([task(State.SAVING)], 10.0, 2 * HOUR_S)
    assert (found.spent_usd, found.is_used) == (0.0, False)


def test_sleep_is_not_paid_for_beyond_the_leases_of_what_waits():
    """A laptop slept over night: its machines ended themselves, and the model is here."""
    found = waited([WAITS], 0, 10.0)
    found.look([WAITS], 10.0, 9 * HOUR_S)
    assert not found.is_used
    assert found.spent_usd == pytest.approx(10.0 * (900 + 110) / HOUR_S)
