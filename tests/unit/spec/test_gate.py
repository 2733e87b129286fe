"""What a gate decides: by numbers, with their words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.spec import Recipe
from trainmaster.spec.errors import RecipeError
from trainmaster.spec.gate import Baseline, Requirement, judge

NUMBERS = st.one_of(st.integers(-9, 9), st.floats(-2, 2))
BOUNDS = st.none() | st.floats(-2, 2)
ODD = st.sampled_from([None, float("nan"), float("inf"), "high", True])


def requirement(goal="max", line=12, **bounds):
    return Requirement(metric="accuracy", goal=goal, line=line, **bounds)


@pytest.mark.parametrize(
    ("bounds", "baseline", "holds", "words"),
    [
        ({"at_least": 0.92}, Baseline(), False, "accuracy 0.913 is below 0.92 (require, line 12)"),
        ({"at_least": 0.9}, Baseline(), True, "accuracy 0.913 is at least 0.9 (require, line 12)"),
        (
            {"at_most": 0.5, "goal": "min"}, Baseline(), False,
            "accuracy 0.913 is above 0.5 (require, line 12)",
        ),
        ({"at_least": 0.9, "line": 0}, Baseline(), True, "accuracy 0.913 is at least 0.9 (require)"),
        (
            {"at_least": 0.9, "better_than": "digits@production"}, Baseline(3, {"accuracy": 0.95}), False,
            "accuracy 0.913 is not better than 0.95 of digits@production (version 3) (require, line 12)",
        ),
        (
            {"at_least": 0.92, "at_most": 0.5, "better_than": "d@p"}, Baseline(3, {"accuracy": 0.95}), False,
            "accuracy 0.913 is below 0.92; is above 0.5; is not better than 0.95 of d@p (version 3) "
            "(require, line 12)",
        ),
        (
            {"better_than": "d@p"}, Baseline(), True,
            "accuracy 0.913 has nothing to be better than: there is no d@p yet (require, line 12)",
        ),
        (
            {"better_than": "d@p"}, Baseline(1, {"loss": 1}), False,
            "accuracy 0.913 cannot be compared: accuracy of d@p (version 1) is not known (require, line 12)",
        ),
        (
            {"better_than": "d@p"}, Baseline(1, {"accuracy": 0.913}, is_same=True), True,
            "accuracy 0.913 is that of d@p (version 1) itself (require, line 12)",
        ),
        (
            {"better_than": "d@p", "goal": "min"}, Baseline(1, {"accuracy": 0.95}), True,
            "accuracy 0.913 is better than 0.95 of d@p (version 1) (require, line 12)",
        ),
    ],
)  # fmt: skip
def test_the_message_has_the_numbers(bounds, baseline, holds, words):
    found = judge(requirement(**bounds), {"accuracy": 0.913, "step": 7}, baseline)
    assert (found.holds, found.message) == (holds, words)


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"loss": 1, "step": 2}, "accuracy was not reported; metrics seen: loss, step (require, line 12)"),
        ({}, "accuracy was not reported; metrics seen: none at all (require, line 12)"),
        ({"accuracy": None}, "accuracy is no finite number; metrics seen: accuracy (require, line 12)"),
    ],
)
def test_a_missing_metric_refuses_and_says_so(metrics, words):
    found = judge(requirement(better_than="digits@production"), metrics, Baseline())
    assert (found.holds, found.message) == (False, words)


@given(NUMBERS, BOUNDS, BOUNDS, st.none() | NUMBERS | ODD, st.sampled_from(["max", "min"]))
def test_it_holds_exactly_if_each_bound_does(value, least, most, theirs, goal):
    wanted = requirement(goal, at_least=least, at_most=most, better_than="d@p")
    is_number = isinstance(theirs, int | float) and not isinstance(theirs, bool) and abs(theirs) < 10
    better = is_number and (value < theirs if goal == "min" else value > theirs)
    expected = (least is None or value >= least) and (most is None or value <= most) and better
    found = judge(wanted, {"accuracy": value}, Baseline(1, {"accuracy": theirs}))
    assert found.holds == expected
    assert found == judge(wanted, {"accuracy": value}, Baseline(1, {"accuracy": theirs}))
    without = judge(wanted, {"accuracy": value}, Baseline())
    assert without.holds or not (expected and better), "no baseline is never harder than one"


@given(ODD, BOUNDS, NUMBERS)
def test_what_is_no_number_never_passes(value, least, theirs):
    wanted = requirement(at_least=least, better_than="d@p")
    assert not judge(wanted, {"accuracy": value}, Baseline(1, {"accuracy": theirs})).holds


@pytest.mark.parametrize(
    ("value", "least", "words"),
    [
        (0.9722222222222222, 0.95, "0.972222 is at least 0.95"),
        (0.91999999999, 0.92, "0.91999999999 is below"),
    ],
)
def test_a_number_has_as_many_digits_as_tell_it_from_its_bound(value, least, words):
    assert words in judge(requirement(at_least=least), {"accuracy": value}, Baseline()).message


def test_newest_is_no_alias_that_a_model_is_promoted_to(tmp_path):
    text = "name: a\nexperiments: {t: {command: 'true', promote: digits@%s}}"
    assert Recipe.from_text(text % "newest-one", directory=tmp_path).experiments["t"].promote
    with pytest.raises(RecipeError, match="digits@newest'; write a name and an alias"):
        Recipe.from_text(text % "newest", directory=tmp_path)
