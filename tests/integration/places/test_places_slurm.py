"""Runs on a real Slurm of three nodes, and all that may happen to them there."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("asyncssh", reason="asyncssh is not installed")

from place_runs import check_clean, gang, until, until_step
from renter import Renter

from trainmaster.testing.private_slurm import PrivateSlurm
from trainmaster.testing.private_sshd import SshHost, make_key

if TYPE_CHECKING:  # another folder's conftest.py may have the name by then
    from conftest import Account

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.places,
]


def nodes_of(slurm: PrivateSlurm) -> list[str]:
    """Names of the nodes that the first running job has."""
    listed = slurm.command("squeue", "-h", "-t", "R", "-o", "%N").split()
    return slurm.command("scontrol", "show", "hostnames", listed[0]).split() if listed else []


def test_a_gang_of_three(user: Renter, account: Account) -> None:
    """All nodes, one job; nothing of it stays."""
    going = user.run(gang(user, 3, 20), provider="slurm")
    told = going.end()
    assert told["state"] == "DONE"
    check_clean(account)


def test_a_driver_that_is_killed_finds_its_job(user: Renter, account: Account, slurm: PrivateSlurm) -> None:
    """Never two."""
    going = user.run(gang(user, 2, 200), provider="slurm")
    run = going.run
    until(slurm.jobs, 60)
    jobs = slurm.jobs()
    going.kill()
    again = user.start("resume", run, "--json")
    until_step(user, run)
    assert slurm.jobs() == jobs
    again.interrupt()
    again.end(code=None)
    check_clean(account)


def test_a_node_is_killed(user: Renter, account: Account, slurm: PrivateSlurm) -> None:
    """Its job goes on with the other; one more node comes, and the work goes on from the checkpoint."""
    going = user.run(gang(user, 2, 150), provider="slurm")
    run = going.run
    until_step(user, run)
    lost = nodes_of(slurm)[1]
    slurm.kill(lost)
    try:
        going.until_said("is lost", 200)
        told = going.end()
    finally:
        slurm.boot(lost)
        until(lambda: slurm.states().count("idle") == 3, 60)
    assert told["state"] == "DONE"
    assert max(step for _, step in user.starts(run)) > 0
    until(lambda: not slurm.jobs(), 60)  # files of what is killed go with the next job on that node


def test_a_node_is_cut_off(user: Renter, account: Account, slurm: PrivateSlurm) -> None:
    """The same; what goes on there ends when its lease is over, or when Slurm hears of it again."""
    going = user.run(gang(user, 2, 150), provider="slurm")
    run = going.run
    until_step(user, run)
    lost = nodes_of(slurm)[1]
    slurm.cut(lost)
    try:
        going.until_said("is lost", 200)
        told = going.end()
    finally:
        slurm.cut(lost, healed=True)
        until(lambda: slurm.states().count("idle") == 3, 240, slurm.states)
    assert told["state"] == "DONE"


def test_an_administrator_cancels_the_job(user: Renter, account: Account, slurm: PrivateSlurm) -> None:
    """It is asked for again, and the work goes on from the checkpoint."""
    going = user.run(gang(user, 2, 150), provider="slurm")
    run = going.run
    until_step(user, run)
    (job,) = slurm.jobs()
    slurm.command("scancel", job)
    going.until_said("is lost: job .* cancelled", 120)
    assert going.end()["state"] == "DONE"
    assert max(step for _, step in user.starts(run)) > 0
    until(lambda: not slurm.jobs(), 30)  # files of what is killed go with the next job on that node


def test_another_preempts_the_job(user: Renter, account: Account, slurm: PrivateSlurm) -> None:
    """It saves in the time that it has, and goes on when there are nodes again."""
    going = user.run(gang(user, 2, 250, "scavenger"), provider="slurm")
    run = going.run
    until_step(user, run)
    slurm.command("sbatch", "-p", "main", "-N3", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 20")
    going.until_said("is preempted|was preempted|is taken back", 120)
    assert going.end()["state"] == "DONE"
    assert max(step for _, step in user.starts(run)) > 0


def test_the_time_limit_is_no_end(user: Renter, account: Account, slurm: PrivateSlurm) -> None:
    """Before it, the next job is asked for, which goes on from there."""
    going = user.run(gang(user, 2, 400), provider="slurm")
    run = going.run
    until_step(user, run)
    (job,) = slurm.jobs()
    slurm.command("scontrol", "update", f"JobId={job}", "TimeLimit=1")  # minutes since its start
    going.until_said("is taken back", 120)
    (next_job,) = until(lambda: [each for each in slurm.jobs() if each != job])

    def when(which: str, what: str) -> int:
        said = slurm.command("env", "SLURM_TIME_FORMAT=%s", "scontrol", "-o", "show", "job", which)
        return int(re.findall(rf"\b{what}=(\d+)", said)[0])

    assert when(next_job, "SubmitTime") < when(job, "StartTime") + 60, "it is asked for before the end"
    assert going.end()["state"] == "DONE"
    assert max(step for _, step in user.starts(run)) > 0
    assert "JobState=CANCELLED" in slurm.command("scontrol", "-o", "show", "job", job), "not by its limit"
    check_clean(account)


def test_the_controller_is_away_for_a_while(user: Renter, account: Account, slurm: PrivateSlurm) -> None:
    """Unreachable is not dead: the run goes on."""
    going = user.run(gang(user, 2, 120), provider="slurm")
    run = going.run
    until_step(user, run)
    slurm.stop_controller()
    time.sleep(5)
    slurm.start_controller()
    assert going.end()["state"] == "DONE"
    assert user.attempts(run) == ["DONE"] or len(user.attempts(run)) == 1
    check_clean(account)


def test_what_never_starts_is_refused(user: Renter, account: Account) -> None:
    """More nodes than there are; more than one has."""
    done = user.call("run", gang(user, 9), "--provider", "slurm", "--yes", code=2)
    assert "for ever" in done.stderr
    assert not account.slurm.jobs()


def test_a_busy_cluster_is_waited_for(user: Renter, account: Account, slurm: PrivateSlurm) -> None:
    """It says why; who does not want to wait takes it out of the queue."""
    slurm.command("sbatch", "-N3", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1000")
    until(lambda: slurm.jobs(), 20)
    going = user.run(gang(user, 2, 10), provider="slurm")
    until(lambda: len(slurm.jobs()) == 2, 60)
    going.interrupt()
    going.end(code=None)
    until(lambda: len(slurm.jobs()) == 1, 30)
    slurm.command("scancel", "-u", "root")


SERVED = """
name: steps
experiments:
  train:
    distributed: {strategy: ps-async, workers: 2, parameter_servers: 1, hardware: {ps: {instance: half}}}
    framework: plain
    hardware: {instance: half}
    command: |
      echo "$TRAINMASTER_ROLE on $(hostname)"
      until test "$TRAINMASTER_ROLE" = worker; do sleep 1; done
      sleep 5
