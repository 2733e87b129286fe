"""`LiveDisplay`: the run as a picture that refreshes itself, above it the tasks' own lines."""

from __future__ import annotations

import time
from contextlib import suppress
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainmaster.cli.output import duration, phases_text
from trainmaster.cli.watching import PlainDisplay, best_lines, task_text
from trainmaster.service.driving.run_news import RunView


class LiveDisplay(PlainDisplay):
    """Experiments with progress bars, running tasks with metrics, step rate and time left."""

    view_every_s = 0.25

    def __init__(self, *, rents: bool) -> None:
        super().__init__(rents=rents)
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._started_at = time.monotonic()

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._live.stop()

    def show_view(self, view: RunView | None, now: float) -> None:
        """Redraw the picture."""
        if view is not None:
            with suppress(OSError):
                self._live.update(self._picture(view, now), refresh=True)

    def say(self, line: str) -> None:
        """Print one line above the picture."""
        with suppress(OSError):  # a closed terminal must not end the work
            self._console.print(Text(line), soft_wrap=True)

    def _picture(self, view: RunView, now: float) -> Group:
        table = Table(box=None, pad_edge=False, show_header=False)
        for each in view.experiments:
            done = each.tally["succeeded"] + each.tally["pruned"]  # what failed is told beside it
            counts = {key: n for key, n in each.tally.items() if n and key not in ("total", "succeeded")}
            bar = ProgressBar(total=max(1, each.total), completed=done, width=24)
            table.add_row(
                Text(each.name, style="bold"),
                str(each.reason or each.state),
                "" if each.is_service else bar,
                "" if each.is_service else f"{done}/{each.total}",
                ", ".join(f"{n} {key}" for key, n in counts.items()),
                "" if each.left_s is None else f"about {duration(each.left_s)} left",
            )
        lines = [Text(f"  {task.experiment}/{task.task}  {task_text(task)}") for task in view.tasks]
        lines += [Text(f"  {line}") for line in best_lines(view)]
        lines += [Text(f"  {phases}")] if (phases := phases_text(view.course)) else []
        elapsed = duration(now - self._started_at)
        state = "QUEUED" if view.is_queued else view.state
        return Group(Text(f"{view.run}  {state}  {elapsed}", style="dim"), table, *lines)
