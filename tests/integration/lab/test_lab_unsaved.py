"""Rented machines go back only when what they made is in the store, or on the driver's disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")

from renter import GANG, Renter

from trainmaster.artifacts import CheckpointSeries, fetch
from trainmaster.testing.counting_proxy import CountingProxy

pytestmark = [pytest.mark.ray, pytest.mark.s3, pytest.mark.timeout(900)]

#: Long enough for the store to be cut off before the last one, on a busy machine too.
STEPS = 240


@pytest.mark.crossings  # without rented machines in `test_cli_unsaved.py`
def test_when_the_money_for_waiting_is_used_the_model_is_fetched_and_named(
    renter: Renter, store: CountingProxy, tmp_path: Path
) -> None:
    text = (
        "budget: {saving: $0.002}\n"
        + GANG.format(workers=2, steps=STEPS, pause=0.15, every=4, more="").lstrip()
    )
    renting = renter.run(renter.recipe(text))
    run = renting.run
    series = CheckpointSeries(f"{renter.env['TRAINMASTER_STORE']}/checkpoints/{run}/train/0")
    renting.until(lambda: series.complete(), "a checkpoint")
    store.refuse("ExpiredToken")
    said = renting.until_said(r"saving is tried again.*").group(0)
    assert "ExpiredToken" in said
    assert "until $0.002 are used" in said
    renting.end(code=1)
    assert f"trainmaster models save {run}" in renting.text
    assert not renter.machines(run), "nobody pays for them any more"

    (unsaved,) = json.loads(renter.call("status", run, "--json").stdout)["unsaved"]
    kept = Path(unsaved["directory"])
    assert (kept / "model.txt").read_text() == f"trained {STEPS}"
    assert "ExpiredToken" in renter.call("models", "save", run, code=1).stderr
    store.refusal = None
    renter.call("models", "save", run)
    found = json.loads(renter.call("status", run, "--json").stdout)
    assert found["reason"] == "SUCCEEDED"
    fetch(found["models"][0]["uri"], tmp_path / "model")
    assert (tmp_path / "model" / "model.txt").read_text() == f"trained {STEPS}"
    assert (tmp_path / "model" / "members" / "worker-1" / "model.txt").read_text() == f"trained {STEPS}"
    assert renter.attempts(run) == ["SUCCEEDED"], "trained once"
