"""Further faults of members, machines and disks: the run ends as the recipe says, and nothing is left."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")

from renter import Renter, Renting

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

#: The second member fails at its twentieth step, the first time.
FAILS = """
import os, subprocess, sys
first = os.environ["TRAINMASTER_ATTEMPT"] == "1" and os.environ["TRAINMASTER_INDEX"] == "1"
sys.exit(subprocess.call([sys.executable, "steps.py", "20" if first else sys.argv[1], "0.1"]) or first)
"""


def saved(renter: Renter, renting: Renting) -> str:
    """Its id, when a checkpoint is published."""
    run = renting.run
    renting.until(lambda: any("step-0" in held for held in renter.checkpoints(run).values()), "a checkpoint")
    return run


def begun(renter: Renter, renting: Renting) -> str:
    """Its id, when the second member has saved something."""
    run = renting.run
    metrics = renter.lab.home / "runs" / run / "tasks" / "train" / "0" / "1" / "worker-1.metrics.jsonl"
    renting.until(lambda: metrics.exists() and len(metrics.read_bytes().splitlines()) >= 12, "twelve steps")
    return run


def gang(renter: Renter, command: str, **more: str) -> Any:
    """A recipe for two members that do this."""
    text = renter.gang(steps=0, every=2).read_text()
    head, _, _ = text.partition("    command:")
    lines = "".join(f"    {key}: {value}\n" for key, value in more.items())
    return renter.recipe(f"{head}{lines}    command: {command}\n")


def test_a_member_fails_and_is_tried_again(renter: Renter) -> None:
    """The other one is stopped and saves; with a retry left both go on, on the same machines."""
    (renter.work / "fails.py").write_text(FAILS)
    before = renter.lab.alive()
    renting = renter.run(gang(renter, "python3 fails.py 60", retries="1"))
    run = renting.run
    renting.until_said("attempt 1 starts at 0")
    machines = renter.machines(run)
    found = renting.end()
    assert found["reason"] == "SUCCEEDED"
    assert renter.attempts(run) == ["USER_ERROR", "SUCCEEDED"]
    (_, first), (attempt, step) = renter.starts(run)
    assert (first, attempt) == (0, 2)
    assert step >= 10, "it went on from what was saved"
    assert renting.text.count("attempt 1 USER_ERROR") == 1, "told once"
    assert len(set(machines.values())) == 2
    assert "is lost" not in renting.text
    assert renter.lab.alive() == before


def test_a_machine_that_is_cut_off_for_long_is_replaced(renter: Renter) -> None:
    before = renter.lab.alive()
    renting = renter.run(renter.gang(steps=120, every=4), TRAINMASTER_NODE_PATIENCE="10s")
    run = saved(renter, renting)
    lost = renter.machines(run)["worker-1"]
    renter.lab.call("cut", lost)
    assert renting.end()["reason"] == "SUCCEEDED"
    assert renter.attempts(run) == ["NODE_LOST", "SUCCEEDED"]
    assert renter.starts(run)[1][1] >= 10, "it went on from a checkpoint"
    assert renting.text.count(f"({lost}) is lost") == 1, "told once"
    assert renter.lab.alive() == before, "also what is cut off is given back"


FILL = """set -eu
place=$(echo /var/tmp/trainmaster-*)
mkdir -p /mnt/small
mount -t tmpfs -o size=32m,mode=700 small /mnt/small
cp -a $place/. /mnt/small || true  # what goes meanwhile is not missed
chown --reference=$place /mnt/small
mount --move /mnt/small $place
cat /dev/zero > $place/filled 2>/dev/null || df $place
nohup sh -c "while :; do cat /dev/zero >> $place/filled; sleep 0.05; done" >/dev/null 2>&1 &
"""


def fill_up(renter: Renter, run: str, member: str) -> None:
    """From now on our directory on a member's machine is a disk of its own, without a free byte."""
    said = renter.call("ssh", run, member, "--", "sudo", "sh", "-c", FILL).stdout
    assert "100%" in said, said


def test_the_disk_of_a_machine_is_full(renter: Renter) -> None:
    """Its member cannot save any more, nor can the next attempt; the run ends, and says why."""
    before = renter.lab.alive()
    renting = renter.run(gang(renter, "python3 steps.py 4000 0.1", retries="1"))
    run = begun(renter, renting)
    fill_up(renter, run, "worker-1")
    renting.end(1)
    assert renter.attempts(run)[0] == "USER_ERROR"
    assert "attempt 1 USER_ERROR: no space left on the disk of" in renting.text
    assert renter.lab.alive() == before


TWO_CLUSTERS = """
name: steps
experiments:
  train:
    framework: plain
    hardware: {instance: m4.xlarge}
    command: while [ ! -e stop ]; do echo waits; sleep 0.5; done
  after:
    after: [train]
    framework: plain
    hardware: {instance: m4.large}
    command: "true"
"""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("AuthFailure", "AWS refuses the credentials"),
        pytest.param("InvalidAMIID.NotFound", "Check TRAINMASTER_AWS_IMAGE", marks=pytest.mark.crossings),
    ],
)
def test_keys_or_an_image_that_are_refused_later_are_the_users(renter: Renter, code: str, words: str) -> None:
    """They were good when the run began; what to do about it is told."""
    before = renter.lab.alive()
    renting = renter.run(renter.recipe(TWO_CLUSTERS))
    run = renting.run
    renting.until(lambda: "waits" in renter.call("logs", run).stdout, "the first experiment works")
    renter.lab.call("fault", "RunInstances", code, "--status", "400", "--count", "0")
    try:
        renter.call("exec", run, "--", "touch", "stop")
        found = renting.end(1)
    finally:
        renter.lab.call("fault", "none")
    reasons = {name: each["reason"] for name, each in found["experiments"].items()}
    assert (found["reason"], reasons) == ("USER_ERROR", {"train": "SUCCEEDED", "after": "USER_ERROR"})
    assert words in renting.text
    assert renter.lab.alive() == before
