"""A workflow over MNIST: shards of it, a sweep of a linear classifier over them, and inference on each shard.

``stages.py prepare --part N``, ``stages.py train --lr X --steps N``, ``stages.py infer --part N``. Training
saves a checkpoint every `SAVED_STEPS` steps, and goes on from it.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np

PARTS = 8
OUTPUT = Path(os.environ.get("TRAINMASTER_OUTPUT_DIR", "output"))
STEP_S = 0.25
#: A checkpoint that changes while it is copied is not published: between two there is time to.
SAVED_STEPS = 10


def report(**values: float) -> None:
    with Path(os.environ["TRAINMASTER_METRICS"]).open("a") as file:
        file.write(json.dumps(values) + "\n")


def one_hot(labels: np.ndarray) -> np.ndarray:
    return np.eye(10, dtype=np.float32)[labels]


def prepare(part: int) -> None:
    """Every eighth of 16,000 images, in floats."""
    data = np.load("mnist.npz")
    rows = slice(part, 16_000, PARTS)
    images = data["images"][rows].reshape(-1, 784).astype(np.float32) / 255
    np.savez(OUTPUT / f"part-{part:02}.npz", images=images, labels=data["labels"][rows])


def shards() -> list[Path]:
    return sorted(Path(os.environ["TRAINMASTER_DATA_PARTS"]).rglob("part-*.npz"))


def train(lr: float, steps: int) -> None:
    place = Path(os.environ["TRAINMASTER_CHECKPOINT_DIR"])
    saved = place / "weights.npz"
    weights, first = np.zeros((784, 10), np.float32), 0
    if saved.exists():
        found = np.load(saved)
        weights, first = found["weights"], int(found["step"])
    print(f"attempt {os.environ['TRAINMASTER_ATTEMPT']} begins at step {first}", flush=True)
    report(step=first, lr=lr)
    parts = [np.load(path) for path in shards()]
    assert len(parts) == PARTS, f"{len(parts)} shards"
    images = np.concatenate([part["images"] for part in parts])
    labels = np.concatenate([part["labels"] for part in parts])
    held, images = images[:1000], images[1000:]
    truth, labels = labels[:1000], labels[1000:]
    for step in range(first + 1, steps + 1):
        batch = slice(step * 128 % 14_000, step * 128 % 14_000 + 128)
        logits = images[batch] @ weights
        chances = np.exp(logits - logits.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        weights += lr * images[batch].T @ (one_hot(labels[batch]) - chances) / 128
        if step % SAVED_STEPS == 0:
            draft = place.parent / "draft.npz"
            np.savez(draft, weights=weights, step=step)
            draft.replace(saved)
        report(step=step, accuracy=float(((held @ weights).argmax(axis=1) == truth).mean()))
        time.sleep(STEP_S)
    np.save(OUTPUT / "weights.npy", weights)


def infer(part: int) -> None:
    (model,) = Path(os.environ["TRAINMASTER_DATA_MODEL"]).rglob("weights.npy")
    found = np.load(shards()[part])
    guessed = (found["images"] @ np.load(model)).argmax(axis=1)
    np.save(OUTPUT / f"guessed-{part:02}.npy", guessed)
    report(images=len(guessed), accuracy=float((guessed == found["labels"]).mean()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("stage", choices=("prepare", "train", "infer"))
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    if options.stage == "train":
        train(options.lr, options.steps)
    else:
        {"prepare": prepare, "infer": infer}[options.stage](options.part)


if __name__ == "__main__":
    main()
