"""Pictures that the server makes: where boxes, bands and lines lie."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from trainmaster.web.figures import MAX_LINES, bands, graph, parallel_coordinates

QUOTED = {"p5": 50.0, "p50": 60.0, "p95": 100.0}


def status(seconds, **more):
    cost = {"p5": 0.0, "p50": 1.0, "p95": 2.0}
    return {"seconds": seconds, "cost_usd": 0.5, "quote": {"time_s": QUOTED, "cost_usd": cost}, **more}


def test_experiments_stand_right_of_what_they_wait_for():
    edges = {"a": [], "b": ["a"], "c": ["b", "a"], "d": []}
    found = graph([{"experiment": name, "after": after} for name, after in edges.items()])
    x = {box["experiment"]: box["x"] for box in found["boxes"]}
    assert x["a"] == x["d"] < x["b"] < x["c"]
    assert len({(box["x"], box["y"]) for box in found["boxes"]}) == 4, "none lies on another"
    assert len(found["arrows"]) == 3
    assert sum("L" in arrow for arrow in found["arrows"]) == 1, "what passes a box goes around it"
    assert graph([])["boxes"] == []


def test_a_band_fills_up_and_says_when_it_is_left():
    time, cost = bands(status(50.0, driver={"pid": 1}), cap_usd=4.0)
    assert time["at"] == time["left"]
    assert time["left"] + time["width"] == pytest.approx(100 / 1.1, abs=0.02)
    assert (time["grows"], time["is_beyond"], time["cap"]) == (
        pytest.approx(100 / 110, abs=1e-4),
        False,
        None,
    )
    assert cost["cap"] == pytest.approx(100 / 1.1, abs=0.01)
    late, _ = bands(status(200.0), cap_usd=None)
    assert (late["is_beyond"], late["grows"]) == (True, None), "nobody drives it: its time stands still"
    assert max(late["at"], late["left"] + late["width"]) <= 100
    small = {"p5": 0.0046, "p50": 0.0055, "p95": 0.0069}
    _, cost = bands(
        {**status(50.0), "cost_usd": 0.0073, "quote": {**status(50.0)["quote"], "cost_usd": small}}, None
    )
    assert (cost["now"], cost["low"], cost["high"]) == ("$0.0073", "$0.0046", "$0.0069"), "not all one cent"
    assert bands({"seconds": 1.0, "cost_usd": 0.0}, None) == []


def test_what_was_waited_is_not_of_the_time_that_was_quoted():
    waits = status(207.0, queued_s=200.0, driver={"pid": 1}, queued={"waits_for": "2 cores"})
    time, _ = bands(waits, None)
    assert (time["now"], time["is_beyond"], time["grows"]) == ("7 s", False, None)


def test_lines_lie_by_value_by_logarithm_and_by_word():
    rows = [
        ({"lr": lr, "kind": kind, "loss": 1.0}, 0) for lr, kind in ((0.001, "x"), (0.01, "y"), (1.0, "z"))
    ]
    found = parallel_coordinates(["lr", "kind", "loss", "absent"], rows)
    assert [axis["name"] for axis in found["axes"]] == ["lr", "kind", "loss"]
    third = (found["bottom"] - found["top"]) / 3
    places = [float(line["path"].split(" ")[1]) for line in found["lines"]]
    assert places == pytest.approx([found["bottom"], found["bottom"] - third, found["top"]], abs=0.1)
    assert [tick["text"] for tick in found["axes"][1]["ticks"]] == ["x", "y", "z"]
    assert len({tick["y"] for tick in found["axes"][2]["ticks"]}) == 1
    many = parallel_coordinates(["lr", "loss"], rows * MAX_LINES)
    assert len(many["lines"]) == MAX_LINES
    assert parallel_coordinates(["lr"], rows) is None


def test_values_that_are_no_numbers_do_not_break_a_picture():
    rows = [({"lr": float("nan"), "loss": None}, 0), ({"lr": True, "loss": 2.0}, 1)]
    assert parallel_coordinates(["lr", "loss"], rows) is not None
