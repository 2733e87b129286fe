"""What lies in a model's directory decides what answers; nothing is unpickled."""

from __future__ import annotations

import json
import pickle
import zipfile

import numpy as np
import pytest
from onnx_file import STRING, elsewhere, onnx_model

from trainmaster.inference import model_servers, skops_server
from trainmaster.inference.errors import ModelError, RequestError
from trainmaster.inference.saved_model_server import SavedModelServer
from trainmaster.inference.tensors import TensorSpec, read_request


def test_an_onnx_model_answers(tmp_path):
    (tmp_path / "digits.onnx").write_bytes(onnx_model())
    model = model_servers.load(tmp_path)
    assert model.platform == "onnxruntime_onnx"
    assert model.inputs == [TensorSpec("x", "FP32", (-1, 2))]
    assert model.outputs == [TensorSpec("y", "FP32", (-1, 2))]
    found = model.infer({"x": np.array([[1, 2]], dtype=np.float32)}, [])
    assert found["y"].tolist() == [[2.0, 4.0]]


def test_an_onnx_model_takes_texts(tmp_path):
    (tmp_path / "model.onnx").write_bytes(onnx_model("Identity", ["x"], STRING, ["n"]))
    found = model_servers.load(tmp_path).infer({"x": np.array(["a", "b"], dtype=object)}, ["y"])
    assert found["y"].tolist() == ["a", "b"]


def test_what_an_onnx_model_refuses_is_the_requests_fault(tmp_path):
    (tmp_path / "model.onnx").write_bytes(onnx_model(inputs=["a", "b"]))
    inputs = {"a": np.zeros((2, 2), dtype=np.float32), "b": np.zeros((3, 2), dtype=np.float32)}
    with pytest.raises(RequestError, match="the model refuses this"):
        model_servers.load(tmp_path).infer(inputs, [])


def test_a_file_that_is_no_onnx_model_is_named(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError, match=r"model\.onnx cannot be loaded as an ONNX model"):
        model_servers.load(tmp_path)


def test_an_onnx_model_has_weights_in_a_file_beside_it(tmp_path):
    (tmp_path / "weights.bin").write_bytes(np.array([1, 2], dtype=np.float32).tobytes())
    model = onnx_model(inputs=["x", "w"], weights=elsewhere("w", "weights.bin"))
    (tmp_path / "model.onnx").write_bytes(model)
    found = model_servers.load(tmp_path).infer({"x": np.zeros((1, 2), dtype=np.float32)}, [])
    assert found["y"].tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize(
    "place", ["../secret", "{root}/secret", "link", "sub/../../secret", "../m/../secret"]
)
def test_an_onnx_model_reads_no_file_outside_of_its_directory(tmp_path, place):
    """Else who asks a model is answered with what the process that serves it may read."""
    (tmp_path / "secret").write_bytes(b"12345678")
    (tmp_path / "m" / "sub").mkdir(parents=True)
    (tmp_path / "m" / "link").symlink_to(tmp_path / "secret")
    model = onnx_model(inputs=["x", "w"], weights=elsewhere("w", place.format(root=tmp_path)))
    (tmp_path / "m" / "model.onnx").write_bytes(model)
    with pytest.raises(ModelError, match="cannot be loaded"):
        model_servers.load(tmp_path / "m")


def test_of_several_models_that_called_model_is_taken_or_none(tmp_path):
    for name in ("a.onnx", "b.onnx"):
        (tmp_path / name).write_bytes(onnx_model())
    with pytest.raises(ModelError, match=r"has a\.onnx, b\.onnx\. Call the one .* model\.onnx"):
        model_servers.load(tmp_path)
    (tmp_path / "model.onnx").write_bytes(onnx_model("Identity", ["z"]))
    assert [each.name for each in model_servers.load(tmp_path).inputs] == ["z"]


