"""Reading files of a volume: warm beside the local disk, cold beside a plain parallel GET.

``python benchmarks/volumes/read.py [--files 4000] [--rounds 5] [--https] [--cold]`` prints one JSON object.
A SeaweedFS of its own on the same machine; methods are interleaved within a round; the content is compared
file by file, and the number of bytes in every run. Files are read in random order. Rates are medians over
rounds; ratios are of the same round, then the median. The local files were read from the disk, as those of
a training are: files that were just written lie in larger pages, and are read in half the time.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from reading_bench import (
    cpu_s,
    evict,
    forget_chunks,
    machine,
    narrow_line,
    place,
    plain_get,
    same_content,
    together,
)

from trainmaster.spec.errors import TrainmasterError, one_line
from trainmaster.volumes import Volume
from trainmaster.volumes.mounting import mount, unmount
from trainmaster.volumes.mounting.mounts import Means
from trainmaster.volumes.reading import SampleOrder, samples

BATCH = 64
# Answered by a process, as while chunks are missing; and read by the kernel, as when all are there.
MEANS: dict[str, Means] = {"mount": "fuse", "mount_kernel": "kernel"}


def files_of(root: Path, paths: list[str]) -> list[bytes]:
    return [os.fsencode(root / path) for path in paths]


def by_descriptor(names: list[bytes], seed: int) -> int:
    names = list(names)
    random.Random(seed).shuffle(names)
    total = 0
    for name in names:
        descriptor = os.open(name, os.O_RDONLY)
        size = os.fstat(descriptor).st_size
        total += len(os.read(descriptor, size))
        os.close(descriptor)
    return total


def by_open(names: list[bytes], seed: int) -> int:
    names = list(names)
    random.Random(seed).shuffle(names)
    total = 0
    for name in names:
        with open(name, "rb") as file:  # noqa: PTH123 - as most programs do
            total += len(file.read())
    return total


def natively(volume: Volume, seed: int) -> int:
    rows = list(range(len(volume)))
    random.Random(seed).shuffle(rows)
    return sum(len(volume.read(row)) for row in rows)


def by_view(volume: Volume, seed: int) -> int:
    """As a training does that decodes from memory: nothing is copied, one byte of each page is looked at."""
    rows = list(range(len(volume)))
    random.Random(seed).shuffle(rows)
    total = 0
    for row in rows:
        view = volume.view(row)
        view[::4096].tobytes()
        total += len(view)
    return total


def by_views(volume: Volume, seed: int) -> int:
    """The same for a batch at a time."""
    rows = list(range(len(volume)))
    random.Random(seed).shuffle(rows)
    total = 0
    for start in range(0, len(rows), BATCH):
        for view in volume.views(rows[start : start + BATCH]):
            view[::4096].tobytes()
            total += len(view)
    return total


def median(values: list[float]) -> float:
    return round(statistics.median(values), 3)


def reading(names: list[bytes]) -> dict[str, Callable[[int], int]]:
    """The two ways in which programs read files, by the ending of the method's name."""
    return {"": lambda seed: by_descriptor(names, seed), "_open": lambda seed: by_open(names, seed)}


def warm(volume: Volume, source: Path, mounts: dict[str, Path], rounds: int) -> dict[str, object]:
    paths = list(volume.paths())
    total = volume.table.total_bytes
    methods: dict[str, Callable[[int], int]] = {
        "native_read": lambda seed: natively(volume, seed),
        "native_view": lambda seed: by_view(volume, seed),
        "native_views": lambda seed: by_views(volume, seed),
    }
    pairs = [(name, "ext4") for name in methods]
    for name, root in {"ext4": source, **mounts}.items():
        for ending, method in reading(files_of(root, paths)).items():
            methods[name + ending] = method
            pairs += [(name + ending, "ext4" + ending)] if name != "ext4" else []
    result: dict[str, object] = {}
    for readers in (1, 4):
        rates: dict[str, list[float]] = {name: [] for name in methods}
        cpu_us: dict[str, list[float]] = {name: [] for name in methods}
        for number in range(rounds):
            order = list(methods)
            random.Random(number).shuffle(order)
            for name in order:
                seconds, used_s = together(readers, methods[name], total)
                rates[name].append(readers * len(paths) / seconds)
                cpu_us[name].append(used_s / (readers * len(paths)) * 1e6)
        ratio = {
            name: median([a / b for a, b in zip(rates[name], rates[base], strict=True)])
            for name, base in pairs
        }
        cpu_ratio = {
            name: median([b / a for a, b in zip(cpu_us[name], cpu_us[base], strict=True)])
            for name, base in pairs
        }
        result[f"readers_{readers}"] = {
            "files_per_s": {name: round(statistics.median(values)) for name, values in rates.items()},
            "range": {name: [round(min(values)), round(max(values))] for name, values in rates.items()},
            "reader_cpu_us_per_file": {name: median(values) for name, values in cpu_us.items()},
            "ratio_to_ext4": ratio,
            "ratio_to_ext4_by_reader_cpu": cpu_ratio,
        }
    return result


