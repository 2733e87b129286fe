"""What the loop of a run does when its money is nearly used up: first what costs is looked at once more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.control.decide.budget import Meter
from trainmaster.control.loop.controller import Controller
from trainmaster.db.changes import Note
from trainmaster.spec.errors import UsageError
from trainmaster.spec.states import EndReason, State

NOW = 1000.0


class Machines:
    """Those of a run: what a look at them changes."""

    def __init__(self, saves: bool = False, error: Exception | None = None) -> None:
        self.saves, self.error, self.looks = saves, error, 0

    def look(self, run_state: Any, meter: Meter, now: float) -> list[Note]:
        self.looks += 1
        if self.error is not None:
            raise self.error
        if not self.saves:
            return []
        meter.bill = lambda until: 0.0
        return [Note("gives back the machines of lab")]


def watched(machines: Machines) -> tuple[Controller, list[EndReason]]:
    """A run that would cost more than its cap, and whose machines were looked at just now."""
    stops: list[EndReason] = []
    controller = Controller(
        database=SimpleNamespace(want_stop=lambda run, reason: stops.append(reason)),  # type: ignore[arg-type]
        lease=SimpleNamespace(),  # type: ignore[arg-type]
        run_state=SimpleNamespace(run="r", state=State.RUNNING, experiments={}),  # type: ignore[arg-type]
        actions=SimpleNamespace(jobs=None),  # type: ignore[arg-type]
        executor=SimpleNamespace(),  # type: ignore[arg-type]
        policies={},
        machines=machines,  # type: ignore[arg-type]
        meter=Meter(1.0, lambda until: until / 1000, usual_lease_s=900.0),
        clock=lambda: NOW,
    )
    controller._machines_at = NOW
    return controller, stops


def words(notes: list[Note]) -> list[str]:
    return [note.message for note in notes]


def test_what_costs_is_given_back_instead_of_an_end() -> None:
    controller, stops = watched(Machines(saves=True))
    assert words(controller._watch_budget(NOW)) == ["gives back the machines of lab"]
    assert stops == []
    assert controller._watch_budget(NOW) == []


def test_a_run_ends_where_that_does_not_help() -> None:
    controller, stops = watched(machines := Machines())
    (line,) = words(controller._watch_budget(NOW))
    assert line.startswith("the run ends: it may cost $1.00")
    assert (stops, machines.looks) == ([EndReason.BUDGET], 1)
    assert controller._watch_budget(NOW) == [], "it is told once"


@pytest.mark.parametrize("error", [UsageError("there are no such machines")])
def test_what_is_found_out_meanwhile_is_why_it_ends(error: Exception) -> None:
    controller, stops = watched(Machines(error=error))
    assert words(controller._watch_budget(NOW)) == ["there are no such machines"]
    assert stops == [EndReason.USER_ERROR]
