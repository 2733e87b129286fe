"""`Searcher`: the search of one experiment, between the run's tasks and what `trainmaster.sweeps` knows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from trainmaster.control.loop import run_state
from trainmaster.spec import Experiment, Search
from trainmaster.spec.states import State
from trainmaster.sweeps import Curve, Trial, TrialState, make_pruner, make_sampler, sampler_class
from trainmaster.sweeps.earlier import ended_trial, from_json

if TYPE_CHECKING:
    from trainmaster.control.measure.progress import TaskProgress

#: It has run under an earlier controller, and will not be seen to run again soon.
_ENDING = (State.SAVING, State.RECOVERING, State.STOPPING)


class Searcher:
    """Chooses the parameters of new tasks and judges running ones; the run's tasks are all it remembers.

    Args:
        experiment: with a ``search``.
        seed: the recipe's.
        read_curve: what all attempts of a task that is over have reported, from their files.
        earlier: trials of the run with which it goes on, as `trainmaster.sweeps.earlier` keeps them; the
            sampler sees them before its own, pruners do not: their curves are not known.

    Attributes:
        chooses: parameters are chosen when a task is planned; otherwise they are known beforehand.
        prunes: running tasks are judged.
    """

    def __init__(
        self,
        experiment: Experiment,
        seed: int,
        read_curve: Callable[[run_state.Task], Curve],
        earlier: str = "",
    ) -> None:
        assert experiment.search is not None
        self._first = experiment.search.earlier_count
        self._earlier = from_json(earlier) if earlier else ()
        self._metric = experiment.search.metric
        self.chooses = experiment.search.chooses_later
        self._sampler = make_sampler(experiment, seed) if self.chooses else None
        self._pruner = make_pruner(experiment.search)
        self.prunes = self._pruner is not None
        self._read_curve = read_curve
        self._ended: dict[int, Trial] = {}
        self._curves: dict[int, Curve] = {}
        self._final: dict[int, Trial] = {}
        self._judged: dict[int, float] = {}

    def columns(self, experiment: run_state.ExperimentState, number: int) -> Mapping[str, object] | None:
        """The columns of a new task; None if it has to wait for others."""
        assert self._sampler is not None
        first, history = self._first, list[Trial]()
        if self._sampler.looks_back:
            own = (self._trial(experiment, at) for at in range(number))
            history = [*self._earlier, *(replace(each, number=first + each.number) for each in own)]
        suggestion = self._sampler.ask(history, first + number)
        if suggestion is None:
            return None
        found: dict[str, object] = {"parameters": suggestion.parameters}
        if (
            suggestion.parent is None or suggestion.parent < first
        ):  # checkpoints of the earlier run are not its own
            return found
        return {**found, "parent": suggestion.parent - first}

    def judge(
        self, experiment: run_state.ExperimentState, running: Mapping[int, TaskProgress]
    ) -> dict[int, str]:
        """Which tasks are to be pruned, and why; looks only at those that have reported something new."""
        verdicts: dict[int, str] = {}
        if self._pruner is None:
            return verdicts
        curves = {number: found.curve for number, found in running.items() if found.curve is not None}
        self._curves.update(curves)
        for number, curve in curves.items():
            judged = self._judged.get(number, -math.inf)
            if not len(curve) or curve.last_step <= judged:
                continue
            self._judged[number] = curve.last_step
            own = Trial(number, {}, TrialState.RUNNING, None, curve)
            others = [self._with_curve(experiment, at) for at in range(experiment.created) if at != number]
            why = self._pruner.verdict(own, others, judged)
            if why:
                verdicts[number] = f"{self._metric} {why}"
        return verdicts

    def _trial(self, experiment: run_state.ExperimentState, number: int) -> Trial:
        """A trial with the last point of its curve: the same, whether it was seen to end or loaded."""
        known = self._ended.get(number)
        if known is not None:
            return known
        task = (experiment.results or {}).get(number)
        if task is None:
            return Trial(number, experiment.live[number].parameters)
        assert task.end_reason is not None
        found = ended_trial(number, task.parameters, task.end_reason, task.metrics, self._metric)
        self._ended[number] = found
        return found

    def _with_curve(self, experiment: run_state.ExperimentState, number: int) -> Trial:
        known = self._final.get(number)
        if known is not None:
            return known
        trial = self._trial(experiment, number)
        if trial.is_over:
            # The last lines may have been written after the last look; or an earlier controller saw them.
            self._curves.pop(number, None)
            curve = self._read_curve((experiment.results or {})[number])
            final = Trial(number, trial.parameters, trial.state, trial.value, curve)
            self._final[number] = final
            return final
        if number not in self._curves and experiment.live[number].state in _ENDING:
            self._curves[number] = self._read_curve(experiment.live[number])
        return Trial(number, trial.parameters, trial.state, trial.value, self._curves.get(number, Curve()))


def keeps_results(experiment: Experiment) -> bool:
    """True if somebody learns from the tasks of an experiment that are over."""
    search = experiment.search
    return search is not None and (make_pruner(search) is not None or looks_back(search))


def looks_back(search: Search) -> bool:
    """True if its sampler learns from the tasks that are over before it chooses the next one."""
    return search.chooses_later and sampler_class(search.sampler).looks_back
