"""ONNX models, by ONNX Runtime."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from trainmaster.inference.errors import ModelError, RequestError
from trainmaster.inference.model_servers import ModelServer, needed
from trainmaster.inference.tensors import Arrays, TensorSpec

_DATATYPES: Final = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float": "FP32",
    "double": "FP64",
    "string": "BYTES",
}


class OnnxServer:
    """One model.

    Args:
        session: of ONNX Runtime.
        failures: what it raises of a request that is wrong.
    """

    platform = "onnxruntime_onnx"
    #: A session may be asked by several threads; it has threads of its own for each question.
    at_once = 4

    def __init__(self, session: Any, failures: tuple[type[Exception], ...]) -> None:  # noqa: ANN401 - has no types
        self._session, self._failures = session, failures
        self.inputs: Sequence[TensorSpec] = [_spec(each) for each in session.get_inputs()]
        if unknown := [each.name for each in self.inputs if not each.datatype]:
            raise ModelError(f"the input {unknown[0]!r} is no tensor that the protocol knows.")
        # Sequences and maps, as classifiers have for probabilities, are nothing that the protocol has.
        self.outputs: Sequence[TensorSpec] = [
            spec for spec in map(_spec, session.get_outputs()) if spec.datatype
        ]

    def infer(self, inputs: Arrays, wanted: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
        """Outputs by name."""
        names = list(wanted) or [each.name for each in self.outputs]
        try:
            found = self._session.run(names, dict(inputs))
        except self._failures as error:
            raise RequestError(f"the model refuses this: {error}") from None
        return dict(zip(names, map(np.asarray, found)))  # noqa: B905 - Python 3.9


def load(file: Path) -> ModelServer:
    """The server of a file.

    Raises:
        ModelError: it is no ONNX model, or ONNX Runtime is not installed.
    """
    ort = needed("onnxruntime", "onnxruntime")
    state = needed("onnxruntime.capi.onnxruntime_pybind11_state", "onnxruntime")
    try:
        session = ort.InferenceSession(str(file), providers=ort.get_available_providers())
    except Exception as error:  # noqa: BLE001 - it has many kinds, all of them about the file
        raise ModelError(f"{file.name} cannot be loaded as an ONNX model: {error}") from None
    return OnnxServer(session, (state.InvalidArgument, state.Fail, state.RuntimeException))


def _spec(found: Any) -> TensorSpec:  # noqa: ANN401 - has no types
    kind = re.fullmatch(r"tensor\((\w+)\)", found.type)
    shape = tuple(each if isinstance(each, int) else -1 for each in found.shape or ())
    return TensorSpec(found.name, _DATATYPES.get(kind[1], "") if kind else "", shape)
