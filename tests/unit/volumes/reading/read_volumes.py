"""A small volume with all that a directory can have, for tests that read it."""

import os
import random
from pathlib import Path

import pytest

from trainmaster.volumes import Volume
from trainmaster.volumes.packed.pushing import push

CHUNK = 1 << 16


def make_tree(root: Path, files: int = 120) -> dict[str, bytes]:
    rng = random.Random(1)
    tree = {f"d{number % 5}/f {number:03}": rng.randbytes(rng.randrange(9_000)) for number in range(files)}
    tree["large"] = rng.randbytes(4 * CHUNK + 999)
    tree["empty"] = b""
    for name, data in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (root / "to file").symlink_to("d1/f 001")
    (root / "to directory").symlink_to("d2")
    (root / "d1/up").symlink_to("../to directory")
    (root / "round").symlink_to("round")
    (root / "nothing").mkdir()
    return tree


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path / "src")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Caches and stores of the test's own."""
    monkeypatch.setenv("TRAINMASTER_CACHE", os.fspath(tmp_path / "cache"))
    monkeypatch.setenv("TRAINMASTER_STORE", os.fspath(tmp_path / "store"))
    monkeypatch.delenv("TRAINMASTER_CACHE_BYTES", raising=False)
    return tmp_path


@pytest.fixture
def volume(home, tree):
    push(home / "src", "pets", chunk_limit_bytes=CHUNK)
    with Volume.open("pets", limit_bytes=32 * CHUNK) as opened:
        yield opened