"""
SWEEP = """
name: steps
experiments:
  train:
    framework: plain
    hardware: {instance: half}
    parameters: {rate: [1, 2, 3, 4]}
    command: echo "rate {rate} on $(hostname)"
"""


def test_parameter_servers_are_a_component_of_the_same_job(
    user: Renter, account: Account, slurm: PrivateSlurm
) -> None:
    """All roles or none: one job with two components, on other nodes."""
    going = user.run(user.recipe(SERVED), provider="slurm")
    until(lambda: len(slurm.jobs()) == 2, 60)
    jobs = slurm.command("squeue", "-h", "-o", "%i").split()
    assert len({job.split("+")[0] for job in jobs}) == 1, jobs
    run = going.run
    assert going.end()["state"] == "DONE"
    text = user.call("logs", run).stdout
    assert {"n1", "n2", "n3"} == {word for word in text.split() if word in slurm.names}
    check_clean(account)


def test_a_sweep(user: Renter, account: Account) -> None:
    """Its tasks run side by side in one allocation."""
    going = user.run(user.recipe(SWEEP), provider="slurm")
    run = going.run
    assert going.end()["state"] == "DONE"
    assert user.call("logs", run).stdout.count("rate ") == 4
    check_clean(account)


def test_nodes_that_refuse_connections_are_reached_by_steps(
    user: Renter, account: Account, tmp_path: Path
) -> None:
    """`way: srun`: also logins of the user."""
    file, go = account.home / "slurm.yaml", tmp_path / "go"
    file.write_text("way: srun\n" + file.read_text())
    recipe = gang(user, 2, 60)
    recipe.write_text(f"{recipe.read_text().rstrip()}; until test -e {go}; do sleep 0.2; done\n")
    going = user.run(recipe, provider="slurm")
    run = going.run
    until_step(user, run)
    assert user.call("ssh", run, "worker-1", "--", "hostname").stdout.strip() in account.slurm.names
    go.touch()
    assert going.end()["state"] == "DONE"
    check_clean(account)


def test_a_login_node_is_reached_by_ssh(user: Renter, account: Account, tmp_path: Path) -> None:
    """With the user's own key, which nodes do not need."""
    key = tmp_path / "own_key"
    make_key(key)
    (tmp_path / "login").mkdir()
    host = SshHost(tmp_path / "login", "login", key, SLURM_CONF=account.env["SLURM_CONF"])
    host.start()
    try:
        file = account.home / "slurm.yaml"
        file.write_text(f"login: root@127.0.0.1:{host.port}\nkey: {key}\n" + file.read_text())
        going = user.run(gang(user, 2, 20), provider="slurm", SLURM_CONF="/nowhere")
        assert going.end()["state"] == "DONE"
        check_clean(account)
    finally:
        host.stop()


