"""`RunPicture`: what a picture of a run shows, as objects and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.service.runs.curves import ExperimentCurves, TaskCurves
from trainmaster.service.runs.search_results import SearchResults
from trainmaster.service.runs.task_reports import thinned
from trainmaster.spec.parameter import Parameter
from trainmaster.sweeps import Curve, Goal, SearchSpace, Trial, TrialState

if TYPE_CHECKING:
    from trainmaster.service.service import Service

#: Of one curve; more are not seen in a picture.
POINTS: Final = 2000


@dataclass(frozen=True, slots=True)
class RunPicture:
    """What the tasks of a run have reported.

    Attributes:
        searches: of its experiments that search.
        curves: of the others.
    """

    searches: list[SearchResults]
    curves: list[ExperimentCurves]

    @classmethod
    def of(cls, service: Service, run: str) -> RunPicture:
        """That of a run of a home."""
        searches = service.search_results(run)
        searched = {search.experiment for search in searches}
        curves = service.curves(run, most=POINTS)
        return cls(searches, [found for found in curves if found.name not in searched])

    def as_json(self) -> dict[str, Any]:
        """For JSON, with thinned curves; null is what is no number."""
        searches = [
            {
                "experiment": each.experiment,
                "metric": each.metric,
                "goal": each.goal.value,
                "space": {
                    "parameters": {
                        axis.name: axis.parameter.model_dump(mode="json") for axis in each.space.axes
                    },
                    "samples": each.space.samples,
                    "seed": each.space.seed,
                },
                "trials": [
                    {
                        "task": trial.number,
                        "parameters": dict(trial.parameters),
                        "state": trial.state.value,
                        "value": _number(trial.value),
                        "curve": _points(trial.curve),
                    }
                    for trial in each.trials
                ],
                "best": each.best,
            }
            for each in self.searches
        ]
        curves = [
            {
                "experiment": each.name,
                "tasks_in_all": each.count,
                "axis": each.axis,
                "tasks": [
                    {
                        "task": task.number,
                        "parameters": dict(task.parameters),
                        "bad": task.bad,
                        "metrics": {name: _points(curve) for name, curve in task.metrics.items()},
                    }
                    for task in each.tasks
                ],
            }
            for each in self.curves
        ]
        return {"searches": searches, "curves": curves}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> RunPicture:
        """The other way."""
        searches = []
        for each in found["searches"]:
            space = each["space"]
            parameters = {name: Parameter.model_validate(it) for name, it in space["parameters"].items()}
            trials = [
                Trial(it["task"], it["parameters"], TrialState(it["state"]), it["value"], _curve(it["curve"]))
                for it in each["trials"]
            ]
            searches.append(
                SearchResults(
                    each["experiment"],
                    each["metric"],
                    Goal(each["goal"]),
                    SearchSpace(parameters, space["samples"], space["seed"]),
                    trials,
                    each["best"],
                )
            )
        curves = []
        for each in found["curves"]:
            tasks = [
                TaskCurves(
                    it["task"],
                    it["parameters"],
                    it["bad"],
                    {name: _curve(points) for name, points in it["metrics"].items()},
                )
                for it in each["tasks"]
            ]
            curves.append(ExperimentCurves(each["experiment"], each["tasks_in_all"], tasks, each["axis"]))
        return cls(searches, curves)


def _points(curve: Curve) -> dict[str, list[float | None]]:
    kept = thinned(curve.steps, curve.values, POINTS)
    return {
        "steps": [curve.steps[index] for index in kept],
        "values": [_number(curve.values[index]) for index in kept],
    }


def _curve(points: Mapping[str, Any]) -> Curve:
    values = (math.nan if value is None else value for value in points["values"])
    return Curve(zip(points["steps"], values, strict=True))


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
