"""Columns and rows of anybody's tables."""

from __future__ import annotations

import numpy as np
import pytest

from trainmaster.service.table_summary import summarised

arrow = pytest.importorskip("pyarrow", reason="the extra `volumes` is not installed")


def test_tables_are_told_by_columns_and_rows(tmp_path):
    from pyarrow import parquet

    table = arrow.table({"x": [1, 2, 3], "<b>y": ["a", "b", "c"]})
    (tmp_path / "below").mkdir()
    parquet.write_table(table, tmp_path / "below" / "t.parquet")
    (tmp_path / "a.csv").write_text("x,label\n" + "0.5,cat\n" * 1000)
    (tmp_path / "a.tsv").write_text("x\ty\n1\t2\n")
    np.savez(tmp_path / "z.npz", images=np.zeros((7, 8, 8), "uint8"), labels=np.zeros(7))
    np.save(tmp_path / "n.npy", np.array([object()]), allow_pickle=True)
    (tmp_path / "bad.parquet").write_text("no table")
    (tmp_path / "notes.txt").write_text("no table either")
    found = {each.pop("path"): each for each in summarised(tmp_path)}
    columns = {path: (each["rows"], each["columns"]) for path, each in found.items() if "rows" in each}
    column = lambda name, kind: {"name": name, "type": kind}  # noqa: E731
    assert columns == {
        "a.csv": (1000, [column("x", "double"), column("label", "string")]),
        "a.tsv": (1, [column("x", "int64"), column("y", "int64")]),
        "below/t.parquet": (3, [column("x", "int64"), column("<b>y", "string")]),
        "n.npy": (1, [column("n", "object[1]")]),
        "z.npz": (7, [column("images", "uint8[7, 8, 8]"), column("labels", "float64[7]")]),
    }
    assert set(found) - set(columns) == {"bad.parquet"}
    assert found["bad.parquet"]["trouble"]


def test_files_without_tables_cost_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr("subprocess.run", None)
    (tmp_path / "a.txt").write_text("a")
    assert summarised(tmp_path) == []
