"""Pictures that the server makes: where boxes and lines lie."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from trainmaster.web.figures import MAX_LINES, graph, parallel_coordinates
from trainmaster.web.recommend import workers_figure


def test_experiments_stand_right_of_what_they_wait_for():
    edges = {"a": [], "b": ["a"], "c": ["b", "a"], "d": []}
    found = graph([{"experiment": name, "after": after} for name, after in edges.items()])
    x = {box["experiment"]: box["x"] for box in found["boxes"]}
    assert x["a"] == x["d"] < x["b"] < x["c"]
    assert len({(box["x"], box["y"]) for box in found["boxes"]}) == 4, "none lies on another"
    assert len(found["arrows"]) == 3
    assert sum("L" in arrow for arrow in found["arrows"]) == 1, "what passes a box goes around it"
    assert graph([])["boxes"] == []


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
    (least, _) = parallel_coordinates(["lr", "loss"], rows, falls="lr")["axes"][0]["ticks"]
    assert (least["text"], least["y"]) == ("0.001", found["top"]), (
        "what is minimised has its least at the top"
    )


def test_values_that_are_no_numbers_do_not_break_a_picture():
    rows = [({"lr": float("nan"), "loss": None}, 0), ({"lr": True, "loss": 2.0}, 1)]
    assert parallel_coordinates(["lr", "loss"], rows) is not None


def test_the_time_of_machines_begins_at_zero_in_round_numbers():
    figure = workers_figure([{"workers": 1, "time_s": 0.5, "low_s": 0.4, "high_s": 0.6, "is_measured": True}])
    assert [tick.text for tick in figure["ticks"]] == ["0 s", "0.2 s", "0.4 s", "0.6 s"]
