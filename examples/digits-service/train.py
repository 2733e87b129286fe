"""Handwritten digits with scikit-learn: a small network, kept as a file that can be served safely.

`--start DIR` goes on from a model of before (fine-tuning), with pictures that are shifted by a pixel, too.
"""

import argparse
import json
import os
import warnings
from pathlib import Path

import numpy as np
import skops.io
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

try:
    from trainmaster import report
except ImportError:  # the same in four lines, for a Python that does not have it

    def report(**values):
        if "TRAINMASTER_METRICS" in os.environ:
            with Path(os.environ["TRAINMASTER_METRICS"]).open("a") as file:
                file.write(json.dumps(values) + "\n")


FILE = "digits.skops"


def load():
    """1,437 images to learn from and 360 to test with: 64 grey values in 0..1 each, and the digit."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images, labels = digits.data[order] / 16, digits.target[order]
    return images[:1437], labels[:1437], images[1437:], labels[1437:]


def shifted(images, labels):
    """The images and what they look like a pixel further to each side."""
    squares = images.reshape(-1, 8, 8)
    moves = [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0)]
    moved = [np.roll(squares, move, axis=(1, 2)).reshape(-1, 64) for move in moves]
    return np.concatenate(moved), np.tile(labels, len(moves))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--start", type=Path, help="the directory of a model to go on from")
    args = parser.parse_args()
    images, labels, test_images, test_labels = load()
    hard_images, hard_labels = shifted(test_images, test_labels)
    if args.start:
        model = skops.io.load(args.start / FILE)  # only types of scikit-learn and NumPy: nothing is unpickled
        images, labels = shifted(images, labels)
    else:
        model = MLPClassifier([64], random_state=0)
    generator = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for epoch in range(1, args.epochs + 1):
            order = generator.permutation(len(labels))
            for batch in np.array_split(order, len(order) // 64):
                model.partial_fit(images[batch], labels[batch], classes=range(10))
            accuracy = model.score(test_images, test_labels)
            accuracy_shifted = model.score(hard_images, hard_labels)
            report(step=epoch, loss=model.loss_, accuracy=accuracy, accuracy_shifted=accuracy_shifted)
            print(f"epoch {epoch:2d}  accuracy {accuracy:.4f}, shifted {accuracy_shifted:.4f}", flush=True)
    output = Path(os.environ.get("TRAINMASTER_OUTPUT_DIR", "output"))
    output.mkdir(parents=True, exist_ok=True)
    del model._optimizer  # of this training only; skops trusts no file that has one
    skops.io.dump(model, output / FILE)


if __name__ == "__main__":
    main()
