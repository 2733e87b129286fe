"""What a way of reading is: `Method`, and `Seen`, which proves what it read."""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from peers_place import Place, fingerprint


class Seen:
    """Counts what was read and compares it with what it should be.

    Args:
        index: name -> size, fingerprint, spot, SHA-256; of large files, fingerprints of blocks.
        thorough: compare every byte by the fingerprint; else size and eight bytes in the middle.
        seconds: how long to read at most.

    Attributes:
        files: read and proven.
        bytes: of them.
        sum: of the checksums that were compared, modulo 2**64.
    """

    def __init__(self, index: dict[str, list], *, thorough: bool, seconds: float) -> None:
        self.index, self.thorough = index, thorough
        self.files = self.bytes = self.sum = 0
        self.deadline = time.perf_counter() + seconds
        self._lock = threading.Lock()

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return time.perf_counter() > self.deadline

    def note(self, name: str, data: bytes | memoryview) -> None:
        """Adds a file.

        Raises:
            AssertionError: its content is not what it should be.
        """
        size, whole, middle = self.index[name][:3]
        if not self.thorough:  # one thread only, and nothing that is not needed
            at = size >> 1
            if len(data) != size or int.from_bytes(data[at : at + 8], "little") != middle:
                raise self._wrong(name, data)
            self.files += 1
            self.bytes += size
            self.sum += middle
            return
        if len(data) != size or fingerprint(data) != whole:
            raise self._wrong(name, data)
        with self._lock:
            self.files += 1
            self.bytes += size
            self.sum += whole

    def note_block(self, name: str, number: int, data: bytes | memoryview) -> None:
        """Adds a block of a large file.

        Raises:
            AssertionError: its content is not what it should be.
        """
        expected = self.index[name][4][number]
        if fingerprint(data) != expected:
            raise AssertionError(f"{name}: its block {number} has other bytes than were written")
        with self._lock:
            self.bytes += len(data)
            self.sum += expected

    def _wrong(self, name: str, data: bytes | memoryview) -> AssertionError:
        return AssertionError(
            f"{name}: {len(data)} of {self.index[name][0]} bytes, or others than were written"
        )


#: What is timed: it reads and notes.
Read = Callable[[Seen], object]


class Method:
    """A way of reading the files; made in the process of its own that reads with it.

    Each run is a fork of that process: nothing but what :meth:`start` started outlives it.

    Attributes:
        peer: whose packages it needs; "" for none.
        layout: of the files on the store that it reads; "" for the local disk.
        caches: whether it keeps what it read.
        whole: whether its unit is a chunk, so that only a whole pass says how quick it is.
        shuffle: how its cold order is shuffled: ``full``, or within 4 chunks.
        settings: what was tuned.
        filling: whether what is read cold must be kept, though it were quicker not to.
    """

    peer = ""
    layout = ""
    caches = True
    whole = False
    shuffle = "full"
    settings = ""
    filling = False

    def __init__(self, place: Place, name: str) -> None:
        self.name = name
        self.root = Path(place.root, "methods", name)
        self.index: dict[str, list] = json.loads(Path(place.index).read_text())
        self.names = list(self.index)

    @property
    def cache(self) -> Path:
        """What it keeps."""
        return self.root / "cache"

    def prepare(self) -> None:
        """Imports what is slow to import."""

    def start(self, place: Place) -> None:
        """Makes it ready to read, its cache empty."""
        self.stop()
        shutil.rmtree(self.root, ignore_errors=True)
        self.cache.mkdir(parents=True)

    def stop(self) -> None:
        """Ends what :meth:`start` started."""

    def pids(self) -> list[int]:
        """Processes that work for it, besides those that read."""
        return []

    def cold(self, place: Place, seed: int) -> Read:
        """Gives what reads each file once; clients are made before, what a method opens is part of it."""
        raise NotImplementedError

    def warm(self, place: Place, seed: int) -> Read:
        """Gives what reads each file once, one after the other; all is open before."""
        raise NotImplementedError

    def limit_bytes(self, place: Place, share: float) -> int:
        """How much may be cached: a share of the volume, but 8 chunks at least, the same for all."""
        return max(int(sum(one[0] for one in self.index.values()) * share), 8 * place.shard_bytes)

    def shuffled(self, seed: int) -> list[str]:
        """The files in a random order."""
        names = list(self.names)
        random.Random(seed).shuffle(names)
        return names


def in_threads(names: list[str], get: Callable[[str], bytes], threads: int) -> Read:
    """Reads files by name with many requests at once, until all are read or the time is over."""

    def read(seen: Seen) -> None:
        waiting, lock = iter(names), threading.Lock()

        def run() -> None:
            while not seen.over:
                with lock:
                    name = next(waiting, None)
                if name is None:
                    return
                seen.note(name, get(name))

        with ThreadPoolExecutor(threads) as pool:
            for one in [pool.submit(run) for _ in range(threads)]:
                one.result()

    return read


def one_by_one(names: list[str], get: Callable[[Any], bytes], keys: list[Any] | None = None) -> Read:
    """The same in one thread.

    Args:
        names: of the files.
        get: reads one.
        keys: what it is given; None: the names.
    """

    def read(seen: Seen) -> None:
        note = seen.note
        for number, (name, key) in enumerate(zip(names, keys or names, strict=True)):
            note(name, get(key))
            if number & 63 == 0 and seen.over:
                return

    return read


def at_once(place: Place, near: int, files_per_s: float = 1000.0) -> int:
    """How many requests at once a user would set for a line.

    Args:
        place: with the line.
        near: as many as are best without latency.
        files_per_s: which they bring there; far away as many more keep that rate.
    """
    return near + int(files_per_s * place.latency_ms / 1e3)
