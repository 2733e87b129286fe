"""The search of one experiment: what the sampler and the pruner are told of the board."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
from control_nouns import experiment, run_state

from trainmaster.control.checks.preflight import check_parts
from trainmaster.control.loop.loading import LOOKAHEAD, shape_of
from trainmaster.control.loop.run_state import Task
from trainmaster.control.loop.searching import Searcher, keeps_results
from trainmaster.db.changes import TaskChange
from trainmaster.spec import Experiment as RecipeExperiment
from trainmaster.spec import Parameter, Recipe, Search
from trainmaster.spec.errors import UsageError
from trainmaster.spec.states import EndReason, State
from trainmaster.sweeps import Curve
from trainmaster.sweeps.earlier import ended_trial, to_json

XY = {"x": Parameter(range=("-5", "5")), "y": Parameter(range=("-5", "5"))}


def recipe_experiment(samples=40, parameters=None, **search):
    given = {"metric": "loss", "goal": "min", "sampler": "tpe", **search}
    return RecipeExperiment(
        name="e", command="true", parameters=parameters or XY, samples=samples, search=Search(**given)
    )


def searcher(found, curves=None):
    def read_curve(task):
        assert curves is not None
        return Curve(curves[task.number])

    return Searcher(found, 0, read_curve)


def change(number, before, after, reason=None, creates=False, **fields):
    return TaskChange("e", number, 0, before, after, reason, fields=fields, creates=creates)


def planned(columns, number):
    return change(number, State.WAITING, State.PLANNED, creates=True, **columns)


def ended(number, loss, reason=EndReason.SUCCEEDED):
    stopping = change(number, State.PLANNED, State.STOPPING, metrics={"step": 1, "loss": loss})
    return [stopping, change(number, State.STOPPING, State.DONE, reason)]


def a_search(count, found):
    """A board on which so many trials have been through a search of their own, two at a time."""
    own, tested = searcher(found), experiment("e", total=count, results={})
    whole = run_state(tested)
    for number in range(count):
        whole.apply(planned(own.columns(tested, number), number))
        late = number - 1
        if late >= 0:
            values = tested.live[late].parameters
            loss = None if late % 7 == 3 else values["x"] ** 2 + values["y"] ** 2
            reason = EndReason.USER_ERROR if late % 5 == 4 else EndReason.SUCCEEDED
            for step in ended(late, loss, reason):
                whole.apply(step)
    return tested


def test_a_new_controller_suggests_the_same_as_the_old_one():
    pytest.importorskip("optuna")
    found = recipe_experiment()
    tested = a_search(25, found)
    old = searcher(found)
    for number in range(10, 26):  # the board as it was: later ones are not looked at
        assert old.columns(tested, number) == searcher(found).columns(tested, number)
    # through the database and back
    for task in [*tested.results.values(), *tested.live.values()]:
        task.parameters = json.loads(json.dumps(task.parameters))
    assert searcher(found).columns(tested, 25) == old.columns(tested, 25)


@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
def test_a_search_that_goes_on_suggests_what_the_earlier_one_would_have_tried_next(sampler):
    pytest.importorskip("optuna" if sampler == "tpe" else "cmaes")
    whole = recipe_experiment(samples=40, sampler=sampler)
    tested = a_search(21, whole)
    for number, task in list(tested.live.items()):  # the last one has ended, too
        task.end_reason, task.metrics = EndReason.SUCCEEDED, {"step": 1, "loss": 1.5}
        tested.results[number] = tested.live.pop(number)
    asked = searcher(whole).columns(tested, 21)
    rows = [tested.results[number] for number in range(21)]
    kept = to_json([ended_trial(t.number, t.parameters, t.end_reason, t.metrics, "loss") for t in rows])
    rest = recipe_experiment(samples=19, sampler=sampler, goes_on="r-1/e@21")
    again = Searcher(rest, 0, lambda _: Curve(), kept)
    empty = experiment("e", total=19, results={})
    assert again.columns(empty, 0) == asked
    assert (
        Searcher(recipe_experiment(samples=19, sampler=sampler), 0, lambda _: Curve()).columns(empty, 0)
        != asked
    )


def test_results_are_kept_only_where_somebody_learns_from_them():
    assert keeps_results(recipe_experiment())
    assert keeps_results(recipe_experiment(sampler="random", pruner="asha"))
    assert not keeps_results(recipe_experiment(sampler="random"))
    assert not keeps_results(recipe_experiment(sampler="qmc", pruner="none"))
    assert not keeps_results(RecipeExperiment(name="e", command="true"))


@pytest.mark.parametrize(
    ("sampler", "window"),
    [("tpe", 4), ("cmaes", 4), ("random", 4 + LOOKAHEAD), ("qmc", 4 + LOOKAHEAD)],
)
def test_a_sampler_that_looks_back_is_asked_when_a_task_can_start(sampler, window):
    assert shape_of(recipe_experiment(sampler=sampler), 4).window == window


def progress(points):
    return SimpleNamespace(curve=Curve(points))


def test_a_running_task_is_judged_against_running_finished_and_failed_ones():
    found = recipe_experiment(sampler="random", pruner="asha", options={"min_steps": "1"})
    tested = experiment("e", total=4, results={})
    whole = run_state(tested)
    for number in range(4):
        whole.apply(planned({"parameters": {}}, number))
    for step in [*ended(0, 0.1), *ended(1, 0.9, EndReason.PRUNED)]:
        whole.apply(step)
    judge = searcher(found, {0: [(1, 0.3), (2, 0.2), (3, 0.1)], 1: [(1, 0.9)]})
    running = {2: progress([(1, 0.2)]), 3: progress([(1, 0.4)])}
    verdicts = judge.judge(tested, running)
    assert set(verdicts) == {3}
    assert "loss 0.4 at step 1 is number 3 of 4" in verdicts[3]
    assert judge.judge(tested, running) == {}, "nothing new"
    assert set(searcher(found, {0: [(1, 0.3), (2, 0.2)], 1: [(1, 0.9)]}).judge(tested, running)) == {3}


def test_what_ended_under_an_earlier_controller_but_is_not_saved_yet_counts():
    found = recipe_experiment(sampler="random", pruner="asha", options={"min_steps": "1"})
    tested = experiment("e", total=2, results={}, created=2)
    tested.live = {0: Task("e", 0, State.SAVING, attempt=1), 1: Task("e", 1, State.RUNNING, attempt=1)}
    judge = searcher(found, {0: [(1, 0.1)]})
    assert set(judge.judge(tested, {1: progress([(1, 0.4)])})) == {1}


def test_nan_in_the_store_is_a_value():
    pytest.importorskip("optuna")
    found = recipe_experiment()
    tested = a_search(8, found)
    trial = searcher(found)._trial(tested, 3)
    assert math.isnan(trial.value)
    assert trial.has_value
    assert not searcher(found)._trial(tested, 4).has_value, "it failed"


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ({"sampler": "tpf"}, "tpe"),
        ({"pruner": "mean"}, "asha, forecast, hyperband, median, none"),
        ({"options": {"minsteps": "1"}, "pruner": "asha"}, "'min_steps'"),
    ],
)
def test_preflight_names_what_is_known(search, words):
    recipe = Recipe(name="r", experiments={"e": recipe_experiment(**search)})
    with pytest.raises(UsageError, match=rf"(?s)experiments\.e\.search.*{words}"):
        check_parts(recipe)
