"""Lays out real images (scikit-learn's digits) as PNG files: some to train with, the others in folders."""

import argparse
import os
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits

TRAINING_IMAGES = 1000

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--folders", type=int, default=8)
arguments = parser.parse_args()
output = Path(os.environ.get("TRAINMASTER_OUTPUT_DIR", "output"))
digits = load_digits()
for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
    folder = "train" if number < TRAINING_IMAGES else f"folder-{number % arguments.folders}"
    path = output / folder / f"{number:04d}-{label}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((pixels * 15.9).astype("uint8"), "L").save(path)
print(f"{len(digits.images)} images")
