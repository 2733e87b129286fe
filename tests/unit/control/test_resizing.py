"""Whether a gang goes on with more or fewer workers or servers: a table, and what never happens."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.control.decide.adapting import MOST_CHANGES, REST_S, ChangeTiming
from trainmaster.control.decide.resizing import SizeForecast, Sizing, best_size, moment_for

NOW = SizeForecast(2, 0, 1.0, 1.0, usd_per_hour=2.0)
#: Twice as many need half as long and a little more, and machines are there within two minutes.
FOUR = SizeForecast(4, 0, 0.52, 0.56, machines=2, usd_per_hour=4.0)
ONE = SizeForecast(1, 0, 1.9, 2.0, machines=-1, usd_per_hour=1.0)
#: Where it waits for the network most of the time, half of the workers are as quick.
ONE_AS_QUICK = replace(ONE, usual=1.0, sure=1.05)
SERVERS = SizeForecast(2, 2, 0.6, 0.65, machines=1, usd_per_hour=3.0)
SIZING = Sizing(
    now=NOW,
    others=(ONE, FOUR),
    left_s=3600.0,
    checkpoint_s=10.0,
    every_s=60.0,
    machine_s=120.0,
    restart_s=30.0,
    time=1.0,
    cost=0.0,
)
CHEAP = {"time": 0.0, "cost": 1.0}
FREE = {
    "now": replace(NOW, usd_per_hour=0.0),
    "others": (replace(ONE, usd_per_hour=0.0), replace(FOUR, usd_per_hour=0.0)),
}
HERE = {
    "now": replace(NOW, usd_per_hour=0.0),
    "others": (SizeForecast(1, 0, 1.9, 2.0), SizeForecast(4, 0, 0.52, 0.56)),
}


@pytest.mark.parametrize(
    ("more", "size", "words"),
    [
        ({}, 4, "go on with 4 workers instead of 2 workers, on 2 machines more"),
        # By the objective: dollars do not pay for more workers, and fewer are no cheaper.
        (CHEAP, None, "2 workers stay"),
        (CHEAP | {"others": (ONE_AS_QUICK, FOUR)}, 1, "1 worker instead of 2 workers, on 1 machine fewer"),
        ({"others": (ONE_AS_QUICK,)}, None, "would not pay"),
        # Late: then time counts, and the cheapest that is in time is taken.
        (CHEAP | {"due_s": 3000.0}, 4, "it is late: it is to go on with 4 workers"),
        (
            CHEAP
            | {"due_s": 3000.0, "others": (FOUR, SizeForecast(8, 0, 0.3, 0.35, machines=6, usd_per_hour=8))},
            4,
            "4 workers",
        ),
        (CHEAP | {"due_s": 4000.0, "others": (replace(ONE_AS_QUICK, sure=1.2),)}, None, "stay"),
        # Within the cap, in all and at a time.
        ({"most_usd": 2.0}, None, "may cost $2.00 at most"),
        ({"most_usd": 3.0}, 4, ""),
        ({"most_usd": 3.0, "spent_usd": 1.5}, None, "may cost $3.00 at most"),
        ({"most_usd_per_hour": 3.0}, None, "may cost $3.00 per hour at most"),
        # Neither back and forth nor without a way back.
        ({"changes": MOST_CHANGES}, None, "changed 2 times already"),
        ({"changes": 1, "changed_s": REST_S - 1}, None, "changed 59 s ago"),
        ({"changes": 1, "changed_s": REST_S}, 4, ""),
        ({"checkpoint_s": None}, None, "no checkpoint"),
        # What is left must pay for the way back, and for the wait.
        ({"left_s": 200.0}, None, "would not pay"),
        ({"restart_s": 1000.0}, None, "would not pay"),
        ({"machine_s": 3500.0}, None, "would not pay"),
        ({"others": (replace(FOUR, usual=0.9, sure=1.02),)}, None, "would not pay"),
        # Hosts of one's own cost nothing; on this machine there is nothing to wait for.
        (FREE, 4, "on 2 machines more"),
        (FREE | CHEAP, 4, ""),
        (HERE, 4, "4 workers instead of 2 workers: a step"),
        # Parameter servers.
        ({"now": replace(NOW, servers=1), "others": (SERVERS,)}, 2, "2 workers and 2 parameter servers"),
        ({"others": ()}, None, ""),
    ],
)
def test_which_size_is_taken(more, size, words):
    found, why = best_size(replace(SIZING, **more))
    assert (found and found.workers) == size
    assert words in why
    assert bool(why) == (words != "" or size is not None)


def test_what_is_gained_is_told():
    told = "a step takes about 0.52 times as long, the run ends about 27 min sooner, for $0.21 more"
    assert told in best_size(SIZING)[1]
    assert best_size(replace(SIZING, **HERE))[1].endswith("the run ends about 28 min sooner")


@pytest.mark.parametrize(
    ("more", "ready_s", "then"),
    [
        ({"checkpoint_s": 2.0}, 0.0, ChangeTiming.GO),
        ({"checkpoint_s": 20.0}, 0.0, ChangeTiming.WAIT),
        ({"checkpoint_s": 20.0}, 121.0, ChangeTiming.GO),
        ({"checkpoint_s": None}, 1e6, ChangeTiming.WAIT),
        ({"checkpoint_s": 2.0, "left_s": 100.0}, 0.0, ChangeTiming.KEEP),
    ],
)
def test_when_it_goes_on_with_that(more, ready_s, then):
    assert moment_for(replace(SIZING, **more), FOUR, ready_s) is then


_RATIO = st.floats(0.05, 5.0)
_S = st.floats(0.0, 1e6)
sizes = st.builds(
    lambda workers, servers, usual, more, machines, usd: SizeForecast(
        workers, servers, usual, usual * more, machines, usd
    ),
    st.integers(1, 64),
    st.integers(0, 8),
    _RATIO,
    st.floats(1.0, 3.0),
    st.integers(-8, 8),
    st.floats(0.0, 1e3),
)
sizings = st.builds(
    Sizing,
    now=st.builds(lambda usd: replace(NOW, usd_per_hour=usd), st.floats(0.0, 1e3)),
    others=st.lists(sizes, max_size=5).map(tuple),
    left_s=_S,
    checkpoint_s=st.none() | _S,
    every_s=st.floats(1.0, 1e5),
    machine_s=_S,
    restart_s=_S,
    spent_usd=st.floats(0.0, 1e4),
    most_usd=st.floats(0.0, 1e5) | st.just(math.inf),
    most_usd_per_hour=st.floats(0.0, 1e4) | st.just(math.inf),
    time=st.floats(0.0, 10.0),
    cost=st.floats(0.1, 10.0),
    due_s=_S | st.just(math.inf),
    changes=st.integers(0, 5),
    changed_s=_S | st.just(math.inf),
)


@given(sizings)
def test_what_never_happens(sizing):
    size, why = best_size(sizing)
    if size is None:
        return
    assert why
    assert size in sizing.others
    assert sizing.checkpoint_s is not None
    assert sizing.changes < MOST_CHANGES
    assert sizing.changed_s >= REST_S
    usd = sizing.usd(size, size.sure)
    assert sizing.spent_usd + usd <= sizing.most_usd * (1 + 1e-9) or usd <= sizing.usd_now * (1 + 1e-9)
    assert size.usd_per_hour <= max(sizing.most_usd_per_hour, sizing.now.usd_per_hour)
    if not sizing.is_late:
        assert sizing.ends_s(size, size.sure) <= sizing.due_s


@given(sizings)
def test_once_changed_it_does_not_go_back(sizing):
    """Seen from the new size the old one is as much worse as that was better: nothing flaps."""
    size, _why = best_size(sizing)
    if size is None or sizing.is_late:
        return
    back = replace(sizing.now, usual=1 / size.usual, sure=1 / size.usual, machines=-size.machines)
    then = replace(
        sizing,
        now=replace(size, usual=1.0, sure=1.0, machines=0),
        others=(back,),
        left_s=sizing.left_s * size.usual,
        due_s=math.inf,
        changes=0,
        changed_s=math.inf,
        most_usd=math.inf,
        most_usd_per_hour=math.inf,
    )
    assert best_size(then)[0] is None
