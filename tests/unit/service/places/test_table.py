"""The table of all places of a recipe, and the choice by objective: by quotes that are there, pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from trainmaster.advisor.quote.infeasible import NoFeasibleQuote
from trainmaster.advisor.quote.interval import Interval
from trainmaster.advisor.quote.quote import PlaceRow, Quote
from trainmaster.service.places.place import Place
from trainmaster.service.places.table import PlaceTable, QuotedPlace, table_of, taken_by_objective
from trainmaster.service.quotes.quote_options import QuoteOptions
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError
from trainmaster.spec.recipe_parts import in_place

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


def test_an_objective_chooses_no_single_place_for_a_sweep_that_spreads() -> None:
    """See `test_spread.py` for what it chooses."""
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
    assert table_of(recipe, places, ["slurm"])[1].why_not == "it is not faster"
    alone = taken_by_objective(Recipe.from_text(text.replace("workers: 6", "workers: 1")), places)
    assert alone == places[1].place


class Job:
    """Quotes of one job; what was measured in one place is known for all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, too_long: set[str], *, is_known: bool) -> None:
        self.is_known, self.too_long = is_known, too_long
        self.options: list[QuoteOptions] = []
        self.asked: list[str] = []
        monkeypatch.setattr("trainmaster.service.places.table._quote", self.known)

    def known(self, _service: object, recipe: Recipe, _environ: object, options: QuoteOptions) -> Quote:
        """Nothing is measured."""
        self.options.append(options)
        self.asked.append(recipe.provider)
        if self.is_known and recipe.provider in self.too_long:
            raise NoFeasibleQuote("no cluster keeps a deadline of 10 min with 90 %", "Nearest: 1 h.")
        if not self.is_known:
            raise UsageError("nothing is known of it", "")
        span = Interval(60.0, 60.0, 60.0)
        return cast("Quote", FakeQuote(recipe.provider, span, span))

    def measured(self, recipe: Recipe) -> Quote:
        """It is known from then on."""
        self.is_known = True
        return self.known(None, recipe, {}, QuoteOptions())


@dataclass(frozen=True)
class FakeQuote:
    """As far as a row has it."""

    provider: str
    total_time_s: Interval
    total_cost_usd: Interval
    is_unknown: bool = False
    places: tuple[PlaceRow, ...] = ()


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> PlaceTable:
    monkeypatch.setattr(
        PlaceRow,
        "quoted",
        lambda row, made: replace(row, time_s=made.total_time_s, cost_usd=made.total_cost_usd),
    )
    recipe = Recipe.from_text(TEXT.format(more="budget: {deadline: 10m}\nobjective: fastest\n"))
    found = PlaceTable(cast("Any", None), recipe, {}, QuoteOptions(max_workers=4, fresh=True))
    found.places += [Place("hosts", "1 x host"), Place("aws", "1 x m", 2.0)]
    return found


def test_the_options_are_those_of_all_rows_and_each_place_is_quoted_once(
    table: PlaceTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(monkeypatch, set(), is_known=True)
    for place in table.places:
        table.with_limits(place)
    made = cast("Any", table.quote_of(in_place(table.recipe, "hosts"), lambda one: table.quote(one.provider)))
    assert [each.place for each in made.places] == ["hosts", "aws"]
    assert job.asked == ["hosts", "aws"]
    assert {(each.max_workers, each.measures, each.fresh) for each in job.options} == {(4, False, False)}


def test_another_place_is_taken_if_the_first_keeps_no_limit_once_it_is_measured(
    table: PlaceTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, nothing is known, so the order decides; the table says why the first is not taken."""
    job = Job(monkeypatch, {"hosts"}, is_known=False)
    made = cast("Any", table.quote_of(in_place(table.recipe, "hosts"), job.measured))
    assert made.provider == "aws"
    assert [each.why_not for each in made.places] == ["it would not keep the budget or the deadline", ""]


def test_where_no_place_keeps_the_limits_the_error_has_all_of_them(
    table: PlaceTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(monkeypatch, {"hosts", "aws"}, is_known=False)
    with pytest.raises(NoFeasibleQuote) as caught:
        table.quote_of(in_place(table.recipe, "hosts"), job.measured)
    lines = str(caught.value.args[0]).splitlines()
    assert lines[0] == "no cluster keeps a deadline of 10 min with 90 %"
    assert [line.partition(",")[0] for line in lines[1:]] == ["place hosts", "place aws"]


def test_where_all_wait_another_place_is_told_to_wait_no_longer() -> None:
    recipe = Recipe.from_text(TEXT.format(more=""))
    places = [quoted("slurm", 100.0, 0.0, 7200.0), quoted("ray", 60.0, 0.0, 3600.0)]
    rows = table_of(recipe, [*places, quoted("lab", 1.0, 1.0, None)], ["ray"])
    assert [each.why_not for each in rows] == ["another one waits no longer", "", "its queue may be longer"]


def test_a_row_of_another_version_is_read() -> None:
    """It may have keys that this one does not know, and lack others."""
    row = quoted("aws", 60.0, 2.0).row
    newer = row.as_dict() | {"carbon_g": 3.0}
    newer["time_s"] = newer["time_s"] | {"p99": 99.0}
    assert PlaceRow.of(newer) == row
    assert PlaceRow.of({"place": "aws"}) == PlaceRow("aws")


def test_a_recipe_that_was_settled_on_fewer_machines_is_quoted_so(
    table: PlaceTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def quote(_service: object, one: Recipe, *_: object) -> str:
        asked.append(one)
        return "quote"

    monkeypatch.setattr("trainmaster.service.places.table._quote", quote)
    plain = in_place(table.recipe, "aws")
    settled = plain.model_copy(update={"places_left": ("hosts",)})
    (name, main), *_ = plain.experiments.items()
    three = {**plain.experiments, name: main.model_copy(update={"workers": 3})}
    fewer = settled.model_copy(update={"experiments": three})
    for one in (settled, plain, fewer):
        assert cast("Any", table.quote_settled(one)) == "quote"
    assert asked == [plain, fewer]


def test_what_was_measured_meanwhile_is_known_in_all_rows(
    table: PlaceTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a run in several places, whose limits were looked at before; what is known is quoted once."""
    is_known, span = False, Interval(60.0, 60.0, 60.0)

    def quote(_service: object, one: Recipe, *_: object) -> FakeQuote:
        return FakeQuote(one.provider, span, span, is_unknown=not is_known)

    monkeypatch.setattr("trainmaster.service.places.table._quote", quote)
    assert table.quote("hosts").is_unknown
    is_known = True
    table.ask_again()
    made = table.quote("hosts")
    assert not made.is_unknown
    table.ask_again()
    assert table.quote("hosts") is made
