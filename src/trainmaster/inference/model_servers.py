"""Which library answers for a model, by the files that lie in its directory.

Which file of a model answers, by the names of its files alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

import numpy as np

from trainmaster.inference.errors import ModelError
from trainmaster.inference.tensors import Arrays, TensorSpec

SCRIPT: Final = "serve.py"
SAVED_MODEL: Final = "saved_model.pb"
#: Files of these kinds hold, or may hold, Python's pickles: to load them is to run whatever they say.
_PICKLES: Final = (".pkl", ".pickle", ".joblib", ".pt", ".pth", ".ckpt", ".dill", ".cloudpickle")
_HINT: Final = (
    "There are model.onnx, one *.skops file, saved_model.pb, or a serve.py of yours; "
    "anything else by a command of its own: `serve: {command: ...}`."
)


def served_file(paths: Iterable[str], where: str) -> str:
    """The file that says how a model is served.

    Args:
        paths: of the model's files, below its directory.
        where: they are, for messages.

    Raises:
        ModelError: nothing that can be served, or several that could be.

    >>> served_file(["model.onnx", "other.onnx", "notes.txt"], "the model")
    'model.onnx'
    """
    names = sorted({path.partition("/")[0] for path in paths})
    if SCRIPT in names:
        return SCRIPT
    for suffix in (".onnx", ".skops"):
        found = [name for name in names if name.endswith(suffix)]
        usual = [name for name in found if name == f"model{suffix}"]
        if len(found) > 1 and not usual:
            raise ModelError(
                f"{where} has {', '.join(found[:5])}. Call the one that is to be served model{suffix}."
            )
        if found:
            return (usual or found)[0]
    if SAVED_MODEL in names:
        return SAVED_MODEL
    raise ModelError(_nothing(names, where))


def _nothing(names: list[str], where: str) -> str:
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
    return f"{where} has {', '.join(names[:8]) or 'nothing'}: no format that is known here. {_HINT}"


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
    """The server for what lies there.

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
