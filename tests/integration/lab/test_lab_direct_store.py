"""Nodes publish to an object store themselves, and go on from there when one of them is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")

from renter import Renter

from trainmaster.artifacts import CheckpointSeries, fetch
from trainmaster.testing.counting_proxy import CountingProxy
from trainmaster.testing.sniffer import listening

pytestmark = [pytest.mark.ray, pytest.mark.s3, pytest.mark.timeout(900)]
MB = 1 << 20
#: Counts steps, in the first attempt for ever, and saves 4 MB with each tenth; goes on from a whole one only.
STEPS = """
import json, os, sys, time
from pathlib import Path

total, size = int(sys.argv[1]), 4 << 20
place, index = Path(os.environ["TRAINMASTER_CHECKPOINT_DIR"]), os.environ["TRAINMASTER_INDEX"]
mine = place / f"state-{index}"
step = 0
if mine.exists():
    text = mine.read_bytes()
    step = int(text[:8])
    assert text == b"%08d" % step * (size // 8), "half a checkpoint"
attempt = os.environ["TRAINMASTER_ATTEMPT"]
print(f"attempt {attempt} starts at {step}", flush=True)
while step < total or attempt == "1":
    time.sleep(0.15)
    step += 1
    if step % 10 == 0:
        draft = place.parent / f"draft-{index}"
        draft.write_bytes(b"%08d" % step * (size // 8))
        draft.replace(mine)
    with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
        file.write(json.dumps({"step": step}) + "\\n")
(Path(os.environ["TRAINMASTER_OUTPUT_DIR"]) / "model").write_bytes(b"%08d" % step * (size // 8))
"""
RECIPE = """
name: steps
experiments:
  train:
    distributed: {strategy: allreduce, workers: 2}
    framework: plain
    hardware: {instance: m4.xlarge}
    checkpoint: {every: 2s}
    grace: 5s
    command: python3 direct.py 60
"""


def test_a_machine_is_lost_while_it_uploads(renter: Renter, store: CountingProxy, tmp_path: Path) -> None:
    (renter.work / "direct.py").write_text(STEPS)
    renting = renter.run(renter.recipe(RECIPE))
    run = renting.run
    series = CheckpointSeries(f"{renter.env['TRAINMASTER_STORE']}/checkpoints/{run}/train/0")
    renting.until(lambda: series.complete(), "a checkpoint")

    def of_nodes() -> int:
        return sum(store.sent_bytes.values()) - store.sent_bytes[here]

    here = store.url.removeprefix("http://").partition(":")[0]
    store.bytes_per_s = MB / 2
    before = of_nodes()
    renting.until(lambda: of_nodes() > before + 2 * MB, "an upload under way")
    newest = series.newest()
    assert newest is not None
    series.restore(newest, tmp_path / "newest")
    saved = int((tmp_path / "newest" / "state-0").read_bytes()[:8])
    renter.lab.call("terminate", renter.machines(run)["worker-1"])
    renting.until_said(r"node-2 .* is lost")
    store.bytes_per_s = None
    found = renting.end()
    assert found["reason"] == "SUCCEEDED"
    assert renter.attempts(run) == ["NODE_LOST", "SUCCEEDED"]
    attempt, step = renter.starts(run)[1]
    assert (attempt, step) == (2, saved), "the newest complete checkpoint, whole"

    (model,) = found["models"]
    fetch(model["uri"], tmp_path / "model")
    for path in ("model", "members/worker-1/model"):
        data = (tmp_path / "model" / path).read_bytes()
        assert int(data[:8]) >= 60
        assert data == data[:8] * (MB // 2)
    assert "through this machine" not in renting.text
    nodes = {host for host in store.sent_bytes if host != here}
    assert len(nodes) in (2, 3), "addresses: the machine that came later may have that of the lost one"
    assert of_nodes() > (8 + 8) * MB, store.sent_bytes
    assert store.sent_bytes[here] < 2 * MB, "the driver, and this test, ask and commit"
    # This test has fetched a checkpoint and the model from here.
    assert store.got_bytes[here] < (8 + 8 + 1) * MB, "and it restores nothing"


@pytest.mark.crossings  # one run's checkpoint, on machines of another one
def test_a_larger_gang_begins_with_the_checkpoint_of_another_run(
    renter: Renter, store: CountingProxy
) -> None:
    first = renter.run(renter.gang(steps=10)).end()["run"]
    series = CheckpointSeries(f"{renter.env['TRAINMASTER_STORE']}/checkpoints/{first}/train/0")
    assert series.newest(), "kept, though it has a model"
    text = renter.gang(steps=20, workers=3).read_text()
    recipe = renter.recipe(text.replace("checkpoint: {", f"checkpoint: {{from: {first}, "))
    renting = renter.run(recipe)
    run = renting.run
    found = renting.end()
    assert found["reason"] == "SUCCEEDED", renting.text
    starts = {each: renter.starts(run, each) for each in ("worker-0", "worker-1", "worker-2")}
    assert starts == {"worker-0": [(1, 10)], "worker-1": [(1, 10)], "worker-2": [(1, 0)]}
    assert "through this machine" not in renting.text, "nodes read another run's checkpoint themselves"


SECRET = "f00d-of-the-secret-key"
#: Each finds the secret: a gang, and the ranks of an MPI program, which mpirun starts on both machines.
WITH_SECRETS = """
name: steps
secrets: [WANDB_API_KEY]
experiments:
  train:
    distributed: {strategy: allreduce, workers: 2}
    framework: plain
    hardware: {instance: m4.xlarge}
    command: test ${#WANDB_API_KEY} = 22; sleep 2; echo x > "$TRAINMASTER_OUTPUT_DIR/model"
  ranks:
    after: [train]
    distributed: {strategy: allreduce, workers: 2}
    framework: mpi
    hardware: {instance: m4.xlarge}
    command: test ${#WANDB_API_KEY} = 22; echo "rank $TRAINMASTER_INDEX on $(hostname)"
"""


def test_nobody_on_the_network_reads_secrets_tokens_or_keys(
    lab: Any, renter: Renter, store: CountingProxy
) -> None:
    with listening(lab.directory / "net" / "region") as heard:
        renting = renter.run(renter.recipe(WITH_SECRETS, "ray"), WANDB_API_KEY=SECRET)
        run = renting.run
        tokens, keys = set(), set()

        def all_seen() -> bool:
            place = lab.home / "clusters"
            tokens.update(path.read_bytes() for path in place.glob("*/*/token"))
            keys.update(path.read_bytes().splitlines()[1] for path in place.glob("*/*/authority.pem"))
            return bool(tokens and keys)

        renting.until(all_seen, "a cluster")
        found = renting.end()
    assert found["reason"] == "SUCCEEDED"
    log = renter.call("logs", run).stdout
    assert len({line.split(" on ")[1] for line in log.splitlines() if "rank " in line}) == 2
    assert sum(map(len, heard.flows.values())) > 100_000, "it has listened"
    secrets = {SECRET.encode(), renter.env["AWS_SECRET_ACCESS_KEY"].encode(), *tokens, *keys}
    for secret in secrets:
        assert not heard.where(secret), secret
