"""A sweep over several places with an objective: quotes say how many machines of which place it takes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_places import SWEEP, have_places, open_places

from trainmaster.advisor.quote.infeasible import NoFeasibleQuote
from trainmaster.service.places.settling import settled_place
from trainmaster.service.renting import cheapest
from trainmaster.service.service import Service
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError
from trainmaster.spec.recipe_parts import parts_by_place

SLURM = """\
machines:
  node: {cpus: 2, memory: 2GB, usd_per_hour: 0.5}
  big: {cpus: 8, memory: 8GB, usd_per_hour: 2}
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with open_places(tmp_path) as found:
        (tmp_path / "home" / "slurm.yaml").write_text(SLURM)
        yield found


def have_quotes(monkeypatch: pytest.MonkeyPatch, known: dict[str, tuple[float, float, str]]) -> list[Any]:
    """Of one task in each place: seconds, dollars and the machine; a gang is quicker with two workers."""
    asked = []

    def quote(_service: object, recipe: Recipe, *_: object) -> Any:
        if not known:
            return SimpleNamespace(is_unknown=True, experiments={})
        if recipe.provider not in known:
            raise UsageError("no length", "")
        name, each = next(iter(recipe.experiments.items()))
        asked.append((recipe.provider, each.distributed and each.distributed.workers))
        task_s, usd, instance = known[recipe.provider]
        workers = 1
        if each.distributed is not None:
            size = each.distributed.workers
            workers = size if isinstance(size, int) else 2 if recipe.provider == "slurm" else 1
            task_s, usd = task_s / workers, usd * 1.5 ** (workers - 1)
        at_once = max((each.workers or 1) // workers, 1)
        tasks = len(each.tasks(recipe.seed))
        worker = SimpleNamespace(instance=instance, count=at_once * workers)
        time_s, cost_usd, budget = task_s * -(-tasks // at_once), usd * tasks, recipe.budget
        if budget and (time_s > _or(budget.deadline_s) or cost_usd > _or(budget.total_usd)):
            raise NoFeasibleQuote("no cluster keeps it", "")
        one = SimpleNamespace(
            cluster=SimpleNamespace(worker=worker, workers=workers, at_once=at_once, usd_per_hour=0.0),
            time_s=SimpleNamespace(p50=time_s),
            cost_usd=SimpleNamespace(p50=cost_usd),
            end_usd=0.0,
        )
        return SimpleNamespace(is_unknown=False, experiments={name: one}, cost_usd=one.cost_usd)

    monkeypatch.setattr("trainmaster.service.places.table._quote", quote)
    return asked


def _or(limit: float | None) -> float:
    return math.inf if limit is None else limit


@pytest.mark.parametrize(
    ("more", "places", "nodes"),
    [
        ("objective: cheapest", {"hosts": 1}, {"host": 1}),
        ("objective: fastest", {"slurm": 6}, {"big": 6}),
        ("objective: cheapest\nbudget: {deadline: 4m}", {"hosts": 1, "slurm": 5}, {"host": 1, "big": 5}),
        ("objective: fastest\nbudget: {total: $1.10}", {"hosts": 1, "slurm": 5}, {"host": 1, "big": 5}),
    ],
)
def test_each_place_gives_the_machines_that_its_quote_says(
    service: Service, monkeypatch: pytest.MonkeyPatch, more: str, places: dict[str, int], nodes: Any
) -> None:
    """As many of them as are best for the whole sweep, and of the type that is quoted.

    Of the last two rows one place alone does not keep the limit, which both do together.
    """
    have_places(monkeypatch, {"hosts": 0.0, "slurm": 0.0})
    have_quotes(monkeypatch, {"hosts": (200.0, 0.0, "host"), "slurm": (30.0, 0.2, "big")})
    told: list[str] = []
    text = SWEEP.format(places="hosts, slurm", workers=6) + more + "\n"
    found = settled_place(service, Recipe.from_text(text), {}, told.append)
    again = Recipe.model_validate_json(found.model_dump_json())  # as a run keeps it
    assert tuple(part.provider for part in parts_by_place(again)) == tuple(places)
    plans = cheapest.offer_of_parts(service, again, {}, date(2026, 11, 27)).plans
    assert {plan.provider: plan.nodes for plan in plans} == places
    if len(places) > 1:
        types = {plan.provider: plan.roles[0].rentals[0].instance_type for plan in plans}
        assert types["slurm"] == "big"
        assert not any("objective" in line for line in cheapest.left_out_of_parts(again))
        assert any("by the quotes of its places: about" in line for line in told)


def test_an_objective_is_said_to_choose_nothing_only_for_what_it_has_not_chosen() -> None:
    """Own hosts have no types of machines, and quotes have chosen them."""
    more = '  other:\n    command: "true"\nobjective: fastest\n'
    recipe = Recipe.from_text(SWEEP.format(places="hosts, slurm", workers=6) + more)
    sweep, other = recipe.experiments["train"], recipe.experiments["other"]
    for picks, told in (({}, "objective: fastest: "), ({"hosts": ""}, "other: objective: fastest: ")):
        experiments = {
            "train": sweep.model_copy(update={"provider": ("hosts",), "picks": picks}),
            "other": other.model_copy(update={"provider": ("slurm",)}),
        }
        placed = recipe.model_copy(update={"places": (), "provider": "hosts", "experiments": experiments})
        (line,) = cheapest.left_out_of_parts(placed)
        assert line.startswith(told)
        assert not any(
            each.hardware.instance for part in parts_by_place(placed) for each in part.experiments.values()
        )


def test_without_a_quote_their_order_decides(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    have_places(monkeypatch, {"hosts": 0.0, "slurm": 0.0})
    have_quotes(monkeypatch, {})
    told: list[str] = []
    text = SWEEP.format(places="hosts, slurm", workers=6) + "objective: fastest\n"
    found = settled_place(service, Recipe.from_text(text), {}, told.append)
    assert found.experiments["train"].shares == {"hosts": 1, "slurm": 5}
    assert "train: nothing is known of it yet, so the order of its places decides" in told


def test_a_second_sweep_has_what_the_first_one_leaves_of_a_total(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_places(monkeypatch, {"hosts": 0.0, "slurm": 0.0})
    have_quotes(monkeypatch, {"hosts": (200.0, 0.0, "host"), "slurm": (30.0, 0.2, "big")})
    first, sweep = SWEEP.format(places="hosts, slurm", workers=6).split("  train:\n")
    text = f"{first}  train:\n{sweep}  again:\n{sweep}objective: fastest\nbudget: {{total: $1.30}}\n"
    found = settled_place(service, Recipe.from_text(text), {}, lambda _: None)
    assert {name: each.provider for name, each in found.experiments.items()} == {
        "train": ("slurm",),
        "again": ("hosts",),
    }


def test_a_sweep_has_what_the_other_experiments_leave_of_a_total(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that come later in the recipe: $0.20 of $1.30 are for it, as in the rows above."""
    have_places(monkeypatch, {"hosts": 0.0, "slurm": 0.0})
    have_quotes(monkeypatch, {"hosts": (200.0, 0.0, "host"), "slurm": (30.0, 0.2, "big")})
    text = SWEEP.format(places="hosts, slurm", workers=6) + "objective: fastest\nbudget: {total: $1.30}\n"
    other = '  other:\n    provider: slurm\n    command: "true"\n'
    before, after = text.split("objective")
    for more, shares in ((other, {"hosts": 1, "slurm": 5}), ("", {})):
        found = settled_place(
            service, Recipe.from_text(f"{before}{more}objective{after}"), {}, lambda _: None
        )
        assert found.experiments["train"].shares == shares


def test_what_no_places_keep_together_is_said(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    have_places(monkeypatch, {"hosts": 0.0, "slurm": 0.0})
    have_quotes(monkeypatch, {"hosts": (200.0, 0.0, "host"), "slurm": (30.0, 0.2, "big")})
    told: list[str] = []
    text = SWEEP.format(places="hosts, slurm", workers=6) + "objective: cheapest\nbudget: {deadline: 10s}\n"
    settled_place(service, Recipe.from_text(text), {}, told.append)
    why = "there is no quote (hosts: no cluster keeps it; slurm: no cluster keeps it)"
    assert f"train: {why}, so the order of its places decides" in told


def test_what_is_known_and_cannot_be_quoted_is_said(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that nothing is known."""
    have_places(monkeypatch, {"hosts": 0.0, "slurm": 0.0})
    have_quotes(monkeypatch, {"elsewhere": (1.0, 0.0, "big")})
    told: list[str] = []
    text = SWEEP.format(places="hosts, slurm", workers=6) + "objective: fastest\n"
    settled_place(service, Recipe.from_text(text), {}, told.append)
    why = "there is no quote (hosts: no length; slurm: no length)"
    assert f"train: {why}, so the order of its places decides" in told


def test_all_gangs_of_a_sweep_have_the_size_that_is_best_for_all(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each place is quoted with the sizes that the others would take, too."""
    have_places(monkeypatch, {"slurm": 0.0, "ray": 0.0})
    asked = have_quotes(monkeypatch, {"slurm": (60.0, 0.2, "big"), "ray": (80.0, 0.1, "seat")})
    gang = "steps: 9\n    batch: {global: 8}\n    distributed: {workers: 1..2, per_node: 1}\n    command"
    text = SWEEP.format(places="slurm, ray", workers=4).replace("command", gang) + "objective: cheapest\n"
    found = settled_place(service, Recipe.from_text(text), {}, lambda _: None)
    shape = found.experiments["train"].distributed
    assert shape is not None
    assert (found.provider, shape.workers, shape.span) == ("ray", 1, "1..2")
    assert ("ray", 2) in asked
