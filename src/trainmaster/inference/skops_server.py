"""Models of scikit-learn in files of skops, which are loaded without running code of theirs."""

from __future__ import annotations

import importlib.metadata
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from trainmaster.inference.errors import ModelError, RequestError
from trainmaster.inference.model_servers import ModelServer, needed
from trainmaster.inference.tensors import Arrays, TensorSpec, datatype_of

#: What is asked of a model, in this order; the first one that it has is what it gives unless asked.
_METHODS: Final = ("predict", "transform", "predict_proba", "decision_function")
#: What is packed may become a hundred times as large, or so much.
_MOST_TIMES: Final = 100
_SMALL_BYTES: Final = 2 << 30
#: Those before take some code for trusted that is not (CVE-2025-54412, CVE-2025-54413).
_OLDEST: Final = (0, 12)


class SkopsServer:
    """One model: the input ``input``, and an output for each method that it has.

    Args:
        model: an estimator or a pipeline.
    """

    platform = "sklearn_skops"
    at_once = 2

    def __init__(self, model: Any) -> None:  # noqa: ANN401 - any estimator
        self._model = model
        self._methods = [name for name in _METHODS if callable(getattr(model, name, None))]
        if not self._methods:
            raise ModelError(f"a {type(model).__name__} has none of {', '.join(_METHODS)}.")
        if (features := getattr(model, "n_features_in_", None)) is not None:
            example, taken = np.zeros((1, int(features))), TensorSpec("input", "", (-1, int(features)))
        else:  # it takes texts, one a row; or it was never fitted
            example, taken = np.array(["a"], dtype=object), TensorSpec("input", told="BYTES")
        self.inputs: Sequence[TensorSpec] = [taken]
        self.outputs: Sequence[TensorSpec] = [self._output(name, example) for name in self._methods]

    def _output(self, name: str, example: np.ndarray[Any, Any]) -> TensorSpec:
        """What a method gives, as far as one try tells: estimators do not say."""
        try:
            found = np.asarray(getattr(self._model, name)(example))
            return TensorSpec(name, "", (-1, *found.shape[1:]), datatype_of(found))
        except Exception:  # noqa: BLE001 - whatever a model says of an example that is not its users'
            return TensorSpec(name)

    def infer(self, inputs: Arrays, wanted: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
        """Outputs by name; without a wish the first one."""
        names = list(wanted) or self._methods[:1]
        try:
            return {name: np.asarray(getattr(self._model, name)(inputs["input"])) for name in names}
        except (ValueError, TypeError) as error:
            raise RequestError(f"the model refuses this: {error}") from None


def _check_size(file: Path) -> None:
    """Refuse what would fill the memory of whoever unpacks it; `zipfile` gives no more than is said there.

    Raises:
        ModelError: it would.
    """
    with zipfile.ZipFile(file) as packed:
        size_bytes = sum(each.file_size for each in packed.infolist())
    if size_bytes > max(_SMALL_BYTES, _MOST_TIMES * file.stat().st_size):
        raise ModelError(f"{file.name} would become {size_bytes:,} bytes: it is not unpacked.")


def load(file: Path) -> ModelServer:
    """The server of a file.

    Raises:
        ModelError: it holds types that are not trusted, or is no such file, or skops is not installed.
    """
    skops = needed("skops.io", "skops")
    version = importlib.metadata.version("skops")
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < _OLDEST:
        raise ModelError(
            f"skops {version} runs code that is in a file. Install a newer one: pip install -U skops"
        )
    try:
        _check_size(file)
        unknown = skops.get_untrusted_types(file=file)
        if not unknown:
            return SkopsServer(skops.load(file, trusted=[]))
    except ModelError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever is wrong with somebody's file
        raise ModelError(f"{file.name} cannot be loaded by skops: {error}") from None
    raise ModelError(
        f"{file.name} holds types that skops does not trust: {', '.join(sorted(map(str, unknown))[:10])}. "
        "Only scikit-learn's, NumPy's and SciPy's are loaded. If these are yours, load the file in a "
        "serve.py with `skops.io.load(file, trusted=[...])`."
    )
