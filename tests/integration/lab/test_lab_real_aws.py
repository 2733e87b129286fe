"""`make real-aws`, tried on the lab before it is tried on EC2: the same script, another address."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")
pytest.importorskip("torch", reason="torch is not installed")

from renter import Renter

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "real_aws.py"

pytestmark = [pytest.mark.crossings, pytest.mark.ray, pytest.mark.timeout(900)]


def test_it_runs_loses_a_machine_and_finds_nothing_left(renter: Renter) -> None:
    done = subprocess.run(
        [
            sys.executable,
            SCRIPT,
            "--provider",
            "lab",
            "--type",
            "m4.xlarge",
            "--cap",
            "4",
            "--steps",
            "90",  # on a busy machine the gang must not be done before the machine is
            "--yes",
        ],
        env=renter.env,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["left"] == []
    assert found["digits"]["reason"] == found["lost_spot_machine"]["reason"] == "SUCCEEDED"
    assert len(found["lost_spot_machine"]["begun_at"]) >= 3, "two members, and the one that came instead"


def test_what_is_left_is_named(renter: Renter) -> None:
    """The check shares nothing with what it checks."""
    run = renter.run(renter.gang(steps=4000))
    run.until_said(r"attempt 1 starts at 0")
    code = f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import real_aws as r; r.GONE_S = 0; "
    code += "from pathlib import Path; import argparse, os, json; "
    code += "t = r.Trial(Path('.'), os.environ, r.lab_access(Path(os.environ['TRAINMASTER_HOME'])), "
    code += "argparse.Namespace()); print(json.dumps(t.left(frozenset())))"
    left = json.loads(
        subprocess.run([sys.executable, "-c", code], env=renter.env, capture_output=True, text=True).stdout
    )
    assert sum("instance i-" in words for words in left) == 2
    assert any("SecurityGroups" in words for words in left)
    assert any("KeyPairs" in words for words in left)
