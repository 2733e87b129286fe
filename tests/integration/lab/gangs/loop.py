"""Trains one weight whose gradient is the mean over all members: its value after N steps is known."""

import json
import os
import sys
import time
from pathlib import Path

RATE = 0.001
HURRY = Path("/tmp/hurry")


def train(step, rank, weight_of, restore):
    """Count steps; the first member saves, reports and pauses, until it is told that what was to happen has.

    It goes on from what was saved.

    Args:
        step: makes a step with the others.
        rank: of this member.
        weight_of: the weight now.
        restore: sets it.
    """
    total, pause_s = int(sys.argv[1]), float(sys.argv[2])
    place = Path(os.environ["TRAINMASTER_CHECKPOINT_DIR"])
    attempt = os.environ["TRAINMASTER_ATTEMPT"]
    if attempt != "1":
        pause_s = 0.01
    saved = place / "weight.json"
    at = 0
    if saved.exists():
        found = json.loads(saved.read_text())
        at = found["step"]
        restore(found["weight"])
    print(f"attempt {attempt} starts at {at}", flush=True)
    while at < total:
        step()
        at += 1
        if rank == 0:
            draft = place.parent / "draft.json"
            draft.write_text(json.dumps({"step": at, "weight": weight_of()}))
            draft.replace(saved)
            with Path(os.environ["TRAINMASTER_METRICS"]).open("a") as file:
                file.write(json.dumps({"step": at}) + "\n")
            time.sleep(0.01 if HURRY.exists() else pause_s)
    print(f"done at {at} weight {weight_of():.6f}", flush=True)
