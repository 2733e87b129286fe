"""Trains a small network on the training images and keeps it as plain arrays."""

import json
import os
from pathlib import Path

import numpy
import pictures
from sklearn.neural_network import MLPClassifier

HELD_OUT = 200

names, pixels, labels = pictures.load(Path(os.environ["TRAINMASTER_DATA_IMAGES"]) / "train")
network = MLPClassifier((64,), batch_size=50, learning_rate_init=0.005, random_state=0)
metrics = Path(os.environ.get("TRAINMASTER_METRICS", os.devnull))
for epoch in range(1, 41):
    network.partial_fit(pixels[HELD_OUT:], labels[HELD_OUT:], classes=range(10))
    accuracy = float((network.predict(pixels[:HELD_OUT]) == labels[:HELD_OUT]).mean())
    with metrics.open("a") as file:
        file.write(json.dumps({"epoch": epoch, "loss": float(network.loss_), "accuracy": accuracy}) + "\n")
print(f"accuracy {accuracy:.4f} on {HELD_OUT} images not trained on")
output = Path(os.environ.get("TRAINMASTER_OUTPUT_DIR", "output"))
output.mkdir(parents=True, exist_ok=True)
arrays = {f"{kind}{i}": value for kind, values in (("w", network.coefs_), ("b", network.intercepts_))
          for i, value in enumerate(values)}  # fmt: skip
numpy.savez(output / "network.npz", **arrays)
