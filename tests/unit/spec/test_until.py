"""`until`: a bound of a metric, and what is said of a wrong one."""

from __future__ import annotations

import pytest

from trainmaster.spec import Recipe
from trainmaster.spec.errors import RecipeError
from trainmaster.spec.until import Until

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
