"""Measures small jobs on this machine: 1-4 processes, all-reduce and parameter server (PyTorch with gloo).

    python benchmarks/replay/measure_here.py data/this_machine.csv

Needs PyTorch. One thread per process, a few seconds per row; the step time is the median of the steps
after warm-up (asynchronous: wall time over global steps).
"""

from __future__ import annotations

import csv
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WIDTHS = {"mlp-small": 192, "mlp-large": 1100}
BATCHES = (8, 64, 256)
SECONDS = 2.5
WARMUP = 3
COLUMNS = (
    "job",
    "sync",
    "nodes",
    "workers",
    "parameter_servers",
    "local_batch",
    "latency_ms",
    "gradient_mb",
    "step_time_s",
)


def _model(width: int) -> torch.nn.Module:
    """One layer, applied three times."""
    layers = [torch.nn.Linear(width, width), torch.nn.ReLU()] * 3
    return torch.nn.Sequential(*layers)


def _gradient_step(model, data) -> torch.Tensor:  # noqa: ANN001
    model.zero_grad()
    (model(data) ** 2).mean().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def _member(rank: int, sync: str, workers: int, batch: int, width: int, port: int, out) -> None:  # noqa: ANN001
    torch.set_num_threads(1)
    has_server = sync != "allreduce"
    world = workers + has_server
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    model = _model(width)
    size = sum(p.numel() for p in model.parameters())
    data = torch.randn(batch, width)
    server = world - 1
    if has_server and rank == server:
        _serve(sync, workers, size, out)
        return
    times, begin = [], time.perf_counter()
    stop = torch.zeros(1)
    while True:
        start = time.perf_counter()
        gradient = _gradient_step(model, data)
        if sync == "allreduce":
            if workers > 1:
                dist.all_reduce(gradient)
        else:
            dist.send(gradient, server)
            dist.recv(gradient, server)
        times.append(time.perf_counter() - start)
        if sync == "allreduce":
            stop[0] = float(time.perf_counter() - begin > SECONDS and len(times) > WARMUP + 5)
            if workers > 1:
                dist.broadcast(stop, 0)
            if stop[0]:
                break
        elif torch.isnan(gradient[0]):
            break
    if rank == 0 and not has_server:
        out.put(statistics.median(times[WARMUP:]))


def _serve(sync: str, workers: int, size: int, out) -> None:  # noqa: ANN001
    weights, buffer = torch.zeros(size), torch.zeros(size)
    pushes, begin, counted, left, rounds = 0, time.perf_counter(), None, workers, []
    while left:
        if sync == "ps-sync":
            for worker in range(workers):
                dist.recv(buffer, worker)
                weights.add_(buffer, alpha=-1e-6)
            over = time.perf_counter() - begin > SECONDS and len(rounds) > WARMUP + 5
            answer = torch.full_like(weights, float("nan")) if over else weights
            for worker in range(workers):
                dist.send(answer, worker)
            rounds.append(time.perf_counter())
            left = 0 if over else workers
        else:
            worker = dist.recv(buffer)
            weights.add_(buffer, alpha=-1e-6)
            pushes += 1
            if pushes == 5 * workers:
                counted = (pushes, time.perf_counter())
            over = (
                time.perf_counter() - begin > SECONDS
                and counted is not None
                and pushes > counted[0] + 5 * workers
            )
            if over and left == workers:
                out.put((time.perf_counter() - counted[1]) / (pushes - counted[0]))
            dist.send(torch.full_like(weights, float("nan")) if over else weights, worker)
            left -= over
    if sync == "ps-sync":
        steps = [b - a for a, b in zip(rounds[WARMUP:-1], rounds[WARMUP + 1 :], strict=True)]
        out.put(statistics.median(steps))


def measure(sync: str, workers: int, batch: int, width: int, port: int) -> float:
    """Seconds per step of one shape."""
    context = mp.get_context("spawn")
    out = context.SimpleQueue()
    members = [
        context.Process(target=_member, args=(rank, sync, workers, batch, width, port, out))
        for rank in range(workers + (sync != "allreduce"))
    ]
    for member in members:
        member.start()
    for member in members:
        member.join(120)
    return float(out.get())


def main() -> None:
    """Measure every shape and write it down."""
    path = Path(sys.argv[1])
    port = 29700
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for job, width in WIDTHS.items():
            megabytes = (width * width + width) * 4 / 1e6
            for sync in ("allreduce", "ps-sync", "ps-async"):
                for workers in (1, 2, 3, 4):
                    for batch in BATCHES:
                        port += 1
                        seconds = measure(sync, workers, batch, width, port)
                        row = (f"{job}-{sync}", sync, 1, workers, int(sync != "allreduce"), batch, 0)
                        writer.writerow((*row, f"{megabytes:.3f}", f"{seconds:.6g}"))
                        file.flush()


if __name__ == "__main__":
    main()
