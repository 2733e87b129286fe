"""A model asked about files: tables, arrays, lines of requests."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx_file import onnx_model

from trainmaster.inference import model_servers
from trainmaster.inference.__main__ import main
from trainmaster.inference.errors import RequestError
from trainmaster.inference.files import FileError, answer_files, table_inputs, table_rows
from trainmaster.inference.tensors import TensorSpec


@pytest.fixture
def model(tmp_path):
    """Gives twice what it gets: rows of two numbers."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.onnx").write_bytes(onnx_model())
    return model_servers.load(tmp_path / "model")


def lines(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_each_file_gets_one_of_its_name(model, tmp_path):
    asked, answered = tmp_path / "asked", tmp_path / "answered"
    (asked / "deep").mkdir(parents=True)
    (asked / "a.csv").write_text("left,right\n1,2\n3,4\n")
    (asked / "deep" / "b.csv").write_text("5,6\r\n")
    (asked / "notes.txt").write_text("not asked about")
    np.save(asked / "c.npy", np.arange(4000).reshape(-1, 2))
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
    (asked / "d.jsonl").write_text(json.dumps({"id": "one", "inputs": [tensor]}) + "\n")
    found = {str(name): rows for name, rows in answer_files(model, asked, answered)}
    assert found == {"a.csv": 2, "c.npy": 2000, "d.jsonl": 1, "deep/b.csv": 1}
    assert lines(answered / "a.csv") == [["y_0", "y_1"], ["2.0", "4.0"], ["6.0", "8.0"]]
    assert lines(answered / "deep" / "b.csv") == [["y_0", "y_1"], ["10.0", "12.0"]]
    assert (np.load(answered / "c.npy") == 2 * np.arange(4000).reshape(-1, 2)).all()
    answer = json.loads((answered / "d.jsonl").read_text())
    assert (answer["id"], answer["outputs"][0]["data"]) == ("one", [2.0, 4.0])
    assert sorted(path.name for path in answered.iterdir()) == ["a.csv", "c.npy", "d.jsonl", "deep"]


def test_texts_are_no_pickle(tmp_path):
    class Names:
        inputs = outputs = ()

        def infer(self, inputs, wanted):
            return {"name": np.array(["left", "right"][: len(inputs["input"])], dtype=object)}

    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    list(answer_files(Names(), tmp_path / "a.npy", tmp_path / "answered"))
    found = np.load(tmp_path / "answered" / "a.npy", allow_pickle=False)
    assert found.tolist() == ["left", "right"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"1,2\n3\n", r"a\.csv: row 2 has 1 cells, the first line 2"),
        ("a.csv", b"x,y\n", r"a\.csv: there is no row"),
        ("a.csv", b"a,b\n1,oh\n", r"a\.csv: column 'b' has 'oh' in row 1; it wants FP32"),
        ("a.csv", b"1,2,3\n", r"shape \[1, 3\]; the model takes \[-1, 2\]"),
        ("a.csv", b"\xff\xfe1", r"a\.csv cannot be read"),
        ("a.npy", b"no array", r"a\.npy cannot be read"),
        ("a.jsonl", b"{}\n", r"a\.jsonl: line 1: \"inputs\""),
        ("a.txt", b"1,2\n", r"there is no file \*\.csv"),
    ],
)
def test_what_is_wrong_is_named(model, tmp_path, name, content, said):
    (tmp_path / "asked").mkdir()
    (tmp_path / "asked" / name).write_bytes(content)
    with pytest.raises(FileError, match=said):
        list(answer_files(model, tmp_path / "asked", tmp_path / "answered"))


def test_an_array_of_python_objects_is_not_unpickled(model, tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(FileError, match=r"a\.npy cannot be read"):
        list(answer_files(model, tmp_path / "a.npy", tmp_path))


A, B = TensorSpec("a", "INT64", (-1,)), TensorSpec("b", "BYTES", (-1, 1))


def test_columns_have_the_names_of_inputs():
    header, rows = table_rows([["b", "label", "a"], ["word", "x", "3"], [], ["", "y", "4"]])
    found = table_inputs(header, rows, [A, B])
    assert found["a"].tolist() == [3, 4]
    assert found["b"].tolist() == [["word"], [""]]
    with pytest.raises(RequestError, match="no column 'b', which is an input"):
        table_inputs(["a"], [["3"]], [A, B])
    with pytest.raises(RequestError, match=r"column 'a' has '1\.5' in row 1; it wants INT64"):
        table_inputs(["a"], [["1.5"]], [A])
    with pytest.raises(RequestError, match="column 'a' has '' in row 1; it wants INT64"):
        table_inputs(["a"], [[""]], [A])


def test_a_model_that_takes_anything_gets_columns_by_name_or_all_as_one():
    named = table_inputs(["n", "word"], [["1", "one"], ["2", "two"]], [])
    assert (named["n"].tolist(), named["word"].tolist()) == ([1.0, 2.0], ["one", "two"])
    assert table_inputs(None, [["1", "2"]], [])["input"].tolist() == [[1.0, 2.0]]
    with pytest.raises(RequestError, match="column 'number 2' has 'two' in row 2; it wants a number"):
        table_inputs(None, [["1", "2"], ["1", "two"]], [])
    with pytest.raises(RequestError, match="column 'x' has 'two' in row 1; it wants a number"):
        table_inputs(["x", "x"], [["1", "two"]], [TensorSpec("input")])


def test_rows_become_what_the_model_takes_of_each():
    image = TensorSpec("image", "FP32", (1, 1, 2, 2))
    found = table_inputs(None, [["1", "2", "3", "4"]] * 3, [image])["image"]
    assert (found.shape, found.dtype) == ((3, 1, 2, 2), np.float32)


@given(
    st.lists(
        st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3),
        min_size=1,
        max_size=9,
    )
)
def test_numbers_of_a_table_come_as_they_are(values):
    header, rows = table_rows([str(value) for value in line] for line in values)
    assert header is None
    assert table_inputs(header, rows, [TensorSpec("x", "FP64", (-1, 3))])["x"].tolist() == values


def test_the_command_says_what_it_has_done(model, tmp_path, capsys):
    (tmp_path / "a.csv").write_text("1,2\n")
    call = ["--model-dir", str(tmp_path / "model"), "--files", str(tmp_path / "a.csv")]
    assert main([*call, "--to", str(tmp_path / "to")]) == 0
    assert capsys.readouterr().out == "a.csv: 1 row\n"
    (tmp_path / "a.csv").write_text("1\n")
    assert main([*call, "--to", str(tmp_path / "to")]) == 1
    assert "a.csv: input 'x' has shape" in capsys.readouterr().err
