"""`settled_place`: which of several providers a run is on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_places import AWAY, FULL, RECIPE, REFUSED, SWEEP, have_places, open_places

from trainmaster.advisor.quote.infeasible import NoFeasibleQuote
from trainmaster.api.remote.asking import quote_of
from trainmaster.service.dry_run import dry_run
from trainmaster.service.models.registry import Registry
from trainmaster.service.places.checking import check_places
from trainmaster.service.places.place import Place, chosen
from trainmaster.service.places.settling import settled_place
from trainmaster.service.quotes.quote_options import QuoteOptions
from trainmaster.service.quotes.quote_service import Quoter
from trainmaster.service.renting import cheapest, kept_clusters
from trainmaster.service.run_planning import RunPlanner
from trainmaster.service.service import Service
from trainmaster.spec import Recipe
from trainmaster.spec.errors import RecipeError, UsageError
from trainmaster.spec.recipe_parts import named_places, parts_by_place
from trainmaster.web.rendering import part


def at_most(most: int) -> Callable[[int], float]:
    """A place that has so many machines."""

    def wait_s(nodes: int) -> float:
        if nodes > most:
            raise UsageError(f"it can never have {nodes}", "")
        return 0.0

    return wait_s


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """Of a home whose places all have one kind of machine."""
    with open_places(tmp_path) as found:
        yield found


@pytest.mark.parametrize(
    ("answers", "place", "said"),
    [
        ({"hosts": 0.0, "slurm": 0.0}, "hosts", ["hosts: 1 host, $0 an hour"]),
        ({"hosts": FULL, "slurm": 60.0}, "slurm", ["hosts: no, all hosts are in use", "waits 1 min"]),
        ({"hosts": FULL, "slurm": 7200.0, "ray": 0.0}, "ray", ["waits 2 h", "ray: 1 x seat, $0 an hour"]),
        ({"slurm": 7200.0, "ray": FULL}, "slurm", ["$0.5 an hour; waits 2 h", "which waits least"]),
        ({"slurm": AWAY, "ray": None}, "ray", ["does not answer", "it does not say"]),
        ({"slurm": REFUSED, "local": 0.0}, "local", ["no such partition", "local: this machine"]),
        ({"slurm": 7200.0, "local": 0.0}, "local", ["waits 2 h", "first that can begin in time"]),
    ],
)
def test_the_first_that_can_begin_in_time(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    answers: dict[str, float | Exception | None],
    place: str,
    said: list[str],
) -> None:
    """In the order of the recipe; a long queue only if there is nothing else. It becomes an override."""
    have_places(monkeypatch, answers)
    recipe = Recipe.from_text(RECIPE.format(places=", ".join(answers)))
    assert recipe.places == tuple(answers)
    assert recipe.provider == next(iter(answers))
    told: list[str] = []
    found = settled_place(service, recipe, {}, told.append)
    assert (found.provider, found.places, found.overrides[-1]) == (place, (), f"provider={place}")
    for words in said:
        assert any(words in line for line in told), told
    assert settled_place(service, found, {}, told.append) is found


@pytest.mark.parametrize(
    ("misses", "costs", "place", "why"),
    [
        ({"hosts"}, {"slurm": 0.0}, "slurm", "the first that can begin in time"),
        ({"hosts"}, {"slurm": 7200.0}, "slurm", "which waits least"),
        ({"slurm"}, {"hosts": FULL, "ray": 0.0}, "ray", "the first that can begin in time"),
        ({"slurm", "hosts"}, {}, "hosts", "as no place keeps its limits"),  # it costs nothing
        ({"slurm"}, {"hosts": FULL}, "slurm", "as no place keeps its limits"),  # it says what would do
    ],
)
def test_a_place_whose_quote_does_not_keep_the_limits_is_passed_over(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    misses: set[str],
    costs: dict[str, Any],
    place: str,
    why: str,
) -> None:
    """Like one without machines, with the reason; without limits there is no question."""

    quoted: list[str] = []

    def quote(_service: object, recipe: Recipe, *_: object) -> None:
        quoted.append(recipe.provider)
        if recipe.provider in misses:
            raise NoFeasibleQuote("no cluster keeps a deadline of 10 min with 90 %", "Nearest: 1 h.")

    monkeypatch.setattr("trainmaster.service.places.table._quote", quote)
    answers = {"slurm": 0.0, "hosts": 0.0} if misses >= {"slurm"} else {"hosts": 0.0, "slurm": 0.0}
    answers |= costs
    have_places(monkeypatch, answers)
    text = RECIPE.format(places=", ".join(answers))
    told: list[str] = []
    limited = text + "budget: {deadline: 10m}\n"
    assert settled_place(service, Recipe.from_text(limited), {}, told.append).provider == place
    for name in misses:
        assert f"place {name}: no, no cluster keeps a deadline of 10 min with 90 %" in told
    assert f"it runs on {place}, {why}" in told
    assert len(set(quoted)) == len(quoted), "one quote of each place"
    first = next(name for name, answer in answers.items() if answer == 0.0)
    assert settled_place(service, Recipe.from_text(text), {}, told.append).provider == first


def test_all_parts_in_one_place_are_there_though_all_at_once_would_wait_less_elsewhere(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its experiments begins in time there."""
    have_places(monkeypatch, {"slurm": 7200.0, "ray": lambda nodes: 9000.0 * (nodes > 1)})
    text = TWO.format(
        provider="provider: [slurm, ray]\nobjective: fastest",
        prepare="hardware: {cpus: 1}",
        train="hardware: {cpus: 2}",
    )
    told: list[str] = []
    found = settled_place(service, Recipe.from_text(text), {}, told.append)
    assert (found.provider, len(parts_by_place(found))) == ("ray", 1)
    assert told[-1] == "it runs on ray, the first that can begin in time"
    assert not [line for line in told if "nothing is known" in line], "no place begins all of it in time"


