"""The table of all places of a recipe, and the choice by objective: by quotes that are there, pure."""

from __future__ import annotations

import pytest

from trainmaster.advisor.quote.quote import Interval, PlaceRow
from trainmaster.service.place_table import Place, QuotedPlace, table_of, taken_by_objective
from trainmaster.spec import Recipe

TEXT = "provider: [hosts, slurm, aws]\n{more}experiments: {{train: {{command: 'true'}}}}\n"


def quoted(name: str, time_s: float | None, usd: float, wait_s: float | None = 0.0) -> QuotedPlace:
    """One whose quote is so long and dear; None: nothing is known of the job."""
    spans = [Interval(0.9 * each, each, 1.2 * each) for each in (time_s or 60.0, usd)]
    row = PlaceRow(name, "2 x m", usd, spans[0], spans[1], is_unknown=time_s is None)
    return QuotedPlace(Place(name, "2 x m", usd, wait_s), row)


@pytest.mark.parametrize(
    ("objective", "places", "taken"),
    [
        ("", [("hosts", 900.0, 0.0), ("aws", 60.0, 2.0)], None),  # their order decides
        ("cheapest", [("hosts", 900.0, 0.0), ("aws", 60.0, 2.0)], "hosts"),
        ("fastest", [("hosts", 900.0, 0.0), ("aws", 60.0, 2.0)], "aws"),
        ("fastest", [("slurm", 100.0, 0.0, 300.0), ("aws", 200.0, 2.0)], "aws"),  # its wait counts
        ("cheapest", [("slurm", 100.0, 0.0), ("hosts", 90.0, 0.0)], "hosts"),  # as cheap, and faster
        ("cheapest", [("slurm", 100.0, 0.0, 7200.0), ("aws", 90.0, 2.0)], "aws"),  # begins in time
        ("cheapest", [("slurm", 100.0, 0.0, None), ("aws", 90.0, 2.0)], "aws"),
        ("{time: 1, cost: 100}", [("hosts", 900.0, 0.0), ("aws", 60.0, 2.0)], "aws"),
        ("fastest", [("hosts", None, 0.0), ("aws", None, 2.0)], None),  # nothing is known
        ("time-opt", [("hosts", 900.0, 0.0), ("aws", 60.0, 2.0)], None),
    ],
)
def test_an_objective_chooses_by_the_quotes(
    objective: str, places: list[tuple[str, float, float]], taken: str | None
) -> None:
    """Only if the recipe says one: `cheapest` is the default of what has one place."""
    more = f"objective: {objective}\n" if objective else ""
    found = taken_by_objective(Recipe.from_text(TEXT.format(more=more)), [quoted(*each) for each in places])
    assert (found and found.provider) == taken


def test_the_table_says_why_others_are_not_taken() -> None:
    """The wait is a column of its own; what is wrong with a quote stands in its row."""
    recipe = Recipe.from_text(TEXT.format(more=""))
    full = QuotedPlace(Place("hosts", refusal="none is free"), PlaceRow("hosts", why_not="none is free"))
    late = quoted("slurm", 100.0, 0.0, 7200.0)
    rows = table_of(recipe, [full, late, quoted("aws", 60.0, 2.0), quoted("lab", 60.0, 1.0)], ["aws"])
    assert [each.is_taken for each in rows] == [False, False, True, False]
    assert [each.why_not for each in rows] == [
        "none is free", "it waits for more than 15 min", "", "an earlier one begins in time",
    ]  # fmt: skip
    assert rows[2].cells == ("aws", "2 x m", "1 min (54 s to 1 min 12 s)", "$2.00 ($1.80 to $2.40)", "taken")
    assert [PlaceRow.of(each.as_dict()) for each in rows] == list(rows)
    misses = QuotedPlace(Place("aws", "m", misses="its deadline"), PlaceRow("aws", no_quote="its deadline"))
    assert table_of(recipe, [misses], [])[0].why_not == "it would not keep the budget or the deadline"
    by = Recipe.from_text(TEXT.format(more="objective: cheapest\n"))
    rows = table_of(by, [quoted("aws", 60.0, 2.0), quoted("lab", 60.0, 1.0)], ["lab"])
    assert rows[0].why_not == "it is not cheaper"


def test_an_objective_chooses_nothing_for_a_sweep_that_spreads() -> None:
    """A quote is of one place."""
    text = """\
name: sweep
provider: [slurm, aws]
objective: fastest
experiments:
  train:
    parameters: {x: [1, 2, 3, 4, 5, 6]}
    workers: 6
    command: "true"
"""
    places = [quoted("slurm", 100.0, 0.0), quoted("aws", 60.0, 2.0)]
    recipe = Recipe.from_text(text)
    assert taken_by_objective(recipe, places) is None
    assert table_of(recipe, places, ["slurm"])[1].why_not == "an earlier one begins in time"
    alone = taken_by_objective(Recipe.from_text(text.replace("workers: 6", "workers: 1")), places)
    assert alone == places[1].place


def test_a_row_of_another_version_is_read() -> None:
    """It may have keys that this one does not know, and lack others."""
    row = quoted("aws", 60.0, 2.0).row
    newer = row.as_dict() | {"carbon_g": 3.0}
    newer["time_s"] = newer["time_s"] | {"p99": 99.0}
    assert PlaceRow.of(newer) == row
    assert PlaceRow.of({"place": "aws"}) == PlaceRow("aws")
