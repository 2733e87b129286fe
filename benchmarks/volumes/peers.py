"""Volumes beside their peers, in one run on one SeaweedFS: warm, cold, into a training, and sending.

``python benchmarks/volumes/peers.py`` prints one JSON object on its last line, keeps it and a plot under
``benchmarks/out``, and says on stderr what it is doing. Options: ``--files 10000``, ``--bytes 100000``,
``--rounds 2``, ``--far-rounds 1`` (of slow lines and of stalls), ``--lines 0:0,20:0,50:0,20:200`` (latency in
ms and MB/s; 0: no limit; `peers_line.py` says what is modelled), ``--methods a,b`` for these alone,
``--sections cold,warm,training,stall,push``, and ``--large [MIB]`` for files of 256 MiB, 4 GiB in all, cold.

How it is kept fair. Every method reads in a process of its own, each run in a fork of it, in random order
within a round. Every file is compared: cold by a checksum of all its bytes, warm once likewise and then by
its size and eight bytes, because looking at all would be most of the time. Cold: the method's cache is
removed, its mount ended and made again, which is not timed; the server's files lie in its page cache for
all. Warm: after a fill the caches are written back, dropped from the page cache and read once. Cold runs of
methods that read file by file end after ``--seconds``, those whose unit is a chunk read everything. Large
files are read in blocks of 8 MiB, each compared, for ``--large-seconds``. CPU time is that of the reader,
its children and the method's daemons. Peers are tuned; each row says how, and how it shuffles.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import peers_sections as sections
from peers_agent import PEERS
from peers_install import provide
from peers_place import LAYOUTS, PUT, Place, described, redis, scratch, serving
from peers_plot import draw
from peers_report import compared, rows
from peers_run import BEGAN, Run, say
from reading_bench import machine, photographs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from common import OUT

SMALL_SHARD_BYTES = 8 << 20
#: The files, three layouts of them, and caches.
LARGE_COPIES = 6


def lay_out(place: Place, layouts: Iterable[str], missing: dict[str, str]) -> None:
    for layout in layouts:
        say(f"laying out {layout}")
        try:
            if layout in ("mosaicml", "juicefs") and (problem := provide(layout)):
                raise RuntimeError(problem)
            PUT[layout](place, layout)
        except (RuntimeError, OSError, ValueError) as error:
            say(f"{layout}: {error}")
            for name, peer in PEERS.items():
                if peer == layout:
                    missing[name] = str(error)


def layouts_of(chosen: set[str] | None) -> list[str]:
    """The layouts that some methods read; None: all."""
    begins = {
        "mosaicml": "mosaicml",
        "webdataset": "tar",
        "juicefs": "juicefs",
        "ours": "volume",
        "plain": "volume",
    }
    wanted = {
        next((layout for begin, layout in begins.items() if name.startswith(begin)), "objects")
        for name in chosen or ()
    }
    return [layout for layout in LAYOUTS if layout in wanted or not chosen]


def touch(folder: Path) -> None:
    """Reads the server's files, so that they lie in the page cache for all alike."""
    for path in folder.rglob("*.dat"):
        with path.open("rb", buffering=0) as file:
            while file.read(8 << 20):
                pass


@contextmanager
def metadata(root: Path, missing: dict[str, str]) -> Iterator[str]:
    """Redis for JuiceFS, or SQLite."""
    if problem := provide("redis"):
        missing["redis"] = f"{problem}; JuiceFS keeps its metadata in SQLite"
        yield f"sqlite3://{root}/juicefs.db"
    else:
        with redis(root) as url:
            yield url


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--bytes", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--far-rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--large-seconds", type=float, default=5.0)
    parser.add_argument("--lines", default="0:0,20:0,50:0,20:200")
    parser.add_argument("--sections", default="cold,warm,training,stall,push")
    parser.add_argument("--methods", default="")
    parser.add_argument("--push-files", type=int, default=2_000)
    parser.add_argument("--large", type=int, nargs="?", const=4096, default=0, metavar="MIB")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing stays mounted
    asked = {"large"} if options.large else set(options.sections.split(","))
    rounds = (options.rounds, options.far_rounds)
    lines = [tuple(map(float, one.split(":"))) for one in options.lines.split(",")]
    run = Run(options.methods.split(",") if options.methods else None)
    with ExitStack() as stack:
        root = stack.enter_context(scratch())
        stack.callback(run.end)
        if options.large << 20 > shutil.disk_usage(root).free / LARGE_COPIES:
            sys.exit(f"{root}: {LARGE_COPIES} times {options.large} MiB are needed (BENCH_DIR says where).")
        say(f"{f'{options.large} MiB' if options.large else f'{options.files} files'} in {root}")
        place = stack.enter_context(serving(root, options.files, options.bytes, options.large))
        place.redis = stack.enter_context(metadata(root, run.missing))
        if {"cold", "warm", "training"} & asked:
            lay_out(place, layouts_of(run.chosen), run.missing)
        if "large" in asked:
            wanted = set(layouts_of(run.chosen)) & {"objects", "volume", "juicefs"}
            lay_out(place, wanted, run.missing)
            shutil.rmtree(root / "methods", ignore_errors=True)
            touch(root / "s3")
            sections.cold(run, place, sections.LARGE, lines, rounds, options.large_seconds)
        if "warm" in asked:
            sections.warm(run, place, options.rounds, options.seconds / 2)
        if "cold" in asked:
            touch(root / "s3")
            sections.cold(run, place, sections.COLD, lines, rounds, options.seconds)
            run.end(set(sections.COLD) - set(sections.TRAINING))
        if "training" in asked:
            sections.training(run, place, options.rounds)
        run.end()
        if "stall" in asked:
            small = replace(place, root=str(root / "small"), bucket=f"{place.bucket}-small")
            Path(small.root).mkdir()
            small.shard_bytes = SMALL_SHARD_BYTES
            new_bucket(small)
            lay_out(small, ("volume", "mosaicml", "tar"), run.missing)
            sections.stall(run, small, options.far_rounds)
            run.end()
        if "push" in asked:
            source = root / "push-src"
            photographs(source, min(options.push_files, options.files), options.bytes)
            (root / "push").mkdir()
            index = described(root / "push", source)
            for path in source.rglob("*.jpg"):
                path.read_bytes()
            there = replace(place, root=str(root / "push"), source=str(source), index=index)
            sections.push(run, there, options.rounds)
        sizes = [one[0] for one in json.loads(Path(place.index).read_text()).values()]
        count, total = len(sizes), sum(sizes)
    result = rows(run.found)
    report = {
        "benchmark": "volumes/peers",
        "machine": machine(),
        "files": count,
        "bytes": total,
        "rounds": rounds,
        "rows": result,
        "ours": {key: compared(result, key) for key in ("files_per_s", "samples_per_s", "mb_per_s")},
        "methods": run.about,
        "missing": run.missing,
        "took_s": round(time.monotonic() - BEGAN),
        "load_at_end": round(os.getloadavg()[0], 1),
    }
    OUT.mkdir(exist_ok=True)
    name = "volumes_peers_large" if options.large else "volumes_peers"
    (OUT / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    draw(result, OUT / f"{name}.svg")
    print(json.dumps(report))


def new_bucket(place: Place) -> None:
    import boto3
    from botocore.config import Config

    boto3.client(
        "s3",
        endpoint_url=place.endpoint,
        aws_access_key_id=place.key,
        aws_secret_access_key=place.secret,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    ).create_bucket(Bucket=place.bucket)


if __name__ == "__main__":
    main()
