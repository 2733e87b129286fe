"""Batch inference over one folder: predictions as a table, and how many of them are right."""

import argparse
import csv
import json
import os
from pathlib import Path

import numpy
import pictures

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--folder", type=int, required=True)
arguments = parser.parse_args()
network = numpy.load(Path(os.environ["TRAINMASTER_DATA_MODEL"]) / "network.npz")
names, pixels, labels = pictures.load(
    Path(os.environ["TRAINMASTER_DATA_IMAGES"]) / f"folder-{arguments.folder}"
)
hidden = numpy.maximum(pixels @ network["w0"] + network["b0"], 0)
found = (hidden @ network["w1"] + network["b1"]).argmax(axis=1)
accuracy = float((found == labels).mean())
output = Path(os.environ.get("TRAINMASTER_OUTPUT_DIR", "output"))
output.mkdir(parents=True, exist_ok=True)
with (output / "predictions.csv").open("w", newline="") as file:
    csv.writer(file).writerows([("file", "digit"), *zip(names, found.tolist(), strict=True)])
with Path(os.environ.get("TRAINMASTER_METRICS", os.devnull)).open("a") as file:
    file.write(json.dumps({"images": len(names), "accuracy": accuracy}) + "\n")
print(f"folder {arguments.folder}: {len(names)} images, accuracy {accuracy:.4f}")
