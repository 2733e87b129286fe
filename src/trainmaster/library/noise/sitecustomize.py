"""In a measurement of what trains for a target: how noisy the gradients of PyTorch's optimizers are.

A directory with this file alone comes first in PYTHONPATH. Two gradients in a row, of other examples at
nearly the same weights, tell both: their product is the signal's square, and what their squares have beyond
it is noise. Its share is the gradient noise scale in batches (McCandlish et al., 2018): the critical batch
over the one used. That takes a hundredth of the time at most, and whatever fails ends it without a word.
"""

import importlib.util
import json
import os
import sys
import time
from typing import Any

_MOST_SHARE = 0.01
#: The first gradients are those of weights that nothing has moved yet.
_FIRST_STEP = 3


class _Noise:
    """Called before each step of any optimizer; it looks at the first one."""

    def __init__(self) -> None:
        self.optimizer: Any = None
        self.steps = 0
        self.began = time.perf_counter()
        self.spent = self.squares = self.product = 0.0
        self.before: Any = None

    def __call__(self, optimizer: Any, *_: Any) -> None:  # noqa: ANN401 - of PyTorch, which is not imported
        if self.optimizer is None:
            self.optimizer = optimizer
        if self.steps < 0 or optimizer is not self.optimizer:
            return
        self.steps += 1
        begun = time.perf_counter()
        is_due = self.steps >= _FIRST_STEP and self.spent <= _MOST_SHARE * (begun - self.began)
        if self.before is None and not is_due:
            return
        try:
            self._look()
        except Exception:  # noqa: BLE001 - the script's training goes on as if nothing had been there
            self.steps, self.before = -1, None
        self.spent += time.perf_counter() - begun

    def _look(self) -> None:
        found = [
            each.grad.detach()
            for group in self.optimizer.param_groups
            for each in group["params"]
            if each.grad is not None and not each.grad.is_sparse
        ]
        if self.before is None:
            self.before = [each.clone() for each in found]
            return
        before, self.before = self.before, None
        sums = [(a.mul(b).sum(), a.square().sum() + b.square().sum()) for a, b in zip(before, found)]  # noqa: B905 - of Python 3.9
        product, squares = (float(sum(each[n] for each in sums)) for n in (0, 1))
        if not abs(squares) < float("inf"):  # a step that a scaler of mixed precision leaves out
            return
        self.product += product
        self.squares += squares / 2
        if self.product > 0 and "TRAINMASTER_METRICS" in os.environ:
            row = {"trainmaster.gradient_noise": max(self.squares / self.product - 1, 0.0)}
            with open(os.environ["TRAINMASTER_METRICS"], "a") as file:  # noqa: PTH123
                file.write(json.dumps(row) + "\n")


class _Finder:
    """Waits for PyTorch's optimizers to be imported."""

    def find_spec(self, name: str, *_: object) -> Any:  # noqa: ANN401
        if name != "torch.optim.optimizer":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader = spec.loader if spec is not None else None
        if loader is not None:
            load = loader.exec_module

            def loaded(module: Any) -> None:  # noqa: ANN401
                load(module)
                register = getattr(module, "register_optimizer_step_pre_hook", None)
                if register is not None:
                    register(_Noise())

            loader.exec_module = loaded  # type: ignore[method-assign]
        return spec


def _begin() -> None:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]  # noqa: PTH100
    own = sys.modules.pop(__name__, None)
    sys.meta_path.insert(0, _Finder())
    try:
        spec = importlib.util.find_spec(__name__)  # what the script's Python has by that name
        if spec is not None and spec.loader is not None:
            sys.modules[__name__] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    finally:
        if own is not None:
            sys.modules.setdefault(__name__, own)


if __name__ == "sitecustomize":
    _begin()
