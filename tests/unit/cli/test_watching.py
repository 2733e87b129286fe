from dataclasses import replace
from types import SimpleNamespace

import pytest

from trainmaster.api import Event
from trainmaster.cli.driving import finish
from trainmaster.cli.watching import (
    MachineLossFilter,
    PlainDisplay,
    fresh,
    goes_on_text,
    progress_lines,
    told,
    told_events,
)
from trainmaster.service import Note
from trainmaster.service.driving.run_watcher import (
    AttemptEnded,
    AttemptResumed,
    ExperimentMoved,
    ExperimentView,
    MoreFailures,
    RunNews,
    RunView,
    SetupBegun,
    TaskView,
)
from trainmaster.service.runs.highlights import Highlights, TaskLine
from trainmaster.spec.states import EndReason, State


def test_tasks_that_failed_are_not_done():
    counts = {"total": 4, "succeeded": 1, "pruned": 0, "failed": 1, "running": 2}
    sweep = ExperimentView("sweep", State.RUNNING, None, 4, counts, left_s=80.0)
    found = [{"task": 0, "value": 0.5, "parameters": {"lr": 0.1}}] * 2
    tasks = (TaskView("sweep", 2, {"loss": 0.5}, 10.0, None, 6.0), TaskView("sweep", 3, {}, None, None, None))
    view = RunView("r", State.RUNNING, False, (sweep,), tasks, {"sweep": ("accuracy", found)})
    assert list(progress_lines(view)) == [
        "sweep: 1/4 tasks done, 2 running, 1 failed, about 1 min 20 s left",
        "best sweep/0  accuracy=0.5  lr=0.1",
        "sweep/2: loss=0.5  10 steps/s  6 s left",
    ]


@pytest.mark.parametrize(
    ("reason", "message", "said"),
    [
        ("BUDGET", "it may cost $2.00", "--total USD` goes on with more money"),
        ("BUDGET", "of the month's budget there were only $2.00 for it; it has cost", "resume r` goes on, "),
        ("OOM", "", "a new `trainmaster run`"),
    ],
)
def test_the_end_of_a_run_says_how_to_go_on(capsys, reason, message, said):
    """No cap of its own gives a run more of the month's money."""
    summary = {"experiments": {}, "reason": reason, "seconds": 9.0, "cost_usd": 0.5, "models": []}
    bad = (TaskLine("train", 0, 1, reason, message, {}),)
    client = SimpleNamespace(
        status=lambda _: SimpleNamespace(json=summary), highlights=lambda _: Highlights((), bad, ())
    )
    assert finish(client, "r", as_json=False) == 1
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_the_end_of_a_run_elsewhere_says_whether_its_quote_was_kept(capsys):
    """What drives it there judges that some seconds after its end."""
    span = {"p5": 1.0, "p50": 2.0, "p95": 3.0}
    quote = {
        "kind": "binding",
        "time_s": span,
        "cost_usd": dict.fromkeys(span, 0.0),
        "kept": None,
        "actual": None,
    }
    summary = {"experiments": {}, "reason": "SUCCEEDED", "seconds": 2.0, "cost_usd": 0.0, "models": []}
    judged = {"kept": True, "actual": {"time_s": 2.0, "cost_usd": 0.0}}
    said = iter([summary | {"quote": quote}, summary | {"quote": quote | judged}])
    client = SimpleNamespace(
        status=lambda _: SimpleNamespace(json=next(said)),
        highlights=lambda _: Highlights((), (), ()),
    )
    assert finish(client, "r", as_json=False) == 0
    assert capsys.readouterr().err.splitlines()[-1].endswith(": kept")


def test_replicas_of_a_service_are_no_tasks_to_be_done():
    counts = {"succeeded": 1, "pruned": 0, "failed": 0, "running": 2}
    service = ExperimentView("api", State.RUNNING, None, 3, counts, None, is_service=True)
    assert list(progress_lines(RunView("r", State.RUNNING, False, (service,), (), {}))) == []


ENDED = AttemptEnded(
    "train", 0, 1, EndReason.USER_ERROR, "exit code 3 (KeyError: 'lr')", ("bye",), True, False
)


