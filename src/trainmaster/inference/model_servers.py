"""Which library answers for a model, by the files that lie in its directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

import numpy as np

from trainmaster.inference.errors import ModelError
from trainmaster.inference.formats import SAVED_MODEL, SCRIPT, served_file
from trainmaster.inference.tensors import Arrays, TensorSpec

_MODULES: Final = {".onnx": "onnx_server", ".skops": "skops_server"}


class ModelServer(Protocol):
    """A model that answers.

    Attributes:
        platform: the format, as the protocol's metadata name it.
        inputs: what it takes; empty for anything.
        outputs: what it gives; empty if not known before.
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


def load(directory: Path, code: Path | None = None) -> ModelServer:
    """The engine for what lies there.

    Args:
        directory: of the model.
        code: where a ``serve.py`` of the user may lie, too; that of the code comes first.

    Raises:
        ModelError: nothing that can be served, or it needs what is not installed.
    """
    if not directory.is_dir():
        raise ModelError(f"{directory} is no directory. Set TRAINMASTER_MODEL_DIR, or give --model-dir DIR.")
    if code is not None and (code / SCRIPT).is_file():
        return _made("script_server")(code / SCRIPT, directory)
    name = served_file((each.name for each in directory.iterdir()), str(directory))
    if name == SCRIPT:
        return _made("script_server")(directory / SCRIPT, directory)
    if name == SAVED_MODEL:
        return _made("saved_model_server")(directory)
    return _made(_MODULES[Path(name).suffix])(directory / name)


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


def _made(module: str) -> Callable[..., ModelServer]:
    made: Callable[..., ModelServer] = import_module(f"trainmaster.inference.{module}").load
    return made
