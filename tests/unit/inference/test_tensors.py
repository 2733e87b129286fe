"""Tensors of the V2 protocol, as JSON and as arrays."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from trainmaster.inference.errors import RequestError
from trainmaster.inference.tensors import DTYPES, TensorSpec, read_request, write_answer

X = TensorSpec("x", "FP32", (-1, 2))


def body(**changes):
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.5, 2]}
    return json.dumps({"inputs": [{**tensor, **changes}]}).encode()


def test_flat_and_nested_data_are_the_same_tensor():
    flat, _, _ = read_request(body(), [X])
    nested, _, _ = read_request(body(data=[[1.5, 2]]), [X])
    assert flat["x"].dtype == np.float32
    assert flat["x"].tolist() == nested["x"].tolist() == [[1.5, 2.0]]


def test_the_id_and_the_wanted_outputs_are_given_back():
    request = {**json.loads(body()), "id": "a7", "outputs": [{"name": "y"}]}
    assert read_request(json.dumps(request).encode(), [X])[1:] == ("a7", ["y"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"datatype": "FP8"}, "input 'x' has datatype 'FP8'; there are BOOL"),
        ({"shape": [1, 3]}, "input 'x' has 2 values; its shape [1, 3] needs 3"),
        ({"shape": "1x2"}, "input 'x' has shape '1x2'; give a list of lengths, such as [1, 4]"),
        ({"shape": [-1, 2]}, "input 'x' has shape [-1, 2]; give a list"),
        ({"shape": [True, 2]}, "input 'x' has shape [True, 2]; give a list"),
        ({"shape": [2, 1], "data": [[1, 2]]}, "the lists of its data are [1, 2], its shape is [2, 1]"),
        ({"shape": [2]}, "input 'x' has shape [2]; the model takes [-1, 2], where -1 is any length"),
        ({"datatype": "FP64"}, "input 'x' has datatype FP64; the model takes FP32"),
        ({"data": [1, None]}, "its data are not all FP32"),
        ({"data": [1, "2"]}, "its data are not all FP32"),
        ({"data": [[1] * 1_000_000, ["x" * 1_000_000]]}, "its data are not all FP32"),
        ({"shape": [0, 10**30], "data": []}, "which is too large"),
        ({"shape": [0, 10**30], "data": [], "datatype": "BYTES"}, "which is too large"),
        ({"data": [[1, 2], [3]]}, "its lists have different lengths"),
        ({"data": 3}, "its data are no list"),
        ({"data": [1, 1e300]}, "a value is too large for FP32"),
        ({"data": [1.5, 2], "datatype": "INT32"}, "its data are not all INT32"),
        ({"data": [1, 300], "datatype": "UINT8"}, "UINT8 is from 0 to 255"),
        (
            {"data": [1, 2**70], "datatype": "INT64"},
            "INT64 is from -9223372036854775808 to 9223372036854775807",
        ),
        ({"data": [1, 0], "datatype": "BOOL"}, "its data are not all BOOL"),
        ({"data": ["a", 1], "datatype": "BYTES"}, "its data are not all texts"),
        ({"data": [["a"], "b"], "datatype": "BYTES"}, "its lists have different lengths"),
        ({"name": "z"}, "there is no input 'z'; the model takes 'x'"),
        ({"name": 3}, 'input 0 has no "name"'),
    ],
)
def test_what_is_wrong_is_named(changes, message):
    with pytest.raises(RequestError) as raised:
        read_request(body(**changes), [X])
    assert message in str(raised.value)
    assert raised.value.status == 400


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "the body is no JSON"),
        (b"[" * 100_000, "the body is no JSON"),
        (b"[]", "the body is no JSON object"),
        (b"{}", '"inputs" is no list of tensors'),
        (b'{"inputs": []}', '"inputs" is no list of tensors'),
        (b'{"inputs": [3]}', "input 0 is no object"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}]}', 'has no "data"'),
    ],
)
def test_what_is_no_request_is_refused(text, message):
    with pytest.raises(RequestError, match=message):
        read_request(text, [X])


def test_an_input_that_is_missing_or_there_twice_is_named():
    with pytest.raises(RequestError, match="the input 'z' is missing"):
        read_request(body(), [X, TensorSpec("z")])
    with pytest.raises(RequestError, match="input 'x' is there twice"):
        read_request(json.dumps({"inputs": json.loads(body())["inputs"] * 2}).encode(), [X])


def test_answers_have_null_for_what_json_has_no_number_for():
    answer = json.loads(write_answer("m", "1", {"y": np.array([[1.0, np.nan], [np.inf, 2.0]])}))
    assert answer == {
        "model_name": "m",
        "id": "1",
        "outputs": [{"name": "y", "datatype": "FP64", "shape": [2, 2], "data": [1.0, None, None, 2.0]}],
    }


def test_texts_are_bytes():
    answer = json.loads(write_answer("m", None, {"y": np.array(["a", "é"])}))
    assert answer["outputs"] == [{"name": "y", "datatype": "BYTES", "shape": [2], "data": ["a", "é"]}]
    read, _, _ = read_request(json.dumps({"inputs": answer["outputs"]}).encode(), [])
    assert read["y"].tolist() == ["a", "é"]


numbers = st.sampled_from([name for name in DTYPES if name != "BYTES"]).flatmap(
    lambda name: arrays.arrays(DTYPES[name], arrays.array_shapes(min_dims=0, min_side=0, max_side=4))
)


@given(numbers.filter(lambda array: array.dtype.kind != "f" or np.isfinite(array).all()))
def test_every_array_comes_back_as_it_went(array):
    answer = json.loads(write_answer("m", None, {"x": array}))
    read, _, _ = read_request(json.dumps({"inputs": answer["outputs"]}).encode(), [])
    assert read["x"].dtype == array.dtype
    np.testing.assert_array_equal(read["x"], array)
