"""MNIST with PyTorch DDP: seconds per step for 1 to all of the machines, on batches of several sizes.

A plain script; what starts it sets what `torchrun` sets. Each point is trained by the first so many
ranks, as a group of its own, while the others wait: points that are measured in turn, on the same machines
and within seconds of each other, can be compared even if the machine is busy. The batch is that of all
machines together. Before each phase rank 0 says so and waits for a file `/tmp/phase-N`: what drives it
changes the network meanwhile.

Rank 0 reports one line per point: phase, machines, batch, and the seconds of each step.
"""

import argparse
import json
import os
import statistics
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
FEW_STEPS_FROM = 10_000  # images; such steps take seconds


def report(**values):
    with Path(os.environ["TRAINMASTER_METRICS"]).open("a") as file:
        file.write(json.dumps(values) + "\n")


def network():
    """One convolution and two dense layers: 56,316 weights; the paper's Keras network has 56,320."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 8 * 8, 54),
        nn.ReLU(),
        nn.Linear(54, 10),
    )


def measure(group, machines, batch, steps, images, labels):
    """Seconds of each step of the first so many ranks, after one that warms up; and the last loss."""
    torch.manual_seed(0)
    net = DistributedDataParallel(network(), process_group=group)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    share = batch // machines
    generator = torch.Generator().manual_seed(dist.get_rank())
    taken = []
    for number in range(steps + 1):
        began = time.monotonic()
        count = share if number else min(share, 16)  # DDP lays out its buffers in the first step
        which = torch.randint(0, len(labels), (count,), generator=generator)
        loss = cross_entropy(net(images[which].float() / 255), labels[which])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        taken.append(time.monotonic() - began)
    return taken[1:], loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="mnist.npz")
    parser.add_argument("--batches", nargs="+", type=int, default=[192, 1280])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--phases", type=int, default=1)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=PATIENCE)
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group(list(range(count)), timeout=PATIENCE) for count in range(1, world + 1)]
    data = np.load(args.data)
    images = torch.from_numpy(data["images"])[:, None]
    labels = torch.from_numpy(data["labels"]).long()
    measure(groups[-1], world, world, 1, images, labels)  # what DDP imports at its first use, it imports now
    if rank == 0:
        print(f"{sum(weights.numel() for weights in network().parameters())} weights", flush=True)
    for phase in range(args.phases):
        if rank == 0:
            print(f"waiting for phase {phase}", flush=True)
            while not Path(f"/tmp/phase-{phase}").exists():
                time.sleep(0.05)
        dist.barrier()
        for batch in args.batches:
            steps = args.steps if batch <= FEW_STEPS_FROM else 2
            for machines in range(1, world + 1):
                if rank < machines:
                    taken, loss = measure(groups[machines - 1], machines, batch, steps, images, labels)
                    if rank == 0:
                        report(phase=phase, machines=machines, batch=batch, all_s=json.dumps(taken))
                        typical = statistics.median(taken)
                        print(f"{machines} machines, {batch}: {typical:.3f} s, loss {loss:.3f}", flush=True)
                dist.barrier()
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # while Python shuts down, gloo's threads now and then end in an abort


if __name__ == "__main__":
    main()
