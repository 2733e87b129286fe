"""CIFAR-10 in its official binary format, as in `cifar-10-binary.tar.gz`.

A file is records of 3,073 bytes and nothing else: the label (0 to 9), then 1,024 bytes each of red,
green and blue, row by row. Needs NumPy only.
"""

from pathlib import Path

import numpy as np

TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILES = ("test_batch.bin",)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHAPE = (3, 32, 32)
RECORD_BYTES = 1 + 3 * 32 * 32


class FormatError(ValueError):
    """A file is not what it should be; the text names it and says what is wrong with it."""


def read_file(path):
    """One file: images (n x 3 x 32 x 32) and labels (n), both uint8.

    Raises:
        FormatError: it is missing, empty, cut off, or has a label above 9.
    """
    path = Path(path)
    try:
        data = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not data.size:
        raise FormatError(f"{path}: is empty; it should hold records of {RECORD_BYTES} bytes")
    whole, rest = divmod(data.size, RECORD_BYTES)
    if rest:
        raise FormatError(
            f"{path}: {data.size} bytes are {whole} records of {RECORD_BYTES} bytes and {rest} bytes more; "
            "it is cut off or not in the binary format"
        )
    records = data.reshape(whole, RECORD_BYTES)
    labels = records[:, 0]
    wrong = np.flatnonzero(labels >= len(CLASSES))
    if wrong.size:
        raise FormatError(
            f"{path}: record {wrong[0]} has label {labels[wrong[0]]}; labels are 0 to {len(CLASSES) - 1}"
        )
    return records[:, 1:].reshape(whole, *SHAPE), labels.copy()


def write_file(path, images, labels):
    """The opposite of `read_file`."""
    images, labels = np.asarray(images, np.uint8), np.asarray(labels, np.uint8)
    if images.shape != (len(labels), *SHAPE):
        raise FormatError(f"{path}: images of shape {images.shape}, not {(len(labels), *SHAPE)}")
    if labels.size and labels.max() >= len(CLASSES):
        raise FormatError(f"{path}: label {labels.max()}; labels are 0 to {len(CLASSES) - 1}")
    np.concatenate([labels[:, None], images.reshape(len(labels), -1)], axis=1).tofile(path)


def load(directory):
    """Training images and labels, test images and labels, of a whole directory."""
    directory = Path(directory)
    found = []
    for names in (TRAIN_FILES, TEST_FILES):
        images, labels = zip(*(read_file(directory / name) for name in names), strict=True)
        found += [np.concatenate(images), np.concatenate(labels)]
    return tuple(found)
