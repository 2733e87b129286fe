"""Makes `data/learning_curves.json`: 200 small trainings of ten families, each of other hyperparameters.

`python benchmarks/learning_curves.py` goes on where it stopped; `time_to_accuracy.py` scores by them.
"""

from __future__ import annotations

import functools
import json
import math
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).resolve().parent / "data" / "learning_curves.json"
CURVES_OF_EACH = 20
REPORTS = 60
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@functools.cache
def digits() -> Arrays:
    """1,300 and 497 digits of 8 x 8."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = found.data.astype(np.float32) / 16
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order], found.target[order]
    return images[:1300], labels[:1300], images[1300:], labels[1300:]


@functools.cache
def mnist() -> Arrays:
    """6,000 and 1,000 of MNIST."""
    sys.path.insert(0, str(Path(__file__).resolve().parent / "papers"))
    from images import mnist as fetched

    with np.load(fetched()) as found:
        train, test = found["images"][:6000], found["test_images"][:1000]
        images = [part.reshape(len(part), -1).astype(np.float32) / 255 for part in (train, test)]
        return images[0], found["labels"][:6000], images[1], found["test_labels"][:1000]


@functools.cache
def cifar() -> Arrays:
    """1,600 and 448 of CIFAR-10, every second pixel."""
    sys.path.insert(0, str(Path(__file__).resolve().parent / "papers"))
    from images import cifar as fetched

    with np.load(fetched()) as found:
        images = found["images"].astype(np.float32).reshape(-1, 16, 2, 16, 2, 3).mean((2, 4)) / 255 - 0.5
        images, labels = images.transpose(0, 3, 1, 2).reshape(len(images), -1), found["labels"]
    return images[:1600], labels[:1600], images[1600:], labels[1600:]


def network(kind: str, inputs: int, width: int) -> Any:
    """A classifier of ten, or what draws its input again."""
    from torch import nn

    if kind == "linear":
        return nn.Linear(inputs, 10)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(inputs, 4 * width), nn.ReLU(), nn.Linear(4 * width, 10))
    if kind == "autoencoder":
        return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, inputs))
    channels, side = (3, 16) if inputs == 768 else (1, 28)
    return nn.Sequential(
        nn.Unflatten(1, (channels, side, side)),
        nn.Conv2d(channels, width // 2, 3, stride=2), nn.ReLU(),
        nn.Conv2d(width // 2, width, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.LazyLinear(10),
    )  # fmt: skip


def trained(data: Callable[[], Arrays], kind: str, metric: str, steps: int) -> Callable[..., Any]:
    """A family of networks."""

    def curve(rng: random.Random) -> tuple[dict[str, Any], Iterator[tuple[int, float]]]:
        chosen = {
            "lr": 10 ** rng.uniform(-2.3, -0.7),
            "batch": rng.choice([8, 16, 32, 64, 128]),
            "width": rng.choice([8, 16, 32]),
            "optimizer": rng.choice(["sgd", "momentum", "adam"]),
            "steps": int(steps * math.exp(rng.uniform(-0.7, 0.7))),
        }
        return chosen, training(data(), kind, metric, chosen, rng.randrange(2**31))

    return curve


def training(
    data: Arrays, kind: str, metric: str, chosen: dict[str, Any], seed: int
) -> Iterator[tuple[int, float]]:
    """Step and value of each report."""
    import torch
    from torch.nn import functional

    torch.manual_seed(seed)
    images, labels, test_images, test_labels = (torch.from_numpy(np.ascontiguousarray(a)) for a in data)
    model = network(kind, images.shape[1], chosen["width"])
    model(images[:2])
    lr = chosen["lr"]
    if chosen["optimizer"] == "adam":
        optimizer: Any = torch.optim.Adam(model.parameters(), lr / 20)
    else:
        momentum = 0.9 if chosen["optimizer"] == "momentum" else 0.0
        optimizer = torch.optim.SGD(model.parameters(), lr * (1 - momentum), momentum=momentum)

    def loss_of(x: Any, y: Any) -> Any:
        found = model(x)
        return (
            functional.mse_loss(found, x)
            if kind == "autoencoder"
            else functional.cross_entropy(found, y.long())
        )

    recent: list[float] = []
    for step in range(1, chosen["steps"] + 1):
        at = torch.randint(len(images), (chosen["batch"],))
        loss = loss_of(images[at], labels[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent.append(loss.item())
        if step * REPORTS // chosen["steps"] != (step - 1) * REPORTS // chosen["steps"]:
            with torch.no_grad():
                if metric == "accuracy":
                    value = float((model(test_images).argmax(1) == test_labels).float().mean())
                elif metric == "train_loss":
                    value = sum(recent) / len(recent)
                else:
                    value = float(loss_of(test_images, test_labels))
            recent.clear()
            yield step, value


def boosted(data: str, metric: str) -> Callable[..., Any]:
    """A family of boosted trees; a step is a tree of each class."""

    def curve(rng: random.Random) -> tuple[dict[str, Any], Iterator[tuple[int, float]]]:
        chosen = {
            "learning_rate": 10 ** rng.uniform(-1.7, -0.4),
            "max_depth": rng.choice([1, 2, 3, 4]),
            "subsample": rng.choice([0.3, 0.6, 1.0]),
            "n_estimators": rng.choice([60, 120, 180]),
        }
        return chosen, staged(data, metric, chosen, rng.randrange(2**31))

    return curve


def staged(data: str, metric: str, chosen: dict[str, Any], seed: int) -> Iterator[tuple[int, float]]:
    """Number of trees and value."""
    from sklearn.datasets import make_friedman1
    from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor

    if data == "digits":
        images, labels, test_images, test_labels = digits()
        images, labels = images[:500], labels[:500]
        model: Any = GradientBoostingClassifier(random_state=seed, max_features="sqrt", **chosen)
    else:
        images, labels = make_friedman1(1500, noise=1.0, random_state=1)
        images, labels, test_images, test_labels = images[:1000], labels[:1000], images[1000:], labels[1000:]
        model = GradientBoostingRegressor(random_state=seed, **chosen)
    model.fit(images, labels)
    each = chosen["n_estimators"] // REPORTS
    for number, predicted in enumerate(model.staged_predict(test_images), 1):
        if number % each == 0:
            right = np.mean(predicted == test_labels)
            yield (
                number,
                float(right if metric == "accuracy" else np.sqrt(np.mean((predicted - test_labels) ** 2))),
            )


FAMILIES: dict[str, tuple[str, Callable[..., Any]]] = {
    "digits-linear": ("accuracy", trained(digits, "linear", "accuracy", 1200)),
    "digits-mlp": ("loss", trained(digits, "mlp", "loss", 1200)),
    "digits-autoencoder": ("loss", trained(digits, "autoencoder", "loss", 1200)),
    "mnist-linear": ("loss", trained(mnist, "linear", "loss", 600)),
    "mnist-mlp": ("accuracy", trained(mnist, "mlp", "accuracy", 600)),
    "mnist-cnn": ("accuracy", trained(mnist, "cnn", "accuracy", 300)),
    "cifar-mlp": ("train_loss", trained(cifar, "mlp", "train_loss", 600)),
    "cifar-cnn": ("accuracy", trained(cifar, "cnn", "accuracy", 600)),
    "boosted-digits": ("accuracy", boosted("digits", "accuracy")),
    "boosted-friedman": ("rmse", boosted("friedman", "rmse")),
}


def main() -> None:
    import torch

    torch.set_num_threads(1)
    done = json.loads(FILE.read_text()) if FILE.exists() else []
    have = {(each["family"], each["number"]) for each in done}
    for number in range(CURVES_OF_EACH):
        for family, (metric, make) in FAMILIES.items():
            if (family, number) in have:
                continue
            chosen, points = make(random.Random(f"{family} {number}"))
            chosen = {
                key: round(value, 5) if isinstance(value, float) else value for key, value in chosen.items()
            }
            steps, values = zip(*((step, float(f"{value:.4g}")) for step, value in points), strict=True)
            done.append(
                {
                    "family": family,
                    "number": number,
                    "metric": metric,
                    **chosen,
                    "at": steps,
                    "values": values,
                }
            )
        lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in done)
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(f"[\n{lines}\n]\n")
        print(f"{len(done)} of {CURVES_OF_EACH * len(FAMILIES)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
