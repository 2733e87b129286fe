"""TFRecord files of `tf.train.Example` without TensorFlow: the two formats are small.

Record: length (uint64), masked CRC-32C of it, data, masked CRC-32C of the data; all little-endian.
https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
"""

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

_POLYNOMIAL = 0x82F63B78  # CRC-32C (Castagnoli), reflected


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


def _masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def write(path: Path, examples: Iterable[bytes]) -> int:
    """Write serialised examples; how many there were. The file appears when it is whole."""
    partial = path.with_suffix(".partial")
    count = 0
    with partial.open("wb") as file:
        for data in examples:
            length = struct.pack("<Q", len(data))
            file.write(length + struct.pack("<I", _masked_crc(length)))
            file.write(data + struct.pack("<I", _masked_crc(data)))
            count += 1
    partial.rename(path)
    return count


def read(path: Path) -> Iterator[bytes]:
    """The records of a file, each checked."""
    with path.open("rb") as file:
        while header := file.read(12):
            (length,) = struct.unpack("<Q", header[:8])
            data = file.read(length)
            (crc,) = struct.unpack("<I", file.read(4))
            if struct.unpack("<I", header[8:])[0] != _masked_crc(header[:8]) or crc != _masked_crc(data):
                raise ValueError(f"{path}: a record is damaged")
            yield data


def example(**features: "str | list[int]") -> bytes:
    """A serialised `tf.train.Example` with text and integer features (protocol buffers by hand)."""
    entries = b""
    for name, value in sorted(features.items()):
        if isinstance(value, str):
            feature = _field(1, _field(1, value.encode()))  # BytesList
        else:
            feature = _field(3, _field(1, b"".join(_varint(number) for number in value)))  # Int64List, packed
        entries += _field(1, _field(1, name.encode()) + _field(2, feature))
    return _field(1, entries)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
