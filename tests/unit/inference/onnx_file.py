"""ONNX files of a few bytes, written as protocol buffers by hand: the package `onnx` is not needed."""

from __future__ import annotations

FLOAT, INT64, STRING = 1, 7, 8


def _number(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _field(number, value):
    if isinstance(value, int):
        return _number(number << 3) + _number(value)
    data = value.encode() if isinstance(value, str) else value
    return _number(number << 3 | 2) + _number(len(data)) + data


def _tensor(name, kind, shape):
    dims = b"".join(
        _field(1, _field(2, each) if isinstance(each, str) else _field(1, each)) for each in shape
    )
    return _field(1, name) + _field(2, _field(1, _field(1, kind) + _field(2, dims)))


def elsewhere(name, location, offset=0):
    """Two numbers that a file of their own has."""
    told = (("location", location), ("offset", str(offset)), ("length", "8"))
    entries = b"".join(_field(13, _field(1, key) + _field(2, value)) for key, value in told)
    return _field(1, 2) + _field(2, FLOAT) + _field(8, name) + entries + _field(14, 1)


def onnx_model(operator="Add", inputs=("x", "x"), kind=FLOAT, shape=("batch", 2), weights=b""):
    """A model with one node: the operator of its inputs; its output is ``y``.

    With `weights` the last input is that.
    """
    node = b"".join(_field(1, each) for each in inputs) + _field(2, "y") + _field(4, operator)
    tensors = [_field(11, _tensor(each, kind, shape)) for each in dict.fromkeys(inputs)]
    if weights:
        tensors[-1] = _field(5, weights)
    graph = (
        _field(1, node)
        + _field(2, "g")
        + b"".join(sorted(tensors, key=lambda each: each[0]))
        + _field(12, _tensor("y", kind, shape))
    )
    return _field(1, 8) + _field(8, _field(1, "") + _field(2, 13)) + _field(7, graph)
