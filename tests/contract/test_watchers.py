"""What all watchers of a run must keep."""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainmaster.cli.live import LiveDisplay
from trainmaster.cli.watching import PlainDisplay
from trainmaster.control.loop.reconcile import Reconciliation
from trainmaster.control.loop.run_state import ExperimentState, RunState, Task
from trainmaster.control.loop.surroundings import Watcher
from trainmaster.control.measure.progress import TaskProgress
from trainmaster.control.task.layout import Home
from trainmaster.db.changes import (
    Change,
    ClosedAttempt,
    ExperimentChange,
    Note,
    Progress,
    QueueChange,
    RunChange,
    TaskChange,
)
from trainmaster.executors.telemetry.member_metrics import MemberMetrics
from trainmaster.service.driving.run_watcher import RunWatcher
from trainmaster.spec import Recipe
from trainmaster.spec.states import EndReason, State

RUN = "watched-7f3a"
#: Of the run that is watched: a search of 12 tasks with two workers each.
RECIPE = Recipe.from_dict(
    {
        "name": "watched",
        "experiments": {
            "train": {
                "command": "true",
                "setup": "true",
                "workers": 2,
                "parameters": {"lr": {"range": "0.1-0.2"}},
                "samples": 12,
                "search": {"metric": "loss", "goal": "min", "sampler": "random"},
            }
        },
    }
)


class _Broken(io.StringIO):
    """A terminal that was closed."""

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


def changes() -> Iterator[Change]:
    """All that a turn may hold, with all reasons."""
    yield RunChange(State.WAITING, State.RUNNING)
    yield QueueChange('{"slots": 2}')
    yield QueueChange(None, 2.5)
    yield ExperimentChange("train", State.WAITING, State.RUNNING)
    yield Progress("train", 0, {"metrics": {"loss": 0.5}})
    yield Note("spot prices have changed")
    yield Note("a checkpoint could not be published", "train", 0, 1)
    yield TaskChange("train", 0, 1, State.WAITING, State.PLANNED, creates=True, opens=True)
    for reason in EndReason:
        yield Note("worker-1 is lost", reason=reason)
        for opens in (False, True):
            members = '[{"name": "worker-0", "lost": true}]' if opens else "[]"
            closes = ClosedAttempt(1, reason, "worker-0: exit code 3", 10.0, 12.5, None, members)
            after = State.RECOVERING if opens else State.DONE
            yield TaskChange("train", 0, 1, State.RUNNING, after, reason, "", opens=opens, closes=closes)
        yield ExperimentChange("train", State.RUNNING, State.DONE, reason, "it is over", reason)
        yield RunChange(State.RUNNING, State.DONE, reason, "it is over")


class WatcherContract:
    """Inherited by the tests of each watcher: whatever happens to the run, it must not raise."""

    @pytest.fixture
    def watcher(self) -> Watcher:
        """The watcher under test, of a run `RUN` of `RECIPE`."""
        raise NotImplementedError("give your tests a `watcher` fixture")

    @pytest.fixture
    def task(self) -> Task:
        """The task that runs."""
        return Task("train", 0, State.RUNNING, attempt=1, started_at=10.0)

    @pytest.fixture
    def run_state(self, task: Task) -> RunState:
        """The run while one of its tasks is running."""
        train = ExperimentState(
            "train", (), total=12, window=4, state=State.RUNNING, live={0: task}, created=1
        )
        return RunState(RUN, {"train": train}, State.RUNNING)

    @pytest.fixture
    def progress(self, tmp_path: Path) -> dict[tuple[str, int], TaskProgress]:
        """Of the task that runs, which has gone on from a checkpoint."""
        found = TaskProgress(MemberMetrics(tmp_path, "worker-0"), 100)
        found.metrics = {"loss": 0.5, "text": "a text"}
        found.from_step, found.came_to = 20, 25
        return {("train", 0): found}

    @pytest.mark.parametrize("change", list(changes()), ids=lambda change: type(change).__name__)
    def test_each_change(
        self,
        watcher: Watcher,
        run_state: RunState,
        progress: dict[tuple[str, int], TaskProgress],
        change: Change,
    ) -> None:
        """With and without progress of tasks."""
        watcher.turned(run_state, Reconciliation([change]), progress)
        watcher.turned(run_state, Reconciliation([change]), {})

    def test_a_whole_run(
        self,
        watcher: Watcher,
        run_state: RunState,
        task: Task,
        progress: dict[tuple[str, int], TaskProgress],
    ) -> None:
        """All at once, then nothing, then the end."""
        watcher.turned(run_state, Reconciliation(list(changes())), progress)
        watcher.output(task, "worker-0")
        watcher.turned(run_state, Reconciliation(), progress)
        run_state.state = State.DONE
        watcher.turned(run_state, Reconciliation(), {})

    @pytest.mark.parametrize("member", ["worker-0", "worker-1", "ps-9"])
    def test_output_of_any_member(self, watcher: Watcher, task: Task, member: str) -> None:
        """Also of one that has no log yet."""
        watcher.output(task, member)

    @pytest.mark.parametrize("line", ["", "two\nlines", "[bold]marked[/]", "ümläut", "x" * 100_000])
    def test_any_line(self, watcher: Watcher, line: str) -> None:
        """Nothing in it is taken for markup that is wrong."""
        watcher.say(line)

    def test_a_terminal_that_was_closed(
        self, watcher: Watcher, run_state: RunState, task: Task, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The work goes on."""
        monkeypatch.setattr(sys, "stderr", _Broken())
        watcher.say("a line")
        watcher.turned(run_state, Reconciliation(list(changes())), {})
        watcher.output(task, "worker-0")
        sys.stderr.close()  # what it may have put in its place


@pytest.fixture
def watch(tmp_path, monkeypatch):
    """Makes a watcher of the run that has a display."""
    monkeypatch.setattr("trainmaster.service.runs.search_results.best_tasks", lambda *_: [])
    home = Home.from_environment({"TRAINMASTER_HOME": str(tmp_path)})
    service = SimpleNamespace(home_of=lambda run: home, database=None)
    session = SimpleNamespace(run=RUN, recipe=RECIPE, lease=SimpleNamespace(token=1))
    return lambda display: RunWatcher(service, session, display.say, display.show, view_every_s=0.0)


class TestPlain(WatcherContract):
    @pytest.fixture
    def watcher(self, watch):
        return watch(PlainDisplay(rents=False))


class TestLive(WatcherContract):
    @pytest.fixture
    def watcher(self, watch):
        with LiveDisplay(rents=False) as display:
            yield watch(display)
