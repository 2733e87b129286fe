"""Recipes on hosts of one's own, over SSH: the provider `hosts`, with hosts that the lab has booted."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed")

from renter import Renter

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
SCALE = ["--cpu-scale", "0.25", "--memory-scale", "0.125", "--network-scale", "0.125", "--stop-grace", "15"]


@pytest.fixture(scope="module")
def owner(make_lab_user: Callable[[], Any]) -> Any:
    """Somebody with two hosts."""
    user = make_lab_user()
    user.call("up", *SCALE, "--hosts", "2")
    return user


@pytest.fixture
def renter(owner: Any, tmp_path: Path) -> Iterator[Renter]:
    work = tmp_path / "work"
    work.mkdir()
    renter = Renter(owner, work)
    yield renter
    renter.kill_all()


def processes_on_hosts(owner: Any) -> str:
    """Command lines of everything that runs on them."""
    hosts = owner.json("status")["hosts"]
    return "\n".join(owner.ssh(host["id"])("ps -eo args") for host in hosts)


def test_a_gang_and_nothing_of_it_stays(renter: Renter, owner: Any) -> None:
    renting = renter.run(renter.gang(steps=20), provider="hosts")
    found = renting.end()
    assert (found["reason"], found["cost_usd"]) == ("SUCCEEDED", 0.0)
    assert renter.call("logs", found["run"]).stdout.count("done at 20") == 2
    left = processes_on_hosts(owner)
    assert "ray" not in left
    assert "steps.py" not in left
    assert "supervisor" not in left


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not installed")
def test_mpi_over_two_hosts(renter: Renter) -> None:
    """Ranks log in to each other with the cluster's key, and find the members' environment."""
    text = """
name: steps
experiments:
  train:
    distributed: {strategy: allreduce, workers: 2}
    framework: mpi
    env: {GREETING: hello}
    command: echo "$GREETING from rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on $(hostname)"
"""
    found = renter.run(renter.recipe(text), provider="hosts").end()
    lines = [line for line in renter.call("logs", found["run"]).stdout.splitlines() if "from rank" in line]
    assert sorted(line.split(" on ")[0].split("hello ")[1] for line in lines) == [
        "from rank 0 of 2",
        "from rank 1 of 2",
    ]
    assert len({line.split(" on ")[1] for line in lines}) == 2


def test_two_runs_share_the_hosts_one_after_the_other(renter: Renter) -> None:
    """A host without slots is lent to one run at a time: the other one waits for it."""
    recipe = renter.gang(steps=20)
    first = renter.run(recipe, provider="hosts")
    first.until_said("attempt 1 starts")
    second = renter.run(recipe, provider="hosts")
    assert first.end()["reason"] == "SUCCEEDED"
    assert second.end()["reason"] == "SUCCEEDED"
