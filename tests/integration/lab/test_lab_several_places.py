"""A run in several places, own hosts and rented machines, with what it may have in it: a table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from renter import SCALE, Renter, with_engine

from trainmaster.testing.private_slurm import NoSlurmError, PrivateSlurm, check_installed
from trainmaster.testing.waits import until

pytestmark = [pytest.mark.crossings, pytest.mark.timeout(900)]
SWEEP = """
name: steps
provider: [hosts, lab]
budget: {total: $1}
experiments:
  train:
    hardware: {cpus: 1}
    parameters: {rate: [1, 2, 3, 4, 5, 6]}
    workers: 4
    retries: 2
    checkpoint: {every: 5s}
    grace: 5s
    command: python3 steps.py STEPS 0.3
"""
WORKFLOW = """
name: steps
budget: {total: $1}
experiments:
  prepare:
    provider: hosts
    hardware: {cpus: 1}
    command: python3 steps.py STEPS 0.1
  train:
    provider: lab
    after: prepare
    hardware: {cpus: 1}
    data: {pets: {volume: pets}, model: {from: prepare}}
    command: test -s $TRAINMASTER_DATA_PETS/names && python3 steps.py STEPS 0.1
"""
GANGS = SWEEP.replace("[1, 2, 3, 4, 5, 6]", "[1, 2]").replace(
    "    workers: 4\n",
    "    workers: 4\n    distributed: {strategy: allreduce, workers: 2, per_node: 1}\n    framework: plain\n",
)
#: What the run is, how many steps a task has, what happens to it, how many tasks succeed.
ROWS = [
    ("sweep", SWEEP, 30, "", 6),
    ("gangs", GANGS, 30, "", 2),
    ("spot", SWEEP.replace("cpus: 1", "cpus: 1, spot: true"), 30, "", 6),
    ("workflow with a volume", WORKFLOW, 10, "", 2),
    ("killed and resumed", SWEEP, 80, "kill", 6),
    ("a lost machine", SWEEP, 60, "lose", 6),
    ("a place is lost for good", SWEEP, 60, "lose all", 6),
    ("interrupted and resumed", SWEEP, 80, "interrupt", 6),
    ("cancelled", SWEEP, 2000, "cancel", 0),
    ("its cap carries no rented machine", SWEEP.replace("$1", "$0.0042"), 60, "unpaid", 6),
    ("its cap ends what costs", SWEEP.replace("$1", "$0.0096").replace(", 5, 6", ""), 480, "left", 4),
    ("kept", SWEEP, 10, "keep", 6),
]


@pytest.fixture(scope="module")
def owner(make_lab_user: Callable[[], Any]) -> Any:
    """Somebody with two hosts."""
    user = make_lab_user()
    user.call("up", *SCALE, "--hosts", "2")
    return user


@pytest.fixture
def renter(owner: Any, tmp_path: Path) -> Iterator[Renter]:
    (tmp_path / "work").mkdir()
    renter = Renter(owner, tmp_path / "work")
    yield renter
    renter.kill_all()


def test_quotes_choose_among_the_places_of_a_sweep(renter: Renter) -> None:
    """A run on this machine makes it known; then the cheapest is on own hosts only."""
    before = renter.lab.alive()
    recipe = renter.work / "recipe.yaml"
    recipe.write_text(with_engine(SWEEP.replace("STEPS", "10"), "ssh") + "objective: cheapest\n")
    assert renter.start("run", recipe, "--json", "--provider", "local").end()["reason"] == "SUCCEEDED"
    going = renter.start("run", recipe, "--yes", "--json")
    assert going.end()["reason"] == "SUCCEEDED"
    assert "its tasks are on 2 of 4 machines: more would be no better by the quotes" in going.text
    assert json.loads(renter.call("status", going.run, "--json").stdout)["cost_usd"] == 0
    assert renter.lab.alive() == before


def places_of(renter: Renter, run: str) -> set[str]:
    """Where its tasks are, or were."""
    told = json.loads(renter.call("status", run, "--json").stdout)["place"]["tasks"]
    return {place for tasks in told.values() for place in tasks}


@pytest.mark.parametrize(
    ("text", "steps", "event", "succeed"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_a_run_in_two_places(renter: Renter, text: str, steps: int, event: str, succeed: int) -> None:
    """One bill, nothing left, each task once; hosts are those of the lab's owner."""
    before = renter.lab.alive()
    pets = renter.work.parent / "pets"
    pets.mkdir()
    (pets / "names").write_text("felix")
    if "volume: pets" in text:
        renter.call("volume", "push", pets, "pets")
    recipe = renter.work / "recipe.yaml"
    recipe.write_text(with_engine(text.replace("STEPS", str(steps)), "ssh"))
    keep = ("--keep", "5m") if event == "keep" else ()
    going = renter.start("run", recipe, "--yes", "--json", *keep)
    run = going.run
    if event in ("kill", "interrupt", "lose", "lose all", "cancel"):
        going.until(partial(has_begun, renter, run), "it runs")
    if event == "kill":
        going.kill()
        going = renter.start("resume", run, "--json")
    elif event == "interrupt":
        going.interrupt()
        assert going.end(code=None)["reason"] == "CANCELLED", going.text
        assert renter.lab.alive() == before, "it gives back what costs"
        going = renter.start("resume", run, "--json")
    elif event.startswith("lose"):
        rented = going.until(lambda: renter.lab.alive() - before, "a rented machine")
        renter.lab.call("capacity", "0" if event == "lose all" else "none")
        for machine in sorted(rented)[: None if event == "lose all" else 1]:
            renter.lab.call("terminate", machine)
    elif event == "cancel":
        going.until(lambda: places_of(renter, run) == {"hosts", "lab"}, "tasks in both")
        renter.call("cancel", run)
    found = going.end(code=None if event == "cancel" else 0)
    renter.lab.call("capacity", "none")
    status = json.loads(renter.call("status", run, "--json").stdout)
    assert sum(each["tasks"]["succeeded"] for each in status["experiments"].values()) == succeed
    assert status["state"] == "DONE"
    assert found["reason"] == ("CANCELLED" if event == "cancel" else "SUCCEEDED")
    if event == "unpaid":
        assert status["cost_usd"] == 0
    places = places_of(renter, run)
    is_free = event in ("unpaid", "left")
    none_left = is_free or event == "lose all"
    assert places == ({"hosts"} if none_left else {"hosts", "lab"}), status["place"]["words"]
    if is_free:
        asked = "goes on without machines of lab: 1 x t3.medium .* not asked for"
        words = "gives back the machines of lab: it may cost" if event == "left" else asked
        assert re.search(f"train-lab {words}", going.text)
        assert status["cost_usd"] < 0.0096
        assert renter.lab.alive() == before
        return
    assert 0 < status["cost_usd"] < 1
    if event == "keep":
        kept = json.loads(renter.call("clusters", "--json").stdout)["clusters"]
        assert {each["state"] for each in kept if each["run"] == run} == {"kept"}
        assert renter.lab.alive() > before
        renter.call("clusters", "end", "--all")
        assert renter.lab.alive() == before
        return
    assert renter.lab.alive() == before


