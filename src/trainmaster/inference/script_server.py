"""A model behind a user's ``serve.py``.

The script has ``predict(model, inputs)``, which gets arrays by name and gives arrays by name (or one array,
which is called ``output``), and may have ``load(model_dir)``, whose answer is ``model``. ``AT_ONCE = 4`` lets
so many threads into `predict` at the same time; without it one.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainmaster.inference.errors import ModelError, RequestError
from trainmaster.inference.model_servers import ModelServer
from trainmaster.inference.tensors import Arrays, TensorSpec


class _Inputs(dict[str, Any]):
    """Arrays of a request; one that it has not is its mistake, and none of the script's."""

    def __missing__(self, name: str) -> object:
        raise _NoInputError(
            f"there is no input {name!r}; the request has {', '.join(map(repr, self)) or 'none'}"
        )


class _NoInputError(KeyError, ValueError):
    """What a dictionary would raise, and what says that the request is wrong."""

    __str__ = ValueError.__str__  # not a repr, as of a KeyError


class ScriptServer:
    """One model.

    Args:
        predict: of the script.
        model: what its ``load`` has given; None without one.
        at_once: so many threads may be in ``predict``.
    """

    platform = "python_script"
    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()

    def __init__(self, predict: Callable[[object, Arrays], object], model: object, at_once: int) -> None:
        self._predict, self._model, self.at_once = predict, model, at_once

    def infer(self, inputs: Arrays, wanted: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
        """Outputs by name; the script says by a `ValueError` that a request is wrong."""
        try:
            found = self._predict(self._model, _Inputs(inputs))
        except ValueError as error:
            raise RequestError(str(error)) from error
        named = found if isinstance(found, Mapping) else {"output": found}
        arrays = {str(name): np.asarray(value) for name, value in named.items()}
        if missing := [name for name in wanted if name not in arrays]:
            raise RequestError(f"there is no output {missing[0]!r}; there are {', '.join(map(repr, arrays))}")
        return {name: arrays[name] for name in wanted or arrays}


def load(script: Path, directory: Path) -> ModelServer:
    """The server of a script; what the script raises goes on to its log.

    Raises:
        ModelError: it has no ``predict``, or a function that cannot be called as it will be.
    """
    spec = importlib.util.spec_from_file_location("serve", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["serve"] = module
    sys.path.insert(0, str(script.parent))
    spec.loader.exec_module(module)
    predict, loads = getattr(module, "predict", None), getattr(module, "load", None)
    if not callable(predict):
        raise ModelError(f"{script} has no function `predict(model, inputs)`.")
    _refuse_other_parameters(script, "predict", predict, "model", "inputs")
    if callable(loads):
        _refuse_other_parameters(script, "load", loads, "model_dir")
    at_once = getattr(module, "AT_ONCE", 1)
    if not isinstance(at_once, int) or at_once < 1:
        raise ModelError(f"{script}: AT_ONCE = {at_once!r} is no number of threads.")
    return ScriptServer(predict, loads(str(directory)) if callable(loads) else None, at_once)


def _refuse_other_parameters(script: Path, name: str, function: Callable[..., object], *given: str) -> None:
    """Now, as the first request would find a replica that is ready and fails."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # one in C need not have any
        return
    try:
        signature.bind(*given)
    except TypeError:
        call = f"{name}({', '.join(given)})"
        raise ModelError(f"{script}: `{name}{signature}` is called as `{call}`; give it these.") from None
