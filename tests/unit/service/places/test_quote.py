"""The quote of a sweep that spreads over several places: tasks, time, price and waits of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_places import SWEEP, have_places, open_places

from trainmaster.advisor.model.measurement import Measurement
from trainmaster.advisor.quote.interval import Interval
from trainmaster.advisor.quote.quote import (
    ClusterShape,
    ExperimentQuote,
    ExplainedPhase,
    PlaceRow,
    Quote,
    Rented,
)
from trainmaster.advisor.quote.unknown import stop_conditions
from trainmaster.advisor.quote.unknown_time import UnknownTime
from trainmaster.service.places.place import Place
from trainmaster.service.places.quote import quote_in_places
from trainmaster.service.places.settling import settled_place
from trainmaster.service.places.table import PlaceTable
from trainmaster.service.quotes.history import new_row
from trainmaster.service.quotes.profiling import Profiler
from trainmaster.service.quotes.quote_options import QuoteOptions, TaskShare
from trainmaster.service.quotes.quote_record import run_end_s
from trainmaster.service.renting import cheapest
from trainmaster.service.renting.plan_run import plan_run
from trainmaster.service.run_planning import RunPlanner
from trainmaster.service.service import Service
from trainmaster.spec import Recipe, read_recipe
from trainmaster.spec.errors import UsageError


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with open_places(tmp_path) as found:
        yield found


class Quoting:
    """A task takes so many seconds in each place, and a place 10 s to begin; `asked` has what was asked."""

    def __init__(self, seconds: dict[str, float], usd_per_hour: float = 0.5) -> None:
        self.seconds, self.usd_per_hour = seconds, usd_per_hour
        self.measurements = 1
        self.rise = 1.0
        self.unknown_at: tuple[str, ...] = ()
        self.asked: list[tuple[str, TaskShare]] = []

    def __call__(self, part: Recipe, options: QuoteOptions) -> Quote:
        name, share = next(iter(options.shares.items()))
        self.asked.append((part.provider, share))
        tasks = len(part.experiments[name].tasks(0)) if share.tasks is None else share.tasks
        time_s = 10.0 + self.seconds[part.provider] * -(-tasks // share.machines)
        usd = 0.0 if part.provider == "hosts" else self.usd_per_hour
        instance = (*part.experiments[name].hardware.instance, "host")[0]
        one = ExperimentQuote(
            name,
            ClusterShape(Rented(instance, share.machines, usd_per_hour=usd), at_once=share.machines),
            Interval(0.9 * time_s, time_s, 1.2 * time_s),
            Interval(*(each * usd * share.machines * time_s / 3600 for each in (0.9, 1.0, 1.2))),
            measurements=self.measurements,
            phases=(ExplainedPhase("machines", Interval(10, 10, 10), 0.0),),
            notes=(),
            end_usd=self.rise * usd * share.machines * run_end_s(part)(share.machines) / 3600,
        )
        unknown = None
        if not self.measurements or part.provider in self.unknown_at:
            unknown = UnknownTime(Interval(10, 10, 10))
            one = replace(one, time_s=None, cost_usd=None, measurements=0)
        return Quote(
            {name: one}, one.time_s, one.cost_usd, catalogue=part.provider, notes=("of all",), unknown=unknown
        )


def ask(_service: object, part: Recipe, _environ: object) -> Place:
    return Place(part.provider, "some", wait_s=30.0 if part.provider == "slurm" else 0.0)


def quoted(service: Service, monkeypatch: pytest.MonkeyPatch, quoting: Any, more: str = "") -> Quote:
    have_places(monkeypatch, {"hosts": 0.0, "slurm": 30.0})
    recipe = Recipe.from_text(SWEEP.format(places="hosts, slurm", workers=3) + more)
    settled = settled_place(service, recipe, {}, lambda _: None)
    plans = cheapest.plans_of(service, settled, {})
    return quote_in_places(settled, PlaceTable(service, recipe, {}), ask, quote=quoting, plans=plans)


def test_each_place_has_its_tasks_time_price_and_wait(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host makes three of six in the time in which two nodes, which begin later, make the others."""
    quoting = Quoting({"hosts": 60.0, "slurm": 100.0})
    made = quoted(service, monkeypatch, quoting)
    rows = {row.place: row for row in made.places}
    assert {name: row.tasks for name, row in rows.items()} == {"hosts": {"train": 3}, "slurm": {"train": 3}}
    assert rows["slurm"].machines == "2 x node"
    assert rows["slurm"].wait == "30 s in its queue"
    assert rows["hosts"].time_s is not None
    assert made.time_s is not None
    assert made.cost_usd is not None
    assert rows["hosts"].time_s.p50 == 190.0
    assert made.time_s.p50 == 210.0  # the last one ends there
    assert made.cost_usd.p50 == pytest.approx(2 * 0.5 * 210 / 3600)
    assert quoting.asked == [
        ("hosts", TaskShare(1)), ("slurm", TaskShare(2)),
        ("hosts", TaskShare(1, 3)), ("slurm", TaskShare(2, 3)),
    ]  # fmt: skip
    assert list(made.experiments) == ["train at hosts", "train at slurm"]
    assert (made.catalogue, made.notes) == ("slurm", ("of all",))