def test_a_model_of_scikit_learn_answers(tmp_path):
    from sklearn.linear_model import LogisticRegression
    from skops.io import dump

    dump(LogisticRegression().fit([[0.0, 0], [1, 1], [2, 2]], ["no", "no", "yes"]), tmp_path / "m.skops")
    model = model_servers.load(tmp_path)
    assert model.platform == "sklearn_skops"
    assert model.inputs == [TensorSpec("input", "", (-1, 2))]
    assert [each.as_dict() for each in (*model.inputs, *model.outputs)] == [
        {"name": "input", "datatype": "FP64", "shape": [-1, 2]},
        {"name": "predict", "datatype": "BYTES", "shape": [-1]},
        {"name": "predict_proba", "datatype": "FP64", "shape": [-1, 2]},
        {"name": "decision_function", "datatype": "FP64", "shape": [-1]},
    ]
    inputs = {"input": np.array([[0.0, 0], [9, 9]])}
    assert model.infer(inputs, [])["predict"].tolist() == ["no", "yes"]
    assert model.infer(inputs, ["predict_proba"])["predict_proba"].shape == (2, 2)
    with pytest.raises(RequestError, match="the model refuses this"):
        model.infer({"input": np.array([["a", "b"]], dtype=object)}, [])


def test_a_model_of_texts_answers(tmp_path):
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from skops.io import dump

    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(["bad film", "good film"], [0, 1])
    dump(model, tmp_path / "m.skops")
    model = model_servers.load(tmp_path)
    tensor = {"name": "input", "shape": [2], "datatype": "BYTES", "data": ["so good", "bad bad"]}
    inputs, _, _ = read_request(json.dumps({"inputs": [tensor]}).encode(), model.inputs)
    assert model.infer(inputs, [])["predict"].tolist() == [1, 0]
    assert model.inputs[0].as_dict() == {"name": "input", "datatype": "BYTES", "shape": [-1]}
    assert model.outputs[0].as_dict() == {"name": "predict", "datatype": "INT64", "shape": [-1]}


class Foreign:
    """No type of scikit-learn."""

    def predict(self, rows):
        return rows


def test_types_that_skops_does_not_trust_are_named(tmp_path):
    from skops.io import dump

    dump(Foreign(), tmp_path / "m.skops")
    with pytest.raises(ModelError, match=r"holds types that skops does not trust: .*Foreign"):
        model_servers.load(tmp_path)


def test_a_file_that_skops_cannot_read_is_named(tmp_path):
    (tmp_path / "m.skops").write_bytes(b"no archive")
    with pytest.raises(ModelError, match=r"m\.skops cannot be loaded by skops"):
        model_servers.load(tmp_path)


@pytest.mark.parametrize("name", ["schema.json", "1.npy"])
def test_a_file_of_skops_that_would_become_too_large_is_not_unpacked(tmp_path, name, monkeypatch):
    monkeypatch.setattr(skops_server, "_SMALL_BYTES", 1000)
    with zipfile.ZipFile(tmp_path / "m.skops", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(name, b"0" * 10_000_000)
    with pytest.raises(ModelError, match=r"m\.skops would become 10,000,000 bytes"):
        model_servers.load(tmp_path)


class Trap:
    """What unpickles it has failed."""

    def __reduce__(self):
        return pytest.fail, ("it was unpickled",)


@pytest.mark.parametrize("name", ["model.pkl", "model.joblib", "weights.pt", "model.PTH", "last.ckpt"])
def test_pickles_are_never_loaded(tmp_path, name):
    (tmp_path / name).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ModelError, match=r"is, or may hold, a pickle.*torch\.onnx\.export.*skops\.io\.dump"):
        model_servers.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.keras", r"`model\.export\(directory\)` makes a SavedModel"),
        ("x.csv", r"has x\.csv: no format"),
    ],
)
def test_what_is_not_known_says_what_to_do(tmp_path, name, message):
    (tmp_path / name).write_text("")
    with pytest.raises(ModelError, match=message):
        model_servers.load(tmp_path)


def test_a_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"is no directory\. Set TRAINMASTER_MODEL_DIR"):
        model_servers.load(tmp_path / "nowhere")


def test_a_library_that_is_missing_is_named_with_what_installs_it():
    with pytest.raises(ModelError, match="pip install no-such-package"):
        model_servers.needed("no_such_module", "no-such-package")


