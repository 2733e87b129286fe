"""What the tests of reading and mounting share: a server that counts, small trees, other processes."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_s3 import FakeS3

CHUNK = 1 << 18


class CountingS3(FakeS3):
    """Counts the requests for each key, and spoils answers on request.

    Attributes:
        gets: keys of GET requests, in order.
    """

    def __init__(self):
        super().__init__()
        self.gets: list[str] = []
        handler, server = self.RequestHandlerClass, self

        class Counting(handler):
            def on_GET(self, objects, key, query, body):
                if key and self.command == "GET":
                    server.gets.append(key)
                return super().on_GET(objects, key, query, body)

            on_HEAD = on_GET

        self.RequestHandlerClass = Counting

    def chunk_gets(self):
        return [key for key in self.gets if "/chunks/" in key]

    def chunk_keys(self):
        return sorted(key for key in self.buckets["data"] if "/chunks/" in key)


@pytest.fixture
def counting_s3(monkeypatch):
    """An S3 server with a bucket ``data``."""
    server = CountingS3()
    server.buckets["data"] = {}
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Caches and stores of the test's own."""
    monkeypatch.setenv("TRAINMASTER_CACHE", os.fspath(tmp_path / "cache"))
    monkeypatch.setenv("TRAINMASTER_STORE", os.fspath(tmp_path / "store"))
    monkeypatch.setenv("TRAINMASTER_CACHE_BYTES", str(64 * CHUNK))
    return tmp_path


@pytest.fixture
def pictures(tmp_path):
    """Files in folders by class, as an ImageFolder wants them; path -> content."""
    rng = random.Random(7)
    tree = {
        f"train/{kind}/{number:03}.bin": rng.randbytes(rng.randrange(30_000))
        for kind in ("cat", "dog")
        for number in range(60)
    }
    tree["notes with spaces.txt"] = b"find me\n" * 100
    tree["large.bin"] = rng.randbytes(3 * CHUNK + 777)
    tree["empty"] = b""
    for name, data in tree.items():
        path = tmp_path / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (tmp_path / "src/link").symlink_to("train/cat/001.bin")
    return tree


def python(program: str, *arguments: object) -> subprocess.Popen:
    """Another process that can import what this one can."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def kernel_can() -> bool:
    """Whether the kernel of this machine can read volumes by itself, for this user."""
    kinds = Path("/proc/filesystems").read_text().split()
    return os.geteuid() == 0 and "erofs" in kinds and Path("/dev/loop-control").exists()
