"""The pruner that looks at how a curve goes on."""

from __future__ import annotations

import pytest

from trainmaster.spec.errors import UsageError
from trainmaster.sweeps import Curve, Goal, Trial, TrialState, pruner_class
from trainmaster.sweeps.pruner import shares_by_order

DONE = Trial(0, {}, TrialState.COMPLETE, 0.1, Curve((s, (s / 1.0) ** -0.5) for s in range(1, 101)))


def make(goal=Goal.MIN, **options):
    return pruner_class("forecast")(goal, {key: str(value) for key, value in options.items()})


def falling(power, until, floor=0.0):
    return Trial(1, {}, curve=Curve((s, floor + s**-power) for s in range(1, until + 1)))


def test_who_will_be_the_best_goes_on_and_who_will_not_is_ended():
    assert make().verdict(falling(0.6, 20), [DONE]) == ""
    words = make().verdict(falling(0.2, 20), [DONE])
    assert words.startswith("the chance that it comes to 0.1 by step 100 is ")
    assert make().verdict(falling(0.5, 20, floor=0.3), [DONE])


def test_more_may_be_better():
    done = Trial(0, {}, TrialState.COMPLETE, 0.9, Curve((s, 1 - s**-0.5) for s in range(1, 101)))
    low = Trial(1, {}, curve=Curve((s, 0.5 - 0.4 * s**-0.9) for s in range(1, 21)))
    assert make(Goal.MAX).verdict(low, [done])
    assert make(Goal.MAX).verdict(Trial(1, {}, curve=done.curve), [done]) == "", "at its end"


def test_it_is_judged_now_and_then_and_not_without_anything_to_compare():
    bad = falling(0.2, 20)
    assert make().verdict(bad, []) == ""
    assert make().verdict(bad, [DONE], judged=19.9) == "", "it has not passed another rung since"
    assert make().verdict(falling(0.2, 3), [DONE]) == "", "too little"
    assert make(max_steps=100).verdict(bad, [falling(0.9, 30)])
    assert make(chance=0.01).verdict(falling(0.48, 20), [DONE]) == ""


def test_options_are_checked_and_it_is_not_played():
    with pytest.raises(UsageError, match="between 0 and 1"):
        make(chance=2)
    assert shares_by_order(make(), 24, 640, 2) == ()