GANG = """
name: steps
provider: [hosts, slurm, lab]
budget: {total: $1}
experiments:
  train:
    distributed: {strategy: allreduce, workers: 2, per_node: 1}
    framework: plain
    hardware: {cpus: 1}
    command: python3 steps.py 9000 0.2
"""


@pytest.fixture
def slurm(renter: Renter, tmp_path: Path) -> Iterator[PrivateSlurm]:
    """A queue that they may use, too."""
    try:
        check_installed()
    except NoSlurmError as error:
        pytest.skip(str(error))
    with PrivateSlurm(2) as running:
        (scratch := tmp_path / "scratch").mkdir()
        settings = renter.lab.home / "slurm.yaml"
        settings.write_text(f"scratch: {scratch}\nmachines:\n  node: {{cpus: 2, memory: 900MB}}\n")
        renter.env |= running.environ
        yield running
        renter.kill_all()
        settings.unlink()


def has_begun(renter: Renter, run: str) -> bool:
    """Whether a member has said something."""
    return "attempt 1 starts" in renter.call("logs", run, code=None).stdout


def test_own_hosts_then_the_queue_then_rented(renter: Renter, slurm: PrivateSlurm) -> None:
    """Each gang is whole in the first place that has room, or will in time; all run at once."""
    before, recipe = renter.lab.alive(), renter.work / "recipe.yaml"
    recipe.write_text(with_engine(GANG, "ssh"))
    going, table = [], ""
    for place in ("hosts", "slurm", "lab"):
        if place == "lab":  # no job of ours begins within the quarter of an hour that it may wait
            slurm.command(
                "sbatch", "-N2", "--exclusive", "-t", "120", "-o", "/dev/null", "--wrap", "sleep 900"
            )
        going.append(renter.start("run", recipe, "--yes", "--json"))
        run = going[-1].run
        going[-1].until(partial(has_begun, renter, run), place)
        table = going[-1].text
        rented = json.loads(renter.call("clusters", "--json").stdout)["clusters"]
        assert {each["provider"] for each in rented if each["run"] == run} == {place}, table
    assert re.search("place hosts: no, 2 hosts are needed, none is free", table)
    assert re.search(r"place slurm: 2 x node, \$0 an hour; waits .* h", table)
    assert "it runs on lab, the first that can begin in time" in table
    for each in going:
        renter.call("cancel", each.run)
        each.end(code=None)
    slurm.command("scancel", "-n", "wrap")
    until(lambda: not slurm.jobs())
    assert renter.lab.alive() == before


def test_a_sweep_is_on_own_hosts_in_a_queue_and_on_rented_machines(
    renter: Renter, slurm: PrivateSlurm
) -> None:
    """Each task once, in all three places; a machine of the queue is lost meanwhile."""
    before, recipe = renter.lab.alive(), renter.work / "recipe.yaml"
    text = SWEEP.replace("[hosts, lab]", "[hosts, slurm, lab]").replace("workers: 4", "workers: 6")
    recipe.write_text(with_engine(text.replace("5, 6]", "5, 6, 7, 8]").replace("STEPS", "60"), "ssh"))
    going = renter.start("run", recipe, "--yes", "--json")
    going.until(lambda: places_of(renter, going.run) == {"hosts", "slurm", "lab"}, "tasks in all")
    slurm.command("scancel", *slurm.jobs())
    found = going.end()
    assert found["reason"] == "SUCCEEDED", going.text
    status = json.loads(renter.call("status", going.run, "--json").stdout)
    assert status["experiments"]["train"]["tasks"]["succeeded"] == 8
    assert 0 < status["cost_usd"] < 1
    until(lambda: not slurm.jobs())
    assert renter.lab.alive() == before
