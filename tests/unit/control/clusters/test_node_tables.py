"""Columns of a volume that were sent are those that were made."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from trainmaster.control.clusters.node_tables import packed_columns, unpack_columns
from trainmaster.volumes.packed import open_volume, push
from trainmaster.volumes.packed.table import FileTable

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("blake3", reason="blake3 is not installed")


def test_what_is_unpacked_is_what_was_packed(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    for number in range(300):
        (source / "deep" / f"a rather long name {number}").write_bytes(b"x" * number)
    (source / "link").symlink_to("deep")
    push(source, f"file://{tmp_path}/volume")
    columns = open_volume(f"file://{tmp_path}/volume", tmp_path / "here").table.directory
    packed = packed_columns(columns, tmp_path / "here")
    assert packed_columns(columns, tmp_path / "here") == packed
    size_bytes = sum(file.stat().st_size for file in columns.iterdir())
    assert sum(file.stat().st_size for file in packed.iterdir()) < size_bytes / 2

    target = tmp_path / "there" / "tables" / columns.name
    for _ in range(2):
        sent = tmp_path / "there" / "sent" / columns.name
        sent.parent.mkdir(parents=True, exist_ok=True)
        packed.rename(sent)
        unpack_columns(sent, target)
        assert not sent.exists()
        packed_columns(columns, tmp_path / "here")
    assert {f.name: f.read_bytes() for f in target.iterdir()} == {
        f.name: f.read_bytes() for f in columns.iterdir()
    }
    assert FileTable(target).row_of("deep/a rather long name 7") >= 0


def test_what_did_not_arrive_whole_is_no_table(tmp_path: Path) -> None:
    sent, target = tmp_path / "sent" / "t", tmp_path / "tables" / "t"
    sent.mkdir(parents=True)
    (sent / "sizes.gz").write_bytes(b"no archive")
    with pytest.raises(OSError, match="gzip"):
        unpack_columns(sent, target)
    with gzip.open(sent / "sizes.gz", "wb") as out:
        out.write(bytes(1000))
    (sent / "sizes.gz").write_bytes((sent / "sizes.gz").read_bytes()[:-9])
    with pytest.raises(OSError, match="did not arrive whole"):
        unpack_columns(sent, target)
    assert not target.exists()
