"""`next_place`: where a run goes on that has no machines where it is, and what it asks for there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_places import AWAY, FULL, RECIPE, SWEEP, MovingRun, have_places, open_places

from trainmaster.cluster.renting.plan_clusters import pinned
from trainmaster.db.run_facts import put_fact
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.places.next_place import next_place
from trainmaster.service.places.settling import settled_place
from trainmaster.service.renting import cheapest
from trainmaster.service.service import Service
from trainmaster.spec import Recipe
from trainmaster.spec.errors import LeaseLostError, UsageError
from trainmaster.spec.facts import Fact, GangSize


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """Of a home whose places all have one kind of machine."""
    with open_places(tmp_path) as found:
        yield found


@pytest.mark.parametrize(
    ("answers", "budget", "place", "said"),
    [
        ({"slurm": 0.0, "ray": 0.0}, "total: $2", "slurm", "slurm: 1 x node, $0.5 an hour"),
        (
            {"slurm": 0.0, "ray": 0.0},
            "wait: 1h",
            "ray",
            "slurm: no, it costs, and `budget.total` does not say",
        ),
        ({"slurm": FULL, "ray": 7200.0}, "total: $2", "", "ray: 1 x seat, $0 an hour; waits 2 h"),
        ({"slurm": AWAY, "local": 0.0}, "total: $2", "local", "slurm: no, it does not answer"),
    ],
)
def test_the_next_place_when_there_are_no_machines_later(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    answers: dict[str, float | Exception | None],
    budget: str,
    place: str,
    said: str,
) -> None:
    """Of those that are left, in their order, that which begins in time; it costs no more than was said."""
    have_places(monkeypatch, {"hosts": 0.0, **answers})
    text = RECIPE.format(places=", ".join(["hosts", *answers])) + f"budget: {{{budget}}}\n"
    recipe = settled_place(service, Recipe.from_text(text), {}, lambda _: None)
    assert (recipe.provider, recipe.places_left) == ("hosts", tuple(answers))
    recipe = Recipe.model_validate_json(recipe.model_dump_json())  # as a run keeps it
    told: list[str] = []
    found = next_place(service, recipe, {}, "all are in use", told.append)
    assert any(said in line for line in told), told
    if not place:
        assert found is None
        return
    assert found is not None
    assert found.provider == place
    assert found.places_left == tuple(name for name in answers if name != place)
    assert found.places_given_up == ("hosts: all are in use",)
    if capabilities_of(place).costs and recipe.budget and recipe.budget.total_usd:
        assert next_place(service, recipe, {}, "", told.append, has_wallet=True) != found


GANG = """\
name: places
provider: [hosts, {place}]
budget: {{total: $2{per_hour}}}
experiments:
  train:
    command: "true"
    hardware: {{cpus: 2}}
    distributed: {{workers: 1}}
    retries: 3
    adapt: true
    steps: 10
"""


@pytest.mark.parametrize(
    ("place", "per_hour", "workers", "goes_on"),
    [
        ("slurm", "", 1, True),
        ("slurm", "", 3, True),
        ("slurm", ", per_hour: $1", 1, True),
        ("slurm", ", per_hour: $1", 3, False),
        ("local", "", 1, True),
    ],
)
def test_a_run_moves_with_the_present_size_of_its_gang(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    per_hour: str,
    workers: int,
    *,
    goes_on: bool,
) -> None:
    """For which there must be money; its record says how many machines that are."""
    (service.home.root / "hosts.yaml").write_text("hosts: [{address: 192.0.2.1}]\n")
    have_places(monkeypatch, {"hosts": 0.0, place: 0.0})
    run = MovingRun(service, GANG.format(place=place, per_hour=per_hour))
    if workers > 1:
        size = GangSize(workers, 0, 1.0, "")
        put_fact(service.database, run.session.lease, Fact.SIZE, "train/1", size.to_json())
    found = run.moved()
    assert (found is not None) == goes_on, run.told
    row = service.database.run_row("r")
    assert row["provider"] == (place if goes_on else "hosts")
    if found is None:
        return
    assert found.recipe.experiments["train"].distributed.workers == 1  # type: ignore[union-attr]
    records = {record.provider: record for record in run.records()}
    if place == "slurm":
        assert (records[place].plan.nodes, records[place].keep_s) == (workers, 60.0)


def test_a_run_that_others_drive_is_not_moved(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has is theirs."""
    have_places(monkeypatch, {"hosts": 0.0, "slurm": 0.0})
    run = MovingRun(service, GANG.format(place="slurm", per_hour=""))
    run.session.lease = replace(run.session.lease, token=run.session.lease.token - 1)
    with pytest.raises(LeaseLostError):
        run.moved()
    assert not run.finished