def test_no_place_would_give_it(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says why of each, and nothing was told before that it says."""
    have_places(monkeypatch, {"hosts": FULL, "slurm": AWAY})
    recipe = Recipe.from_text(RECIPE.format(places="hosts, slurm"))
    told: list[str] = []
    with pytest.raises(UsageError) as caught:
        settled_place(service, recipe, {}, told.append)
    assert not told
    assert "hosts: no, all hosts are in use\nslurm: no, it does not answer" in str(caught.value)


def test_what_a_list_may_be() -> None:
    """One name is as before; none, or one twice, is a mistake; `--provider` replaces it."""
    assert Recipe.from_text(RECIPE.format(places="hosts")).places == ()
    assert Recipe.from_text(RECIPE.format(places="hosts, slurm"), provider="local").places == ()
    for places in ("", "hosts, hosts"):
        with pytest.raises(RecipeError):
            Recipe.from_text(RECIPE.format(places=places))


def test_a_queue_that_does_not_say_how_long_it_is_comes_last() -> None:
    """It may take for ever."""
    first, second, third = Place("a", "m", wait_s=None), Place("b", "m"), Place("c", "m", wait_s=7200.0)
    assert chosen([first, second]) is second
    assert chosen([first, third]) is third
    assert chosen([first]) is first


def test_it_is_checked_for_each_place(service: Service) -> None:
    """One that could run it is enough; of the others it is said why not, and of all if none could."""
    (service.home.root / "hosts.yaml").unlink()
    notes = check_places(service, Recipe.from_text(RECIPE.format(places="hosts, local")), {})
    assert [note for note in notes if note.startswith("hosts: no, ")]
    big = RECIPE.replace("cpus: 1", "cpus: 5000")
    with pytest.raises(UsageError, match="no place would give") as caught:
        check_places(service, Recipe.from_text(big.format(places="hosts, local")), {})
    assert "\nhosts: no, " in str(caught.value)
    assert "\nlocal: no, " in str(caught.value)


@pytest.mark.parametrize(
    ("shared", "own", "note"),
    [
        ("provider: hosts", "provider: [slurm, ray]", "train at slurm: no, "),
        ("provider: [hosts, ray]", "retries: 0", "train at hosts: no, "),
    ],
)
def test_each_experiment_is_checked_for_each_of_its_places(
    service: Service, monkeypatch: pytest.MonkeyPatch, shared: str, own: str, note: str
) -> None:
    """As `run` asks them: slurm is not set up, and no host is large enough for the second."""
    (service.home.root / "slurm.yaml").unlink()
    (service.home.root / "ray.yaml").write_text("address: auto\nmachines:\n  seat: {cpus: 4, memory: 2GB}\n")
    have_places(monkeypatch, {"hosts": 0.0, "ray": 0.0})
    text = TWO.format(provider=shared, prepare="provider: hosts", train=f"{own}\n    hardware: {{cpus: 3}}")
    notes = check_places(service, Recipe.from_text(text), {})
    assert [each for each in notes if each.startswith(note)], notes
    with pytest.raises(UsageError, match="no place would give"):
        check_places(service, Recipe.from_text(text.replace("cpus: 3", "cpus: 5")), {})


def test_a_list_of_which_no_place_has_all_is_checked_for_each_experiment(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`run` would put each where it can be."""
    have_places(monkeypatch, {"slurm": 0.0, "ray": 0.0})
    (service.home.root / "slurm.yaml").write_text("machines:\n  small: {cpus: 2, memory: 8GB}\n")
    (service.home.root / "ray.yaml").write_text("address: auto\nmachines:\n  seat: {cpus: 4, memory: 2GB}\n")
    text = TWO.format(
        provider="provider: [slurm, ray]", prepare="hardware: {memory: 6GB}", train="hardware: {cpus: 3}"
    )
    notes = check_places(service, Recipe.from_text(text), {})
    assert [each[:19] for each in notes if " at " in each] == ["prepare at ray: no,", "train at slurm: no,"]


def test_machines_that_a_team_has_kept_are_its_own(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the owner are not there for it."""
    teams: list[str | None] = []
    monkeypatch.setattr(
        kept_clusters, "kept_clusters", lambda _service, _provider, team: teams.append(team) or iter(())
    )
    have_places(monkeypatch, {"slurm": 0.0})
    recipe = Recipe.from_text(RECIPE.format(places="slurm, local"))
    assert settled_place(service.of_team("red"), recipe, {}, lambda _: None).provider == "slurm"
    assert set(teams) == {"red"}


TWO = """\
name: places
{provider}
experiments:
  prepare:
    {prepare}
    command: "true"
  train:
    {train}
    command: "true"
    after: prepare
"""


@pytest.mark.parametrize(
    ("parts", "answers", "places"),
    [
        (
            {"provider": "provider: ray", "prepare": "provider: hosts"},
            {},
            {"prepare": ("hosts",), "train": ("ray",)},
        ),
        (
            {"provider": "provider: hosts", "train": "provider: [slurm, ray]"},
            {"slurm": 7200.0, "ray": 0.0},
            {"prepare": ("hosts",), "train": ("ray",)},
        ),
        # What a list of the run has cannot be had as a whole: each experiment goes where it can be.
        (
            {"provider": "provider: [hosts, ray]", "train": "hardware: {cpus: 3}"},
            {"hosts": 0.0, "ray": 0.0},
            {"prepare": ("hosts",), "train": ("ray",)},
        ),
        (
            {"provider": "provider: [hosts, ray]", "train": "hardware: {cpus: 3}"},
            {"hosts": FULL, "ray": 0.0},
            {"prepare": (), "train": ()},
        ),
    ],
)
def test_each_experiment_in_a_place_of_its_own(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    parts: dict[str, str],
    answers: dict[str, float | Exception | None],
    places: dict[str, tuple[str, ...]],
) -> None:
    """And all of it in one where that is the choice for each."""
    (service.home.root / "ray.yaml").write_text("address: auto\nmachines:\n  seat: {cpus: 4, memory: 2GB}\n")
    have_places(monkeypatch, {"hosts": 0.0, "ray": 0.0, **answers})
    read = Recipe.from_text(TWO.format(**{"prepare": "retries: 0", "train": "retries: 0", **parts}))
    found = settled_place(service, read, {}, lambda _: None)
    assert {name: each.provider for name, each in found.experiments.items()} == places
    again = Recipe.model_validate_json(found.model_dump_json())  # as a run keeps it
    assert [part.provider for part in parts_by_place(again)] == list(
        dict.fromkeys(sum(places.values(), ()))
    ) or ["ray"]
    offer = cheapest.offer_of_parts(service, again, {}, date(2026, 11, 27))
    assert len({plan.name for plan in offer.plans}) == len(offer.plans)
    assert {plan.provider for plan in offer.plans} == {part.provider for part in parts_by_place(again)}


@pytest.mark.parametrize(
    ("answers", "workers", "shares"),
    [
        ({"hosts": 0.0, "slurm": 0.0}, 1, {}),
        ({"hosts": 0.0, "slurm": 0.0}, 4, {"hosts": 1, "slurm": 3}),
        ({"hosts": FULL, "slurm": 0.0}, 4, {}),
        ({"hosts": 0.0, "slurm": AWAY, "ray": 0.0}, 3, {"hosts": 1, "ray": 2}),
        ({"hosts": 0.0, "slurm": lambda nodes: 7200.0 * (nodes > 2), "ray": 0.0}, 6,
         {"hosts": 1, "slurm": 2, "ray": 3}),
        ({"slurm": at_most(3), "ray": at_most(3)}, 6, {"slurm": 3, "ray": 3}),  # none ever has 6
        ({"slurm": at_most(0), "hosts": 0.0, "ray": at_most(3)}, 4, {"hosts": 1, "ray": 3}),
    ],
)  # fmt: skip
def test_a_sweep_spreads_over_the_places_that_give_something_in_time(
    service: Service, monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any], workers: int, shares: Any
) -> None:
    """The first ones first: all hosts, of a queue as many as it gives in time, then what is rented."""
    have_places(monkeypatch, answers)
    told: list[str] = []
    text = SWEEP.format(places=", ".join(answers), workers=workers)
    found = settled_place(service, Recipe.from_text(text), {}, told.append)
    assert found.experiments["train"].shares == shares
    assert len(told) == len(set(told))
    if not shares:
        assert len(parts_by_place(found)) == 1
        return
    plans = cheapest.offer_of_parts(service, found, {}, date(2026, 11, 27)).plans
    assert {plan.provider: plan.nodes for plan in plans} == shares
    assert [plan.experiments for plan in plans] == [("train",)] * len(plans)
    assert [plan.name for plan in plans][:2] == ["train", f"train-{plans[1].provider}"]
    assert named_places(found) == tuple(shares), "in this order they are filled"


@pytest.mark.parametrize(
    ("answers", "shares", "nodes"),
    [
        ({"slurm": 0.0, "ray": 0.0}, {}, 4),  # with a second gang it would be 8 machines, not 6
        ({"slurm": FULL, "ray": 0.0}, {}, 4),
    ],
)
def test_gangs_take_no_more_machines_than_are_asked_for(
    service: Service, monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any], shares: Any, nodes: int
) -> None:
    """What is left has no room for a whole one."""
    have_places(monkeypatch, answers)
    gang = "distributed: {workers: 4, per_node: 1}\n    command"
    text = SWEEP.format(places=", ".join(answers), workers=6).replace("command", gang)
    found = settled_place(service, Recipe.from_text(text), {}, lambda _: None)
    assert found.experiments["train"].shares == shares
    assert sum(plan.nodes for plan in cheapest.plans_of(service, found, {})) == nodes


def test_a_sweep_that_one_place_begins_in_part_does_not_wait_for_all_of_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on as many machines as that gives in time; with more tasks at a time than tasks, too."""
    have_places(monkeypatch, {"hosts": FULL, "slurm": lambda nodes: 7200.0 * (nodes > 3)})
    told: list[str] = []
    text = SWEEP.format(places="hosts, slurm", workers=9)
    found = settled_place(service, Recipe.from_text(text), {}, told.append)
    assert (found.provider, found.experiments["train"].workers) == ("slurm", 3)
    assert "experiments.train.workers=3" in found.overrides
    assert [plan.nodes for plan in cheapest.plans_of(service, found, {})] == [3]
    assert "train: its tasks are on 3 of 9 machines: more would wait" in told


def test_hosts_that_others_use_do_not_count(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4 hosts 3 are in use: the others of 6 machines are those of the next place."""
    (service.home.root / "hosts.yaml").write_text("hosts: [192.0.2.1, 192.0.2.2, 192.0.2.3, 192.0.2.4]\n")
    answers: dict[str, Any] = {"hosts": SimpleNamespace(free=1), "slurm": 0.0}
    have_places(monkeypatch, answers)
    told: list[str] = []
    text = SWEEP.format(places="hosts, slurm", workers=6)
    found = settled_place(service, Recipe.from_text(text), {}, told.append)
    assert found.experiments["train"].shares == {"hosts": 1, "slurm": 5}
    assert "place hosts: 1 host, $0 an hour" in told


def test_what_chooses_nothing_in_several_places_is_told(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`check`, and whatever plans."""
    have_places(monkeypatch, {"hosts": 0.0, "slurm": 0.0})
    gang = "retries: 0\n    steps: 9\n    batch: {global: 8}\n    distributed: {workers: 1..2}"
    text = TWO.format(
        provider="objective: fastest", prepare="provider: hosts", train=f"provider: slurm\n    {gang}"
    )
    recipe = Recipe.from_text(text)
    notes = check_places(service, recipe, {})
    assert [each.partition(": it is")[0] for each in notes if "only for runs in one place" in each] == [
        "objective: fastest",
        "train: distributed.workers: 1, the fewest",
    ]


def test_clusters_have_names_of_their_own(service: Service) -> None:
    """Also where an experiment is called like the cluster of another in a second place."""
    text = SWEEP.format(places="hosts", workers=2).replace("[hosts]", "hosts")
    text += "  train-slurm:\n    command: 'true'\n    provider: slurm\n    hardware: {cpus: 2}\n"
    recipe = Recipe.from_text(text)
    train = recipe.experiments["train"].model_copy(
        update={"provider": ("hosts", "slurm"), "shares": {"hosts": 1, "slurm": 1}}
    )
    recipe = recipe.model_copy(update={"experiments": {**recipe.experiments, "train": train}})
    names = [plan.name for plan in cheapest.plans_of(service, recipe, {})]
    assert names == ["train", "train-slurm-slurm", "train-slurm"]


def test_this_machine_is_a_place_for_whole_runs_only(service: Service) -> None:
    """And --provider chooses one for all that names another."""
    text = TWO.format(provider="provider: local", prepare="retries: 0", train="provider: hosts")
    with pytest.raises(RecipeError, match="provider: provider local is this machine"):
        check_places(service, Recipe.from_text(text), {})
    by_hand = Recipe.from_text(text, provider="hosts")
    assert named_places(by_hand) == ("hosts",)
    assert not by_hand.experiments["train"].provider
    own = Recipe.from_text(TWO.format(provider="", prepare="provider: hosts", train="provider: hosts"))
    assert (own.provider, named_places(own)) == ("hosts", ("hosts",))


def test_a_quote_of_several_places_has_each_part(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of the job here: the machines and tasks are, and when they start."""
    have_places(monkeypatch, {"hosts": 0.0, "ray": 0.0})
    read = Recipe.from_text(
        TWO.format(provider="provider: ray", prepare="provider: hosts", train="retries: 0")
    )
    planner = RunPlanner(service, {}, lambda _: None, lambda _: None, measures=False)
    made = planner.quote(read, QuoteOptions(measures=False))
    assert made.is_unknown
    assert made.unknown is not None
    assert made.time_s is None
    assert {row.place: row.tasks for row in made.places} == {"hosts": {"prepare": 1}, "ray": {"train": 1}}


def test_what_waits_in_a_queue_says_so_also_where_nothing_is_known_of_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts so soon only once its machines are there."""
    have_places(monkeypatch, {"slurm": 7200.0})
    recipe = Recipe.from_text(RECIPE.format(places="slurm"))
    planner = RunPlanner(service, {}, lambda _: None, lambda _: None, measures=False)
    made = planner.quote(recipe, QuoteOptions(measures=False))
    assert made.unknown is not None
    assert " (waits before that 2 h " in made.unknown.words()
    again = quote_of(made.as_dict()).unknown
    assert again is not None
    assert again.queue == made.unknown.queue


def test_a_quote_has_the_table_of_all_places(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of those after the one that is taken, and of those that would give nothing."""
    have_places(monkeypatch, {"slurm": AWAY, "hosts": 0.0, "ray": 7200.0})
    recipe = Recipe.from_text(RECIPE.format(places="slurm, hosts, ray"))
    planner = RunPlanner(service, {}, lambda _: None, lambda _: None, measures=False)
    made = planner.quote(recipe, QuoteOptions(measures=False))
    rows = {each["place"]: each for each in made.as_dict()["places"]}
    assert [each["why_not"] for each in rows.values()] == [
        "it does not answer", "", "it waits for more than 15 min",
    ]  # fmt: skip
    assert (rows["hosts"]["is_taken"], rows["ray"]["wait"]) == (True, "2 h in its queue")
    assert rows["hosts"]["time_s"] == made.as_dict()["total"]["time_s"]
    shown = part("place_table.html", places=made.places, caller=None)
    assert all(words in shown for words in ("it does not answer", "1 host", "2 h in its queue"))


def test_quotes_of_places_are_of_the_versions_of_models(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured is known by these: the choice, the table and a dry run ask for the same."""
    have_places(monkeypatch, {"hosts": 0.0, "ray": 0.0})
    version = {"name": "digits", "version": 3, "uri": "file:///nowhere"}
    monkeypatch.setattr(Registry, "version", lambda _self, _text: version)
    asked: list[tuple[str, str | None]] = []

    def quote(_self: Quoter, one: Recipe, *_: object) -> None:
        asked.append((one.provider, one.experiments["train"].data["m"].model))
        raise UsageError("nothing is known", "")

    monkeypatch.setattr(Quoter, "quote", quote)
    text = RECIPE.format(places="hosts, ray") + "    data: {m: {model: digits@prod}}\nobjective: fastest\n"
    planner = RunPlanner(service, {}, lambda _: None, lambda _: None, measures=False)
    with pytest.raises(UsageError, match="nothing is known"):
        planner.quote(Recipe.from_text(text), QuoteOptions(measures=False))
    asked.append(("dry run", "digits@3"))
    monkeypatch.setattr("trainmaster.service.dry_run.planned_requests", lambda *_: ([], []))
    dry_run(service, Recipe.from_text(text), {})
    of_dry_run = asked[asked.index(("dry run", "digits@3")) + 1 :]
    assert set(of_dry_run) == {("hosts", "digits@3"), ("ray", "digits@3")}
    asked.remove(("dry run", "digits@3"))
    assert set(asked) == {("hosts", "digits@3"), ("ray", "digits@3")}
