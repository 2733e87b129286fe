"""What `cancel` of tasks waits for, and what `resume` of several runs says of each."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import typer

from trainmaster.cli.cancel import _end_tasks
from trainmaster.cli.resume import _resume_all
from trainmaster.spec.errors import UsageError

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
def test_a_task_is_waited_for_while_something_drives_its_run(driver, told, capsys, monkeypatch):
    monkeypatch.setattr("trainmaster.cli.cancel._TASKS_S", 0.0)
    states = iter(["RUNNING", "STOPPING", "DONE"])

    def cancel_tasks(run, tasks):
        state = next(states)
        ended = {"task": 3, "state": state, "reason": "CANCELLED" if state == "DONE" else None}
        return [{"experiment": "sweep", **ended}, {"experiment": "sweep", "task": 4, "state": "WAITING"}]

    line = {"run": "r", "state": "RUNNING", "driver": driver}
    client = SimpleNamespace(cancel_tasks=cancel_tasks, brief=lambda _: line)
    _end_tasks(client, "r", ["3", "4"], as_json=False)
    assert capsys.readouterr().err.splitlines() == told


def test_of_several_that_are_resumed_each_that_cannot_be_is_named(capsys):
    def take_run(run):
        raise UsageError("no lab is up", "Put one up.")

    with pytest.raises(typer.Exit):
        _resume_all(SimpleNamespace(take_run=take_run), ["a-1", "b-2"], as_json=False)
    assert capsys.readouterr().err.splitlines() == [
        "error: a-1: no lab is up", "Put one up.", "error: b-2: no lab is up", "Put one up.",
    ]  # fmt: skip
