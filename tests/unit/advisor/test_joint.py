"""Experiments that share machines wait for these, pay their minimum, and give them back once."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from trainmaster.advisor.quote.choosing import QuoteLimits
from trainmaster.advisor.quote.joint import plan
from trainmaster.advisor.quote.turns import Option, on_shared_machines, turns

#: Ten seconds until its machines are there, twenty of work, five to give back, at a dollar a second.
ONE = Option(
    np.array([35.0]),
    np.array([60.0]),
    cluster="m4.large",
    usd_per_hour=(3600.0, 0.0),
    coming_s=np.array([10.0]),
    leaving_s=5.0,
    rent_usd=lambda rented_s: np.maximum(rented_s, 60.0),
)


def whole(options, after, *, shares_machine=False):
    found = plan(
        {name: [option] for name, option in options.items()},
        dict.fromkeys(options, 0),
        after,
        QuoteLimits(),
        shares_machine,
    )
    return float(found.time_s[0]), float(found.cost_usd[0])


@pytest.mark.parametrize("after", [{"b": ["a"]}, {"a": ["b"]}, {}], ids=["b last", "a last", "in turn"])
def test_machines_that_are_shared_come_and_are_billed_once(after):
    assert whole({"a": ONE, "b": ONE}, after) == (10 + 20 + 20 + 5, 60.0)
    assert whole({"a": ONE, "b": ONE, "c": ONE}, after) == (10 + 3 * 20 + 5, 70.0)


def test_experiments_with_machines_of_their_own_are_as_they_were():
    other = replace(ONE, cluster="m5.large")
    assert whole({"a": ONE, "b": other}, {"b": ["a"]}) == (70.0, 120.0)
    assert whole({"a": ONE, "b": other}, {}) == (35.0, 120.0)
    assert whole({"a": ONE}, {}) == (35.0, 60.0)
    assert whole({"a": replace(ONE, cluster=None)} | {"b": replace(ONE, cluster=None)}, {}) == (35.0, 120.0)


def test_where_their_machines_have_room_they_run_side_by_side():
    half = replace(ONE, machines=2.0, fills=1.0)
    assert whole({"a": half, "b": half}, {}) == (10 + 20 + 5, 60.0)
    assert whole({"a": half, "b": half, "c": half}, {}) == (10 + 20 + 20 + 5, 60.0)
    assert whole({"a": half, "b": half}, {"b": ["a"]}) == (10 + 20 + 20 + 5, 60.0)


def test_side_by_side_they_share_the_cores_that_they_keep_busy():
    half = replace(ONE, machines=2.0, fills=1.0, busy=1.5)
    assert whole({"a": half, "b": half}, {}) == (10 + 1.5 * 20 + 5, 60.0)


def test_the_machines_of_the_largest_have_room_for_the_others():
    one, four = replace(ONE, machines=1.0, fills=1.0), replace(ONE, machines=4.0, fills=3.0)
    assert whole({"a": one, "b": four}, {}) == (35.0, 60.0)
    assert whole({"a": one, "b": four, "c": one}, {}) == (55.0, 60.0)


def test_what_is_between_two_that_share_is_waited_for():
    between = replace(ONE, cluster="m5.large")
    shared_s = 10 + 20 + 35 + 20
    found = whole({"a": ONE, "x": between, "b": ONE}, {"x": ["a"], "b": ["x"]})
    assert found == (shared_s + 5, shared_s + 60.0), "they are kept meanwhile"


def test_data_that_leaves_is_paid_for_by_each_and_the_dearest_machines_by_all():
    small = replace(ONE, cost_usd=np.array([31.0]), usd_per_hour=(1800.0, 0.0))
    small = replace(small, rent_usd=lambda rented_s: np.maximum(rented_s, 60.0) / 2)
    assert whole({"a": ONE, "b": small}, {"b": ["a"]}) == (55.0, 60.0 + 1.0)


def test_on_the_own_machine_nothing_is_waited_for_on_shared_machines():
    assert whole({"a": ONE, "b": ONE}, {}, shares_machine=True) == (70.0, 120.0)


def test_a_budget_counts_what_is_there_at_each_moment():
    found, waits_for = on_shared_machines({"a": ONE, "b": ONE}, {"b": ["a"]})
    assert waits_for == {"a": [], "b": ["a"]}
    assert [float(found[name].time_s[0]) for name in "ab"] == [30.0, 25.0]
    assert math.isclose(sum(float(found[name].cost_usd[0]) for name in "ab"), 60.0)


def test_who_has_waited_for_others_in_turn_is_waited_for_alone():
    """A joint plan of 100 experiments took 93 s of a processor: each waited for all that came before."""
    names = [f"e{i}" for i in range(100)]
    waits_for, beside = turns(dict.fromkeys(names, 1.0), {}, dict.fromkeys(names, 1.0), [names])
    assert all(waits_for[name] == [earlier] for earlier, name in itertools.pairwise(names))
    assert not any(beside.values())
