"""How long what fails on nodes is tried again before an attempt is given up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from trainmaster.cluster.node_files import store_reach as node_patience
from trainmaster.cluster.node_files.store_reach import MOST_CUTS, patiently, persistently
from trainmaster.control.task.job_context import NodeGoneError
from trainmaster.spec.errors import UsageError
from trainmaster.transport.base import CommandError, ConnectionLostError, UnreachableError

PATIENCE_S = 60.0
CUT = ConnectionLostError("h0: the connection was lost")
SILENT = UnreachableError("h0: nothing answers")


class Clock:
    """Time passes when somebody waits, or works."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.told: list[str] = []
        self.tries = 0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def work(self, *steps: tuple[float, Exception | None]) -> Callable[[], Any]:
        """So long each try takes, and so it ends; the last one again and again."""
        left = list(steps)

        def work() -> None:
            self.tries += 1
            lasts_s, error = left.pop(0) if len(left) > 1 else left[0]
            self.now_s += lasts_s
            if error is not None:
                raise error

        return work


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(node_patience, "time", found)
    return found


def test_a_transfer_that_was_cut_off_after_hours_goes_on(clock: Clock) -> None:
    patiently(clock.work((3600, CUT), (10, SILENT), (10, CUT), (3600, CUT), (1, None)), PATIENCE_S)
    assert clock.tries == 5


def test_but_not_for_ever(clock: Clock) -> None:
    with pytest.raises(ConnectionLostError):
        patiently(clock.work((3600, CUT)), PATIENCE_S)
    assert clock.tries == MOST_CUTS + 1


@pytest.mark.parametrize("before", [[], [(3600.0, CUT)]])
def test_a_node_that_stays_silent_is_given_up_after_the_patience(
    clock: Clock, before: list[tuple[float, Exception]]
) -> None:
    with pytest.raises(UnreachableError):
        patiently(clock.work(*before, (10, SILENT)), PATIENCE_S)
    assert clock.now_s - 3600 * len(before) < PATIENCE_S + 25


def test_a_node_that_is_gone_for_good_is_not_waited_for(clock: Clock) -> None:
    gone = NodeGoneError("worker-1 has no node any more")
    with pytest.raises(NodeGoneError):
        patiently(clock.work((1, gone)), PATIENCE_S, is_returning=False)
    assert clock.tries == 1
    patiently(clock.work((1, gone), (1, None)), PATIENCE_S)


def test_what_fails_on_a_node_is_tried_again_a_few_times(clock: Clock) -> None:
    trying = partial(persistently, patience_s=PATIENCE_S, tell=clock.told.append)
    trying(clock.work((1, CommandError("h0: data.x: 503")), (1, None)))
    assert clock.told == ["note: h0: data.x: 503; it is tried again in 1 s"]
    with pytest.raises(CommandError):
        trying(clock.work((1, CommandError("it is damaged"))))
    assert clock.now_s < 60
    clock.tries = 0
    with pytest.raises(UsageError):
        trying(clock.work((1, UsageError("setup failed"))))
    assert clock.tries == 1, "the user's fault is told at once"
    clock.told.clear()
    with pytest.raises(UnreachableError):
        trying(clock.work((10, SILENT)))
    assert clock.told == ["note: h0: nothing answers"]
