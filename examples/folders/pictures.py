"""Reading a folder of PNG files named NUMBER-LABEL.png."""

from pathlib import Path

import numpy
from PIL import Image


def load(folder: Path) -> tuple[list[str], numpy.ndarray, numpy.ndarray]:
    """File names, pixels (images x 64, 0..1) and labels."""
    paths = sorted(folder.glob("*.png"))
    pixels = numpy.stack([numpy.asarray(Image.open(path), dtype="float32").ravel() / 255 for path in paths])
    labels = numpy.array([int(path.stem.rpartition("-")[2]) for path in paths])
    return [path.name for path in paths], pixels, labels
