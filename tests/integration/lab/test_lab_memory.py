"""Out of memory on rented machines: larger ones next, as far as the budget pays for them."""

from __future__ import annotations

import json
import sqlite3

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")

from renter import Renter

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

#: Runs out of memory in its first attempt, wherever that is.
HUNGRY = """
name: steps
{budget}
experiments:
  train:
    retries: 1
    hardware: {{instance: [m4.large, m4.xlarge]}}
    checkpoint: {{every: 1s}}
    command: |
      if test $TRAINMASTER_ATTEMPT = 1; then
        echo 7 > $TRAINMASTER_CHECKPOINT_DIR/step; python3 -c 'raise MemoryError'
      fi
      echo goes on from $(cat $TRAINMASTER_CHECKPOINT_DIR/step)
"""


def rented(renter: Renter, run: str) -> list[str]:
    """Types of all machines that a run has had, in their order."""
    with sqlite3.connect(renter.lab.home / "trainmaster.db") as connection:
        rows = connection.execute("SELECT data FROM cluster WHERE run_id = ?", [run]).fetchall()
    return [m["rental"]["instance_type"] for row in rows for m in json.loads(row[0])["machines"] if m["id"]]


def test_the_next_attempt_has_the_next_larger_machine(renter: Renter) -> None:
    renting = renter.run(renter.recipe(HUNGRY.format(budget="")))
    run = renting.run
    assert renting.end()["reason"] == "SUCCEEDED", renting.text
    assert renter.attempts(run) == ["OOM", "SUCCEEDED"]
    assert rented(renter, run) == ["m4.large", "m4.xlarge"]
    told = "an attempt that runs out of memory begins again on a larger machine: m4.xlarge at $0.2"
    assert told in renting.text.split("started")[0], "before anything is rented"
    (line,) = [line for line in renting.text.splitlines() if "ran out of memory on m4.large" in line]
    assert "its next attempt gets 1 x m4.xlarge" in line
    assert "per hour each instead of $0.1" in line
    assert "goes on from 7" in renter.call("logs", run).stdout
    assert not renter.machines(run), "all were given back"
    assert "`trainmaster logs" in renting.text
    assert "train/0#1 system-i-" in renter.call("logs", run, "--system").stdout, "of the first machine"


def test_what_the_budget_does_not_pay_for_is_said_and_not_tried_in_vain(renter: Renter) -> None:
    renting = renter.run(renter.recipe(HUNGRY.format(budget="budget: {per_hour: $0.15}")))
    run = renting.run
    assert renting.end(1)["reason"] == "OOM"
    assert renter.attempts(run) == ["OOM"]
    assert rented(renter, run) == ["m4.large"]
    assert "is not tried again there: the next larger machine is m4.xlarge" in renting.text
    assert "budget.per_hour of $0.15 does not allow $0.2" in renting.text
