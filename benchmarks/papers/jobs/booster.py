"""A boosted classifier of stumps, in plain Python, with 12 parameters, as Hyper's section 4.3 has them.

Trains on 300 points for some tenths of a second, and reports the accuracy on 200 others; with ``--data`` they
are those of a folder's files.
"""

import argparse
import json
import math
import os
import random
from pathlib import Path

CHOICES = {
    "rounds": 20, "rate": 0.3, "bins": 8, "rows": 1.0, "columns": 1.0, "l2": 1.0,
    "least": 5, "decay": 1.0, "margin": 0.0, "clip": 4.0, "prior": 0.0, "seed": 0,
}  # fmt: skip


def points(count, rng):
    """Three features decide, five are noise; one label in ten is wrong."""
    rows = [[rng.gauss(0, 1) for _ in range(8)] for _ in range(count)]
    return rows, [(row[0] + row[1] > row[2]) != (rng.random() < 0.1) for row in rows]


def read(folder):
    """Those of all files of a folder: a label and eight features in a line."""
    lines = [line.split() for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]
    return [[float(text) for text in line[1:]] for line in lines], [line[0] == "1" for line in lines]


def stump(rows, slopes, args, rng):
    """The split of one column that lowers the loss most: column, threshold, and what both sides add."""
    best = (0.0, 0, 0.0, 0.0, 0.0)
    chosen = [i for i in range(len(rows)) if rng.random() < args.rows]
    for column in rng.sample(range(8), max(1, round(8 * args.columns))):
        ordered = sorted(chosen, key=lambda i: rows[i][column])
        total, left = sum(slopes[i] for i in ordered), 0.0
        edges = {len(ordered) * b // int(args.bins) for b in range(1, int(args.bins))}
        for place, i in enumerate(ordered):
            few, many = place, len(ordered) - place
            if place in edges and min(few, many) >= args.least:
                gain = left**2 / (few + args.l2) + (total - left) ** 2 / (many + args.l2)
                if gain > best[0]:
                    adds = left / (few + args.l2), (total - left) / (many + args.l2)
                    best = (gain, column, rows[i][column], *adds)
            left += slopes[i]
    return best[1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, usual in CHOICES.items():
        parser.add_argument(f"--{name}", type=float, default=usual)
    parser.add_argument("--data", type=Path)
    args = parser.parse_args()
    rows, labels = read(args.data) if args.data else points(500, random.Random(0))
    rng, scores, rate = random.Random(args.seed), [args.prior] * 500, args.rate
    for _ in range(int(args.rounds)):
        chances = [1 / (1 + math.exp(-score)) for score in scores[:300]]
        slopes = [y - p if abs(y - p) > args.margin else 0.0 for y, p in zip(labels, chances, strict=False)]
        column, edge, low, high = stump(rows[:300], slopes, args, rng)
        for i, row in enumerate(rows):
            added = rate * 4 * (low if row[column] < edge else high)
            scores[i] = max(-args.clip, min(args.clip, scores[i] + added))
        rate *= args.decay
    right = sum((score > 0) == label for score, label in zip(scores[300:], labels[300:], strict=True))
    with Path(os.environ["TRAINMASTER_METRICS"]).open("a") as file:
        file.write(json.dumps({"step": int(args.rounds), "accuracy": right / 200}) + "\n")


if __name__ == "__main__":
    main()
