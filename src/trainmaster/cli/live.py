"""`LiveWatcher`: the run as a picture that refreshes itself, above it the tasks' own lines."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainmaster.cli.output import duration
from trainmaster.cli.standings import Standings
from trainmaster.cli.watching import Echo, PlainWatcher, task_text
from trainmaster.control.progress import TaskProgress
from trainmaster.control.reconcile import Turn
from trainmaster.control.run_state import Experiment, RunState
from trainmaster.spec.states import State

REFRESH_S = 0.25
#: Running tasks shown one by one.
MAX_SHOWN_TASKS = 8


class LiveWatcher(PlainWatcher):
    """Experiments with progress bars, running tasks with metrics, step rate and time left."""

    def __init__(self, echo: Echo, standings: Standings) -> None:
        super().__init__(echo, standings, every_s=float("inf"))
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._started_at = time.monotonic()
        self._drawn_at = 0.0

    def __enter__(self) -> LiveWatcher:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._live.stop()

    def turned(
        self, run_state: RunState, turn: Turn, progress: Mapping[tuple[str, int], TaskProgress]
    ) -> None:
        """Tell what changed, and redraw a few times per second."""
        super().turned(run_state, turn, progress)
        now = time.monotonic()
        if now - self._drawn_at >= REFRESH_S:
            self._drawn_at = now
            with suppress(OSError):
                self._live.update(self._picture(run_state, progress), refresh=True)

    def say(self, line: str) -> None:
        """Print one line above the picture."""
        with suppress(OSError):  # a closed terminal must not end the work
            self._console.print(Text(line), soft_wrap=True)

    def _picture(self, run_state: RunState, progress: Mapping[tuple[str, int], TaskProgress]) -> Group:
        table = Table(box=None, pad_edge=False, show_header=False)
        for experiment in run_state.experiments.values():
            tally = experiment.tally()
            done = tally["succeeded"] + tally["pruned"]  # what failed is told beside it
            counts = {key: n for key, n in tally.items() if n and key not in ("total", "succeeded")}
            table.add_row(
                Text(experiment.name, style="bold"),
                str(experiment.reason or experiment.state),
                ProgressBar(total=max(1, experiment.total), completed=done, width=24),
                f"{done}/{experiment.total}",
                ", ".join(f"{n} {key}" for key, n in counts.items()),
                self._left(experiment, progress),
            )
        lines = [
            Text(f"  {name}/{number}  {task_text(found)}")
            for (name, number), found in list(progress.items())[:MAX_SHOWN_TASKS]
        ]
        lines += [Text(f"  {line}") for line in self._standings.best_lines()]
        elapsed = duration(time.monotonic() - self._started_at)
        state = "QUEUED" if run_state.queue_wait.is_told else run_state.state
        return Group(Text(f"{run_state.run}  {state}  {elapsed}", style="dim"), table, *lines)

    def _left(self, experiment: Experiment, progress: Mapping[tuple[str, int], TaskProgress]) -> str:
        """When all tasks of an experiment will be over; a single one tells that itself."""
        if experiment.total == 1 or experiment.state is not State.RUNNING:
            return ""
        left_s = self._standings.left_s(experiment, progress, time.time())
        return "" if left_s is None else f"about {duration(left_s)} left"
