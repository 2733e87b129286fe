"""`RunPicture`: what a server sends of a run is drawn as at home."""

from __future__ import annotations

import json
import math

from trainmaster.service.runs.curves import ExperimentCurves, TaskCurves
from trainmaster.service.runs.run_picture import POINTS, RunPicture
from trainmaster.service.runs.search_results import SearchResults
from trainmaster.spec import Recipe
from trainmaster.sweeps import Curve, Goal, SearchSpace, Trial, TrialState

RECIPE = """
name: job
experiments:
  main:
    command: "true {{lr}} {{kind}} {{fixed}}"
    samples: 4
    parameters:
      lr: {range: [0.001, 0.1], sampling: log}
      kind: [a, b]
      fixed: 3
"""


def test_a_picture_survives_json(tmp_path):
    experiment = Recipe.from_text(RECIPE, directory=tmp_path).experiments["main"]
    space = SearchSpace(experiment.parameters, 4, 7)
    trials = [
        Trial(
            0, {"lr": 0.01, "kind": "a", "fixed": 3}, TrialState.COMPLETE, 0.5, Curve([(1, 1.0), (2, 0.5)])
        ),
        Trial(1, {"lr": 0.1, "kind": "b", "fixed": 3}, TrialState.FAILED, None, Curve([(1, math.nan)])),
        Trial(2, {"lr": 0.02, "kind": "b", "fixed": 3}, TrialState.PRUNED, math.inf),
    ]
    searches = [SearchResults("main", "loss", Goal("min"), space, trials, 0)]
    task = TaskCurves(3, {"x": 1}, True, {"loss": Curve([(0.5, 2.0)])})
    picture = RunPicture(searches, [ExperimentCurves("other", 9, [task], "epoch")])
    found = RunPicture.from_json(json.loads(json.dumps(picture.as_json(), allow_nan=False)))
    assert found.as_json() == picture.as_json()
    assert found.curves == picture.curves
    (search,) = found.searches
    assert [trial.curve for trial in search.trials] == [trial.curve for trial in trials]
    assert [axis.name for axis in search.space.free] == ["lr", "kind"]
    assert [axis.unit(0.01) for axis in search.space.free[:1]] == [space.free[0].unit(0.01)]
    assert search.space.draw(3) == space.draw(3)


def test_long_curves_are_thinned_and_keep_what_stands_out():
    curve = Curve((step, float(step == 7_777)) for step in range(9_000))
    task = TaskCurves(0, {}, False, {"loss": curve})
    sent = RunPicture([], [ExperimentCurves("main", 1, [task], "step")]).as_json()
    points = sent["curves"][0]["tasks"][0]["metrics"]["loss"]
    assert len(points["steps"]) <= POINTS
    assert max(points["values"]) == max(curve.values)
