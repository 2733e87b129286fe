"""What a recipe asks of gates and promotions, and what a next driver knows, as the control loop has it."""

import time
from types import SimpleNamespace

import pytest

from trainmaster.control.loop.controller import Controller
from trainmaster.control.loop.loading import load_run_state, shape_of
from trainmaster.control.loop.run_state import RECORDED
from trainmaster.db import AcceptedRun, Database, TaskChange, tables
from trainmaster.executors.base import GangStatus, Phase
from trainmaster.spec import Recipe, read_recipe
from trainmaster.spec.states import State

SEARCH = "    search: {metric: loss, goal: min}\n"


@pytest.mark.parametrize(
    ("keys", "ranked", "goal"),
    [
        ("    require: {metric: loss, at_most: 1}\n", ("loss", True), "min"),
        ("    require: {metric: f1, at_least: 1}\n", ("f1", False), "max"),
        ("    require: {metric: f1, better_than: m@p, goal: max}\n" + SEARCH, ("loss", True), "max"),
        ("    require: {metric: loss, better_than: m@p}\n" + SEARCH, ("loss", True), "min"),
    ],
)
def test_the_model_that_is_judged_is_the_one_that_is_promoted(tmp_path, keys, ranked, goal):
    text = "experiments:\n  e:\n    command: echo {{x}}\n    parameters: {x: [1, 2]}\n"
    (tmp_path / "recipe.yaml").write_text(f"{text}{keys}    promote: m@p\n")
    shape = shape_of(read_recipe(tmp_path).experiments["e"], 2)
    assert (shape.gate.metric, shape.gate.smallest) == ranked
    assert (shape.promotes.metric, shape.promotes.smallest) == ranked
    assert shape.promotes.gate == shape.gate
    assert (shape.gate.requirement.goal, shape.gate.requirement.line) == (goal, 5)


def test_all_that_is_recorded_of_a_task_is_a_column():
    assert set(RECORDED) - {"experiment"} <= set(tables.task.c.keys())  # which comes by a join


@pytest.mark.parametrize("wrong_s", [-3600.0, 0.0, 3600.0])
@pytest.mark.parametrize("ahead_s", [-3600.0, 0.0, 3600.0])
def test_who_goes_on_with_an_attempt_does_not_count_for_how_long_a_nodes_clock_is_wrong(
    tmp_path, wrong_s, ahead_s
):
    """Nor how far the driver's own is from that of the record."""
    recipe, now = (
        Recipe.from_text("experiments: {main: {command: 'true'}}\n", directory=tmp_path),
        time.time(),
    )
    database = Database(f"sqlite:///{tmp_path}/t.db")
    new = AcceptedRun("r-1", "r", "{}", "r.yaml", "local", "code", "file:///s", [("main", 1)])
    lease = database.create_run(new, now)
    opens = TaskChange("main", 0, 1, State.WAITING, State.ACQUIRING, creates=True, opens=True)
    runs = TaskChange("main", 0, 1, State.ACQUIRING, State.RUNNING, fields={"started_at": now - 60 + wrong_s})
    database.commit(lease, [opens], now - 65)
    database.commit(lease, [runs], now - 60)
    gang = GangStatus("r-1/main/0/1", Phase.RUNNING, started_at=now - 60 + wrong_s)
    controller = Controller(
        database=database,
        lease=lease,
        run_state=load_run_state(database, "r-1", recipe, lambda _: 1),
        actions=SimpleNamespace(jobs=None, adopt=lambda _: None),
        executor=SimpleNamespace(observe=lambda _: [gang]),
        policies={},
        clock=lambda: now - ahead_s,
        wall=lambda: now,
    )
    controller._adopt()
    runs_for_s = controller.clock() - controller._running_since[gang.attempt]
    assert 0 <= runs_for_s <= 66
    database.close()
