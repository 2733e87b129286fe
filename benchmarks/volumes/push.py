"""What packing, hashing and proving cost: `volume push` beside a plain parallel PUT of the same bytes.

``python benchmarks/volumes/push.py [--megabytes 1000] [--rounds 3] [--jobs 4]`` prints one JSON object. A
SeaweedFS of its own; rounds are interleaved; every round sends to a new place with an empty cache.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from common import machine

from trainmaster.objects.object_store import ObjectStore
from trainmaster.testing.private_s3 import PrivateS3
from trainmaster.volumes.packed.pushing import push

CHUNK_BYTES = 64 << 20


def data(directory: Path, megabytes: int) -> int:
    """Small files (four fifths) and large ones."""
    rng = random.Random(0)
    total = 0
    for number in range(1_000_000):
        size = int(rng.lognormvariate(11.2, 0.7))
        place = directory / f"{number // 1000:03}" / f"{number % 1000:04}.jpg"
        if number % 1000 == 0:
            place.parent.mkdir()
        place.write_bytes(rng.randbytes(size))
        total += size
        if total > megabytes * 800_000:
            break
    for number in range(2):
        size = megabytes * 100_000
        with (directory / f"large-{number}").open("wb") as file:
            for _ in range(size // 1_000_000):
                file.write(rng.randbytes(1_000_000))
        total += size
    return total


def server_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def plain(url: str, objects: list[bytes], jobs: int) -> None:
    store = ObjectStore(url)._backend._store
    with ThreadPoolExecutor(jobs) as pool:
        list(
            pool.map(
                lambda item: obstore.put(store, f"plain/{url[-4:]}/{item[0]}", item[1], use_multipart=False),
                enumerate(objects),
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=4)
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="tm-push-"))
    results: dict[str, list[dict[str, float]]] = {"plain": [], "push": []}
    try:
        source = scratch / "source"
        source.mkdir()
        total = data(source, options.megabytes)
        content = b"".join(path.read_bytes() for path in sorted(source.rglob("*")) if path.is_file())
        objects = [content[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES)]
        del content
        with PrivateS3() as server:
            os.environ.update(server.environment())
            plain(
                f"s3://{server.new_bucket()}/warm", objects[:4], options.jobs
            )  # the server makes its volumes
            for number in range(options.rounds):
                for name in ("plain", "push") if number % 2 == 0 else ("push", "plain"):
                    url = f"s3://{server.new_bucket()}/{name}-{number:03}"
                    client, begun, spent = time.process_time(), time.perf_counter(), server_cpu_s(server.pid)
                    if name == "plain":
                        plain(url, objects, options.jobs)
                    else:
                        report = push(source, url, cache=scratch / f"cache-{number}", jobs=options.jobs)
                        assert report.sent_bytes >= report.head.total_bytes == total  # files are aligned
                    taken = time.perf_counter() - begun
                    results[name].append(
                        {
                            "mb_per_s": total / taken / 1e6,
                            "client_cpu_s_per_gb": (time.process_time() - client) / total * 1e9,
                            "server_cpu_s_per_gb": (server_cpu_s(server.pid) - spent) / total * 1e9,
                        }
                    )
                    print(name, results[name][-1], file=sys.stderr)
    finally:
        shutil.rmtree(scratch)
    medians = {name: statistics.median(one["mb_per_s"] for one in rounds) for name, rounds in results.items()}
    print(
        json.dumps(
            {
                "machine": machine(),
                "bytes": total,
                "jobs": options.jobs,
                **results,
                "ratio_of_medians": medians["push"] / medians["plain"],
            }
        )
    )


if __name__ == "__main__":
    main()
