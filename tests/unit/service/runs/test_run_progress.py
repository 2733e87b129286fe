"""What is shown of sweeps: the best so far, and when all will be over."""

from __future__ import annotations

import io
from collections import Counter
from types import SimpleNamespace

import pytest
from rich.console import Console

from trainmaster.cli.live import LiveDisplay
from trainmaster.cli.watching import best_lines
from trainmaster.control.loop.run_state import ExperimentState, RunState, Task
from trainmaster.db.changes import ClosedAttempt, TaskChange
from trainmaster.service.driving.run_watcher import RunProgress, run_view
from trainmaster.service.runs import search_results
from trainmaster.spec.search import Search
from trainmaster.spec.states import EndReason, State

SEARCH = Search(metric="accuracy", goal="max")


@pytest.fixture
def estimates(monkeypatch):
    recipe = SimpleNamespace(experiments={"sweep": SimpleNamespace(search=SEARCH, serve=None)})
    service, session = SimpleNamespace(database=None), SimpleNamespace(run="r", recipe=recipe)
    return RunProgress(service, session)


def ended(number, seconds, reason=EndReason.SUCCEEDED, opens=False):
    closes = ClosedAttempt(1, reason, "", 1000.0, 1000.0 + seconds, None, "[]")
    return TaskChange("sweep", number, 1, State.SAVING, State.DONE, opens=opens, closes=closes)


def test_how_long_the_whole_sweep_will_take(estimates):
    running = {n: Task("sweep", n, State.RUNNING, attempt=1, started_at=1000.0) for n in (2, 3)}
    sweep = ExperimentState(
        "sweep", (), total=12, window=40, state=State.RUNNING, live=running, created=4,
        ended=Counter({EndReason.SUCCEEDED: 1, EndReason.USER_ERROR: 1}),
    )  # fmt: skip
    assert estimates.left_s(sweep, {}, 1010.0) is None, "none has ended"
    for number, seconds in ((0, 30.0), (1, 50.0)):
        estimates.changed(ended(number, seconds))
    estimates.changed(ended(5, 1.0, EndReason.CANCELLED))
    estimates.changed(ended(6, 2.0, EndReason.NODE_LOST, opens=True))
    assert estimates.left_s(sweep, {}, 1010.0) == pytest.approx((30 + 30 + 8 * 40) / 2)
    told = {("sweep", 2): SimpleNamespace(eta_s=100.0), ("sweep", 3): SimpleNamespace(eta_s=None)}
    assert estimates.left_s(sweep, told, 1010.0) == pytest.approx((100 + 30 + 8 * 40) / 2)


def test_the_best_five_are_looked_for_now_and_then(estimates, monkeypatch):
    asked = []

    def best_tasks(database, run, experiment, search, most):
        asked.append((run, experiment, search["metric"], most))
        return [{"task": n, "value": 0.9 - n / 100, "parameters": {"lr": 0.1}} for n in range(most)]

    monkeypatch.setattr(search_results, "best_tasks", best_tasks)
    view = run_view(RunState("r", {}, State.RUNNING), {}, estimates)
    lines = list(best_lines(view))
    assert lines[:2] == ["best sweep/0  accuracy=0.9  lr=0.1", "2. sweep/1  accuracy=0.89  lr=0.1"]
    assert len(lines) == 5
    assert list(best_lines(view, 1)) == lines[:1]
    estimates.best()
    assert asked == [("r", "sweep", "accuracy", 5)], "not again at once"


def test_the_live_view_shows_them(estimates, monkeypatch):
    best = [{"task": 7, "value": 0.93, "parameters": {"lr": 0.01}}]
    monkeypatch.setattr(search_results, "best_tasks", lambda *_: best)
    sweep = ExperimentState("sweep", (), total=4, window=40, state=State.RUNNING, created=1)
    sweep.live[0] = Task("sweep", 0, State.RUNNING, attempt=1, started_at=1000.0)
    estimates.changed(ended(1, 1e9))
    console = Console(width=150, record=True, file=io.StringIO())
    view = run_view(RunState("r", {"sweep": sweep}, State.RUNNING), {}, estimates)
    console.print(LiveDisplay(rents=False)._picture(view, 0.0))
    text = console.export_text()
    assert "best sweep/7  accuracy=0.93  lr=0.01" in text
    assert "0/4" in text
    assert "about" in text
    assert "left" in text
