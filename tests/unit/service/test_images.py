"""The recipe of the run that makes an image, and the images of a home."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.quote.quote import Rented
from trainmaster.control.checks.preflight import check_parts
from trainmaster.control.decide.task import PhaseDuration
from trainmaster.control.loop.recording import RecordedPhase
from trainmaster.control.task.environment_hashes import environment_hashes, node_python, part_hash, setup_hash
from trainmaster.control.task.layout import Home
from trainmaster.db import Database
from trainmaster.providers.base import BakedImage
from trainmaster.service import images as images_module
from trainmaster.service.images import HomeImages, image_recipe
from trainmaster.service.open_home import OpenHome
from trainmaster.service.quotes.phase_records import ExperimentPhases, brought_seconds, phase_rows, phases_of
from trainmaster.spec import Strategy, read_recipe
from trainmaster.spec.errors import NotFoundError, UsageError

RECIPE = """
name: digits
provider: aws
objective: cheapest
notify: [{to: "true", by: command}]
data: {all: {url: https://example.org/d}}
experiments:
  train:
    framework: pytorch
    container: auto
    parameters: {lr: [0.1, 0.2]}
    env: {RATE: "{{lr}}", PIP_INDEX_URL: https://pypi.example.org}
    secrets: [TOKEN]
    distributed: {strategy: allreduce, workers: 4}
    hardware: {instance: m4.large, spot: true}
    setup: pip install -r needs.txt
    command: python train.py --lr {{lr}}
    retries: 3
  judge:
    data: {model: {from: train}}
    command: python judge.py
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "needs.txt").write_text("numpy")
    found = tmp_path / "recipe.yaml"
    found.write_text(RECIPE)
    return found


def test_of_several_places_the_first_has_the_image(path: Path) -> None:
    path.write_text(RECIPE.replace("provider: aws", "provider: [aws, slurm]"))
    made = image_recipe(path, [], None)
    assert (made.provider, made.places) == ("aws", ())


def test_its_run_puts_on_a_machine_what_the_recipe_needs_and_does_nothing_else(path: Path) -> None:
    recipe, made = read_recipe(path), image_recipe(path, [], None)
    check_parts(made)
    assert (made.name, made.bake, list(made.experiments)) == ("digits-image", True, ["train"])
    (train,) = made.experiments.values()
    assert (train.command, train.distributed, train.data, train.retries) == ("true", None, {}, 0)
    assert (train.env, train.secrets) == ({"PIP_INDEX_URL": "https://pypi.example.org"}, ("TOKEN",))
    assert train.hardware == recipe.experiments["train"].hardware
    wanted = environment_hashes([recipe.experiments["train"]], path.parent)
    assert environment_hashes([train], path.parent) == wanted, "a run of the recipe finds it"


def test_what_needs_no_image_and_who_makes_none_are_refused(path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to put into an image"):
        image_recipe(path, [], None, ["judge"])
    with pytest.raises(NotFoundError, match="no experiment 'tain'"):
        image_recipe(path, [], None, ["tain"])
    with pytest.raises(UsageError, match="its machines stay, and keep what `setup` made"):
        image_recipe(path, [], "hosts")


class FakeBaker:
    def __init__(self) -> None:
        self.kept = [
            BakedImage("ami-1", "r", "run-1", ("a",), team="red"),
            BakedImage("ami-2", "r", "run-2", ("a",), team="blue"),
        ]

    def bake(self, cluster: str, node: str, image: BakedImage) -> BakedImage:
        raise NotImplementedError

    def images(self) -> list[BakedImage]:
        return list(self.kept)

    def remove_image(self, image: str) -> bool:
        before = len(self.kept)
        self.kept = [one for one in self.kept if one.id != image]
        return len(self.kept) < before

    def check_settings(self) -> None: ...
    def check_up(self) -> None: ...
    def close(self) -> None: ...


def test_a_team_sees_and_removes_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    baker = FakeBaker()
    monkeypatch.setattr(images_module, "get_provider", lambda name, place: baker)
    home = Home(tmp_path, tmp_path / "cache", "", "")
    red = HomeImages(OpenHome(home), {}, lambda team: team == "red")
    assert [one["id"] for one in red.listed("lab")] == ["ami-1"]
    assert red.remove("ami-2") == []
    assert [one["run"] for one in red.remove("ami-1")] == ["run-1"]
    assert [one.id for one in baker.kept] == ["ami-2"]
    with pytest.raises(UsageError, match="hosts makes no images"):
        red.listed("hosts")


def test_a_quote_counts_the_setup_unless_an_image_saves_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    baker = FakeBaker()
    monkeypatch.setattr(images_module, "get_provider", lambda name, place: baker)
    database = Database(f"sqlite:///{tmp_path / 'trainmaster.db'}")
    home = Home(tmp_path, tmp_path / "cache", "", "")
    service = SimpleNamespace(home=home, team="red", database=database, place=OpenHome(home).place)
    rented = Rented("m4.large", 1, provider="aws", region="r")
    recipe = read_recipe(path)

    def found() -> ExperimentPhases:
        return phases_of(cast(Any, service), recipe, {})["train"]

    assert "counts 1 min for setup and container on its machines, a guess" in found().words(rented)
    train = recipe.experiments["train"]
    contents = {
        "setup": part_hash(setup_hash(train.setup or "", node_python(train), path.parent)),
        "image": part_hash(train.container or ""),
    }
    took = [PhaseDuration("setup", contents["setup"], 60.0), PhaseDuration("image", contents["image"], 14.0)]
    for number in range(20):
        phases = [RecordedPhase(f"r/train/0/{number}", "train", each, "m4.large", 1.0) for each in took]
        database.add_measurement(*phase_rows("r", phases))
    assert "train: counts 1 min 13 s for setup and container on its machines, as seen" in found().words(
        rented
    )
    assert brought_seconds(database, contents.values()) == 74.0
    content = environment_hashes([train], path.parent, "red")
    baker.kept.append(BakedImage("ami-3", "r", "run-3", content, is_ready=True, team="red"))
    assert "train: machines start from ami-3, without the 1 min 13 s" in found().words(rented)
    assert found().counted(Workload("train", Strategy.ALLREDUCE, 1, {})).prepared_in == {("aws", "r")}
    there, elsewhere = (found().beside("aws", region, "m4.large").before for region in ("r", "elsewhere"))
    assert sum(each.median for _, each in there) < 4
    assert sum(each.median for _, each in elsewhere) == pytest.approx(76, abs=2)
    warm = found().on_warm(None).beside("aws", "elsewhere", "m4.large").before
    assert sum(each.median for _, each in warm) < 4, "machines that an earlier run has kept"
    assert "counts" in found().words(replace(rented, region="elsewhere"))
    baker.kept[-1] = replace(baker.kept[-1], content=environment_hashes([train], path.parent, "blue"))
    assert "counts" in found().words(rented), "another team's is not taken"
    path.with_name("needs.txt").write_text("torch")
    assert "a guess" in found().words(rented), "of a setup that has changed nothing is known"
    assert not database.other_measurements("x"), "phases are no measurements of jobs"