SCRIPT = """
import pathlib

AT_ONCE = 3

def load(model_dir):
    return pathlib.Path(model_dir, "factor").read_text()

def predict(model, inputs):
    if inputs["x"].ndim != 1:
        raise ValueError("give one row")
    return {"y": inputs["x"] * int(model), "z": inputs["x"]}
"""


def test_a_script_of_the_users_answers(tmp_path):
    (tmp_path / "serve.py").write_text(SCRIPT)
    (tmp_path / "factor").write_text("3")
    (tmp_path / "model.pkl").write_text("")
    model = model_servers.load(tmp_path)
    assert model.at_once == 3
    assert {name: each.tolist() for name, each in model.infer({"x": np.array([1, 2])}, []).items()} == {
        "y": [3, 6],
        "z": [1, 2],
    }
    assert list(model.infer({"x": np.array([1])}, ["z"])) == ["z"]
    with pytest.raises(RequestError, match="there is no output 'w'; there are 'y', 'z'"):
        model.infer({"x": np.array([1])}, ["w"])
    with pytest.raises(RequestError, match="give one row"):
        model.infer({"x": np.array([[1]])}, [])


def test_a_script_that_asks_for_an_input_which_the_request_has_not_is_no_failure_of_the_script(tmp_path):
    (tmp_path / "serve.py").write_text("def predict(model, inputs):\n    return inputs['x']\n")
    server = model_servers.load(tmp_path)
    with pytest.raises(RequestError, match="there is no input 'x'; the request has 'z'"):
        server.infer({"z": np.ones(1)}, [])


def test_the_script_of_the_code_comes_first(tmp_path):
    model, code = tmp_path / "model", tmp_path / "code"
    for place, text in ((model, "1 / 0"), (code, "def predict(model, inputs): return inputs['x']")):
        place.mkdir()
        (place / "serve.py").write_text(text)
    assert model_servers.load(model, code).infer({"x": np.array([7])}, [])["output"].tolist() == [7]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no function `predict"),
        ("AT_ONCE = 0\ndef predict(m, i): ...", "AT_ONCE = 0 is no number"),
        (
            "def predict(inputs): ...",
            r"serve.py: `predict\(inputs\)` is called as `predict\(model, inputs\)`",
        ),
        ("def load(): ...\ndef predict(m, i): ...", r"`load\(\)` is called as `load\(model_dir\)`"),
    ],
)
def test_a_script_without_what_it_needs_is_refused(tmp_path, text, message):
    (tmp_path / "serve.py").write_text(text)
    with pytest.raises(ModelError, match=message):
        model_servers.load(tmp_path)


class _Shape:
    def __init__(self, *lengths):
        self.rank, self._lengths = len(lengths), lengths

    def __iter__(self):
        return iter(self._lengths)


class _Spec:
    def __init__(self, kind, *lengths):
        self.dtype = type("DType", (), {"as_numpy_dtype": kind})
        self.shape = _Shape(*lengths)


class _Signature:
    structured_input_signature = ((), {"x": _Spec(np.float32, None, 2)})
    structured_outputs = {"y": _Spec(np.float32, None, 1)}  # noqa: RUF012

    def __call__(self, x):
        if x.size == 0:
            raise ValueError("an empty batch")
        return {"y": type("Tensor", (), {"numpy": lambda _: x.sum(axis=1, keepdims=True)})()}


def test_a_saved_model_answers_by_its_signature():
    """With a stand-in for TensorFlow, which takes seconds to load."""
    tensorflow = type("tf", (), {"constant": staticmethod(np.asarray), "errors": type("e", (), {})})
    tensorflow.errors.InvalidArgumentError = KeyError
    model = SavedModelServer(tensorflow, type("M", (), {"signatures": {"serving_default": _Signature()}}))
    assert model.inputs == [TensorSpec("x", "FP32", (-1, 2))]
    assert model.infer({"x": np.array([[1, 2]], dtype=np.float32)}, [])["y"].tolist() == [[3.0]]
    with pytest.raises(RequestError, match="an empty batch"):
        model.infer({"x": np.empty((0, 2), dtype=np.float32)}, ["y"])
    with pytest.raises(ModelError, match="no signature 'serving_default'; it has other"):
        SavedModelServer(tensorflow, type("M", (), {"signatures": {"other": None}}))
