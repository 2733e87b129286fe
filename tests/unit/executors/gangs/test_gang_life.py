"""Gangs over several supervisors: schedules of faults, and mistakes that these find when put back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest.mock import patch

import pytest

from trainmaster.executors.gangs import life
from trainmaster.executors.gangs.life import ConductedGang
from trainmaster.executors.gangs.who_ends import NONE_ENDS, has_served
from trainmaster.testing.gang_schedules import simulate

SCHEDULES = 300
#: Schedules that have failed once, beyond those that are gone through anyway.
FAILED_ONCE = (5377,)
who_ends, ask = life.who_ends, life.ConductedGang._ask
from_record = ConductedGang.from_record.__func__


def no_member_fails_its_gang(rows, dispensable, *, asked):
    return who_ends(rows, dispensable, asked=asked) if has_served(rows) else NONE_ENDS


def all_at_once(gang, grace_s, *, serving):
    others = () if serving else ask(gang, grace_s, serving=True)
    return ask(gang, grace_s, serving=serving) + others


def some_granted(gang):
    return any(part.phase is life.Phase.GRANTED for part in gang.parts)


#: With the first schedule that is tried: one that finds it.
MISTAKES: dict[str, tuple[Callable[[], AbstractContextManager[object]], int]] = {
    "what ended well is lost with its node when the driver begins anew": (
        lambda: patch.object(
            ConductedGang, "from_record", classmethod(lambda cls, row: from_record(cls, {**row, "ended": {}}))
        ),
        199,
    ),
    "the others go on when a member has failed": (
        lambda: patch.object(life, "who_ends", no_member_fails_its_gang),
        5,
    ),
    "parameter servers are stopped with the workers": (
        lambda: patch.object(life.ConductedGang, "_ask", all_at_once),
        16,
    ),
    "a gang is launched when some of its parts have their places": (
        lambda: patch.object(life.ConductedGang, "granted", property(some_granted)),
        1,
    ),
    "a member that the others can do without ends them": (
        lambda: patch.object(life, "who_ends", lambda rows, _, *, asked: who_ends(rows, asked=asked)),
        9,
    ),
}


def test_no_schedule_breaks_an_invariant() -> None:
    assert not simulate([*range(SCHEDULES), *FAILED_ONCE]).failures, (
        "python -m trainmaster.testing.gang_schedules --seed N"
    )


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_that_is_put_back_is_found(words: str) -> None:
    mistake, first = MISTAKES[words]
    assert not simulate([first]).failures
    with mistake():
        assert simulate([first]).failures or simulate(range(SCHEDULES)).failures
