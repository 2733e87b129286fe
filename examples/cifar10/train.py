"""CIFAR-10 with PyTorch DDP: a residual network (He et al. 2016, section 4.2) on real photographs.

The same script runs alone (`python train.py`), under `torchrun --nproc-per-node 2 train.py`, and
under Trainmaster (`trainmaster run recipe.yaml`), which adds the directories below.
"""

import argparse
import json
import math
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import cifar10
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, pad
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

try:
    from trainmaster import report
except ImportError:  # the same in four lines, for a Python that does not have it

    def report(**values):
        if "TRAINMASTER_METRICS" in os.environ:
            with Path(os.environ["TRAINMASTER_METRICS"]).open("a") as file:
                file.write(json.dumps(values) + "\n")


MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(1, 3, 1, 1)  # of the training images, per colour
DEVIATION = torch.tensor([0.2470, 0.2435, 0.2616]).view(1, 3, 1, 1)
PRINT_EVERY = 10
TEST_BATCH = 500

stop_asked = False


def ask_to_stop(signum, frame):
    global stop_asked
    stop_asked = True


class Block(nn.Module):
    """Two convolutions and the way around them."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.straight = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.around = nn.Identity()
        if stride > 1 or before != after:
            self.around = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x):
        return torch.relu(self.straight(x) + self.around(x))


def network(depth):
    """6n + 2 layers: 20 make the paper's ResNet-20 with 0.27 million weights."""
    layers = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
    before = 16
    for width in (16, 32, 64):
        for number in range((depth - 2) // 6):
            layers.append(Block(before, width, 2 if width > 16 and number == 0 else 1))
            before = width
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))
    return net.to(memory_format=torch.channels_last)


def normal(images):
    """Bytes to numbers around zero."""
    return (images / 255 - MEAN) / DEVIATION


def varied(images, generator):
    """Each image moved by up to 4 pixels, half of them mirrored."""
    count = len(images)
    rows = torch.randint(0, 9, (count, 1), generator=generator) + torch.arange(32)
    columns = torch.randint(0, 9, (count, 1), generator=generator) + torch.arange(32)
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    which = torch.arange(count)[:, None, None]
    return pad(images, (4, 4, 4, 4))[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def learning_rate(peak, step, steps):
    """Rises over the first twentieth, then falls along a cosine."""
    return peak * min(1, (step + 1) / max(1, steps // 20)) * (1 + math.cos(math.pi * step / steps)) / 2


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


def accuracy(net, images, labels):
    """Every rank tests its share."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine, answers = images[rank::world_size], labels[rank::world_size]
    net.eval()
    right = torch.zeros(())
    with torch.inference_mode():
        for some, expected in zip(mine.split(TEST_BATCH), answers.split(TEST_BATCH), strict=True):
            right += (net(normal(some)).argmax(1) == expected).sum()
    net.train()
    dist.all_reduce(right)
    return right.item() / len(labels)


def leave(code):
    """All ranks together: one that goes while another still needs it would make that one fail."""
    dist.barrier()
    dist.destroy_process_group()
    return code


def train(args):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    directory = os.environ.get("TRAINMASTER_CHECKPOINT_DIR")  # without one, no checkpoints
    checkpoint = Path(directory) / "last.pt" if directory else None
    output = Path(os.environ.get("TRAINMASTER_OUTPUT_DIR", "output"))

    images, labels, test_images, test_labels = map(torch.from_numpy, cifar10.load(args.data))
    labels, test_labels = labels.long(), test_labels.long()
    sampler = DistributedSampler(labels, num_replicas=world_size, rank=rank, shuffle=True, seed=0)
    steps_per_epoch = -(-len(sampler) // args.batch)
    torch.manual_seed(0)
    net = DistributedDataParallel(network(args.depth))
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4, nesterov=True)

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

    losses, shown_at, examples_then = [], time.monotonic(), examples
    saved_at = shown_at
    while step < args.steps:
        epoch, first = divmod(step, steps_per_epoch)
        sampler.set_epoch(epoch)
        batches = torch.tensor(list(sampler)).split(args.batch)
        for batch in batches[first : first + args.steps - step]:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(args.lr, step, args.steps)
            # The same variations whether or not it was interrupted before.
            generator = torch.Generator().manual_seed(step * world_size + rank)
            loss = cross_entropy(net(normal(varied(images[batch], generator))), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            examples += len(batch) * world_size
            if anyone(stop_asked):
                save_checkpoint()
                return leave(128 + signal.SIGTERM)
            if rank == 0:
                losses.append(loss.item())
                report(step=step, epoch=epoch + 1, loss=losses[-1], examples=examples)
                now = time.monotonic()
                if step % PRINT_EVERY == 0 or step == args.steps:
                    speed = (examples - examples_then) / (now - shown_at)
                    mean = sum(losses) / len(losses)
                    print(f"step {step:5d}  loss {mean:.4f}  {speed:.0f} images/s", flush=True)
                    losses, shown_at, examples_then = [], now, examples
                if now - saved_at > args.checkpoint_seconds:
                    save_checkpoint()
                    saved_at = now
        if step % steps_per_epoch == 0 and step < args.steps:
            reached = accuracy(net.module, test_images, test_labels)
            if rank == 0:
                report(step=step, epoch=epoch + 1, examples=examples, accuracy=reached)
                print(f"epoch {epoch + 1}: accuracy {reached:.4f}", flush=True)

    save_checkpoint()
    reached = accuracy(net.module, test_images, test_labels)
    if rank == 0:
        output.mkdir(parents=True, exist_ok=True)
        save(net.module.state_dict(), output / "model.pt")
        results = {"accuracy": reached, "steps": step, "examples": examples, "depth": args.depth}
        report(step=step, examples=examples, accuracy=reached)
        (output / "metrics.json").write_text(json.dumps(results) + "\n")
        print(f"accuracy {reached:.4f} on {len(test_labels)} images not trained on", flush=True)
    return leave(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=os.environ.get("TRAINMASTER_DATA_IMAGES", "data"))
    parser.add_argument("--steps", type=int, default=11730, help="over all epochs")
    parser.add_argument("--batch", type=int, default=64, help="images per worker and step")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--depth", type=int, default=20, help="6n + 2: 8, 14, 20, 32, ...")
    parser.add_argument("--checkpoint-seconds", type=float, default=10.0)
    args = parser.parse_args()

    torch.set_num_threads(1)
    # torchrun and Trainmaster set these; alone, this process is the whole gang.
    for key, alone in [
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "0"),
    ]:
        os.environ.setdefault(key, alone)
    # Without a timeout, a rank whose peer vanished would wait for half an hour.
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    signal.signal(signal.SIGTERM, ask_to_stop)  # not earlier: there was nothing to save
    try:
        return train(args)
    except cifar10.FormatError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: while Python shuts down, a thread of gloo may still finish its last work, and
    # now and then that ends in "terminate called without an active exception" and code 134.
    os._exit(code)
