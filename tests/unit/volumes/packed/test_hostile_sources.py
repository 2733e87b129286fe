"""Tars and shards that anybody may have written: they become a volume, or are refused in order."""

import gzip
import io
import json
import lzma
import struct
import tarfile
import tempfile
from pathlib import Path

import pyarrow
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hostile_bytes import JSON, changed_bytes, changed_json
from trainmaster.spec.errors import PublishError
from trainmaster.volumes.packed.indexing import index
from trainmaster.volumes.packed.opening import open_volume
from trainmaster.volumes.packed.pushing import push

FILES = [("a", b"1" * 700), ("deep/b", b""), ("x" * 150, b"22")]


def tar_of(*more, kind=tarfile.PAX_FORMAT):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=kind) as archive:
        for name, content in FILES:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), 5.25
            archive.addfile(info, io.BytesIO(content))
        for info in more:
            archive.addfile(info)
    return data.getvalue()


def member(name, **fields):
    info = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(info, key, value)
    return info


GOOD = tar_of(member("deep/l", type=tarfile.SYMTYPE, linkname="../a"))
GNU = tar_of(member("d", type=tarfile.DIRTYPE), kind=tarfile.GNU_FORMAT)
ZSTD = pyarrow.compress(GOOD, codec="zstd", asbytes=True)
FIELDS = [(0, 100), (100, 8), (124, 12), (136, 12), (156, 1), (157, 100), (257, 8), (345, 155)]


@st.composite
def headers(draw):
    """A tar with a header that says something else, its checksum right."""
    data = bytearray(draw(st.sampled_from([GOOD, GNU])))
    block = draw(
        st.sampled_from([at for at in range(0, len(data), 512) if data[at + 257 : at + 262] == b"ustar"])
    )
    start, length = draw(st.sampled_from(FIELDS))
    odd = st.sampled_from(
        [b"\xff" * 12, b"\x80" + b"\0" * 3 + b"\xff" * 8, b"77777777777", b"-1", b"../x", b"x", b"g"]
    )
    value = draw(odd | st.binary(max_size=length))[:length].ljust(length, b"\0")
    data[block + start : block + start + length] = value
    data[block + 148 : block + 156] = b" " * 8
    data[block + 148 : block + 156] = b"%06o\0 " % sum(data[block : block + 512])
    return bytes(data)


def taken(name, data, scratch):
    """Whether it was pushed, or refused in words that name it."""
    source = Path(scratch) / name
    source.write_bytes(data)
    try:
        push(str(source), f"file://{scratch}/v", cache=Path(scratch) / "cache")
    except PublishError as error:
        assert not (Path(scratch) / "v" / "heads").exists()
        return str(source) in error.args[0] and bool(error.hint)
    table = open_volume(f"file://{scratch}/v", Path(scratch) / "cache").table
    return all(".." not in table.path(row).split("/") for row in range(table.row_count))


@settings(max_examples=30)
@given(headers() | changed_bytes(GOOD) | changed_bytes(GNU), st.sampled_from(["none", "gzip", "xz"]))
def test_any_tar(data, packed):
    pack = {"none": bytes, "gzip": gzip.compress, "xz": lzma.compress}[packed]
    with tempfile.TemporaryDirectory() as scratch:
        assert taken("a.tar", pack(data), scratch)


@settings(max_examples=40)
@example(b"\x1f\x8b\x08")
@given(st.sampled_from([gzip.compress(GOOD), lzma.compress(GOOD), ZSTD]).flatmap(changed_bytes))
def test_any_packed_tar(data):
    with tempfile.TemporaryDirectory() as scratch:
        assert taken("a.tar.gz", data, scratch)


@pytest.mark.parametrize(
    "headers",
    [
        {"mtime": "nan"},
        {"mtime": "inf"},
        {"mtime": "1e300"},
        {"size": "-512"},
        {"size": str(1 << 60)},
        {"size": "-5"},
    ],
    ids=str,
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_numbers_out_of_all_measure(tmp_path, headers, pack):
    assert taken("a.tar", pack(tar_of(member("odd", pax_headers=headers))), tmp_path)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_header_that_would_fill_the_memory(tmp_path, pack):
    data = bytearray(GOOD)
    at = data.index(b"ustar") - 257
    data[at + 156 : at + 157] = b"L"
    data[at + 124 : at + 136] = b"10000000000\0"  # 1 GiB
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    source = tmp_path / "a.tar"
    source.write_bytes(pack(bytes(data)))
    with pytest.raises(PublishError, match="out of all measure"):
        push(str(source), f"file://{tmp_path}/v", cache=tmp_path / "cache")


def indexed(objects, scratch):
    for name, data in objects.items():
        (Path(scratch) / "s").mkdir(exist_ok=True)
        (Path(scratch) / "s" / name).write_bytes(data)
    try:
        index(f"file://{scratch}/s", f"file://{scratch}/v", cache=Path(scratch) / "cache")
    except PublishError as error:
        return f"{scratch}/s" in error.args[0] and bool(error.hint)
    open_volume(f"file://{scratch}/v", Path(scratch) / "cache")
    return True


@settings(max_examples=40)
@given(headers() | changed_bytes(GOOD))
def test_any_tar_to_be_indexed(data):
    with tempfile.TemporaryDirectory() as scratch:
        assert indexed({"a.tar": data}, scratch)


SHARD = struct.pack("<IIII", 2, 16, 24, 30) + struct.pack("<I", 2) + b"abcd" + struct.pack("<I", 0) + b"cd"
INDEX = {
    "version": 2,
    "shards": [
        {
            "column_encodings": ["bytes", "uint8"], "column_names": ["image", "class"],
            "column_sizes": [None, 2],
            "compression": None, "format": "mds", "hashes": [],
            "raw_data": {"basename": "s.mds", "bytes": 30},
            "samples": 2, "size_limit": 100, "version": 2, "zip_data": None,
        }
    ],
}  # fmt: skip


def test_good_shards(tmp_path):
    assert indexed({"s.mds": SHARD, "index.json": json.dumps(INDEX).encode()}, tmp_path)
    assert (tmp_path / "v" / "heads").exists()


@settings(max_examples=50)
@given(changed_json(INDEX), changed_bytes(SHARD) | st.just(SHARD))
def test_any_shards(text, shard):
    with tempfile.TemporaryDirectory() as scratch:
        assert indexed({"s.mds": shard, "index.json": text}, scratch)


@settings(max_examples=50)
@given(st.sampled_from(["column_names", "column_encodings", "column_sizes", "raw_data"]), JSON, st.data())
def test_any_columns(key, value, data):
    value = data.draw(st.just(value) | st.just([value, value]))
    text = json.dumps({"shards": [{**INDEX["shards"][0], key: value}]}).encode()
    with tempfile.TemporaryDirectory() as scratch:
        assert indexed({"s.mds": SHARD, "index.json": text}, scratch)
