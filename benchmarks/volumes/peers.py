"""Volumes beside their peers, in one run on one SeaweedFS: warm, cold, into a training, and sending.

``python benchmarks/volumes/peers.py`` prints one JSON object on its last line, keeps it and a plot under
``benchmarks/out``, and says on stderr what it is doing. Options: ``--files 10000``, ``--bytes 100000``,
``--rounds 2`` (of far lines and stalls half as many), ``--lines 0:0,20:200,50:200`` (ms of latency and MB/s;
0: no limit), ``--sections cold,warm,training,stall,push``, ``--methods a,b`` for these alone, and
``--large [MIB]`` for files of 256 MiB, 4 GiB in all, cold.

How it is kept fair. Every method reads in a process of its own, each run in a fork of it, in random order
within a round. Every file is compared: cold by a checksum of all its bytes, warm once likewise and then by
its size and eight bytes, because looking at all would be most of the time. Cold: the method's cache is
removed, its mount ended and made again, which is not timed; the server's files lie in its page cache for
all. Warm: after a fill the caches are written back, dropped from the page cache and read once. Cold runs of
methods that read file by file end after ``--seconds``, those whose unit is a chunk read everything. CPU time
is that of the reader, its children and the method's daemons. Peers are tuned; each row says how, and how it
shuffles.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from peers_agent import PEERS, Agent
from peers_install import provide
from peers_place import LAYOUTS, PUT, Place, described, line, redis, scratch, serving
from peers_plot import draw
from peers_push import ROWS, push_once
from peers_report import compared, rows
from reading_bench import machine, photographs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from common import OUT

FILES = ("ext4", "obstore", "boto3", "s3torchconnector", "fsspec_s3fs", "rclone", "juicefs", "s3fs")
TRAINING = (
    "mosaicml",
    "mosaicml_w2",
    "mosaicml_full",
    "webdataset",
    "webdataset_w2",
    "ours",
    "ours_w2",
    "ours_full",
)
COLD = (
    *FILES,
    *(name for name in TRAINING if not name.endswith("_full")),
    "plain_chunks",
    "ours_again",
    "ours_fsspec",
    "ours_mount",
)
LARGE = (*FILES, "plain_chunks", "ours", "ours_fsspec", "ours_mount")
#: Only where latency does not matter.
NEAR_ONLY = {"ext4"}
WARM = (
    "ext4",
    "rclone",
    "juicefs",
    "s3fs",
    "webdataset",
    "mosaicml",
    "ours",
    "ours_view",
    "ours_fsspec",
    "ours_mount",
)
STALL = ("mosaicml_w2", "webdataset_w2", "ours_w2")
SMALL_SHARD_BYTES = 8 << 20
STEP_S = 0.016
SLOW_S = 5.0
_BEGAN = time.monotonic()


def say(words: str) -> None:
    print(f"{time.monotonic() - _BEGAN:6.0f} s  {words}", file=sys.stderr, flush=True)


class Run:
    """The processes of the methods, and what they found.

    Attributes:
        found: section -> row -> a value for each repetition.
        missing: method -> why it is not there.
        about: method -> how it shuffles and is tuned.
    """

    def __init__(self, chosen: Iterable[str] | None) -> None:
        self.chosen = set(chosen) if chosen else None
        self.agents: dict[str, Agent] = {}
        self.found: dict[str, dict[str, list[dict[str, Any]]]] = {}
        self.missing: dict[str, str] = {}
        self.about: dict[str, dict[str, Any]] = {}

    def start(self, names: Iterable[str], place: Place) -> None:
        """Starts processes where there are none yet, all at once, and tells them where the store is."""
        names = [name for name in names if name not in self.missing and name in (self.chosen or {name})]
        for name in names:
            try:
                if name not in self.agents:
                    self.agents[name] = Agent(name, place)
            except RuntimeError as error:
                self._lose(name, error)
        for name in names:
            about = self.ask("", name, "place", **asdict(place))
            if about:
                self.about.setdefault(name, about)

    def ask(self, section: str, name: str, what: str, **arguments: Any) -> Any:
        """Has a method do something; one that fails is left out from then on, and the reason kept."""
        if name not in self.agents:
            return None
        began = time.monotonic()
        try:
            found = self.agents[name].ask(what, **arguments)
        except RuntimeError as error:
            self._lose(name, error)
            return None
        took = time.monotonic() - began
        if isinstance(found, dict) and "cpu_s" in found:
            rate, cpu = found["bytes"] / found["seconds"] / 1e6, found["cpu_s"] / found["bytes"] * 1e9
            say(f"  {what} {name}: {rate:.0f} MB/s, {cpu:.2f} CPU s per GB, {took:.1f} s in all")
        elif took > SLOW_S:
            say(f"  {what} {name}: {took:.1f} s")
        if section:
            self.found.setdefault(section, {}).setdefault(name, []).append(found)
        return found

    def _lose(self, name: str, error: Exception) -> None:
        say(f"{name}: {error}")
        self.missing[name] = str(error)
        if name in self.agents:
            self.agents.pop(name).close()

    def end(self, names: Iterable[str] = ()) -> None:
        """Ends the processes of these methods, or of all."""
        ending = [self.agents.pop(name) for name in tuple(names or self.agents) if name in self.agents]
        for agent in ending:
            agent.hang_up()
        for agent in ending:
            agent.close()


def shuffled(names: Iterable[str], seed: int) -> Iterator[str]:
    names = list(names)
    random.Random(seed).shuffle(names)
    yield from names


def cold(
    run: Run,
    place: Place,
    methods: Iterable[str],
    lines: list[tuple[float, float]],
    rounds: int,
    seconds: float,
) -> None:
    for latency_ms, megabytes_per_s in lines:
        section = f"cold {latency_ms:g} ms" + (f", {megabytes_per_s:g} MB/s" if megabytes_per_s else "")
        names = [name for name in methods if not latency_ms or name not in NEAR_ONLY]
        with line(place, latency_ms, megabytes_per_s) as there:
            run.start(names, there)
            # Far away a second says more, and takes longer.
            for number in range(max(rounds // 2, 1) if latency_ms else rounds):
                say(f"{section}, round {number + 1}")
                for name in shuffled(names, number):
                    run.ask(section, name, "cold", seed=number, seconds=seconds)
                    if name != "ours_again":
                        run.ask("", name, "empty")


def warm(run: Run, place: Place, rounds: int, seconds: float) -> None:
    run.start(WARM, place)
    for name in shuffled([name for name in WARM if name != "ours_view"], 7):
        if name in run.agents:
            say(f"fill {name}")
        run.ask("fill", name, "cold", seed=99, seconds=0, fill=True)
        run.ask("", name, "drop")
        checked = run.ask("", name, "warm", seed=98, seconds=1e6, readers=1, thorough=True)
        if checked:
            run.about[name]["all_content_compared"] = {key: checked[key] for key in ("files", "bytes", "sum")}
    for number in range(rounds):
        say(f"warm, round {number + 1}")
        for readers in (1, 4):
            for name in shuffled(WARM, number):
                run.ask(
                    f"warm, {readers} readers", name, "warm", seed=number, seconds=seconds, readers=readers
                )
    for name in WARM:
        run.ask("", name, "empty")


def training(run: Run, place: Place, rounds: int) -> None:
    """Samples a second into batches, no step: a cold epoch and two later ones."""
    run.start(TRAINING, place)
    for number in range(rounds):
        say(f"training, round {number + 1}")
        for name in shuffled(TRAINING, number):
            found = run.ask("", name, "train", count=3, step_s=0.0, share=2.0, seed=number, empty=True)
            for epoch, one in enumerate(found or ()):
                section = "training, first epoch" if epoch == 0 else "training, later epochs"
                run.found.setdefault(section, {}).setdefault(name, []).append(one)
            run.ask("", name, "empty")


def stall(run: Run, place: Place, rounds: int) -> None:
    """What share of an epoch a training waits that computes 16 ms for 32 samples."""
    run.start(STALL, place)
    for number in range(rounds):
        for share, count in ((2.0, 2), (0.25, 3)):
            say(f"stall, {'all' if share > 1 else 'a quarter'} cached, round {number + 1}")
            for name in shuffled(STALL, number):
                found = run.ask(
                    "", name, "train", count=count, step_s=STEP_S, share=share, seed=number, empty=True
                )
                for epoch, one in enumerate(found or ()):
                    section = "stall, " + (
                        "cold" if epoch == 0 else "warm" if share > 1 else "a quarter cached"
                    )
                    if epoch or share > 1:
                        run.found.setdefault(section, {}).setdefault(name, []).append(one)
                run.ask("", name, "empty")


def push(run: Run, place: Place, rounds: int) -> None:
    for number in range(rounds):
        say(f"push, round {number + 1}")
        for row in shuffled(ROWS, number):
            if row in run.missing or (run.chosen and row not in run.chosen):
                continue
            if ROWS[row] and (problem := provide(ROWS[row])):
                run.missing[row] = problem
                continue
            there = replace(place, redis=f"{place.redis.rpartition('/')[0]}/{2 + number}")
            try:
                found = push_once(row, there, f"push-{row.replace('_', '-')}-{number}")
            except (RuntimeError, AssertionError) as error:
                run.missing[row] = str(error)
                say(f"{row}: {error}")
                continue
            run.found.setdefault("push", {}).setdefault(row, []).append(found)


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
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--lines", default="0:0,20:200,50:200")
    parser.add_argument("--sections", default="cold,warm,training,stall,push")
    parser.add_argument("--methods", default="")
    parser.add_argument("--push-files", type=int, default=2_000)
    parser.add_argument("--large", type=int, nargs="?", const=4096, default=0, metavar="MIB")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing stays mounted
    sections = ["large"] if options.large else options.sections.split(",")
    lines = [tuple(map(float, one.split(":"))) for one in options.lines.split(",")]
    run = Run(options.methods.split(",") if options.methods else None)
    with ExitStack() as stack:
        root = stack.enter_context(scratch())
        stack.callback(run.end)
        say(f"{f'{options.large} MiB' if options.large else f'{options.files} files'} in {root}")
        place = stack.enter_context(serving(root, options.files, options.bytes, options.large))
        place.redis = stack.enter_context(metadata(root, run.missing))
        if {"cold", "warm", "training"} & set(sections):
            lay_out(place, layouts_of(run.chosen), run.missing)
        if "large" in sections:
            place.at_once = 4
            lay_out(place, ("objects", "volume", "juicefs"), run.missing)
            cold(run, place, LARGE, lines, options.rounds, 1e6)
        if "warm" in sections:
            warm(run, place, options.rounds, options.seconds / 2)
        if "cold" in sections:
            touch(root / "s3")
            cold(run, place, COLD, lines, options.rounds, options.seconds)
            run.end(set(COLD) - set(TRAINING) - set(STALL))
        if "training" in sections:
            training(run, place, options.rounds)
        run.end()
        if "stall" in sections:
            small = replace(place, root=str(root / "small"), bucket=f"{place.bucket}-small")
            Path(small.root).mkdir()
            small.shard_bytes = SMALL_SHARD_BYTES
            new_bucket(small)
            lay_out(small, ("volume", "mosaicml", "tar"), run.missing)
            stall(run, small, max(options.rounds // 2, 1))
            run.end()
        if "push" in sections:
            source = root / "push-src"
            photographs(source, min(options.push_files, options.files), options.bytes)
            (root / "push").mkdir()
            index = described(root / "push", source)
            for path in source.rglob("*.jpg"):
                path.read_bytes()
            push(
                run, replace(place, root=str(root / "push"), source=str(source), index=index), options.rounds
            )
        sizes = [one[0] for one in json.loads(Path(place.index).read_text()).values()]
        count, total = len(sizes), sum(sizes)
    result = rows(run.found)
    report = {
        "benchmark": "volumes/peers",
        "machine": machine(),
        "files": count,
        "bytes": total,
        "rounds": options.rounds,
        "rows": result,
        "ours": {key: compared(result, key) for key in ("files_per_s", "samples_per_s", "mb_per_s")},
        "methods": run.about,
        "missing": run.missing,
        "took_s": round(time.monotonic() - _BEGAN),
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
