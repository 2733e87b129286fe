"""Recipes on rented machines, and everything that happens to those; after each test nothing is left."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")

from renter import Renter, Renting

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]


def begun(renter: Renter, renting: Renting) -> str:
    """Its id, when its members have worked for a while."""
    run = renting.run
    metrics = renter.lab.home / "runs" / run / "tasks" / "train" / "0" / "1" / "worker-0.metrics.jsonl"
    renting.until(lambda: metrics.exists() and len(metrics.read_bytes().splitlines()) >= 5, "five steps")
    return run


def saved(renter: Renter, renting: Renting, *members: int) -> str:
    """Its id, when a checkpoint is published that holds what these members have saved, or the first one."""
    run = begun(renter, renting)
    names = {f"step-{index}" for index in members or (0,)}
    renting.until(
        lambda: any(names <= held.keys() for held in renter.checkpoints(run).values()), "a checkpoint"
    )
    return run


def test_a_gang_on_rented_machines(renter: Renter) -> None:
    """Logs, the model, the bill, and a shell; then everything is given back."""
    before = renter.lab.alive()
    recipe = renter.gang(steps=20, engine="ray")
    waits = "; until test -e /tmp/enough; do sleep 0.1; done"
    renting = renter.run(renter.recipe(recipe.read_text().rstrip("\n") + waits))
    run = begun(renter, renting)
    assert set(renter.machines(run)) == {"worker-0", "worker-1"}
    name = renter.call("ssh", run, "worker-1", "--", "hostname").stdout.strip()
    enough = ("sh", "-c", "hostname; touch /tmp/enough")
    nodes = {renter.call("ssh", run, node, "--", *enough).stdout.strip() for node in ("node-1", "node-2")}
    assert len(nodes) == 2
    assert name in nodes
    assert name.startswith("ip-"), name
    found = renting.end()
    assert (found["reason"], found["cost_usd"] > 0) == ("SUCCEEDED", True)
    (model,) = found["models"]
    assert Path(model["uri"].removeprefix("file://"), "manifest.json").exists()
    log = renter.call("logs", run).stdout
    assert log.count("done at 20") == 2
    assert renter.lab.alive() == before
    assert json.loads(renter.call("status", run, "--json").stdout)["cost_usd"] == found["cost_usd"]


@pytest.mark.parametrize(
    ("seat", "engine"),
    [
        ("worker-0", "ray"),
        # Over SSH `test_lab_engine_ssh.py` has the first one's end, with all tests.
        pytest.param("worker-1", "ssh", marks=pytest.mark.crossings),
    ],
)
def test_a_machine_that_ends_is_replaced_and_the_gang_goes_on_from_its_checkpoint(
    renter: Renter, seat: str, engine: str
) -> None:
    """Also the first, which holds what a cluster of Ray's knows: all of that begins anew.

    The one that replaces it has its address, and nothing of what was saved.
    """
    renting = renter.run(
        renter.gang(steps=240, every=4, engine=engine)
    )  # it must still train when its machine ends
    run = saved(renter, renting, 0, 1)
    lost = renter.machines(run)[seat]
    renter.lab.call("terminate", lost)
    found = renting.end()
    assert found["reason"] == "SUCCEEDED"
    assert renter.attempts(run) == ["NODE_LOST", "SUCCEEDED"]
    for each in ("worker-0", "worker-1"):
        (_, first), (attempt, step) = renter.starts(run, each)
        assert (first, attempt) == (0, 2)
        assert step >= 10, f"{each} went on from no checkpoint:\n{renting.text}"
    assert renting.text.count(f"({lost}) is lost") == 1, "told once"
    attempts = renting.text.replace("attempts failed: 1 NODE_LOST", "")  # of a quote that was not kept
    assert "NODE_LOST" not in attempts, "that line says all"
    held = renter.checkpoints(run)
    assert held[max(held)] == {"step-0": "240", "step-1": "240"}, "all that was saved after the restart"
    console = renter.call("logs", run, "--system", "--member", lost).stdout
    assert f"train/0#1 system-{lost} | " in console, "what its console has shown, of a machine that is gone"
    assert "does not answer" not in console


def test_a_machine_that_is_taken_back_has_time_to_save(renter: Renter) -> None:
    renting = renter.run(renter.gang(steps=80, more=", spot: true"))
    run = begun(renter, renting)
    leaving = renter.machines(run)["worker-1"]
    renter.lab.call("interrupt", leaving, "--notice", "20")
    found = renting.end()
    assert found["reason"] == "SUCCEEDED"
    assert renter.attempts(run) == ["PREEMPTED", "SUCCEEDED"]
    told = renter.call("logs", run, "--member", "worker-0").stdout
    stopped = int(told.split("told to stop at ")[1].split()[0])
    assert renter.starts(run)[1] == (2, stopped), "not a step is lost"
    told = [line for line in renting.text.splitlines() if leaving in line]
    assert len(told) == 1, told
    assert re.match(r"node-2 \(.*\) is taken back in \d+ s; what ran there goes on from its newest", told[0])
    attempts = renting.text.replace("attempts failed: 1 PREEMPTED", "")  # of a quote that was not kept
    assert "PREEMPTED" not in attempts, "that line says all"


@pytest.mark.crossings  # over SSH: `test_lab_engine_ssh.py`; to a Ray: `remote/test_ray_over_ssh.py`
def test_a_short_cut_changes_nothing_nor_does_a_driver_that_is_killed(renter: Renter) -> None:
    renting = renter.run(renter.gang(steps=200, engine="ray"))
    run = begun(renter, renting)
    machines = renter.machines(run)
    renter.lab.call("cut", machines["worker-1"])
    time.sleep(2)
    renter.lab.call("heal", machines["worker-1"])
    renting.kill()
    time.sleep(2)
    again = renter.start("resume", run, "--json")
    found = again.end()
    assert found["reason"] == "SUCCEEDED"
    assert renter.attempts(run) == ["SUCCEEDED"]
    assert renter.starts(run) == [(1, 0)], "nothing was started again"
    assert not set(machines.values()) & renter.lab.alive()


def test_nobody_comes_back(renter: Renter) -> None:
    """Without anything that renews their lease, machines end themselves."""
    renting = renter.run(renter.gang(steps=4000), TRAINMASTER_NODE_LEASE="25s")
    run = begun(renter, renting)
    machines = set(renter.machines(run).values())
    assert machines <= renter.lab.alive()
    renting.kill()
    deadline = time.monotonic() + 90
    while machines & renter.lab.alive():
        assert time.monotonic() < deadline, "they still cost money"
        time.sleep(0.5)


@pytest.mark.crossings  # a machine that is cut off is as silent: `test_lab_faults.py`
def test_a_machine_that_is_frozen_for_good_is_replaced(renter: Renter) -> None:
    renting = renter.run(renter.gang(steps=80, every=2), TRAINMASTER_NODE_PATIENCE="10s")
    run = saved(renter, renting)
    renter.lab.call("freeze", renter.machines(run)["worker-1"])
    assert renting.end()["reason"] == "SUCCEEDED"
    assert renter.attempts(run) == ["NODE_LOST", "SUCCEEDED"]


@pytest.mark.crossings  # a zone without any: `test_lab_aws_provider.py`
def test_no_capacity_in_a_zone_and_then_nowhere(renter: Renter) -> None:
    zones = renter.lab.access["zones"]

    def capacity(what: str, *where: str) -> None:
        for zone in where:
            renter.lab.call("capacity", what, "--type", "m4.xlarge", "--zone", zone)

    capacity("0", zones[0])
    try:
        renting = renter.run(renter.gang(steps=4))
        assert renting.end()["reason"] == "SUCCEEDED"
        assert "no capacity" in renting.text
        capacity("0", *zones[1:])
        none = renter.run(renter.gang(steps=4), TRAINMASTER_CAPACITY_PATIENCE="5s")
        none.until_said("no capacity")
        none.until_said(r"train waits for 2 x m4.xlarge .*asked again at", timeout_s=60)
        assert "waits for 2 x" in renter.call("status", none.run).stdout
        capacity("none", *zones)
        assert none.end()["reason"] == "SUCCEEDED", "it has waited"
    finally:
        capacity("none", *zones)


@pytest.mark.crossings  # `test_lab_containers.py` has it on the way
def test_a_run_that_is_interrupted_gives_everything_back(renter: Renter) -> None:
    before = renter.lab.alive()
    renting = renter.run(renter.gang(steps=4000))
    begun(renter, renting)
    renting.interrupt()
    renting.end(130)
    assert renter.lab.alive() == before


def test_the_budget_ends_it_in_time(renter: Renter) -> None:
    """The cap counts what stopping and giving back will cost."""
    before = renter.lab.alive()
    text = renter.gang(steps=4000).read_text().replace("name: steps", "name: steps\nbudget: {total: $0.037}")
    # A script of which nothing is known: by what others took the run would be refused, as it costs more.
    (renter.work / "costly.py").write_text((renter.work / "steps.py").read_text())
    renting = renter.run(renter.recipe(text.replace("steps.py", "costly.py")))
    found = renting.end(1)
    assert found["reason"] == "BUDGET"
    assert 0 < found["cost_usd"] <= 0.037
    assert renter.lab.alive() == before


def test_a_search_fills_all_machines_that_it_rents(renter: Renter) -> None:
    """`workers` are machines, and each of these has two slots: four tasks run at a time, two on each."""
    text = """