def test_what_was_planned_for_one_place_is_not_asked_of_the_next(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what the user wrote: a machine type or `per_node` that the first place had may not be there."""
    have_places(monkeypatch, {"hosts": 0.0, "slurm": 0.0})
    (service.home.root / "hosts.yaml").write_text("hosts: [{address: 192.0.2.1, slots: 8}]\n")
    text = GANG.format(place="slurm", per_hour="").replace("{workers: 1}", "{workers: 2}")
    read = Recipe.from_text(text.replace("cpus: 2", "cpus: 1"))
    recipe = settled_place(service, read, {}, lambda _: None)
    train = pinned(recipe, cheapest.plans_of(service, recipe, {})).experiments["train"]
    assert train.distributed is not None
    chosen = train.hardware.model_copy(update={"instance": ("host",)})  # as a policy does
    shape = train.distributed.model_copy(update={"per_node": 2})
    train = train.model_copy(update={"hardware": chosen, "distributed": shape})
    recipe = recipe.model_copy(update={"experiments": {"train": train}})
    recipe = Recipe.model_validate_json(recipe.model_dump_json())  # as a run keeps it
    found = next_place(service, recipe, {}, "", lambda _: None)
    assert found is not None
    assert found.experiments["train"] == read.experiments["train"]
    own = text.replace("cpus: 2", "cpus: 2, instance: host")  # no such machine in the next place
    recipe = settled_place(service, Recipe.from_text(own), {}, lambda _: None)
    assert next_place(service, recipe, {}, "", lambda _: None) is None


def waits_or_never(most: int, *, never: bool) -> Callable[[int], float]:
    """A place that has so many machines now; more of them wait, or are never there."""

    def wait_s(nodes: int) -> float:
        if never and nodes > most:
            raise UsageError(f"it can never have {nodes}", "")
        return 7200.0 * (nodes > most)

    return wait_s


@pytest.mark.parametrize("never", [False, True])
@pytest.mark.parametrize(("most", "workers"), [(9, 6), (4, 3), (0, None)])
def test_the_next_place_is_asked_for_all_nodes_of_a_sweep(
    service: Service, monkeypatch: pytest.MonkeyPatch, most: int, workers: int | None, *, never: bool
) -> None:
    """Also where the first one gave fewer; it gives fewer itself if all of them would wait."""
    answers = {"hosts": FULL, "slurm": lambda nodes: 7200.0 * (nodes > 2), "ray": 7200.0}
    have_places(monkeypatch, answers)
    text = SWEEP.format(places="hosts, slurm, ray", workers=6)
    recipe = settled_place(service, Recipe.from_text(text), {}, lambda _: None)
    assert (recipe.provider, recipe.experiments["train"].workers) == ("slurm", 1)
    have_places(monkeypatch, {**answers, "ray": waits_or_never(most, never=never)})
    told: list[str] = []
    found = next_place(service, recipe, {}, "it is full", told.append)
    assert (found and found.experiments["train"].workers) == workers, told
    if found is not None:
        again = [each for each in found.overrides if each.startswith("experiments.train.workers=")]
        assert again[-1] == f"experiments.train.workers={workers}"
