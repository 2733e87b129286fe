"""What `peers.py` compares: cold, warm, into a training, how long a training waits, and sending."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

from peers_install import provide
from peers_place import Place, line
from peers_push import ROWS, push_once
from peers_run import Run, say

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
    "mosaicml_w8",
    "webdataset_w8",
    "plain_chunks",
    "ours_again",
    "ours_fsspec",
    "ours_mount",
)
LARGE = (*FILES, "plain_chunks", "ours", "ours_again", "ours_half", "ours_fsspec", "ours_mount")
#: Only where there is no latency, and where there is: each worker of these fetches one shard at a time.
NEAR_ONLY = {"ext4"}
FAR_ONLY = {"mosaicml_w8", "webdataset_w8"}
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
STALL = ("mosaicml", "mosaicml_w2", "webdataset", "webdataset_w2", "ours", "ours_w2")
STEPS = {"sleep": "GPU", "cpu": "CPU"}
STEP_S = 0.016


def shuffled(names: Iterable[str], seed: int) -> Iterator[str]:
    names = list(names)
    random.Random(seed).shuffle(names)
    yield from names


def cold(
    run: Run,
    place: Place,
    methods: Iterable[str],
    lines: Iterable[tuple[float, float]],
    rounds: tuple[int, int],
    seconds: float,
) -> None:
    """Reads with nothing cached, over each line.

    Args:
        run: what it is added to.
        place: where.
        methods: which.
        lines: milliseconds of latency and MB/s.
        rounds: near, and over a slow line, where a run says more and takes longer.
        seconds: of a run of a method that reads file by file; twice as many over a slow line, on which
            connections must be made and their windows opened.
    """
    for latency_ms, megabytes_per_s in lines:
        section = f"cold {latency_ms:g} ms" + (f", {megabytes_per_s:g} MB/s" if megabytes_per_s else "")
        is_slow = bool(latency_ms or megabytes_per_s)
        names = [name for name in methods if name not in (NEAR_ONLY if is_slow else FAR_ONLY)]
        with line(place, latency_ms, megabytes_per_s) as there:
            run.start(names, there)
            for number in range(rounds[is_slow]):
                say(f"{section}, round {number + 1}")
                for name in shuffled(names, number):
                    run.ask(section, name, "cold", seed=number, seconds=seconds * (1 + is_slow))
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
            found = run.ask("", name, "train", count=3, share=2.0, seed=number)
            for epoch, one in enumerate(found or ()):
                section = "training, first epoch" if epoch == 0 else "training, later epochs"
                run.found.setdefault(section, {}).setdefault(name, []).append(one)
            run.ask("", name, "empty")


def stall(run: Run, place: Place, rounds: int) -> None:
    """What share of an epoch a training waits that computes 16 ms for 32 samples.

    While a GPU computes, both processors are free to read; a training on a processor leaves one.
    """
    run.start(STALL, place)
    for number in range(rounds):
        for compute in ("sleep", "cpu"):
            for share, count in ((2.0, 2), (0.25, 3)):
                say(f"stall, {compute}, {'all' if share > 1 else 'a quarter'} cached, round {number + 1}")
                for name in shuffled(STALL, number):
                    how = {"count": count, "share": share, "seed": number}
                    found = run.ask("", name, "train", **how, compute=compute, step_s=STEP_S)
                    for epoch, one in enumerate(found or ()):
                        if epoch or share > 1:
                            kind = "cold" if not epoch else "later" if share > 1 else "a quarter cached"
                            section = f"stall, {STEPS[compute]}, {kind}"
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
