"""Which file of a model answers, by the names of its files alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trainmaster.inference.errors import ModelError

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
