"""Whether another machine is asked for in place of a slow one: a table, and what never happens."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.control.decide.adapting import (
    MOST_CHANGES,
    REST_S,
    ChangeTiming,
    SlowTask,
    moment,
    why_not_replace,
    why_replace,
)

#: Half of its time a run of an hour waits for one machine; another one is there within two minutes.
SLOW = SlowTask(
    machine="node-2 (i-2)",
    kept="",
    usual_s=1.0,
    step_s=2.0,
    left_s=3600.0,
    checkpoint_s=10.0,
    every_s=60.0,
    machine_s=120.0,
    restart_s=30.0,
    usd_per_hour=2.0,
    machine_usd_per_hour=1.0,
    spent_usd=1.0,
)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, ""),
        ({"machine": ""}, "gains nothing of the 30 min, and $1.00 more that it takes longer"),
        ({"machine": "", "usd_per_hour": 0.0}, "gains nothing of the 30 min that it takes longer"),
        ({"kept": "the slow machine drives the run"}, "the slow machine drives the run"),
        ({"changes": MOST_CHANGES}, "changed 2 times already"),
        ({"changes": 1, "changed_s": REST_S - 1}, "changed 59 s ago"),
        ({"changes": 1, "changed_s": REST_S}, ""),
        ({"checkpoint_s": None}, "no checkpoint"),
        ({"left_s": 130.0}, "would save 5 s and cost 1 min, as it ends in 2 min 10 s"),
        ({"step_s": 1.01}, "would save 34 s and cost 1 min"),
        ({"restart_s": 3000.0}, "and cost 51 min"),
        ({"most_usd": 1.5}, "may cost $1.50 at most"),
        ({"most_usd": 2.5}, ""),
        # The second machine is dear: what it costs until it works outweighs what is saved.
        ({"left_s": 600.0, "machine_usd_per_hour": 5.0}, "would save 4 min"),
        ({"left_s": 600.0, "machine_usd_per_hour": 5.0, "time": 1.0, "cost": 0.0}, ""),
        ({"usd_per_hour": 0.0, "machine_usd_per_hour": 0.0}, ""),
    ],
)
def test_when_another_machine_is_asked_for(more, words):
    told = why_not_replace(replace(SLOW, **more))
    assert words in told
    assert bool(told) == bool(words)


def test_what_is_gained_is_told():
    assert why_replace(SLOW) == "the run ends about 28 min sooner, for $0.88 less"
    assert why_replace(replace(SLOW, usd_per_hour=0.0)) == "the run ends about 28 min sooner"
    assert why_replace(replace(SLOW, machine_usd_per_hour=30.0)).endswith("$0.57 more")


@pytest.mark.parametrize(
    ("more", "ready_s", "then"),
    [
        ({"checkpoint_s": 2.0}, 0.0, ChangeTiming.GO),
        ({"checkpoint_s": 20.0}, 0.0, ChangeTiming.WAIT),
        ({"checkpoint_s": 20.0}, 121.0, ChangeTiming.GO),
        ({"checkpoint_s": None}, 1e6, ChangeTiming.WAIT),
        ({"left_s": 50.0, "checkpoint_s": 2.0}, 0.0, ChangeTiming.KEEP),
        ({"step_s": 1.0, "checkpoint_s": 2.0}, 0.0, ChangeTiming.KEEP),
    ],
)
def test_when_its_members_go_on_with_the_other_machine(more, ready_s, then):
    assert moment(replace(SLOW, **more), ready_s) is then


_TIMES = st.floats(0.0, 1e6)
_USD = st.floats(0.0, 1e4)
slow_ones = st.builds(
    SlowTask,
    machine=st.sampled_from(["", "node-1 (i-1)"]),
    kept=st.sampled_from(["", "it drives the run"]),
    usual_s=st.floats(1e-3, 1e3),
    step_s=st.floats(1e-3, 1e3),
    left_s=_TIMES,
    checkpoint_s=st.none() | _TIMES,
    every_s=st.floats(1.0, 1e5),
    machine_s=_TIMES,
    restart_s=_TIMES,
    usd_per_hour=_USD,
    machine_usd_per_hour=_USD,
    spent_usd=_USD,
    most_usd=_USD | st.just(math.inf),
    time=st.floats(0.0, 10.0),
    cost=st.floats(0.0, 10.0),
    changes=st.integers(0, 5),
    changed_s=_TIMES | st.just(math.inf),
)


@given(slow_ones)
def test_what_never_happens(slow):
    if why_not_replace(slow):
        return
    assert slow.machine
    assert not slow.kept
    assert slow.changes < MOST_CHANGES
    assert slow.changed_s >= REST_S
    assert slow.checkpoint_s is not None
    assert slow.left_s > slow.machine_s
    assert slow.net_s > 0
    assert slow.usual_s < slow.step_s
    ends_at_usd = slow.spent_usd + slow.usd_per_hour * (slow.left_s - slow.net_s) / 3600 + slow.extra_usd
    assert ends_at_usd <= slow.most_usd * (1 + 1e-9) + 1e-9


@given(slow_ones, _TIMES)
def test_nothing_goes_on_without_a_checkpoint_or_near_the_end(slow, ready_s):
    if moment(slow, ready_s) is ChangeTiming.GO:
        assert slow.checkpoint_s is not None
        assert slow.left_s > slow.restart_s
        assert slow.usual_s < slow.step_s


@given(slow_ones)
def test_what_is_as_quick_as_ever_is_never_replaced_again(slow):
    """Whatever was decided: once the other machine works as the first one did, all stays as it is."""
    assert why_not_replace(replace(slow, step_s=slow.usual_s))
