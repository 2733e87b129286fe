"""A driver that was stopped, or whose machine slept: what nothing of its run worked is no time of the run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.control.decide.queue_wait import QueueWait
from trainmaster.control.loop.controller import Controller
from trainmaster.executors.base import GangStatus, Phase
from trainmaster.spec.states import State

#: What others see of the time is so far ahead of the driver's own clock.
AHEAD = 1_000_000.0


def driven(*gangs: GangStatus, **more: Any) -> Controller:
    """A run whose newest turn was at 100 s, and what is then found of its tasks."""
    tasks = [SimpleNamespace(experiment="main", number=n, attempt=1) for n in range(len(gangs))]
    run_state: Any = SimpleNamespace(
        run="r", state=State.RUNNING, experiments={}, queue_wait=QueueWait(), live_tasks=lambda: tasks
    )
    return Controller(
        database=SimpleNamespace(),  # type: ignore[arg-type]
        lease=SimpleNamespace(),  # type: ignore[arg-type]
        run_state=run_state,
        actions=SimpleNamespace(jobs=None),  # type: ignore[arg-type]
        executor=SimpleNamespace(observe=lambda attempts: gangs[: len(attempts)]),  # type: ignore[arg-type]
        policies={},
        clock=lambda: 100.0,
        wall=lambda: 100.0 + AHEAD,
        slept=lambda: 7.0,
        **more,
    )


def gang(ended_at: float | None = None) -> GangStatus:
    phase = Phase.RUNNING if ended_at is None else Phase.EXITED
    return GangStatus("a", phase, started_at=AHEAD + 50.0, ended_at=ended_at and ended_at + AHEAD)


@pytest.mark.parametrize(
    ("gangs", "apart_s"),
    [
        ([], 60.0),
        ([gang(ended_at=90.0)], 60.0),
        ([gang(ended_at=120.0)], 40.0),
        ([gang(ended_at=120.0), gang(ended_at=150.0)], 10.0),
        ([gang(ended_at=120.0), gang()], 0.0),
        ([GangStatus("a", Phase.QUEUED)], 60.0),
    ],
)
def test_what_neither_a_driver_nor_members_did_counts_apart(gangs, apart_s):
    controller = driven(*gangs)
    controller.wall = lambda: 160.0 + AHEAD
    controller._undriven(160.0)
    assert controller.run_state.queue_wait.waited_s(160.0) == pytest.approx(apart_s)
    assert controller._undriven(165.0) == [], "turns are some seconds apart"


@pytest.mark.parametrize(
    ("gangs", "elsewhere", "apart_s"),
    [
        ([gang()], {}, 50.0),
        ([gang(ended_at=155.0)], {}, 50.0),
        ([gang(ended_at=105.0)], {}, 55.0),
        ([gang()], {"machines": SimpleNamespace()}, 0.0),
    ],
    ids=["at work", "ended after it", "ended before it", "at work elsewhere"],
)
def test_what_this_machine_slept_counts_apart_where_its_tasks_slept_as_well(gangs, elsewhere, apart_s):
    controller = driven(*gangs, **elsewhere)
    controller.wall, controller.slept = lambda: 160.0 + AHEAD, lambda: 57.0
    controller._undriven(160.0)
    assert controller.run_state.queue_wait.waited_s(160.0) == pytest.approx(apart_s)


def test_a_sleep_counts_once():
    controller = driven(gang())
    controller.slept = lambda: 57.0
    assert controller._undriven(160.0)
    assert controller._undriven(200.0) == []