def test_a_driver_that_never_comes_back_leaves_nothing(user: Renter, account: Account) -> None:
    """The switch of each node needs neither root nor the driver."""
    going = user.run(gang(user, 2, 4000), provider="slurm", TRAINMASTER_NODE_LEASE="30s")
    until_step(user, going.run)
    going.kill()
    until(lambda: not account.slurm.jobs(), 120)
    check_clean(account)


def test_a_doctor_looks_at_free_nodes(
    user: Renter, account: Account, slurm: PrivateSlurm, tmp_path: Path
) -> None:
    """Network, driver, clock and rights of two of them; with the node that others have, it says so."""
    (tools := tmp_path / "tools").mkdir()
    (tools / "nvidia-smi").write_text("#!/bin/sh\necho 470.57.02\n")
    (tools / "nvidia-smi").chmod(0o755)
    settings = account.home / "slurm.yaml"
    settings.write_text(f"before: export PATH={tools}:$PATH\n{settings.read_text()}")
    recipe = user.recipe(
        "name: seen\nprovider: slurm\nexperiments:\n  train: {command: python3 t.py, container: "
        "'pytorch/pytorch:2.7.1-cuda12.8-cudnn9-runtime', framework: torch, hardware: {instance: half}}\n"
    )
    said = user.call("doctor", recipe, code=1).stdout
    for name, other in (("n1", "n2"), ("n2", "n1")):
        assert f"network: {name} reaches {other}" in said, said
        assert f"driver: {name}: driver 470.57.02 is too old for torch, which is built for CUDA 12.8" in said
        assert f"clock: {name}: as ours" in said
        assert re.search(f"rights: {name}: .* may write below {tmp_path}/scratch", said)
    assert "no sshd" not in said
    slurm.command("sbatch", "-N3", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1000")
    until(lambda: "idle" not in slurm.states(), 20)
    said = user.call("doctor", "--provider", "slurm").stdout
    assert "not looked at, as none is free now" in said
    slurm.command("scancel", "-u", "root")
    check_clean(account)
