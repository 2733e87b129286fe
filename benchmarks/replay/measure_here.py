"""Measures small jobs on this machine: 1-4 processes, all-reduce and parameter server (PyTorch with gloo).

    python benchmarks/replay/measure_here.py benchmarks/replay/data/this_machine.csv

Needs PyTorch. One thread per process. Every shape is measured in several rounds that are minutes apart,
and the best round counts: a shared machine disturbs, it never helps. The step time of a round is the
median of the steps after warm-up (asynchronous: wall time over global steps).
"""

from __future__ import annotations

import csv
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WIDTHS = {"mlp": 1100}
BATCHES = (8, 64, 256)
SECONDS = 1.2
ROUNDS = 2
WARMUP = 3
LEAST = 6
PORT = 29700
COLUMNS = (
    "job",
    "sync",
    "nodes",
    "workers",
    "parameter_servers",
    "local_batch",
    "gradient_mb",
    "step_time_s",
    "spread",
)


def _gradient(model, data) -> torch.Tensor:
    model.zero_grad()
    (model(data) ** 2).mean().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def _member(rank: int, sync: str, workers: int, width: int, port: int, out) -> None:
    torch.set_num_threads(1)
    world = workers + (sync != "allreduce")
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    layer = torch.nn.Linear(width, width)  # one layer, applied three times
    model = torch.nn.Sequential(layer, torch.nn.ReLU(), layer, torch.nn.ReLU(), layer)
    size = sum(p.numel() for p in model.parameters())
    found = []
    for batch in BATCHES:
        data = torch.randn(batch, width)
        dist.barrier()
        if sync == "allreduce":
            found.append(_all_reduce(model, data, workers))
        elif rank == world - 1:
            found.append(_serve(sync, workers, size))
        else:
            _push(model, data, world - 1)
    if rank == world - 1:
        out.put(found)
    dist.barrier()
    os._exit(0)


def _all_reduce(model, data, workers: int) -> float:
    times, begin, stop = [], time.perf_counter(), torch.zeros(1)
    while not stop[0]:
        start = time.perf_counter()
        gradient = _gradient(model, data)
        if workers > 1:
            dist.all_reduce(gradient)
        times.append(time.perf_counter() - start)
        stop[0] = float(time.perf_counter() - begin > SECONDS and len(times) > WARMUP + LEAST)
        if workers > 1:
            dist.broadcast(stop, 0)
    return statistics.median(times[WARMUP:])


def _push(model, data, server: int) -> None:
    over = False
    while not over:
        gradient = _gradient(model, data)
        dist.send(gradient, server)
        dist.recv(gradient, server)
        over = bool(torch.isnan(gradient[0]))


def _serve(sync: str, workers: int, size: int) -> float:
    weights, buffer, bye = torch.zeros(size), torch.zeros(size), torch.full((size,), float("nan"))
    begin, ends, left = time.perf_counter(), [], workers
    while left:
        over = time.perf_counter() - begin > SECONDS and len(ends) > (WARMUP + LEAST) * workers
        pushing = range(workers) if sync == "ps-sync" else (None,)
        senders = []
        for worker in pushing:
            senders.append(dist.recv(buffer, worker))
            weights.add_(buffer, alpha=-1e-6)
        for sender in senders:
            dist.send(bye if over else weights, sender)
        if over:
            left -= len(senders)
        else:
            ends.append(time.perf_counter())
    if sync == "ps-sync":
        return statistics.median(b - a for a, b in zip(ends[WARMUP:-1], ends[WARMUP + 1 :], strict=True))
    first = WARMUP * workers
    return (ends[-1] - ends[first]) / (len(ends) - 1 - first)


def measure(sync: str, workers: int, width: int, port: int) -> list[float]:
    """Seconds per step for each batch size."""
    context = mp.get_context("spawn")
    out = context.SimpleQueue()
    members = [
        context.Process(target=_member, args=(rank, sync, workers, width, port, out))
        for rank in range(workers + (sync != "allreduce"))
    ]
    for member in members:
        member.start()
    found = out.get()
    for member in members:
        member.join(60)
    return found


def main() -> None:
    """Measure every shape and write it down."""
    rounds: dict[tuple[str, str, int, int], list[float]] = {}
    for turn in range(ROUNDS):
        for number, (job, width) in enumerate(WIDTHS.items()):
            for sync in ("allreduce", "ps-sync", "ps-async"):
                for workers in (1, 2, 3, 4):
                    port = PORT + turn * 100 + number * 40 + workers * 3 + len(sync)
                    for batch, seconds in zip(BATCHES, measure(sync, workers, width, port), strict=True):
                        rounds.setdefault((job, sync, workers, batch), []).append(seconds)
        _write(Path(sys.argv[1]), rounds)


def _write(path: Path, rounds: dict[tuple[str, str, int, int], list[float]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for (job, sync, workers, batch), found in rounds.items():
            width = WIDTHS[job]
            megabytes = (width * width + width) * 4 / 1e6
            spread = statistics.median(found) / min(found)
            row = (f"{job}-{sync}", sync, 1, workers, int(sync != "allreduce"), batch, f"{megabytes:.3f}")
            writer.writerow((*row, f"{min(found):.6g}", f"{spread:.3f}"))


if __name__ == "__main__":
    main()
