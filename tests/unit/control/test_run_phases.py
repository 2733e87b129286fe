"""Which phase a run is in, and what of it is late: tables."""

from __future__ import annotations

import json

import pytest

from trainmaster.control.measure.run_phases import ObservedExperiment, PhaseProgress

SPANS = [("machines", (8, 10, 14)), ("setup", (4, 5, 7)), ("steps", (50, 60, 75)), ("saving", (0.1, 0.5, 1))]


@pytest.mark.parametrize(
    ("seen", "phase"),
    [
        ({"waits": True}, ""),
        ({"waits": True, "has_started": True, "has_steps": True}, ""),
        ({"has_machines": False}, "machines"),
        ({"has_machines": False, "staging": "setup"}, "machines"),
        ({}, "staging"),
        ({"staging": "image"}, "image"),
        ({"has_started": True}, "first step"),
        ({"has_started": True, "has_steps": True}, "steps"),
        ({"has_started": True, "has_steps": True, "staging": "setup"}, "steps"),
        ({"has_machines": False, "is_again": True}, "interruptions"),
        ({"has_started": True, "has_steps": True, "is_saving": True}, "saving"),
        ({"has_started": True, "is_over": True}, ""),
    ],
)
def test_the_phase_of_what_is_seen(seen, phase):
    assert ObservedExperiment(**seen).phase == phase


@pytest.mark.parametrize(
    ("looks", "at", "late"),
    [
        ([("machines", 0)], 13, {}),
        ([("machines", 0)], 15, {}),  # by less than looks are apart
        ([("machines", 0)], 20, {"machines": 6}),
        ([("machines", 0), ("setup", 20)], 24, {"machines": 6}),
        ([("machines", 0), ("", 12), ("machines", 500)], 501, {}),  # it waited for others
        ([("setup", 0), ("steps", 30)], 60, {"setup": 23}),
        ([("steps", 0)], 74, {}),
        ([("steps", 0)], 90, {"steps": 15}),
        ([("staging", 0)], 1000, {}),  # nothing was expected of it
        ([("first step", 0)], 74, {}),  # nor of this one alone
        ([("first step", 0)], 90, {"first step": 15}),  # all steps were to be made by then
        ([("steps", 0), ("interruptions", 10)], 30, {"interruptions": 20}),
    ],
)
def test_what_is_late(looks, at, late):
    course = PhaseProgress().expecting(SPANS)
    for phase, since in looks:
        course = course.seen(phase, since)
    assert {line.phase: line.late_s for line in course.lines(at) if line.late_s} == late


def test_steps_are_late_as_soon_as_a_forecast_says_so():
    course = PhaseProgress(left_s=100.0, left_at=10.0).expecting(SPANS).seen("steps", 0.0)
    (steps,) = [line for line in course.lines(10.0) if line.phase == "steps"]
    assert (steps.seconds, steps.late_s) == (10.0, 35.0)
    (steps,) = [line for line in course.lines(40.0) if line.phase == "steps"]
    assert (steps.seconds, steps.late_s) == (40.0, 35.0)


def test_what_was_passed_by_is_neither_done_nor_ahead():
    course = PhaseProgress().expecting(SPANS).seen("machines", 0).seen("steps", 9.0)
    found = [(line.phase, line.state) for line in course.lines(10.0)]
    assert found == [("machines", "done"), ("steps", "now"), ("saving", "ahead")]


def test_nothing_is_ahead_of_what_is_over():
    course = PhaseProgress().expecting(SPANS).seen("steps", 0.0).seen("", 9.0)
    assert [line.state for line in course.lines(10.0)] == ["done", "ahead"]  # it waits for others
    assert [line.state for line in course.lines(10.0, is_over=True)] == ["done"]


def test_parts_that_no_look_tells_apart_are_expected_together():
    course = PhaseProgress().expecting(
        [("steps", (1, 2, 3)), ("pauses", (1, 1, 1)), ("end of the tasks", (0, 0, 1))]
    )
    assert course.expected == {"steps": (2, 3, 5)}
    assert course.expecting([("steps", (4, 4, 4))]).expected == {"steps": (4, 4, 4)}


def test_it_comes_back_from_the_database_as_it_was():
    course = PhaseProgress(left_s=3.0).expecting(SPANS).seen("machines", 0.0).seen("setup", 5.0)
    assert PhaseProgress.of_dict(json.loads(json.dumps(course.as_dict()))) == course