name: steps
experiments:
  train:
    workers: 2
    hardware: {instance: m4.large}
    parameters: {x: {range: 0-1}}
    samples: 8
    search: {metric: loss, goal: min, sampler: tpe}
    command:
      - echo on $(hostname) from $(date +%s.%N)
      - sleep 6
      - echo "{\\"loss\\":" {{x}} "}" >> $TRAINMASTER_METRICS
      - echo until $(date +%s.%N)
"""
    found = renter.run(renter.recipe(text)).end()
    assert found["experiments"]["train"]["tasks"]["succeeded"] == 8
    log = renter.call("logs", found["run"]).stdout
    begun = {float(at): host for host, at in re.findall(r"on (ip-\S+) from (\S+)", log)}
    ended = [float(at) for at in re.findall(r"until (\S+)", log)]
    assert len(begun) == len(ended) == 8
    beside = {at: sum(one <= at for one in begun) - sum(one <= at for one in ended) for at in begun}
    assert max(beside.values()) == 4
    assert sorted(map(list(begun.values()).count, set(begun.values()))) in ([4, 4], [3, 5]), begun


@pytest.mark.crossings  # `test_cluster_gangs.py` has short tasks behind long ones
def test_forty_small_tasks_on_four_machines(renter: Renter) -> None:
    text = """
name: steps
experiments:
  train:
    workers: 4
    hardware: {instance: m4.large}
    parameters: {n: {range: 1-40, step: 1}}
    command:
      - echo {{n}} on $(hostname)
      - sleep 3.3  # else a busy machine's first host has done all before the others have booted
      - echo "{\\"square\\":" $((TRAINMASTER_PARAM_N * TRAINMASTER_PARAM_N)) "}" >> $TRAINMASTER_METRICS
"""
    renting = renter.run(renter.recipe(text))
    found = renting.end()
    assert found["experiments"]["train"]["tasks"]["succeeded"] == 40
    log = renter.call("logs", found["run"]).stdout
    hosts = {line.split()[-1] for line in log.splitlines() if " on ip-" in line}
    assert len(hosts) == 4
    assert len({line.split(" on ")[0].split()[-1] for line in log.splitlines() if " on ip-" in line}) == 40
