"""What a recipe asks of gates and promotions, as the control loop has it."""

import pytest

from trainmaster.control.loop.loading import shape_of
from trainmaster.control.loop.run_state import RECORDED
from trainmaster.db import tables
from trainmaster.spec import read_recipe

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
