"""`Standings`: of experiments of many tasks while they run, the best so far, and when all will be over."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trainmaster.control.loop.run_state import RUNNING_STATES, ExperimentState
from trainmaster.db.changes import TaskChange
from trainmaster.spec.errors import StoreError
from trainmaster.spec.states import EndReason, State

if TYPE_CHECKING:
    from trainmaster.control.measure.progress import TaskProgress
    from trainmaster.service.driving.worlds import Session
    from trainmaster.service.service import Service

#: How many of the best tasks are shown.
SHOWN_BEST = 5
#: The best are looked for at most that often, and never for more than a hundredth of the time.
_LOOK_S = 2.0
_MOST_SHARE = 0.01
#: How long the last so many tasks took tells how long the next ones will take.
_DURATIONS = 200
_CUT_SHORT = frozenset({EndReason.CANCELLED, EndReason.SKIPPED, EndReason.BUDGET})


class Standings:
    """Of one run, in one control process.

    Args:
        service: knows the results.
        session: the run.

    Attributes:
        services: experiments whose tasks are replicas.
    """

    def __init__(self, service: Service, session: Session) -> None:
        self._database = service.database
        self._run = session.run
        experiments = session.recipe.experiments
        self.services = {name for name, experiment in experiments.items() if experiment.serve is not None}
        self._searches = {
            name: experiment.search
            for name, experiment in experiments.items()
            if experiment.search is not None
        }
        self._best: dict[str, tuple[str, list[dict[str, Any]]]] = {}
        self._look_at = 0.0
        self._durations: dict[str, deque[float]] = {}

    def changed(self, change: TaskChange) -> None:
        """A task went on, or ended."""
        closes = change.closes
        if closes is None or change.opens or closes.started_at is None or closes.reason in _CUT_SHORT:
            return
        known = self._durations.setdefault(change.experiment, deque(maxlen=_DURATIONS))
        known.append(max(closes.ended_at - closes.started_at, 0.0))

    def left_s(
        self, experiment: ExperimentState, progress: Mapping[tuple[str, int], TaskProgress], now: float
    ) -> float | None:
        """Seconds until all of its tasks will be over; None if unknown.

        Args:
            experiment: that runs.
            progress: of its tasks.
            now: Unix seconds.
        """
        known = self._durations.get(experiment.name)
        running = []
        for task in experiment.live.values():
            if task.state is State.RUNNING and task.started_at is not None:
                found = progress.get(task.key)
                running.append((max(now - task.started_at, 0.0), found.eta_s if found is not None else None))
        begun = sum(task.state in RUNNING_STATES for task in experiment.live.values())
        waiting = experiment.total - sum(experiment.ended.values()) - begun
        return left_s(running, waiting, known or ())

    def best(self) -> Mapping[str, tuple[str, Sequence[dict[str, Any]]]]:
        """Metric and best tasks of each search, the best one first; what runs counts with its last value."""
        if not self._searches:
            return self._best
        from trainmaster.service.runs.search_results import best_tasks

        began = time.monotonic()
        if began >= self._look_at:
            with suppress(StoreError):  # the picture is of what was known before
                for name, search in self._searches.items():
                    asked = search.model_dump(mode="json")
                    found = best_tasks(self._database, self._run, name, asked, SHOWN_BEST)
                    self._best[name] = search.metric, found
            took_s = time.monotonic() - began
            self._look_at = began + max(_LOOK_S, took_s / _MOST_SHARE)
        return self._best


def left_s(
    running: Sequence[tuple[float, float | None]], waiting: int, durations: Sequence[float]
) -> float | None:
    """Seconds until all tasks of an experiment will be over, as many at a time as now; None if unknown.

    >>> left_s([(10.0, 20.0), (5.0, None)], 4, [30.0, 30.0])
    82.5
    >>> left_s([(10.0, None)], 4, []) is None
    True

    Args:
        running: for how long tasks have run, and how long they will as they tell themselves, if they do.
        waiting: how many have not begun.
        durations: of tasks that have ended.
    """
    told = [age_s + rest_s for age_s, rest_s in running if rest_s is not None]
    each = list(durations) or told
    if not running or not each:
        return None
    mean_s = sum(each) / len(each)
    rests = [max(mean_s - age_s, 0.0) if rest_s is None else rest_s for age_s, rest_s in running]
    return max(max(rests), (sum(rests) + max(waiting, 0) * mean_s) / len(running))
