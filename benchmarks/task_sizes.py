"""How much longer tasks of a sweep take, by their parameters: what a quote believes before two were seen.

`python benchmarks/task_sizes.py` trains small networks, trees and kernels of PyTorch and scikit-learn on one
thread, and takes the processor's time. A size, such as a width, has a power: twice of it takes 2^power as
long. A choice, such as an optimizer, has the logarithm of what it takes beside the first one.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from common import options, report
from sklearn.datasets import load_digits
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC
from torch import nn

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda some: torch.optim.SGD(some, 0.1),
    "momentum": lambda some: torch.optim.SGD(some, 0.1, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}


def seconds(work: Callable[[], object]) -> float:
    work()
    took = []
    for _ in range(5):
        began = time.thread_time()
        work()
        took.append(time.thread_time() - began)
    return statistics.median(took)


def steps(model: nn.Module, x: torch.Tensor, optimizer: str = "sgd", many: int = 2) -> float:
    made = OPTIMIZERS[optimizer](model.parameters())

    def train() -> None:
        for _ in range(many):
            made.zero_grad()
            found = model(x)
            (found[0] if isinstance(found, tuple) else found).square().mean().backward()
            made.step()

    return seconds(train)


def dense(
    width: int = 64, depth: int = 2, batch: int = 64, act: Any = nn.ReLU, optimizer: str = "sgd"
) -> float:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.LazyLinear(width), act()]
    model, x = nn.Sequential(*layers, nn.LazyLinear(10)), torch.randn(batch, 64)
    model(x)
    return steps(model, x, optimizer, 10)


def convolutions(
    channels: int = 16, size: int = 28, kernel: int = 3, layers: int = 2, batch: int = 16
) -> float:
    some: list[nn.Module] = []
    for _ in range(layers):
        some += [nn.LazyConv2d(channels, kernel, padding=kernel // 2), nn.ReLU()]
    model, x = nn.Sequential(*some, nn.AdaptiveAvgPool2d(1)), torch.randn(batch, 1, size, size)
    model(x)
    return steps(model, x)


def recurrent(
    hidden: int = 64, length: int = 32, layers: int = 1, batch: int = 16, cell: Any = nn.LSTM
) -> float:
    return steps(cell(32, hidden, layers, batch_first=True), torch.randn(batch, length, 32), many=1)


def transformer(
    width: int = 64, heads: int = 4, layers: int = 2, length: int = 64, inner: int = 128
) -> float:
    layer = nn.TransformerEncoderLayer(width, heads, inner, batch_first=True)
    return steps(nn.TransformerEncoder(layer, layers), torch.randn(4, length, width), many=1)


def fitted(kind: Any, **fixed: Any) -> Callable[..., float]:
    x, y = load_digits(return_X_y=True)
    return lambda **more: seconds(lambda: kind(**{**fixed, **more}).fit(x[:600] / 16, y[:600]))


def main() -> None:
    options(__doc__ or "")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    boosted = fitted(GradientBoostingClassifier, n_estimators=3)
    forest = fitted(RandomForestClassifier, n_estimators=20)
    wide = {"width": 512}
    sizes: list[tuple[Callable[..., float], str, Sequence[int], dict[str, int]]] = [
        (dense, "width", (16, 64, 256), {}), (dense, "width", (256, 512, 1024), {}),
        (dense, "depth", (1, 2, 4, 8), {}), (dense, "batch", (16, 64, 256), {}),
        (dense, "batch", (64, 512), wide), (convolutions, "channels", (8, 16, 32, 64), {}),
        (convolutions, "size", (14, 28, 56), {}), (convolutions, "kernel", (1, 3, 5), {}),
        (convolutions, "layers", (1, 2, 4), {}), (convolutions, "batch", (4, 16, 64), {}),
        (recurrent, "hidden", (32, 64, 128, 256), {}), (recurrent, "length", (16, 32, 64), {}),
        (recurrent, "layers", (1, 2, 4), {}), (recurrent, "batch", (4, 16, 64), {}),
        (transformer, "width", (32, 64, 128, 256), {}), (transformer, "heads", (1, 2, 4, 8), {}),
        (transformer, "layers", (1, 2, 4), {}), (transformer, "length", (32, 64, 128, 256), {}),
        (transformer, "inner", (64, 128, 256, 512), {}), (boosted, "n_estimators", (2, 4, 8), {}),
        (boosted, "max_depth", (1, 2, 4, 8), {}), (boosted, "min_samples_leaf", (1, 4, 16), {}),
        (forest, "n_estimators", (10, 40, 160), {}), (forest, "max_depth", (2, 4, 8, 16), {}),
        (forest, "max_features", (2, 8, 32), {}), (fitted(SVC), "C", (1, 10, 100), {}),
    ]  # fmt: skip
    choices: list[tuple[Callable[..., float], str, Sequence[object], dict[str, int]]] = [
        (dense, "act", (nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU), {}), (dense, "optimizer", (*OPTIMIZERS,), {}),
        (dense, "optimizer", (*OPTIMIZERS,), wide), (recurrent, "cell", (nn.LSTM, nn.GRU, nn.RNN), {}),
        (fitted(SVC), "kernel", ("rbf", "linear", "poly", "sigmoid"), {}),
        (forest, "criterion", ("gini", "entropy"), {}),
        (fitted(LogisticRegression, max_iter=50), "solver", ("lbfgs", "saga", "newton-cg"), {}),
    ]  # fmt: skip
    powers = []
    for take, name, values, more in sizes:
        took = [math.log(take(**more, **{name: value})) for value in values]
        logs = [math.log(value) for value in values]
        slopes = [(b - took[0]) / (at - logs[0]) for b, at in zip(took[1:], logs[1:], strict=True)]
        powers.append(statistics.mean(slopes))
    others = []
    for take, name, some, more in choices:
        took = [math.log(take(**more, **{name: value})) for value in some]
        others += [each - took[0] for each in took[1:]]
    spread = math.sqrt(statistics.mean(each**2 for each in others))
    found = {
        "powers": sorted(round(each, 2) for each in powers),
        "power": [round(statistics.mean(powers), 2), round(statistics.pstdev(powers), 2)],
        "choices": sorted(round(each, 2) for each in others),
        "choice_spread": round(spread, 2),
    }
    report("task_sizes", found)


if __name__ == "__main__":
    main()
