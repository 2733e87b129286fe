"""CSV and event files of what tasks have reported; TensorBoard's own reader reads the latter."""

from __future__ import annotations

import io
import math
import struct
import sys
from types import ModuleType

import pytest

from trainmaster.service.runs.metric_export import EventFiles, _masked, write_csv

REPORTS = [
    {"experiment": "train", "task": 0, "attempt": 1, "step": 1, "loss": 0.5, "note": "begins"},
    {"experiment": "train", "task": 0, "attempt": 1, "step": 2, "loss": None, "time": 1000.0},
    {"experiment": "train", "task": 1, "attempt": 1, "accuracy": 0.75, "good": True, "big": 1e300},
    {"experiment": "train", "task": 1, "attempt": 1, "accuracy": 0.875},
]


def test_a_table_has_a_column_for_each_name():
    file = io.StringIO()
    assert write_csv(REPORTS, file) == 4
    lines = file.getvalue().splitlines()
    assert lines[0] == "experiment,task,attempt,step,loss,note,time,accuracy,good,big"
    assert lines[1] == "train,0,1,1,0.5,begins,,,,"
    assert lines[4] == "train,1,1,,,,,0.875,,"


def test_no_text_of_a_table_is_a_formula_to_a_spreadsheet():
    file = io.StringIO()
    texts = {"=A1": "=HYPERLINK(A2)", "loss": -0.5, "+": "@SUM(A1)", "note": "a=b", "sign": "-"}
    write_csv([{"experiment": "train", "task": 0, "attempt": 1, **texts}], file)
    heading, line = file.getvalue().splitlines()
    assert heading == "experiment,task,attempt,'=A1,loss,'+,note,sign"
    assert line == "train,0,1,'=HYPERLINK(A2),-0.5,'@SUM(A1),a=b,'-"


def test_a_table_without_reports_has_its_heading():
    file = io.StringIO()
    assert write_csv([], file) == 0
    assert file.getvalue() == "experiment,task,attempt\n"


def records(path):
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12])[0] == _masked(data[:8])
        found.append(data[12 : 12 + length])
        assert struct.unpack("<I", data[12 + length : 16 + length])[0] == _masked(found[-1])
        data = data[16 + length :]
    return found


def test_the_check_sum_is_the_known_one_of_crc_32c():
    masked = ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert _masked(b"123456789") == masked


def test_event_files_grow_by_what_is_new(tmp_path):
    files = EventFiles(tmp_path, frozenset({"train/7"}))
    assert files.write(REPORTS[:1], 5.0) == 1
    assert files.write(REPORTS[:1], 6.0) == 0
    assert files.write([*REPORTS, {"experiment": "train", "task": 7, "attempt": 1, "loss": 1}], 7.0) == 4
    path = tmp_path / "train/0/events.out.tfevents.0000000001.trainmaster"
    found = records(path)
    assert len(found) == 3
    assert b"brain.Event:2" in found[0]
    assert not (tmp_path / "train/7").exists()


def test_tensorboard_reads_them(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="the extra `apps` is not installed")
    # So TensorBoard reads files itself, and not by TensorFlow, which takes seconds to load.
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("notf"))
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    EventFiles(tmp_path).write(REPORTS, 5.0)

    def read(task):
        path = tmp_path / f"train/{task}/events.out.tfevents.0000000001.trainmaster"
        return [
            (event.wall_time, event.step, value.tag, value.simple_value)
            for event in LegacyEventFileLoader(str(path)).Load()
            for value in event.summary.value
        ]

    first, second = read(0)
    assert first == (5.0, 1, "loss", 0.5)
    assert (second[:3], math.isnan(second[3])) == ((1000.0, 2, "loss"), True)
    assert read(1) == [
        (5.0, 1, "accuracy", 0.75),
        (5.0, 1, "big", math.inf),
        (5.0, 2, "accuracy", 0.875),
    ]