def test_a_sweep_of_which_nothing_is_known_is_shown_with_all_its_machines(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each place with those that a run takes there, also where all of it would be in that place."""
    rows = quoted(service, monkeypatch, None).places
    assert [(row.place, row.machines, row.usd_per_hour) for row in rows if row.is_taken] == [
        ("hosts", "1 x host", 0.0),
        ("slurm", "2 x node", 1.0),
    ]
    assert all(row.is_unknown for row in rows)


def test_a_run_in_several_places_has_an_estimate(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its user agrees to the price, which caps of teams rest on; else it is told when it starts."""
    quoting = Quoting({"hosts": 60.0, "slurm": 100.0})
    have_places(monkeypatch, {"hosts": 0.0, "slurm": 30.0})
    settled = settled_place(
        service, Recipe.from_text(SWEEP.format(places="hosts, slurm", workers=3)), {}, lambda _: None
    )
    monkeypatch.setattr(
        "trainmaster.service.places.table._quote", lambda _, part, __, how: quoting(part, how)
    )
    offer = plan_run(service, settled, {}, lambda _: None)  # type: ignore[arg-type, return-value]
    assert offer.quote is not None
    assert any(line.startswith("estimate: 3 min") for line in offer.lines), offer.lines
    assert offer.most_usd == pytest.approx(0.07)
    quoting.measurements = 0
    offer = plan_run(service, settled, {}, lambda _: None)  # type: ignore[arg-type, return-value]
    assert offer.quote is None
    assert any("how long it runs is not known, as nothing was measured" in line for line in offer.lines)


def test_what_it_tells_goes_to_scripts_and_back(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    made = quoted(service, monkeypatch, Quoting({"hosts": 60.0, "slurm": 100.0}))
    told = json.loads(made.to_json())
    again = [PlaceRow.of(each) for each in told["places"]]
    assert [each.cells for each in again] == [each.cells for each in made.places]
    assert told["total"]["time_s"]["p50"] == 210.0
    assert told["total"]["end_usd"] > 0.03, "what the page agrees to has it"
    assert made.places[0].cells[-1] == "taken: 3 tasks of train"
    assert made.places[1].cells[-1] == "taken: 3 tasks of train; waits 30 s in its queue"


def test_limits_that_all_places_together_may_exceed_are_said(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of several places is not refused for them: then it goes on where that costs nothing."""
    more = "budget: {total: $0.10, deadline: 4m}\n"
    made = quoted(service, monkeypatch, Quoting({"hosts": 60.0, "slurm": 400.0}), more)
    assert made.notes[:2] == (
        "it may take 8 min 12 s, and budget.deadline is 4 min",
        "it may cost $0.14, and budget.total is $0.10: no more is spent",
    )


@pytest.mark.parametrize(("total", "is_near"), [("$0.15", True), ("$0.20", False)])
def test_what_a_run_keeps_of_its_budget_for_its_end_counts(
    service: Service, monkeypatch: pytest.MonkeyPatch, total: str, is_near: bool
) -> None:
    made = quoted(
        service, monkeypatch, Quoting({"hosts": 60.0, "slurm": 400.0}), f"budget: {{total: {total}}}\n"
    )
    told = [note for note in made.notes if "budget.total" in note]
    assert bool(told) is is_near
    assert all(
        note.endswith("of budget.total ($0.15) is kept for its end: it may be ended before") for note in told
    )


def test_it_counts_at_the_highest_price_of_each_place(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    quoting = Quoting({"hosts": 60.0, "slurm": 100.0})
    cheap = quoted(service, monkeypatch, quoting)
    quoting.rise = 2.0
    assert quoted(service, monkeypatch, quoting).end_usd == pytest.approx(2 * cheap.end_usd)
    assert cheap.end_usd > 0.03


def test_what_is_not_known_of_one_place_leaves_all_of_it_without_an_interval_and_is_said(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    quoting = Quoting({"hosts": 60.0, "slurm": 100.0})
    quoting.unknown_at = ("slurm",)
    made = quoted(service, monkeypatch, quoting)
    assert (made.time_s, made.cost_usd, made.unknown) == (None, None, None)
    assert made.notes[0].startswith("nothing is known of train at slurm yet, so there is neither a time nor")


def test_what_ends_a_run_of_which_nothing_is_known_is_said_of_all_of_its_places(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    quoting = Quoting({"hosts": 60.0, "slurm": 100.0})
    quoting.measurements = 0
    made = quoted(service, monkeypatch, quoting, "budget: {total: $2}\n")
    assert made.unknown is not None
    assert made.unknown.ends == "budget.total ends it at $2.00", "its hosts cost nothing"


@pytest.mark.parametrize(
    ("prices", "said"), [([0.0], ""), ([0.5], ", after 4 h at most"), ([1.0, 0.5], ", after 4 h at most")]
)
def test_the_longest_run_that_a_budget_pays_for_is_on_its_cheapest_machine(
    prices: list[float], said: str
) -> None:
    """One experiment may wait for another: then they are not paid for at the same time."""
    recipe = Recipe.from_text('name: a\nbudget: {total: $2}\nexperiments: {main: {command: "true"}}\n')
    assert stop_conditions(recipe, prices) == (f"budget.total ends it at $2.00{said}" if said else "")


RUNS, SERVES = 'command: "true"', "serve: {command: x}"


def apart(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    quoting: Any,
    experiments: dict[str, str],
    *,
    fresh: bool = False,
) -> Quote:
    """Of experiments, each in a place of its own: the first on hosts, the second in Slurm."""
    have_places(monkeypatch, {"hosts": 0.0, "slurm": 0.0})
    pairs = zip(("hosts", "slurm"), experiments.items(), strict=True)
    lines = [f"  {name}: {{provider: [{place}], {what}}}\n" for place, (name, what) in pairs]
    recipe = Recipe.from_text("name: apart\nexperiments:\n" + "".join(lines))
    settled = settled_place(service, recipe, {}, lambda _: None)
    seen, options = PlaceTable(service, settled, {}), QuoteOptions(fresh=fresh)
    return quote_in_places(settled, seen, ask, quote=quoting, options=options)


def test_a_service_in_a_place_of_its_own_is_not_in_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it says so: a run with one is judged by no estimate, as it does not end when its tasks have."""
    made = apart(service, monkeypatch, Quoting({"hosts": 60.0}), {"train": RUNS, "api": SERVES})
    assert list(made.experiments) == ["train"]
    assert made.not_quoted.keys() == {"api"}
    assert made.notes[-1].startswith("api is not in this quote: it is a service")


def test_services_alone_have_no_quote(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="apart has services only"):
        apart(service, monkeypatch, Quoting({}), {"api": SERVES, "other": SERVES})


def test_each_experiment_is_measured_again_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is in another place than the first, too; a sweep over several only for the first of them."""
    measured = list[tuple[str, bool]]()

    class Again(Quoting):
        def __call__(self, part: Recipe, options: QuoteOptions) -> Quote:
            measured.append((part.provider, options.fresh))
            return super().__call__(part, options)

    both = {"train": RUNS, "other": RUNS}
    apart(service, monkeypatch, Again({"hosts": 60.0, "slurm": 60.0}), both, fresh=True)
    assert measured == [("hosts", True), ("slurm", True)]
    measured.clear()
    settled = Recipe.from_text(SWEEP.format(places="hosts, slurm", workers=3))
    settled = settled_place(service, settled, {}, lambda _: None)
    quoting = Again({"hosts": 60.0, "slurm": 60.0})
    seen, options = PlaceTable(service, settled, {}), QuoteOptions(fresh=True)
    quote_in_places(settled, seen, ask, quote=quoting, options=options)
    assert [fresh for _, fresh in measured] == [True, False, False, False]


@pytest.mark.parametrize("is_run", [False, True], ids=["quote", "measure-first"])
def test_places_are_settled_again_once_the_job_was_measured(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_run: bool
) -> None:
    """The order of its places decided while nothing was known; the run that follows goes by the objective."""
    have_places(monkeypatch, {"hosts": 0.0, "slurm": 0.0})
    path = tmp_path / "recipe.yaml"
    path.write_text(SWEEP.format(places="hosts, slurm", workers=3) + "objective: cheapest\n")
    recipe, measured = read_recipe(path), list[str]()

    def measure(_self: Profiler, one: Recipe, *_: object) -> None:
        measured.append(one.provider)
        key = service.measurements(one)["train"].fingerprint
        seen = Measurement(None, duration_s=60.0, startup_s=1.0, measured_at=1.0)
        service.database.add_measurement(new_row("profile", key, "train", None, seen))

    monkeypatch.setattr(Profiler, "measure", measure)
    told = list[str]()
    planner = RunPlanner(service, {}, told.append, lambda _: None)
    made = planner.measured_first(recipe) if is_run else planner.quote(recipe, QuoteOptions())
    assert measured == ["hosts"]
    assert "train: its tasks spread over 3 machines: 1 on hosts, 2 on slurm" in told
    assert [row.place for row in made.places if row.is_taken] == ["hosts"], [row.cells for row in made.places]
    assert made.cost_usd is not None
    assert made.cost_usd.p95 == 0.0
    assert planner.plan(recipe, allow_stale=False, can_agree=True).recipe.provider == "hosts"
