"""What `cancel` of tasks waits for, and what `resume` of several runs says of each."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import typer

from trainmaster.cli import cancel
from trainmaster.cli.cancel import _end_tasks
from trainmaster.cli.resume import _resume_all
from trainmaster.spec.errors import UsageError


def _no_notes(run):
    return SimpleNamespace(notes=())


AWAY = {"state": "working", "pid": None, "machine": "i-0a1b"}


@pytest.mark.parametrize(
    ("driver", "told"),
    [
        (AWAY, ["r: sweep/3: CANCELLED", "r: sweep/4 will not begin"]),
        (
            None,
            [
                "r: nobody drives it: `trainmaster resume r` goes on with it",
                "r: sweep/3 is to end",
                "r: sweep/4 will not begin",
            ],
        ),
    ],
)
def test_a_task_is_waited_for_while_something_drives_its_run(driver, told, capsys):
    states, asked = iter(["RUNNING", "DONE"]), []

    def cancel_tasks(run, tasks):
        state = next(states)
        asked.append(state)
        ended = {"task": 3, "state": state, "reason": "CANCELLED" if state == "DONE" else None}
        return [{"experiment": "sweep", **ended}, {"experiment": "sweep", "task": 4, "state": "WAITING"}]

    def watch_run(run):
        for task, after in ((4, "WAITING"), (9, "DONE"), (3, "STOPPING"), (3, "DONE")):
            event = SimpleNamespace(experiment="sweep", task=task, after=after)
            yield SimpleNamespace(events=(event,), brief=line)

    line = {"run": "r", "state": "RUNNING", "driver": driver}
    client = SimpleNamespace(cancel_tasks=cancel_tasks, watch_run=watch_run, highlights=_no_notes)
    _end_tasks(client, "r", ["3", "4"], as_json=False)
    assert capsys.readouterr().err.splitlines() == told
    assert asked == (["RUNNING", "DONE"] if driver else ["RUNNING"]), "the wish is written once, then read"


def test_a_run_that_ends_meanwhile_has_ended_its_tasks(capsys):
    """Its last events may come after those with which it is seen to be over."""
    ends = iter([("RUNNING", None), ("DONE", "SUCCEEDED")])

    def cancel_tasks(run, tasks):
        state, reason = next(ends)
        return [{"experiment": "sweep", "task": 3, "state": state, "reason": reason}]

    def watch_run(run):
        for state in ("RUNNING", "DONE"):
            yield SimpleNamespace(events=(), brief={"run": "r", "state": state, "driver": AWAY})

    client = SimpleNamespace(
        cancel_tasks=cancel_tasks,
        watch_run=watch_run,
        highlights=_no_notes,
        brief=lambda _: {"run": "r", "state": "DONE", "driver": None},
    )
    _end_tasks(client, "r", ["3"], as_json=False)
    assert capsys.readouterr().err.splitlines() == ["r: sweep/3: SUCCEEDED"]


def test_what_a_task_that_does_not_end_waits_for_is_said_once(monkeypatch, capsys):
    monkeypatch.setattr(cancel, "_LOOK_EVERY_S", 0.0)
    old, new = SimpleNamespace(message="rented"), SimpleNamespace(message="node-2 has not answered")
    ends, notes = iter(["RUNNING", "DONE"]), iter([(old,), (old, new), (old, new)])

    def watch_run(run):
        for after in ("RUNNING", "STOPPING", "STOPPING", "DONE"):
            event = SimpleNamespace(experiment="sweep", task=3, after=after)
            yield SimpleNamespace(events=(event,), brief={"run": "r", "state": "RUNNING", "driver": AWAY})

    client = SimpleNamespace(
        cancel_tasks=lambda *_: [
            {"experiment": "sweep", "task": 3, "state": next(ends), "reason": "CANCELLED"}
        ],
        watch_run=watch_run,
        highlights=lambda _: SimpleNamespace(notes=next(notes)),
    )
    _end_tasks(client, "r", ["3"], as_json=False)
    assert capsys.readouterr().err.splitlines() == ["r: node-2 has not answered", "r: sweep/3: CANCELLED"]


def test_of_several_that_are_resumed_each_that_cannot_be_is_named(capsys):
    def take_run(run):
        raise UsageError("no lab is up", "Put one up.")

    with pytest.raises(typer.Exit):
        _resume_all(SimpleNamespace(take_run=take_run), ["a-1", "b-2"], as_json=False)
    assert capsys.readouterr().err.splitlines() == [
        "error: a-1: no lab is up", "Put one up.", "error: b-2: no lab is up", "Put one up.",
    ]  # fmt: skip
