"""Handwritten digits with PyTorch DDP: a small convolutional network on real data.

The same script runs alone (`python train.py`), under `torchrun --nproc-per-node 2 train.py`, and
under Trainmaster (`trainmaster run recipe.yaml`), which adds the directories below.
"""

import argparse
import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

try:
    from trainmaster import report
except ImportError:  # the same in four lines, for a Python that does not have it

    def report(**values):
        if "TRAINMASTER_METRICS" in os.environ:
            with Path(os.environ["TRAINMASTER_METRICS"]).open("a") as file:
                file.write(json.dumps(values) + "\n")


stop_asked = False


def ask_to_stop(signum, frame):
    global stop_asked
    stop_asked = True


def load():
    """1,437 images to learn from and 360 to test with, 8x8 grey values in 0..1."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:1437], order[1437:]
    return images[train], labels[train], images[test], labels[test]


def network():
    """LeNet, cut down to 8x8 pixels."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def save(state, path):
    """Whole or not at all: a reader never sees half a file."""
    temporary = path.with_name(f".{path.name}.tmp")
    torch.save(state, temporary)
    temporary.rename(path)


def anyone(asked):
    """Whether any rank was asked to stop: all must leave at the same step."""
    flag = torch.tensor(float(asked))
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)


def leave(code):
    """All ranks together: one that goes while another still needs it would make that one fail."""
    dist.barrier()
    dist.destroy_process_group()
    return code


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--batch", type=int, default=64, help="images per worker and step")
    parser.add_argument("--checkpoint-seconds", type=float, default=2.0)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    # torchrun and Trainmaster set these; alone, this process is the whole gang.
    for key, alone in [
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "0"),
    ]:
        os.environ.setdefault(key, alone)
    # Without a timeout, a rank whose peer vanished would wait for half an hour.
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    signal.signal(signal.SIGTERM, ask_to_stop)  # not earlier: there was nothing to save
    rank, world_size = dist.get_rank(), dist.get_world_size()
    directory = os.environ.get("TRAINMASTER_CHECKPOINT_DIR")  # without one, no checkpoints
    checkpoint = Path(directory) / "last.pt" if directory else None
    output = Path(os.environ.get("TRAINMASTER_OUTPUT_DIR", "output"))

    images, labels, test_images, test_labels = load()
    sampler = DistributedSampler(labels, num_replicas=world_size, rank=rank, shuffle=True, seed=0)
    steps_per_epoch = -(-len(sampler) // args.batch)
    net = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)

    step = examples = 0
    if checkpoint and checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        net.module.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        step, examples = state["step"], state["examples"]
        if rank == 0:
            print(f"going on at step {step}, epoch {step // steps_per_epoch + 1}", flush=True)

    def save_checkpoint():
        if checkpoint and rank == 0:
            checkpoint.parent.mkdir(parents=True, exist_ok=True)
            state = {"net": net.module.state_dict(), "optimizer": optimizer.state_dict()}
            save(state | {"step": step, "examples": examples}, checkpoint)

    def accuracy():
        net.eval()
        with torch.inference_mode():
            right = net.module(test_images).argmax(1) == test_labels
        net.train()
        return right.float().mean().item()

    saved_at = began = time.monotonic()
    while step < args.epochs * steps_per_epoch:
        epoch, first = divmod(step, steps_per_epoch)
        sampler.set_epoch(epoch)
        batches = torch.tensor(list(sampler)).split(args.batch)
        losses = []
        for batch in batches[first:]:
            loss = cross_entropy(net(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            examples += len(batch) * world_size
            losses.append(loss.item())
            if anyone(stop_asked):
                save_checkpoint()
                return leave(128 + signal.SIGTERM)
            if rank == 0:
                report(step=step, epoch=epoch + 1, loss=losses[-1], examples=examples)
                if time.monotonic() - saved_at > args.checkpoint_seconds:
                    save_checkpoint()
                    saved_at = time.monotonic()
        if rank == 0:
            mean, reached = sum(losses) / len(losses), accuracy()
            seconds = round(time.monotonic() - began, 3)
            report(
                step=step, epoch=epoch + 1, loss=mean, examples=examples, accuracy=reached, seconds=seconds
            )
            print(f"epoch {epoch + 1:2d}  loss {mean:.4f}  accuracy {reached:.4f}", flush=True)

    save_checkpoint()
    if rank == 0:
        output.mkdir(parents=True, exist_ok=True)
        save(net.module.state_dict(), output / "model.pt")
        results = {"accuracy": accuracy(), "steps": step, "examples": examples}
        report(step=step, examples=examples, accuracy=results["accuracy"])
        (output / "metrics.json").write_text(json.dumps(results) + "\n")
        print(f"accuracy {results['accuracy']:.4f} on {len(test_labels)} images not trained on", flush=True)
    return leave(0)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Not sys.exit: while Python shuts down, a thread of gloo may still finish its last work, and
    # now and then that ends in "terminate called without an active exception" and code 134.
    os._exit(code)