def cold(volume: Volume, rounds: int, latency_ms: float = 0, megabytes_per_s: float = 0) -> dict[str, object]:
    """Fills the cache from the store and reads every sample, in a shuffled order that is known."""
    total = volume.table.total_bytes
    rates: dict[str, list[float]] = {"plain_get": [], "volume": [], "volume_chunks_only": []}
    cpu: dict[str, list[float]] = {name: [] for name in rates}

    def stream() -> int:
        return sum(len(volume.read(row)) for row in samples(SampleOrder(volume, window=4)))

    def chunks_only() -> int:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda n: volume.cache.obtain(volume.chunk(n)), range(volume.table.chunk_count)))
        return total

    began = time.perf_counter()
    assert stream() == total
    first_s = time.perf_counter() - began
    methods = {"plain_get": lambda: plain_get(volume, 8), "volume": stream, "volume_chunks_only": chunks_only}
    for number in range(rounds):
        order = list(methods)
        random.Random(number).shuffle(order)
        for name in order:
            forget_chunks(volume)
            before, began = cpu_s(), time.perf_counter()
            assert methods[name]() >= total
            rates[name].append(total / 1e6 / (time.perf_counter() - began))
            cpu[name].append((cpu_s() - before) / (total / 1e9))
    line = {"latency_ms": latency_ms, "line_megabytes_per_s": megabytes_per_s} if latency_ms else {}
    return {
        **line,
        "megabytes_per_s": {name: median(values) for name, values in rates.items()},
        "range": {name: [round(min(values)), round(max(values))] for name, values in rates.items()},
        "client_cpu_s_per_gb": {name: median(values) for name, values in cpu.items()},
        "first_time_into_fresh_slots_megabytes_per_s": round(total / 1e6 / first_s),
        "ratio_to_plain_get": {
            name: median([a / b for a, b in zip(rates[name], rates["plain_get"], strict=True)])
            for name in ("volume", "volume_chunks_only")
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=4000)
    parser.add_argument("--bytes", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--https", action="store_true", help="the server speaks TLS")
    parser.add_argument("--cold", action="store_true", help="only what is read cold")
    parser.add_argument("--lines", default="20:100", help="far stores: MS:MEGABYTES_PER_S (0: any),...")
    options = parser.parse_args()
    with place(options.files, options.bytes, 64 << 20, https=options.https) as here:
        volume = Volume.open(here.uri, here.root / "cache", limit_bytes=4 * options.files * options.bytes)
        result: dict[str, object] = {
            "machine": machine(),
            "files": len(volume),
            "bytes": volume.table.total_bytes,
            "cold": cold(volume, options.rounds),
        }
        assert same_content(volume, here.source)
        for line in filter(None, options.lines.split(",")):
            latency_ms, megabytes_per_s = map(float, line.split(":"))
            with narrow_line(latency_ms, megabytes_per_s):  # a new store: connections are kept by endpoint
                far = Volume.open(
                    here.uri, here.root / f"far-{line}", limit_bytes=4 * options.files * options.bytes
                )
                rounds = min(options.rounds, 3)
                result[f"cold_{line}"] = cold(far, rounds, latency_ms, megabytes_per_s)
                assert same_content(far, here.source)
        if options.cold:
            print(json.dumps(result))
            return
        mounts: dict[str, Path] = {}
        try:
            for name, means in MEANS.items():
                try:
                    mount(here.uri, here.root / name, cache=here.root / "cache", means=means)
                except TrainmasterError as error:
                    result[f"no_{name}"] = one_line(error)
                else:
                    mounts[name] = here.root / name
                    subprocess.run(["diff", "-r", str(here.source), str(mounts[name])], check=True)
            evict(here.source)
            result["warm"] = warm(volume, here.source, mounts, options.rounds)
        finally:
            for directory in mounts.values():
                unmount(directory)
        result["verified"] = True
        result["load_at_end"] = round(os.getloadavg()[0], 1)
        print(json.dumps(result))


if __name__ == "__main__":
    main()
