"""A real Slurm and a Kubernetes, double or real, in one run: a sweep in both, and a gang that moves on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("websockets", reason="websockets is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("asyncssh", reason="asyncssh is not installed")

from kubernetes_places import kubernetes
from place_runs import check_clean, until, until_step
from renter import Renter

from trainmaster.testing.private_slurm import PrivateSlurm

if TYPE_CHECKING:  # another folder's conftest.py may have the name by then
    from conftest import Account

__all__ = ["kubernetes"]
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="pods of the double need namespaces, and these root"),
    pytest.mark.timeout(600),
    pytest.mark.places,
]
#: What an hour of a machine costs in each place.
USD = {"slurm": 0.5, "kubernetes": 0.25}
PODS = """\
image: work:lab
grace: 20s
volumes: {/usr: "/usr:ro"}
machines:
  node: {cpus: 1, memory: 300MB, usd_per_hour: 0.25}
"""
SWEEP = """
name: steps
provider: [slurm, kubernetes]
engine: ssh
budget: {total: $1}
experiments:
  train:
    hardware: {cpus: 1}
    parameters: {rate: [1, 2, 3, 4, 5, 6, 7, 8]}
    workers: 4
    retries: 2
    checkpoint: {every: 5s}
    grace: 5s
    command: python3 steps.py STEPS 0.25
"""
GANG = """
name: steps
provider: [slurm, kubernetes]
engine: ssh
budget: {total: $1, wait: 5s}
experiments:
  train:
    distributed: {strategy: allreduce, workers: 2, per_node: 1}
    framework: plain
    hardware: {cpus: 1}
    checkpoint: {every: 3s}
    grace: 5s
    command: python3 steps.py 300 0.15 0.02
"""


@pytest.fixture
def both(user: Renter, account: Account, kubernetes: Any) -> Iterator[Renter]:
    """They may use a Slurm and a Kubernetes."""
    file = account.home / "slurm.yaml"
    machines = f"machines:\n  half: {{cpus: 1, memory: 300MB, usd_per_hour: {USD['slurm']}}}\n"
    file.write_text(file.read_text().partition("machines:")[0] + machines)
    (account.home / "kubernetes.yaml").write_text(PODS)
    user.env["KUBECONFIG"] = str(kubernetes.kubeconfig)
    yield user
    user.kill_all()
    kubernetes.pod_limit = None
    for name in kubernetes.left():
        kubernetes.evict(name)


def check_end(user: Renter, account: Account, kubernetes: Any, run: str) -> None:
    """One bill, of both; nothing is left in either."""
    told = json.loads(user.call("status", run, "--json").stdout)
    assert told["reason"] == "SUCCEEDED", told
    bill = json.loads(user.call("cost", "--by", "provider", "--json").stdout)
    parts = {row["key"]: row["usd"] for row in bill["rows"]}
    assert set(parts) == set(USD), bill
    assert all(part > 0 for part in parts.values()), bill
    assert sum(parts.values()) == pytest.approx(told["cost_usd"], rel=0.01)
    check_clean(account)
    until(lambda: not kubernetes.left(), 60, kubernetes.left)


@pytest.mark.parametrize("event", ["", "killed and resumed"])
def test_a_sweep_is_in_a_slurm_and_in_a_kubernetes(
    both: Renter, account: Account, kubernetes: Any, event: str
) -> None:
    """Each task once, and both are used: neither has room for all."""
    kubernetes.pod_limit = 2
    (both.work / "recipe.yaml").write_text(SWEEP.replace("STEPS", "80" if event else "40"))
    going = both.start("run", both.work / "recipe.yaml", "--yes", "--json")
    run = going.run
    if event:
        going.until(lambda: "attempt 1 starts" in both.call("logs", run, code=None).stdout, "it runs")
        going.kill()
        going = both.start("resume", run, "--json")
    going.end()
    told = json.loads(both.call("status", run, "--json").stdout)
    tasks = told["place"]["tasks"]["train"]
    assert set(tasks) == set(USD), going.text
    assert sum(tasks.values()) == 8
    check_end(both, account, kubernetes, run)


def test_a_gang_moves_on_to_a_kubernetes(
    both: Renter, account: Account, kubernetes: Any, slurm: PrivateSlurm
) -> None:
    """Its job is gone when it is resumed, and the queue is full: it goes on in pods, from its checkpoint."""
    (both.work / "recipe.yaml").write_text(GANG)
    going = both.start("run", both.work / "recipe.yaml", "--yes", "--json")
    run = going.run
    until_step(both, run)
    going.kill()
    slurm.command("scancel", *slurm.jobs())
    slurm.command("sbatch", "-N3", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1000")
    try:
        again = both.start("resume", run, "--json")
        again.until_said("it goes on at kubernetes")
        again.end()
    finally:
        slurm.command("scancel", "-n", "wrap")
    assert max(step for _, step in both.starts(run)) > 0
    check_end(both, account, kubernetes, run)
