"""`until` and `target`: a bound of a metric, and what is said of a wrong one."""

from __future__ import annotations

import pytest

from trainmaster.spec import Recipe
from trainmaster.spec.errors import RecipeError
from trainmaster.spec.until import Until, stored_end

RECIPE = "name: r\nexperiments:\n  train:\n    until: {}\n    command: python train.py\n"


@pytest.mark.parametrize(
    ("words", "until"),
    [
        ("accuracy >= 0.9227", Until("accuracy", ">=", 0.9227)),
        ("val/loss<1e-3", Until("val/loss", "<", 0.001)),
        ("  loss <= -1 ", Until("loss", "<=", -1.0)),
        ("steps_done > 5", Until("steps_done", ">", 5.0)),
    ],
)
def test_a_metric_a_comparison_and_a_number(words, until):
    assert Until.of(words) == until
    assert Until.of(str(until)) == until
    found = Recipe.from_text(RECIPE.format(f"'{words}'")).experiments["train"]
    assert (found.until, found.ends_at) == (str(until), until)


@pytest.mark.parametrize(
    ("words", "column", "said"),
    [
        ("accuracy => 0.9", 21, "'=>' is no comparison"),
        ("accuracy = 0.9", 21, "'=' is no comparison"),
        ("accuracy >= high", 24, "'high' is no number"),
        ("accuracy >= nan", 24, "'nan' is no number"),
        ("accuracy >= 92.27 %", 24, "'92.27 %' is no number"),
        ("accuracy >=", 23, "no number after '>='"),
        ("accuracy", 20, "no comparison after 'accuracy'"),
        ("until it is good", 18, "no comparison after 'until'"),
        ("'>= 0.9'", 12, "no metric before '>= 0.9'"),
        ("7", 12, "no comparison after '7'"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_column(words, column, said):
    with pytest.raises(RecipeError) as caught:
        Recipe.from_text(RECIPE.format(words))
    (mistake,) = caught.value.mistakes
    assert (mistake.line, said in mistake.message) == (4, True), mistake
    assert mistake.column == pytest.approx(column, abs=3)
    assert "METRIC OP NUMBER" in mistake.message


def test_it_looks_at_numbers_only():
    until = Until("accuracy", ">=", 0.9)
    assert until.holds({"accuracy": 0.9})
    assert not any(until.holds({"accuracy": value}) for value in (0.89, None, "0.95", float("nan")))
    assert until.reached({"accuracy": 0.93, "step": 4}) == "until accuracy >= 0.9: accuracy is 0.93 at step 4"


def test_why_it_ended_nothing():
    until = Until("accuracy", ">=", 0.9)
    assert until.missed({"accuracy": 0.95}) == ""
    assert (
        until.missed({"accuracy": 0.5}) == "until accuracy >= 0.9 was not reached: the last accuracy is 0.5"
    )
    assert until.missed({}) == (
        "until accuracy >= 0.9 was never looked at: accuracy is not reported; nothing is reported"
    )


def _with_target(target: str, more: str = "") -> Recipe:
    return Recipe.from_text(
        f"name: r\nexperiments:\n  train:\n    target: {target}\n{more}    command: python train.py\n"
    )


@pytest.mark.parametrize(
    ("target", "until"),
    [
        ("{metric: accuracy, at_least: 0.92}", Until("accuracy", ">=", 0.92)),
        ("{metric: val_loss, at_most: 0.1}", Until("val_loss", "<=", 0.1)),
    ],
)
def test_a_target_ends_a_training_as_until_does(target, until):
    recipe = _with_target(target)
    found = recipe.experiments["train"]
    assert found.ends_at == until
    assert found.summary()["target"]["metric"] == until.metric
    assert stored_end(found.model_dump(mode="json")) == until
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe
    assert found.ends_at.reached({until.metric: until.value, "step": 4}).startswith(f"target {until}: ")


@pytest.mark.parametrize(
    ("target", "more", "line", "said"),
    [
        ("{metric: accuracy}", "", 4, "no value to reach; write at_least: N"),
        ("{metric: accuracy, at_least: 1, at_most: 2}", "", 4, "both of at_least and at_most"),
        ("{at_least: 0.9}", "", 4, "no `metric`; name the metric"),
        ("{metric: a, at_least: high}", "", 4, "'high'"),
        ("accuracy >= 0.9", "", 4, "write a mapping with the keys metric, at_least, at_most"),
        ("{metric: a, at_least: 1}", "    until: a > 1\n", 4, "both end the training"),
    ],
)
def test_a_wrong_target_is_told_with_its_line(target, more, line, said):
    with pytest.raises(RecipeError) as caught:
        _with_target(target, more)
    (mistake,) = caught.value.mistakes
    assert (mistake.line, said in mistake.message) == (line, True), mistake
