"""Fixtures: directories, and stores that need no server. No conftest.py: two of that name collide."""

import os
import random
import secrets

import pytest
from packed_trees import write


@pytest.fixture(params=["file", "memory"])
def packed_url(request, tmp_path):
    """Where a volume may be, on each kind of store that needs no server."""
    if request.param == "file":
        return f"file://{tmp_path / 'packed'}"
    return f"memory://{secrets.token_hex(8)}/packed"


@pytest.fixture
def tree(tmp_path):
    """A directory with all that a directory can have."""
    root = tmp_path / "src"
    rng = random.Random(0)
    for number in range(100):
        path = root / f"d{number % 7}" / f"f {number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(rng.randrange(20_000)))
    (root / "large").write_bytes(rng.randbytes(250_000))
    (root / "empty").touch()
    (root / "none/deep").mkdir(parents=True)
    (root / "none").chmod(0o750)
    (root / "d1/script").write_text("#!/bin/sh")
    (root / "d1/script").chmod(0o755)
    (root / "link").symlink_to("d1/script")
    (root / "up").symlink_to(root / "d1")
    write(os.fsencode(root), b" \xff\n'" + b"x" * 240, b"strange")
    return root
