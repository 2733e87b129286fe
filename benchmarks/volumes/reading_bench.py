"""What the benchmarks of reading share: a server, files like photographs, a volume of them, timed readers."""

import hashlib
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import obstore

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from common import machine

from trainmaster.objects.object_store import ObjectStore
from trainmaster.testing.private_s3 import PrivateS3
from trainmaster.volumes import Volume
from trainmaster.volumes.packed.chunk_source import chunk_key
from trainmaster.volumes.packed.pushing import push
from trainmaster.volumes.reading.slot_table import FREE

__all__ = [
    "Place",
    "chunk_names",
    "cpu_s",
    "evict",
    "forget_chunks",
    "machine",
    "narrow_line",
    "photographs",
    "place",
    "plain_get",
    "same_content",
    "together",
]

RANGE_BYTES = 8 << 20


class Place:
    """Where a benchmark works.

    Attributes:
        root: a directory of its own.
        source: the files.
        uri: the volume of them, on a real S3 server.
    """

    def __init__(self, root: Path, source: Path, uri: str) -> None:
        self.root, self.source, self.uri = root, source, uri


def photographs(directory: Path, files: int, mean_bytes: int) -> int:
    """Files of random bytes with the sizes that photographs have."""
    rng = random.Random(0)
    total = 0
    for number in range(files):
        size = max(1, int(rng.lognormvariate(0, 0.5) * mean_bytes / 1.133))
        path = directory / f"{number // 500:03}" / f"{number % 500:04}.jpg"
        if number % 500 == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(rng.randbytes(size))
        total += size
    return total


@contextmanager
def place(files: int, mean_bytes: int, chunk_bytes: int, *, https: bool = False) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="trainmaster-bench-", dir=os.environ.get("BENCH_DIR")) as name:
        root = Path(name)
        photographs(root / "src", files, mean_bytes)
        certificate = self_signed(root / "certificate.pem") if https else None
        with PrivateS3(certificate=certificate) as server:
            os.environ.update(server.environment(server.tls_url if https else None))
            uri = f"s3://{server.new_bucket()}/photographs"
            push(root / "src", uri, cache=root / "push-cache", chunk_limit_bytes=chunk_bytes)
            yield Place(root, root / "src", uri)


def chunk_names(volume: Volume) -> list[tuple[str, int]]:
    """Key and size of each chunk object."""
    table = volume.table
    return [
        (chunk_key(table.chunk_hash(chunk) or b""), table.chunk_sizes[chunk])
        for chunk in range(table.chunk_count)
    ]


def plain_get(volume: Volume, threads: int) -> int:
    """What the wire gives: the same ranges of the same chunks, to nowhere."""
    from concurrent.futures import ThreadPoolExecutor

    url = volume.uri.rpartition("@")[0]
    backend = ObjectStore(url)._backend

    def get(part: tuple[str, int, int]) -> int:
        key, start, length = part
        return len(obstore.get_range(backend._store, backend._key(key), start=start, length=length))

    parts = [
        (key, start, min(RANGE_BYTES, size - start))
        for key, size in chunk_names(volume)
        for start in range(0, size, RANGE_BYTES)
    ]
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(get, parts))


def forget_chunks(volume: Volume) -> None:
    """Makes the cache cold; its slots, and so their pages, stay."""
    table = volume.cache.slots.table
    for slot in range(table.capacity):
        table.advance(slot, FREE)


def cpu_s() -> float:
    return time.process_time()


def together(readers: int, work: Callable[[int], int], expected_bytes: int) -> tuple[float, float]:
    """Runs forked readers at the same time, each for the second time: as in an epoch after the first.

    Returns:
        Seconds from the first start to the last end, and CPU seconds of all.
    """
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(readers), context.SimpleQueue()

    def run(number: int) -> None:
        work(number)
        barrier.wait()
        before, began = cpu_s(), time.perf_counter()
        total = work(number + 100)
        results.put((began, time.perf_counter(), cpu_s() - before, total))

    processes = [context.Process(target=run, args=(number,)) for number in range(readers)]
    for process in processes:
        process.start()
    seen = [results.get() for _ in processes]
    for process in processes:
        process.join()
    if any(total != expected_bytes for *_, total in seen):
        raise AssertionError(f"wrong number of bytes: {seen}, not {expected_bytes}")
    wall_s = max(end for _, end, *_ in seen) - min(began for began, *_ in seen)
    return wall_s, sum(cpu for _, _, cpu, _ in seen)


def evict(source: Path) -> None:
    """Takes files out of the page cache, to be read back from the disk as the data of a training is."""
    for path in source.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def narrow_line(latency_ms: float, megabytes_per_s: float) -> Iterator[None]:
    """Puts a slow line before the store, in a process of its own (see `peers_line`)."""
    upstream = os.environ["AWS_ENDPOINT_URL"]
    scheme, _, address = upstream.partition("://")
    program = Path(__file__).with_name("peers_line.py")
    command = [sys.executable, str(program), address, str(latency_ms), str(megabytes_per_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            os.environ["AWS_ENDPOINT_URL"] = f"{scheme}://127.0.0.1:{process.stdout.readline().strip()}"
            yield
        finally:
            os.environ["AWS_ENDPOINT_URL"] = upstream
            process.kill()


def self_signed(path: Path) -> Path:
    """Makes a certificate for 127.0.0.1 and its key, in one file, which this process trusts from now on."""
    asked = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=127.0.0.1",
    ]
    named = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    key = path.with_suffix(".key")
    subprocess.run([*asked, *named, "-keyout", key, "-out", path], check=True, capture_output=True)
    certificate = path.with_suffix(".trusted")
    certificate.write_text(path.read_text())
    path.write_text(path.read_text() + key.read_text())
    os.environ["AWS_CA_BUNDLE"] = str(certificate)
    return path


def same_content(volume: Volume, source: Path) -> bool:
    """Proves that every file is what it was."""
    ours, theirs = hashlib.sha256(), hashlib.sha256()
    for row in range(len(volume)):
        ours.update(volume.read(row))
        theirs.update((source / volume.table.path(row)).read_bytes())
    return ours.digest() == theirs.digest()
