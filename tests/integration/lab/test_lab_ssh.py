"""``trainmaster ssh`` on rented machines: a shell line, the member's directory and environment, at once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")

from renter import Renter

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

WAITS = """
name: steps
secrets: [WORD]
experiments:
  train:
    distributed: {strategy: allreduce, workers: 2}
    framework: plain
    hardware: {instance: m4.xlarge}
    env: {COLOUR: "a 'b\\" $c"}
    command: |
      until test -e $TRAINMASTER_OUTPUT_DIR/go; do sleep 0.2; done
"""


def test_a_line_for_a_shell_where_a_member_works(renter: Renter, tmp_path: Path) -> None:
    renting = renter.run(renter.recipe(WAITS), WORD="hush")
    run = renting.run
    # Its machines may not be there yet, nor the code.
    early = renter.call("ssh", run, "worker-1", "--", "pwd; ls", WORD="hush")
    where, *files = early.stdout.splitlines()
    assert where.endswith(f"/runs/{run}/code")
    assert "steps.py" in files

    def says(line: str, member: str = "worker-1") -> str:
        done: subprocess.CompletedProcess[str] = renter.call("ssh", run, member, "--", line)
        return done.stdout.strip()

    renting.until(lambda: says("echo $TRAINMASTER_ROLE-$TRAINMASTER_INDEX") == "worker-1", "it runs")
    assert says('echo "$COLOUR" $WORD $TRAINMASTER_WORLD_SIZE') == "a 'b\" $c hush 2"
    assert says("echo one; echo two >&2; exit 0") == "one"
    answered = renter.call("exec", run, "worker-1", "--", "cat steps.py; echo apart >&2; exit 7", code=7)
    renter.call("cp", f"{run}/worker-1:steps.py", str(tmp_path / "copy"))
    assert answered.stdout == (tmp_path / "copy").read_text()
    assert "apart" in answered.stderr
    for member in ("worker-0", "worker-1"):
        assert says("touch $TRAINMASTER_OUTPUT_DIR/go; echo $TRAINMASTER_INDEX", member) == member[-1]
    assert renting.end()["reason"] == "SUCCEEDED"
    gone = renter.call("ssh", run, "worker-1", "--", "pwd", code=2)
    assert "has no machines now" in gone.stderr
