"""Conditions on runs: what is read, and where a mistake is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.spec.errors import UsageError
from trainmaster.spec.labels import joined, selecting
from trainmaster.spec.where import MOST_CHARACTERS, Both, Comparison, Has, Not, parse_where

A = Has("", "a")


def is_(name, operator, value, text=None, kind=""):
    return Comparison(kind, name, operator, value, text or str(value))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("loss<0.3", is_("loss", "<", 0.3)),
        ("lr == 1e-3", is_("lr", "=", 0.001, "1e-3")),
        ("val/loss >= -2", is_("val/loss", ">=", -2.0, "-2")),
        ("`my metric` != 2", is_("my metric", "!=", 2.0, "2")),
        ("`state` = 2", is_("state", "=", 2.0, "2")),
        ("metric:state < 1", is_("state", "<", 1.0, "1", "metric")),
        ("label:a = 5", is_("a", "=", "5", kind="label")),
        ("opt = 'a \\' b'", is_("opt", "=", "a ' b")),
        ('opt ~ "and"', is_("opt", "~", "and")),
        ("state = succeeded", is_("state", "=", "SUCCEEDED", "succeeded", "field")),
        ("cost > $5", is_("cost", ">", 5.0, "$5", "field")),
        ("age<36h", is_("age", "<", 129600.0, "36h", "field")),
        ("created >= 1970-01-02", is_("created", ">=", 86400.0, "1970-01-02", "field")),
        ("created < 1970-01-01T00:00:01+00:00",
         is_("created", "<", 1.0, "1970-01-01T00:00:01+00:00", "field")),
        ("NOT label:x", Not(Has("label", "x"))),
        ("a or b and not (c or d)",
         Both("or", (A, Both("and", (Has("", "b"), Not(Both("or", (Has("", "c"), Has("", "d"))))))))),
    ],
)  # fmt: skip
def test_what_is_read(text, found):
    assert parse_where(text) == found


@pytest.mark.parametrize(
    ("text", "column", "why"),
    [
        ("", 1, "it ends where a name"),
        ("loss <", 7, "it ends where 'loss'"),
        ("loss < x", 8, "'x' is no number"),
        ("loss < 'x'", 8, "'x' is no number"),
        ("a = 1 b = 2", 7, "'b' is one too many"),
        ("(a = 1 and b = 2", 17, "the bracket of column 1"),
        ("a = 1)", 6, "is one too many"),
        ("a = 'x", 5, "the ' is not closed"),
        ("foo:a = 1", 1, "metric:, param:, label: are"),
        ("label: = 1", 1, "a name is missing"),
        ("state = SUCCEDED", 9, "did you mean SUCCEEDED"),
        ("state = failed", 9, "what failed says why: USER_ERROR, NODE_LOST"),
        ("name < 3", 6, "'name' is a text"),
        ("label:a < 3", 9, "'a' is a text"),
        ("metric:a ~ x", 10, "looks for a text"),
        ("cost", 5, "every run has it"),
        ("cost < much", 8, "an amount such as"),
        ("created > 7d", 11, "age < 7d"),
        ("age < soon", 7, "a time such as"),
        ("not", 4, "it ends where a name"),
        ("(" * 60, 51, "brackets in each other"),
        ("3 < loss", 1, "write the name first"),
    ],
)
def test_mistakes_are_pointed_at(text, column, why):
    with pytest.raises(UsageError) as refused:
        parse_where(text)
    message = refused.value.args[0]
    assert f"column {column}: " in message
    assert why in message
    assert message.splitlines()[-1] == f"  {' ' * (column - 1)}^"


def test_one_that_is_too_long_is_refused():
    with pytest.raises(UsageError, match="Write at most"):
        parse_where("a" * (MOST_CHARACTERS + 1))


@given(st.text(alphabet="ab1 .<>=!~()'\"`\\:&|;-\n", max_size=30) | st.text(max_size=20))
def test_anything_is_read_or_refused(text):
    try:
        parse_where(text)
    except UsageError as error:
        assert error.hint  # noqa: PT017 - nothing else may come of it


@given(st.text(max_size=20).filter(str.isprintable))
def test_labels_of_any_value_can_be_asked_for(value):
    assert parse_where(selecting([f"a={value}"])) == is_("a", "=", value, value, "label").__class__(
        "label", "a", "=", value, value
    )


def test_labels_and_a_condition_both_hold():
    found = parse_where(joined("a = 1 or b = 2", ["x=1", "y!=2", "z"]))
    assert isinstance(found, Both)
    assert [type(part) for part in found.parts] == [Comparison, Comparison, Has, Both]
    with pytest.raises(UsageError, match="column 3"):
        joined("a )", ["x=1"])
    with pytest.raises(UsageError, match="--label =1: the key ''"):
        selecting(["=1"])
