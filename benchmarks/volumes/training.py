"""How much of a training is spent waiting for data.

``python benchmarks/volumes/training.py [--files 8000] [--epochs 4] [--only whole]`` prints one JSON object.
A training step is a sleep of 16 ms for 32 samples, 2,000 samples a second; a thread reads the next batches
meanwhile, as a DataLoader does. The stall is the time from asking for a batch until it is there, copied out
of the cache, as a share of the epoch. With room for the whole volume, and for a quarter of it; once without a
known order. The first of ``epochs`` is cold: the cache has no chunk, but its slots have been used before.
"""

import argparse
import json
import os
import statistics
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from queue import Queue

from reading_bench import forget_chunks, machine, place, plain_get

from trainmaster.volumes import Volume
from trainmaster.volumes.reading import SampleOrder, samples

BATCH = 32
#: Share of the volume that there is room for, and whether the order is known, by name.
CACHES = {"whole": (1.3, True), "quarter": (0.25, True), "quarter_lru": (0.25, False)}


def batches(order: SampleOrder, known: bool) -> Iterator[list[bytes]]:
    """Reads ahead in a thread."""
    queue: Queue[list[bytes] | None] = Queue(4)

    def read() -> None:
        rows = samples(order, prefetch=known)
        while batch := [order.volume.read(row) for row in islice(rows, BATCH)]:
            queue.put(batch)
        queue.put(None)

    thread = threading.Thread(target=read)
    thread.start()
    while (batch := queue.get()) is not None:
        yield batch
    thread.join()


def epoch(order: SampleOrder, step_s: float, known: bool) -> dict[str, float]:
    """Trains an epoch; how long it waited, worked, and what it fetched."""
    volume = order.volume
    fetched = volume.cache.fetched_chunks
    waits: list[float] = []
    total, compute_s = 0, 0.0
    began = asked = time.perf_counter()
    for batch in batches(order, known):
        here = time.perf_counter()
        waits.append(here - asked)
        total += sum(map(len, batch))
        time.sleep(step_s * len(batch) / BATCH)
        asked = time.perf_counter()
        compute_s += asked - here
    whole_s = time.perf_counter() - began
    assert total == volume.table.total_bytes
    order.next_epoch()
    return {
        "stall_share": round(sum(waits) / whole_s, 4),
        "stall_share_after_first_batch": round(sum(waits[1:]) / whole_s, 4),
        "first_batch_s": round(waits[0], 3),
        "longest_other_wait_s": round(max(waits[1:]), 3),
        "epoch_s": round(whole_s, 2),
        "compute_s": round(compute_s, 2),
        "chunks_fetched": volume.cache.fetched_chunks - fetched,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=8000)
    parser.add_argument("--bytes", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--chunk-mib", type=int, default=8)
    parser.add_argument("--step-ms", type=float, default=16.0)
    parser.add_argument("--only", choices=CACHES, help="this cache (without it: all)")
    options = parser.parse_args()
    with place(options.files, options.bytes, options.chunk_mib << 20) as here:
        probe = Volume.open(here.uri, here.root / "probe-cache", limit_bytes=4 << 30)
        size_bytes = probe.table.total_bytes
        gets = []
        for _ in range(3):
            began = time.perf_counter()
            plain_get(probe, 8)
            gets.append(time.perf_counter() - began)
        step_s = options.step_ms / 1e3
        result: dict[str, object] = {
            "machine": machine(),
            "files": options.files,
            "bytes": size_bytes,
            "chunks": probe.table.chunk_count,
            "plain_get_s": round(statistics.median(gets), 2),
        }
        for name in [options.only] if options.only else CACHES:
            share, known = CACHES[name]
            cache = Path(here.root / f"cache-{name}")
            volume = Volume.open(here.uri, cache, limit_bytes=int(size_bytes * share))
            order = SampleOrder(volume, window=4)
            result[f"{name}_shuffle"] = {"neighbours": order.quality().neighbours}
            # Into slots of a new file once: what that costs is the machine's memory, and told apart.
            result[f"{name}_into_fresh_slots"] = epoch(order, step_s, known)
            forget_chunks(volume)
            result[name] = [epoch(order, step_s, known) for _ in range(options.epochs)]
        result["load_at_end"] = round(os.getloadavg()[0], 1)
        print(json.dumps(result))


if __name__ == "__main__":
    main()
