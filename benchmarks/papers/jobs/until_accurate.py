"""MNIST with PyTorch DDP: seconds and steps to a fixed accuracy, for several numbers of machines.

A plain script; what starts it sets what `torchrun` sets. LeNet-5 is trained from the same seed by the
first so many ranks, as a group of their own, until `--target` of 2,000 test images are right; the clock
stands still while rank 0 tests. Each rank has a batch of its own, so more machines have a larger batch, and
a learning rate that grows with its square root. Before each phase rank 0 says so and waits for a file
`/tmp/phase-N`: what drives it changes the network meanwhile.

Rank 0 reports one line per training: phase, machines, seed, seconds, steps, accuracy.
"""

import argparse
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

PATIENCE = timedelta(seconds=240)
TEST_EVERY = 20  # steps


def report(**values):
    with Path(os.environ["TRAINMASTER_METRICS"]).open("a") as file:
        file.write(json.dumps(values) + "\n")


def network():
    """LeNet-5: 61,706 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def train(group, machines, seed, args, data):
    """Seconds, steps and accuracy when the target is reached, or the time is over."""
    images, labels, test_images, test_labels = data
    rank = dist.get_rank()
    torch.manual_seed(seed)
    net = DistributedDataParallel(network(), process_group=group)
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr * machines**0.5, momentum=0.9)
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    seconds, steps = 0.0, 0
    while True:
        dist.barrier(group)
        began = time.monotonic()
        for _ in range(TEST_EVERY):
            which = torch.randint(0, len(labels), (args.batch,), generator=generator)
            loss = cross_entropy(net(images[which].float() / 255), labels[which])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seconds, steps = seconds + time.monotonic() - began, steps + TEST_EVERY
        verdict = torch.zeros(2)
        if rank == 0:
            with torch.inference_mode():
                right = (net.module(test_images).argmax(1) == test_labels).float().mean()
            verdict[0], verdict[1] = right, float(right >= args.target or seconds >= args.patience)
        dist.broadcast(verdict, 0, group=group)
        if verdict[1]:
            return seconds, steps, float(verdict[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="mnist.npz")
    parser.add_argument("--machines", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--target", type=float, default=0.95)
    parser.add_argument("--batch", type=int, default=128, help="images per machine and step")
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--phases", type=int, default=1)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds of one training")
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=PATIENCE)
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = {count: dist.new_group(list(range(count)), timeout=PATIENCE) for count in range(1, world + 1)}
    stored = np.load(args.data)
    data = (
        torch.from_numpy(stored["images"])[:, None], torch.from_numpy(stored["labels"]).long(),
        torch.from_numpy(stored["test_images"][:2000])[:, None].float() / 255,
        torch.from_numpy(stored["test_labels"][:2000]).long(),
    )  # fmt: skip
    DistributedDataParallel(network())  # what it imports at its first use, it imports now
    for phase in range(args.phases):
        if rank == 0:
            print(f"waiting for phase {phase}", flush=True)
            while not Path(f"/tmp/phase-{phase}").exists():
                time.sleep(0.05)
        dist.barrier()
        for machines in args.machines:
            if rank < machines:
                seconds, steps, right = train(groups[machines], machines, phase, args, data)
                if rank == 0:
                    report(phase=phase, machines=machines, seconds=seconds, step=steps, accuracy=right)
                    print(
                        f"{machines} machines: {right:.4f} after {seconds:.1f} s, {steps} steps", flush=True
                    )
            dist.barrier()
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # while Python shuts down, gloo's threads now and then end in an abort


if __name__ == "__main__":
    main()
