"""A sweep over a real Slurm and a real Ray at once, at home and as a team's on a server by REST."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from renter import STEPS, Renter
from running_server import RunningServer
from test_places_ray import SETTINGS, ray, tools

from trainmaster.testing.private_ray import PrivateRay

__all__ = ["ray", "tools"]
pytestmark = [pytest.mark.timeout(900), pytest.mark.places]
SWEEP = """
name: steps
provider: [slurm, ray]
experiments:
  train:
    hardware: {cpus: 1}
    parameters: {rate: [1, 2, 3, 4, 5, 6, 7, 8]}
    workers: 6
    retries: 2
    checkpoint: {every: 5s}
    grace: 5s
    command: python3 steps.py 40 0.25
"""


@pytest.fixture
def user(account: object, ray: PrivateRay, tmp_path: Path) -> Iterator[Renter]:
    """They may use both."""
    (tmp_path / "home" / "ray.yaml").write_text(SETTINGS.format(way=ray.way, scratch=ray.scratch))
    file = tmp_path / "home" / "slurm.yaml"  # three machines that have no room for eight tasks
    machines = "machines:\n  node: {cpus: 2, memory: 900MB}\n"
    file.write_text(file.read_text().partition("machines:")[0] + machines)
    work = tmp_path / "work"
    work.mkdir()
    renter = Renter(account, work)
    yield renter
    renter.kill_all()


def test_a_sweep_is_in_a_slurm_and_in_a_ray(user: Renter) -> None:
    """Each task once, and both are used."""
    (user.work / "recipe.yaml").write_text(SWEEP)
    going = user.start("run", user.work / "recipe.yaml", "--yes", "--json")
    run = going.run
    going.end()
    status = json.loads(user.call("status", run, "--json").stdout)
    assert status["reason"] == "SUCCEEDED"
    tasks = status["place"]["tasks"]["train"]
    assert set(tasks) == {"slurm", "ray"}, going.text
    assert sum(tasks.values()) == 8


def test_a_team_s_sweep_by_rest_is_in_both(user: Renter) -> None:
    """Its driver is on a server that has an account in both; with its token and its secret."""
    pytest.importorskip("fastapi", reason="the extra `server` is not installed")
    server = RunningServer(user.start)
    process = server.start()
    user.call("team", "create", "vision")
    tokens = {}
    for name, role, scopes in (("ann", "member", "read,run"), ("mia", "manager", "read,run,manage")):
        user.call("team", "add-member", "vision", name, "--role", role)
        wanted = ("token", "create", name, "--scopes", scopes, "--user", name, "--team", "vision", "--json")
        tokens[name] = json.loads(user.call(*wanted).stdout)["token"]
    server.token = tokens["mia"]
    server.open("PUT", "/api/v1/secrets/HF_TOKEN", {"value": "hf_of_the_team"}).close()
    server.token = tokens["ann"]
    secret = 'secrets: [HF_TOKEN]\n    command: test "$HF_TOKEN" = hf_of_the_team && python3 train.py'
    run = server.send(STEPS, {"recipe": SWEEP.replace("command: python3 steps.py", secret)})[1]["run"]
    process.until(lambda: server.ask("GET", f"/runs/{run}")[1]["state"] == "DONE", "its end")
    status = server.ask("GET", f"/runs/{run}")[1]
    assert status["reason"] == "SUCCEEDED", status
    assert set(status["place"]["tasks"]["train"]) == {"slurm", "ray"}
    attempts = server.ask("GET", f"/runs/{run}/attempts")[1]["attempts"]
    assert {on["provider"] for each in attempts for on in each["machines"]} == {"slurm", "ray"}
    process.interrupt()
