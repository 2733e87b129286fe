"""Tensors of the V2 inference protocol, in JSON and as arrays. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from trainmaster.inference.errors import RequestError

Arrays = Mapping[str, np.ndarray[Any, Any]]

#: NumPy's type of each datatype.
DTYPES: Final = {
    "BOOL": np.dtype(bool),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(object),
}
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}
_MOST_DIMENSIONS: Final = 32


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model.

    Attributes:
        name: in requests and answers.
        datatype: of `DTYPES`; empty if any is taken.
        shape: -1 for any length; None for any shape.
        told: the datatype that metadata name where any is taken: in the protocol each tensor has one.
    """

    name: str
    datatype: str = ""
    shape: tuple[int, ...] | None = None
    told: str = "FP64"

    def as_dict(self) -> dict[str, Any]:
        """As the protocol's metadata."""
        datatype = self.datatype or self.told
        return {"name": self.name, "datatype": datatype, "shape": list(self.shape or (-1,))}

    def check(self, array: np.ndarray[Any, Any]) -> None:
        """Refuse what is no such tensor.

        Raises:
            RequestError: naming the input, what it is and what it should be.
        """
        if self.datatype and array.dtype != DTYPES[self.datatype]:
            raise RequestError(
                f"input {self.name!r} has datatype {datatype_of(array)}; the model takes {self.datatype}"
            )
        if self.shape is None:
            return
        fits = len(self.shape) == array.ndim and all(
            wanted in (-1, has)
            for wanted, has in zip(self.shape, array.shape)  # noqa: B905 - Python 3.9
        )
        if not fits:
            raise RequestError(
                f"input {self.name!r} has shape {list(array.shape)}; the model takes {list(self.shape)}"
                + (", where -1 is any length" if -1 in self.shape else "")
            )


def datatype_of(array: np.ndarray[Any, Any]) -> str:
    """The protocol's name of an array's type; texts are BYTES.

    Raises:
        RequestError: it has none.
    """
    if array.dtype.kind in "USO":
        return "BYTES"
    if array.dtype not in _NAMES:
        raise RequestError(f"the protocol has no datatype for {array.dtype}", 500)
    return _NAMES[array.dtype]


def read_request(
    body: bytes, inputs: Sequence[TensorSpec]
) -> tuple[dict[str, np.ndarray[Any, Any]], Any, list[str]]:
    """The inputs of a request, its id, and the names of the outputs that it asks for (none: all).

    Args:
        body: JSON.
        inputs: of the model; empty if it takes any.

    Raises:
        RequestError: saying what is wrong where.
    """
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is no JSON: {error}") from None
    if not isinstance(request, dict):
        raise RequestError('the body is no JSON object; send {"inputs": [...]}')
    tensors = request.get("inputs")
    if not isinstance(tensors, list) or not tensors:
        raise RequestError('"inputs" is no list of tensors; each has "name", "shape", "datatype", "data"')
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for number, tensor in enumerate(tensors):
        name, array = _tensor(tensor, number)
        if name in arrays:
            raise RequestError(f"input {name!r} is there twice")
        arrays[name] = array
    _check_names(arrays, inputs)
    return arrays, request.get("id"), _wanted(request.get("outputs"))


def write_answer(model: str, identity: Any, outputs: Arrays) -> bytes:  # noqa: ANN401 - what came is given back
    """The answer to a request; numbers that JSON has not (NaN, infinities) are null."""
    tensors = [
        {"name": name, "datatype": datatype_of(array), "shape": list(array.shape), "data": _flat(array)}
        for name, array in outputs.items()
    ]
    answer = {"model_name": model, "outputs": tensors}
    if identity is not None:
        answer["id"] = identity
    try:
        return json.dumps(answer, allow_nan=False).encode()
    except ValueError:
        for tensor in tensors:
            tensor["data"] = [
                None if isinstance(x, float) and not math.isfinite(x) else x for x in tensor["data"]
            ]
        return json.dumps(answer).encode()


