"""Which library answers for a model, by the files that lie in its directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

import numpy as np

from trainmaster.inference.errors import ModelError
from trainmaster.inference.tensors import Arrays, TensorSpec

SCRIPT: Final = "serve.py"
#: Files of these kinds hold, or may hold, Python's pickles: who loads them runs whatever they say.
_PICKLES: Final = (".pkl", ".pickle", ".joblib", ".pt", ".pth", ".ckpt", ".dill", ".cloudpickle")
_HINT: Final = (
    "There are model.onnx, one *.skops file, saved_model.pb, or a serve.py of yours; "
    "anything else by a command of its own: `serve: {command: ...}`."
)


class Engine(Protocol):
    """A model that answers.

    Attributes:
        platform: the format, as the protocol's metadata name it.
        inputs: what it takes; empty for anything.
        outputs: what it gives; empty if nobody knows before.
        at_once: so many requests may ask it at the same time.
    """

    platform: str
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    at_once: int

    def infer(self, inputs: Arrays, wanted: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
        """Outputs by name.

        Args:
            inputs: arrays by name, as `inputs` says.
            wanted: names of outputs; none for all.

        Raises:
            RequestError: the request is wrong.
        """


def load(directory: Path, code: Path | None = None) -> Engine:
    """The engine for what lies there.

    Args:
        directory: of the model.
        code: where a ``serve.py`` of the user may lie, too; that of the code comes first.

    Raises:
        ModelError: nothing that can be served, or it needs what is not installed.
    """
    if not directory.is_dir():
        raise ModelError(f"{directory} is no directory. Set TRAINMASTER_MODEL_DIR, or give --model-dir DIR.")
    for place in (code, directory):
        if place is not None and (place / SCRIPT).is_file():
            return _made("script_engine")(place / SCRIPT, directory)
    for pattern, module in (("*.onnx", "onnx_engine"), ("*.skops", "skops_engine")):
        if found := _one(directory, pattern):
            return _made(module)(found)
    if (directory / "saved_model.pb").is_file():
        return _made("saved_model_engine")(directory)
    raise ModelError(_nothing(directory))


def needed(module: str, package: str, else_: str = "") -> ModuleType:
    """A library of a format.

    Raises:
        ModelError: it is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ModelError(
            f"{error.name} is not installed in this Python, which the model needs. "
            f"Install it: pip install {package}{else_}"
        ) from error


def _made(module: str) -> Callable[..., Engine]:
    made: Callable[..., Engine] = import_module(f"trainmaster.inference.{module}").load
    return made


def _one(directory: Path, pattern: str) -> Path | None:
    found = sorted(directory.glob(pattern))
    usual = [each for each in found if each.stem == "model"]
    if len(found) > 1 and not usual:
        raise ModelError(
            f"{directory} has {', '.join(each.name for each in found[:5])}. "
            f"Call the one that is to be served model{pattern[1:]}."
        )
    return next(iter(usual or found), None)


def _nothing(directory: Path) -> str:
    names = sorted(each.name for each in directory.iterdir())
    pickles = [name for name in names if name.lower().endswith(_PICKLES)]
    if pickles:
        return (
            f"{pickles[0]} is, or may hold, a pickle: to load it is to run whatever code is in it, "
            "so it is never loaded here. Export the model: PyTorch by `torch.onnx.export(model, args, "
            "'model.onnx')`, scikit-learn by `skops.io.dump(model, 'model.skops')`. If you trust it, "
            "load it in a serve.py of yours."
        )
    if any(name.endswith((".keras", ".h5")) for name in names):
        return f"A Keras file is not served as it is; `model.export(directory)` makes a SavedModel. {_HINT}"
    has = ", ".join(names[:8]) or "nothing"
    return f"{directory} has {has}: no format that is known here. {_HINT}"
