"""Chunks that need no volume: made from their number, with the faults that a test wants."""

import hashlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from trainmaster.volumes.errors import DamagedChunkError, MissingChunkError
from trainmaster.volumes.reading.download import Chunk

SLOT = 1 << 16


class MadeSource:
    """Chunk n is random bytes seeded with n; every fetch appends a byte to ``log``.

    Attributes:
        damaged: chunk -> how many of its next fetches bring wrong bytes.
        missing: chunks that are not there.
    """

    def __init__(self, log: Path) -> None:
        self.log = log
        self.damaged: dict[int, int] = {}
        self.missing: set[int] = set()
        self.before_fetch = lambda chunk: None

    @staticmethod
    def data(chunk: int) -> bytes:
        return random.Random(chunk).randbytes(SLOT - 13 * chunk)

    def chunk(self, number: int) -> Chunk:
        data = self.data(number)
        return Chunk(self, number, hashlib.sha256(data).digest(), len(data))

    def blocks(self, chunk: int, start: int, length: int):
        with self.log.open("ab") as log:
            log.write(bytes([chunk]))
        self.before_fetch(chunk)
        if chunk in self.missing:
            raise MissingChunkError(f"chunk {chunk} is missing.")
        data = bytearray(self.data(chunk))
        if self.damaged.get(chunk, 0):
            self.damaged[chunk] -= 1
            data[100] ^= 1
        yield memoryview(data)[start : start + length]

    def verify(self, chunk: int, data: memoryview) -> None:
        if bytes(data) != self.data(chunk):
            raise DamagedChunkError(f"chunk {chunk} has another hash.")

    def fetches(self) -> list[int]:
        return list(self.log.read_bytes()) if self.log.exists() else []


def content(cache, placed, size):
    return bytes(cache.slots.view(placed.slot, 0, size))


def read(cache, source, number):
    """Obtains a chunk, compares its bytes, and gives where it lies."""
    chunk = source.chunk(number)
    placed = cache.obtain(chunk, pinned=True)
    assert content(cache, placed, chunk.size_bytes) == source.data(number)
    cache.unpin(placed)
    return placed


def python(program: str, *arguments: object) -> subprocess.Popen:
    """Another process that can import what this one can."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def kill(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()