def _tensor(tensor: object, number: int) -> tuple[str, np.ndarray[Any, Any]]:
    if not isinstance(tensor, dict):
        raise RequestError(f"input {number} is no object")
    name, datatype, shape = tensor.get("name"), tensor.get("datatype"), tensor.get("shape")
    if not isinstance(name, str) or not name:
        raise RequestError(f'input {number} has no "name"')
    if not isinstance(datatype, str) or datatype not in DTYPES:
        raise RequestError(f"input {name!r} has datatype {datatype!r}; there are {', '.join(DTYPES)}")
    if (
        not isinstance(shape, list)
        or len(shape) > _MOST_DIMENSIONS
        or not all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in shape)
    ):
        raise RequestError(f"input {name!r} has shape {shape!r}; give a list of lengths, such as [1, 4]")
    if "data" not in tensor:
        raise RequestError(f'input {name!r} has no "data"; tensors are taken in JSON only')
    array = _array(name, datatype, tensor["data"])
    if array.size != math.prod(shape):
        raise RequestError(
            f"input {name!r} has {array.size} values; its shape {shape} needs {math.prod(shape)}"
        )
    if array.ndim > 1 and list(array.shape) != shape:
        raise RequestError(
            f"input {name!r}: the lists of its data are {list(array.shape)}, its shape is {shape}"
        )
    try:
        return name, array.reshape(shape)
    except (ValueError, OverflowError):  # one length is 0, another one more than any array has
        raise RequestError(f"input {name!r} has shape {shape}, which is too large") from None


def _array(name: str, datatype: str, data: object) -> np.ndarray[Any, Any]:
    if not isinstance(data, list):
        raise RequestError(f"input {name!r}: its data are no list")
    if datatype == "BYTES":
        return _texts(name, data)
    if _has_texts(data):  # NumPy would give every value the room of the longest text
        raise RequestError(f"input {name!r}: its data are not all {datatype}")
    try:
        array = np.array(data)
    except (ValueError, OverflowError, TypeError):
        raise RequestError(f"input {name!r}: its lists have different lengths") from None
    dtype = DTYPES[datatype]
    if array.size == 0:
        return array.astype(dtype)
    is_exact = dtype.kind in "iu" and array.dtype.kind in "fO" and _are_integers(data)
    if is_exact:  # large integers beside small ones were floats to NumPy
        array = np.array(data, dtype=object)
    kinds = {"b": "b", "u": "iu", "i": "iu", "f": "iuf"}[dtype.kind]
    if array.dtype.kind not in kinds and not is_exact:
        raise RequestError(f"input {name!r}: its data are not all {datatype}")
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype.type)
        if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
            raise RequestError(f"input {name!r}: {datatype} is from {bounds.min} to {bounds.max}")
    with np.errstate(over="ignore"):
        typed = array.astype(dtype)
    if dtype.kind == "f" and np.isfinite(array).all() and not np.isfinite(typed).all():
        raise RequestError(f"input {name!r}: a value is too large for {datatype}")
    return typed


def _has_texts(data: list[Any]) -> bool:
    level = data
    while level:
        kinds = set(map(type, level))
        if str in kinds:
            return True
        level = [each for inner in level if type(inner) is list for each in inner] if list in kinds else []
    return False


def _are_integers(data: object) -> bool:
    return all(map(_are_integers, data)) if isinstance(data, list) else type(data) is int


def _texts(name: str, data: list[Any]) -> np.ndarray[Any, Any]:
    shape, level = [len(data)], data
    while level and isinstance(level[0], list):
        shape.append(len(level[0]))
        if len(shape) > _MOST_DIMENSIONS or not all(
            isinstance(e, list) and len(e) == shape[-1] for e in level
        ):
            raise RequestError(f"input {name!r}: its lists have different lengths")
        level = [each for inner in level for each in inner]
    if not all(isinstance(each, str) for each in level):
        raise RequestError(f"input {name!r}: its data are not all texts")
    array = np.empty(len(level), dtype=object)
    array[:] = level
    return array.reshape(shape)


def _check_names(arrays: Arrays, inputs: Sequence[TensorSpec]) -> None:
    if not inputs:
        return
    known = {each.name: each for each in inputs}
    unknown = [name for name in arrays if name not in known]
    missing = [name for name in known if name not in arrays]
    if unknown or missing:
        what = f"there is no input {unknown[0]!r}" if unknown else f"the input {missing[0]!r} is missing"
        raise RequestError(f"{what}; the model takes {', '.join(map(repr, known))}")
    for name, array in arrays.items():
        known[name].check(array)


def _wanted(outputs: object) -> list[str]:
    if outputs is None:
        return []
    if not isinstance(outputs, list) or not all(
        isinstance(each, dict) and isinstance(each.get("name"), str) for each in outputs
    ):
        raise RequestError('"outputs" is no list of objects with a "name"')
    return [each["name"] for each in outputs]


def _flat(array: np.ndarray[Any, Any]) -> list[Any]:
    values: list[Any] = array.ravel().tolist()
    if datatype_of(array) != "BYTES":
        return values
    return [each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each) for each in values]
