"""TensorFlow's SavedModels, where the task's Python has TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from trainmaster.inference.errors import ModelError, RequestError
from trainmaster.inference.model_servers import ModelServer, needed
from trainmaster.inference.tensors import DTYPES, Arrays, TensorSpec, datatype_of

_SIGNATURE: Final = "serving_default"
_ELSE: Final = (
    ". Or have TensorFlow Serving serve it: `container: tensorflow/serving` and a `serve: {command: ...}`."
)


class SavedModelServer:
    """The signature ``serving_default`` of one model.

    Args:
        tensorflow: the module.
        model: as loaded; its variables live as long as this.
    """

    platform = "tensorflow_savedmodel"
    at_once = 4

    def __init__(self, tensorflow: Any, model: Any) -> None:  # noqa: ANN401 - has no types
        signatures = getattr(model, "signatures", {})
        if _SIGNATURE not in signatures:
            raise ModelError(
                f"the SavedModel has no signature {_SIGNATURE!r}; it has {', '.join(signatures)}."
            )
        self._tensorflow, self._model = tensorflow, model
        self._call = signatures[_SIGNATURE]
        takes, gives = self._call.structured_input_signature[1], self._call.structured_outputs
        self.inputs: Sequence[TensorSpec] = [_spec(*each) for each in sorted(takes.items())]
        self.outputs: Sequence[TensorSpec] = [_spec(*each) for each in sorted(gives.items())]

    def infer(self, inputs: Arrays, wanted: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
        """Outputs by name."""
        try:
            tensors = {name: self._tensorflow.constant(array) for name, array in inputs.items()}
            found = self._call(**tensors)
        except (ValueError, TypeError, self._tensorflow.errors.InvalidArgumentError) as error:
            raise RequestError(f"the model refuses this: {error}") from None
        return {name: found[name].numpy() for name in wanted or found}


def load(directory: Path) -> ModelServer:
    """The server of a directory.

    Raises:
        ModelError: it is no SavedModel that can be served, or TensorFlow is not installed.
    """
    tensorflow = needed("tensorflow", "tensorflow", _ELSE)
    try:
        model = tensorflow.saved_model.load(str(directory))
    except Exception as error:  # noqa: BLE001 - whatever is wrong with somebody's file
        raise ModelError(f"the SavedModel cannot be loaded: {error}") from None
    return SavedModelServer(tensorflow, model)


def _spec(name: str, found: Any) -> TensorSpec:  # noqa: ANN401 - has no types
    dtype = np.dtype(found.dtype.as_numpy_dtype)
    datatype = datatype_of(np.empty(0, dtype))
    shape = None if found.shape.rank is None else tuple(-1 if n is None else int(n) for n in found.shape)
    return TensorSpec(name, datatype if datatype in DTYPES else "", shape)
