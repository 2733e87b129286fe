"""What is told of keys before they are sent, and where they are on the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainmaster.db.run_transfer import RunRows
from trainmaster.providers.sent_settings import path_mark
from trainmaster.service.on_cluster import machine_driver
from trainmaster.service.on_cluster.assignment import Assignment, Record
from trainmaster.service.on_cluster.credentials import check_narrow, driver_environment, sent_to_machine
from trainmaster.service.on_cluster.machine_driver import in_memory
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError

RECIPE = Recipe.model_validate(
    {"name": "r", "provider": "slurm", "experiments": {"main": {"name": "main", "command": "true"}}}
)
MACHINES = "machines:\n  node: {cpus: 2, memory: 900MB}\n"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Of somebody with a Slurm behind a login, and a store elsewhere."""
    (tmp_path / "id").write_text("PRIVATE")
    (tmp_path / "slurm.yaml").write_text(f"login: ada@hpc\nkey: id\n{MACHINES}")
    return {
        "TRAINMASTER_HOME": str(tmp_path),
        "TRAINMASTER_STORE": "gs://bucket/store",
        "AWS_ACCESS_KEY_ID": "k",
    }


def test_a_login_is_named_and_not_sent_unasked(environ: dict[str, str]) -> None:
    """A narrower profile of AWS makes it no narrower."""
    assert any("opens ada@hpc" in line for line in sent_to_machine(RECIPE, environ))
    with pytest.raises(UsageError, match="nobody is asked"):
        check_narrow(RECIPE, {**environ, "TRAINMASTER_DRIVER_PROFILE": "narrow"})


def test_a_profile_of_aws_makes_keys_of_another_store_no_narrower(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """Where no login is sent, either."""
    (tmp_path / "slurm.yaml").write_text(MACHINES)
    environ["TRAINMASTER_DRIVER_PROFILE"] = "narrow"
    with pytest.raises(UsageError, match=r"your keys of gs://bucket/store"):
        check_narrow(RECIPE, environ)
    assert not any("narrow" in line for line in sent_to_machine(RECIPE, environ))
    check_narrow(RECIPE, {**environ, "TRAINMASTER_STORE": "s3://bucket/store"})


def test_keys_of_a_cloud_that_is_not_used_stay_here(environ: dict[str, str]) -> None:
    """The store is another one's, and the place none of AWS."""
    assert "AWS_ACCESS_KEY_ID" not in driver_environment(environ, "slurm", "gs://bucket/store")


@pytest.mark.parametrize(("files", "network"), [({"TRAINMASTER_SLURM": MACHINES}, ""), ({}, "vpc-1")])
def test_only_where_it_may_be_ec2_it_is_asked_for_its_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], network: str
) -> None:
    """Elsewhere nobody answers, for seconds."""
    monkeypatch.setattr(machine_driver, "_network", lambda: {"TRAINMASTER_AWS_INSIDE_VPC": "vpc-1"})
    record = Record(RunRows(*([],) * len(RunRows.__slots__)), [], (0, 0))  # type: ignore[arg-type]
    given = Assignment("r", 1, "s-1", "s3://b", "r.main", record, "key", {}, files=files)
    found = machine_driver._environment(given, tmp_path)
    assert found.get("TRAINMASTER_AWS_INSIDE_VPC", "") == network
    assert found["TRAINMASTER_DRIVES"] == "s-1"
    for path in (value for value in found.values() if value.startswith("/proc/self/fd/")):
        os.close(int(Path(path).name))


def test_what_was_sent_is_on_no_disk() -> None:
    """And what names another file has its path."""
    paths = in_memory({"SETTINGS": f"key: {path_mark('KEY')}", "KEY": "PRIVATE"}, {})
    assert Path(paths["SETTINGS"]).read_text() == f"key: {paths['KEY']}"
    assert Path(paths["KEY"]).read_text() == "PRIVATE"
    assert "memfd" in str(Path(paths["KEY"]).readlink())
    for path in paths.values():
        os.close(int(Path(path).name))
