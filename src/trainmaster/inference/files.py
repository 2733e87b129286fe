"""A model asked about files, line by line or row by row: batch inference, without a server."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from trainmaster.inference.errors import RequestError
from trainmaster.inference.model_servers import ModelServer
from trainmaster.inference.tensors import DTYPES, Arrays, TensorSpec, read_request, write_answer

#: Files whose names end so are asked about; others are passed over.
KINDS: Final = (".csv", ".npy", ".jsonl")
#: So many rows are asked about at once: what a model needs for more may not fit into memory.
_ROWS_AT_ONCE: Final = 1024

Array = np.ndarray[Any, Any]


class FileError(Exception):
    """A file that the model cannot be asked about; the text names it, the place in it, and what is wrong."""


def answer_files(model: ModelServer, source: Path, target: Path) -> Iterator[tuple[Path, int]]:
    """Ask about each file below a directory, in the order of their names.

    Args:
        model: that is asked.
        source: with files of `KINDS`, in any depth, or one such file.
        target: gets a file of the same name for each: for a table a table with a column for each output
            (``NAME_0`` and so on for outputs of several values), for an array ``.npy``, or ``.npz`` of
            several outputs, for lines of requests the lines of answers.

    Yields:
        Each file, below `source`, and how many rows it had, when it is done.

    Raises:
        FileError: one of them is wrong, or there is none; what was written before stays.
    """
    root = source if source.is_dir() else source.parent
    found = sorted(source.rglob("*")) if source.is_dir() else [source]
    files = [path for path in found if path.suffix.lower() in KINDS and path.is_file()]
    if not files:
        raise FileError(f"{source}: there is no file {', '.join('*' + kind for kind in KINDS)}")
    for path in files:
        name = path.relative_to(root)
        to = target / name
        to.parent.mkdir(parents=True, exist_ok=True)
        answers = {".csv": _table, ".npy": _array, ".jsonl": _lines}[path.suffix.lower()]
        try:
            rows = answers(model, path, to)
        except RequestError as error:
            raise FileError(f"{name}: {error}") from None
        except (ValueError, OSError, EOFError, csv.Error) as error:  # no table, no array, no UTF-8
            raise FileError(f"{name} cannot be read: {error}") from None
        yield name, rows


def _table(model: ModelServer, path: Path, to: Path) -> int:
    with path.open(encoding="utf-8-sig", newline="") as file:
        header, rows = table_rows(csv.reader(file))
    columns: dict[str, list[Any]] = {}
    for name, array in _asked(model, table_inputs(header, rows, model.inputs)).items():
        columns.update(_columns(name, array))
    with to.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values()))  # noqa: B905 - Python 3.9
    return len(rows)


def _array(model: ModelServer, path: Path, to: Path) -> int:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.ndim == 0:
        raise FileError(f"{path.name} has one number and no rows")
    if len(model.inputs) > 1:
        names = ", ".join(each.name for each in model.inputs)
        raise FileError(f"{path.name} is one array; the model takes several inputs: {names}")
    spec = model.inputs[0] if model.inputs else TensorSpec("input")
    outputs = _asked(model, {spec.name: _shaped(array, spec)})
    # Texts of any length are objects to NumPy, which would write a pickle, unsafe to read.
    plain = {name: found.astype(str) if found.dtype == object else found for name, found in outputs.items()}
    if len(plain) == 1:
        np.save(to, next(iter(plain.values())), allow_pickle=False)
    else:
        np.savez(to.with_suffix(".npz"), **plain)  # type: ignore[arg-type]
    return len(array)


def _lines(model: ModelServer, path: Path, to: Path) -> int:
    number = 0
    with path.open("rb") as asked, to.open("wb") as answered:
        for number, line in enumerate(asked, 1):
            try:
                inputs, identity, wanted = read_request(line, model.inputs)
                answered.write(write_answer("model", identity, model.infer(inputs, wanted)) + b"\n")
            except RequestError as error:
                raise RequestError(f"line {number}: {error}") from None
    return number


def table_rows(lines: Iterable[list[str]]) -> tuple[list[str] | None, list[list[str]]]:
    """The header, if the first line has a cell that is no number, and the rows.

    Raises:
        RequestError: lines have different lengths, or there is no row.
    """
    rows = [line for line in lines if line]
    header = None
    if rows and not all(map(_is_number, rows[0])):
        header = rows.pop(0)
    if not rows:
        raise RequestError("there is no row")
    width = len(header or rows[0])
    for number, row in enumerate(rows, 2 if header else 1):
        if len(row) != width:
            raise RequestError(f"row {number} has {len(row)} cells, the first line {width}")
    return header, rows


def table_inputs(
    header: Sequence[str] | None, rows: Sequence[Sequence[str]], inputs: Sequence[TensorSpec]
) -> dict[str, Array]:
    """The columns of a table as the inputs of a model.

    If the header has the names of all inputs, each is its column, and other columns are passed over. If the
    model has one input, all columns are that. A model that takes anything gets each column by its name, or
    all of them as ``input`` if there is no header.

    Args:
        header: names of columns, if there is one.
        rows: all of the same length.
        inputs: of the model; none if it takes anything.

    Raises:
        RequestError: naming the column, and what is wrong.
    """
    names = list(header or ())
    columns = {name: [row[index] for row in rows] for index, name in enumerate(names)}
    if names and not inputs:
        return {name: _typed(name, cells, TensorSpec(name)) for name, cells in columns.items()}
    if names and all(spec.name in columns for spec in inputs):
        return {spec.name: _shaped(_typed(spec.name, columns[spec.name], spec), spec) for spec in inputs}
    if len(inputs) > 1:
        missing = [spec.name for spec in inputs if spec.name not in columns]
        raise RequestError(f"there is no column {missing[0]!r}, which is an input of the model")
    spec = inputs[0] if inputs else TensorSpec("input")
    named = names or [f"number {index + 1}" for index in range(len(rows[0]))]
    parts = [_typed(name, [row[index] for row in rows], spec) for index, name in enumerate(named)]
    for index, part in enumerate(parts):  # not by names: several columns may have one
        if part.dtype == object and not spec.datatype:
            row = next(number for number, cells in enumerate(rows, 1) if _number(cells[index]) is None)
            raise RequestError(
                f"column {named[index]!r} has {rows[row - 1][index]!r} in row {row}; it wants a number"
            )
    return {spec.name: _shaped(np.stack(parts, axis=1), spec)}


def _typed(name: str, cells: Sequence[str], spec: TensorSpec) -> Array:
    """A column as the input wants it; where it does not say, as numbers if all are some."""
    texts = np.array(cells, dtype=object)
    if spec.datatype == "BYTES":
        return texts
    numbers = [_number(cell) for cell in cells]
    if not spec.datatype:
        return texts if None in numbers else np.array(numbers, dtype=np.float64)
    dtype = DTYPES[spec.datatype]
    for row, number in enumerate(numbers, 1):
        if number is None or (dtype.kind != "f" and not _fits(number, dtype)):
            raise RequestError(
                f"column {name!r} has {cells[row - 1]!r} in row {row}; it wants {spec.datatype}"
            )
    return np.array(numbers, dtype=np.float64).astype(dtype)


def _fits(number: float, dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "b":
        return number in (0.0, 1.0)
    bounds = np.iinfo(dtype.type)
    return number.is_integer() and bounds.min <= number <= bounds.max


def _shaped(array: Array, spec: TensorSpec) -> Array:
    """Rows as the model wants each of them.

    Raises:
        RequestError: they are other ones.
    """
    if spec.datatype and array.dtype != DTYPES[spec.datatype] and array.dtype.kind in "biuf":
        array = array.astype(DTYPES[spec.datatype])
    if spec.shape:
        row = spec.shape[1:]
        if -1 not in row and math.prod(row) == math.prod(array.shape[1:]):
            array = array.reshape(len(array), *row)
        replace(spec, shape=(-1, *row)).check(array)
    return array


def _asked(model: ModelServer, inputs: Arrays) -> dict[str, Array]:
    """All outputs, some rows at a time; each has a value for each row."""
    count = len(next(iter(inputs.values())))
    fixed = [spec.shape[0] for spec in model.inputs if spec.shape and spec.shape[0] > 0]
    step = min(fixed, default=_ROWS_AT_ONCE)  # some models take so many rows and no others
    parts: list[dict[str, Array]] = []
    for first in range(0, count, step):
        few = {name: np.ascontiguousarray(array[first : first + step]) for name, array in inputs.items()}
        rows = len(next(iter(few.values())))
        parts.append(model.infer(few, []))
        for name, array in parts[-1].items():
            if array.ndim == 0 or len(array) != rows:
                has = array.shape[0] if array.ndim else "one"
                raise RequestError(f"the output {name!r} has {has} values for {rows} rows")
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _columns(name: str, array: Array) -> dict[str, list[Any]]:
    flat = array.reshape(len(array), -1)
    if flat.shape[1] == 1:
        return {name: flat[:, 0].tolist()}
    return {f"{name}_{index}": flat[:, index].tolist() for index in range(flat.shape[1])}


def _is_number(cell: str) -> bool:
    return _number(cell) is not None


def _number(cell: str) -> float | None:
    """NaN for an empty cell; None for what is no number."""
    if not cell.strip():
        return math.nan
    try:
        return float(cell)
    except ValueError:
        return None
