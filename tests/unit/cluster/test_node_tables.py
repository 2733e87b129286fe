"""Columns of a volume that were sent are those that were made."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostile_bytes import changed_bytes
from trainmaster.cluster.node_files.data_orders import packed_columns, unpack_columns
from trainmaster.volumes.packed.opening import open_volume
from trainmaster.volumes.packed.pushing import push
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
    with pytest.raises(OSError, match=r"did not arrive whole.*gzip"):
        unpack_columns(sent, target)
    assert not sent.exists(), "else nothing else would ever be sent or fetched"
    sent.mkdir()
    with gzip.open(sent / "sizes.gz", "wb") as out:
        out.write(bytes(1000))
    (sent / "sizes.gz").write_bytes((sent / "sizes.gz").read_bytes()[:-9])
    with pytest.raises(OSError, match=r"did not arrive whole"):
        unpack_columns(sent, target)
    assert not target.exists()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("packed")
    (place / "source" / "deep").mkdir(parents=True)
    (place / "source" / "deep" / "one").write_bytes(b"1")
    push(place / "source", f"file://{place}/volume")
    return packed_columns(
        open_volume(f"file://{place}/volume", place / "here").table.directory, place / "here"
    )


@settings(max_examples=40)
@given(data=st.data(), is_packed_anew=st.booleans())
def test_whatever_arrives_is_a_table_or_none(packed: Path, data: st.DataObject, is_packed_anew: bool) -> None:
    name = data.draw(st.sampled_from(sorted(file.name for file in packed.iterdir())))
    sent, target = packed.parent / "sent" / "t", packed.parent / "tables" / "t"
    good = (packed / name).read_bytes()
    changed = data.draw(changed_bytes(gzip.decompress(good) if is_packed_anew else good))
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(packed, sent)
    (sent / name).write_bytes(gzip.compress(changed) if is_packed_anew else changed)
    try:
        unpack_columns(sent, target)
    except OSError as error:
        assert str(sent) in str(error)  # noqa: PT017
        assert not target.exists()
    else:
        assert FileTable(target).row_count == 3 or name == "meta.json.gz"
    assert not sent.exists()
    assert {file.name for file in (packed.parent / "tables").iterdir()} <= {"t", "t.lock"}


def test_columns_of_which_some_are_missing_are_no_table(packed: Path, tmp_path: Path) -> None:
    shutil.copytree(packed, tmp_path / "sent")
    (tmp_path / "sent" / "parents.gz").unlink()
    with pytest.raises(OSError, match=r"did not arrive whole.*parents has 0 values"):
        unpack_columns(tmp_path / "sent", tmp_path / "t")
