"""What renting would send, as a user of Infrastructure Manager sees it before anything is asked."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainmaster.control.task.layout import Home
from trainmaster.service.dry_run import dry_run
from trainmaster.service.service import Service
from trainmaster.spec import read_recipe
from trainmaster.spec.errors import UsageError

PRICES = """\
provider,region,instance_type,vcpus,memory_gib,gpu,gpus,price_usd_per_hour,as_of
im,sized,any*,16,128,V100,2,1.50,{day}
im,sized,little*,2,4,,,0.04,{day}
im,named,cpu.small,2,4,,,0.05,{day}
im,named,gpu.2xV100,16,128,V100,2,1.90,{day}
"""
RECIPE = """
name: job
provider: im
experiments:
  train:
    distributed:
      strategy: ps-async
      workers: 2
      parameter_servers: 1
      hardware: {{ps: {{cpus: 2, region: {region}}}}}
    framework: plain
    hardware: {{gpu: V100, region: {region}{more}}}
    command: "true"
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Nobody answers at the address of Infrastructure Manager."""
    (tmp_path / "prices.csv").write_text(PRICES.format(day=datetime.now(UTC).date()))
    credentials = tmp_path / "im.auth"
    credentials.touch(0o600)
    credentials.write_text(
        "type = InfrastructureManager; username = me; password = p\n"
        "id = sized; type = OpenNebula; host = one.example; username = u; password = p\n"
        "id = named; type = OpenStack; host = https://keystone.example; username = u; password = p\n"
    )
    file = tmp_path / "im.yaml"
    file.write_text(
        "url: http://127.0.0.1:9\nprices: prices.csv\nclouds:\n"
        "  named: {image: 'ost://k/1', gpu_image: 'ost://k/2'}\n  sized: {image: 'one://o/1'}\n"
    )
    return {"TRAINMASTER_HOME": str(tmp_path / "home"), "TRAINMASTER_IM": str(file)}


def shown(tmp_path: Path, environ: dict[str, str], **recipe: str) -> tuple[list[str], list[str]]:
    """The documents, and the notes."""
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(**{"more": ""} | recipe))
    with closing(Service.from_environment(environ)) as service:
        plan = dry_run(service, read_recipe(path), environ)
    assert [each["member"] for each in plan["processes"]] == ["worker-0", "worker-1", "ps-0"]
    return [each["parameters"]["radl"] for each in plan["requests"]], plan["notes"]


def test_two_gpus_per_machine_and_parameter_servers_on_another_kind(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    (worker, server), _ = shown(tmp_path, environ, region="named")
    assert "instance_type = 'gpu.2xV100' and" in worker
    assert "disk.0.image.url = 'ost://k/2'" in worker
    assert "instance_type = 'cpu.small' and" in server
    assert "disk.0.image.url = 'ost://k/1'" in server


def test_where_clouds_have_no_types_number_and_model_of_gpus_are_asked_for(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    (worker, server), _ = shown(tmp_path, environ, region="sized")
    assert "cpu.count >= 16 and\n  memory.size >= 131072M and" in worker
    assert "gpu.count >= 2 and\n  gpu.model = 'V100' and" in worker
    assert "gpu" not in server
    assert "instance_type" not in worker + server


def test_spot_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    with pytest.raises(
        UsageError, match=r"hardware.spot: provider im rents no spot machines: what Infra.*it has none"
    ) as refused:
        shown(tmp_path, environ, region="named", more=", spot: true")
    assert "on demand" in str(refused.value.hint)


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "jax", "mpi", "ray", "spark", "plain"])
def test_processes_of_this_machine_and_no_value_of_a_secret(tmp_path: Path, framework: str) -> None:
    (tmp_path / "recipe.yaml").write_text(
        "secrets: [PIN]\nenv: {A: b}\nexperiments:\n  train:\n    command: echo {{lr}}\n"
        f"    parameters: {{lr: [0.1, 0.2]}}\n    framework: {framework}\n    distributed: {{workers: 2}}\n"
    )
    environ = {"TRAINMASTER_HOME": str(tmp_path / "home"), "PIN": "1234567"}
    service = SimpleNamespace(home=Home.from_environment(environ, makes=False))
    plan = dry_run(service, read_recipe(tmp_path), environ)  # type: ignore[arg-type]
    assert plan["requests"] == []
    first, second = plan["processes"]
    assert (first["of"], first["task"], second["member"]) == (2, 0, "worker-1")
    assert first["variables"] | {"PIN": "***", "A": "b", "TRAINMASTER_PARAM_LR": "0.1"} == first["variables"]
    assert "1234567" not in str(plan)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("sampler", ["qmc", "pbt, population: 2, generations: 2"])
def test_a_search_whose_parameters_are_chosen_later_shows_the_first_that_would_be(sampler, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "experiments:\n  train:\n    command: echo {{lr}}\n    parameters: {lr: {range: 0.1-0.3}}\n"
        f"    samples: 4\n    search: {{metric: loss, goal: min, sampler: {sampler}}}\n"
    )
    home = Home(tmp_path, tmp_path / "cache", f"file://{tmp_path}/store", f"sqlite:///{tmp_path}/t.db")
    (first,) = dry_run(SimpleNamespace(home=home), read_recipe(path), {})["processes"]
    assert first["command"].startswith("echo 0.")
    assert 0.1 <= float(first["variables"]["TRAINMASTER_PARAM_LR"]) <= 0.3
    assert first["of"] == 4


def test_an_open_number_of_workers_is_said_to_be_shown_with_the_fewest(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(
        "experiments: {train: {command: 'true', distributed: {workers: 2..4}, batch: {global: 8}, steps: 1}}"
    )
    environ = {"TRAINMASTER_HOME": str(tmp_path / "home")}
    service = SimpleNamespace(home=Home.from_environment(environ, makes=False))
    plan = dry_run(service, read_recipe(tmp_path), environ)  # type: ignore[arg-type]
    assert len(plan["processes"]) == 2
    assert "train: with the fewest workers: a run takes as many as its quote chooses" in plan["notes"]


def test_of_large_gangs_the_first_processes_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainmaster.service.dry_run._MOST_NAMED", 100)
    (tmp_path / "recipe.yaml").write_text(
        "experiments:\n"
        "  small: {command: 'true', distributed: {workers: 5}}\n"
        "  large: {command: 'true', distributed: {workers: 20}}\n"
        "  last: {command: 'true', distributed: {workers: 20}}\n"
    )
    environ = {"TRAINMASTER_HOME": str(tmp_path / "home")}
    service = SimpleNamespace(home=Home.from_environment(environ, makes=False))
    plan = dry_run(service, read_recipe(tmp_path), environ)  # type: ignore[arg-type]
    assert Counter(each["experiment"] for each in plan["processes"]) == {"small": 5, "large": 3}
    assert [note for note in plan["notes"] if "alike" in note] == [
        "large: 3 of its 20 processes are shown; the others are alike",
        "last: 0 of its 20 processes are shown; the others are alike",
    ]