@pytest.mark.parametrize(
    ("happened", "lines"),
    [
        (SetupBegun("train"), ["train: preparing its environment (`setup`), if it is not there yet"]),
        (ExperimentMoved("train", State.RUNNING, None, "", 1, {}), ["train: 1 task"]),
        (ExperimentMoved("api", State.RUNNING, None, "", 0, {}), ["api: begins"]),
        (
            ExperimentMoved("train", State.DONE, EndReason.SUCCEEDED, "", 2, {"total": 2, "succeeded": 2}),
            ["train: SUCCEEDED (2 succeeded)"],
        ),
        (
            ExperimentMoved("train", State.DONE, EndReason.DENIED, "denied by ada: no", 1, {}),
            ["train: DENIED: by ada: no"],
        ),
        (Note("waits", "train", 1), ["train/1: waits"]),
        (AttemptResumed("train", 0, 240, 251), [f"train/0: {goes_on_text(240, 251)}"]),
        (MoreFailures("r"), ["further failures are not told: `trainmaster status r` shows them"]),
        (ENDED, ["bye", "train/0: attempt 1 USER_ERROR: exit code 3 (KeyError: 'lr'); trying again"]),
        (
            replace(ENDED, output=(), is_again=False, parameters={"lr": 0.1, "seed": 3}),
            ["train/0 (lr=0.1 seed=3): attempt 1 USER_ERROR: exit code 3 (KeyError: 'lr')"],
        ),
        (replace(ENDED, reason=EndReason.SUCCEEDED, message="", is_again=False), ["bye"]),
    ],
)
def test_what_happens_is_told_in_lines(happened, lines):
    assert list(told(happened)) == lines


def test_what_ended_with_its_machine_waits_for_what_that_says(capsys):
    display = PlainDisplay(rents=True)
    lost = replace(ENDED, reason=EndReason.NODE_LOST, message="", is_lost=True)
    gone = Note("node-1 is lost", reason=EndReason.NODE_LOST)
    display.show(RunNews((lost, gone), None, is_over=False))
    assert capsys.readouterr().err.splitlines() == ["bye", "node-1 is lost"]
    display.show(RunNews((), None, is_over=True))
    assert capsys.readouterr().err == ""


def test_attempts_that_end_with_their_machine_have_no_line_of_their_own():
    losses = MachineLossFilter(waits=True)
    assert losses.attempt("train/0 is lost", 100.0) == []
    losses.machine(105.0)
    assert losses.attempt("train/1 is lost", 107.0) == []
    assert losses.due(200.0) == []


def test_an_attempt_that_is_lost_alone_is_told_a_little_later():
    losses = MachineLossFilter(waits=True)
    assert losses.attempt("train/0 is lost", 100.0) == []
    assert losses.due(105.0) == []
    assert losses.due(111.0) == ["train/0 is lost"]
    assert losses.due(112.0) == []
    losses.attempt("train/0 is lost again", 113.0)
    assert losses.due(113.5, is_over=True) == ["train/0 is lost again"], "nothing is kept back at the end"
    assert losses.due(200.0) == []


def test_on_this_machine_nothing_waits_for_what_a_machine_says():
    assert MachineLossFilter(waits=False).attempt("train/0 is lost", 100.0) == ["train/0 is lost"]


def test_the_very_same_line_is_said_once_a_minute():
    said = {}
    assert list(fresh(["1/4 done", "loss 3"], said, 10.0)) == ["1/4 done", "loss 3"]
    assert list(fresh(["1/4 done", "loss 2"], said, 20.0)) == ["loss 2"]
    assert list(fresh(["1/4 done", "loss 2"], said, 70.0)) == ["1/4 done"]
    assert set(said) == {"1/4 done", "loss 2"}


def test_an_end_that_is_on_its_way_is_told_once():
    def event(kind, after, reason, message=""):
        row = {"experiment": "train", "task": 0, "attempt": 1, "kind": kind, "after": after}
        return Event.of(
            {"id": 1, "at": 1.0, "before": "RUNNING", **row, "reason": reason, "message": message}
        )

    stopped = [
        event("experiment", "STOPPING", "CANCELLED"),
        event("task", "STOPPING", "CANCELLED"),
        event("task", "DONE", "CANCELLED"),
        event("experiment", "DONE", "CANCELLED"),
    ]
    failed = [event("experiment", "DONE", "USER_ERROR", "user_error exit code 1")]
    losses = MachineLossFilter(waits=False)
    assert told_events(stopped, losses) == ["train/0: attempt 1 CANCELLED", "train: CANCELLED"]
    assert told_events(failed, losses) == ["train: USER_ERROR: exit code 1"]
