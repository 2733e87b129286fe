"""Logs as numbered lines: in pieces of any size, with an end that is not whole, and searched."""

from __future__ import annotations

import re

import pytest

from trainmaster.service.runs.log_lines import LINE_BYTES, LogLines


def _log(tmp_path, data, read_bytes=1 << 20):
    (tmp_path / "worker-0.log").write_bytes(data)
    return LogLines("train", 0, 1, "worker-0", tmp_path, read_bytes)


def _told(piece):
    return [(line.number, line.text) for line in piece.lines]


@pytest.mark.parametrize("read_bytes", [1, 7, 1000])
def test_lines_have_the_same_numbers_however_they_are_read(tmp_path, read_bytes):
    log = _log(tmp_path, b"".join(b"line %d\n" % n for n in range(1, 51)) + b"half", read_bytes)
    assert _told(log.last(3)) == [(49, "line 49"), (50, "line 50"), (51, "half")]
    assert log.count == 50
    piece = log.since_line(20, 2)
    assert (_told(piece), piece.is_end) == ([(20, "line 20"), (21, "line 21")], False)
    assert _told(log.after(piece.next_offset, piece.next_number, 1)) == [(22, "line 22")]
    assert [(each.number, each.text) for each in log.found(re.compile(b"LINE 4", re.I), 2)[0]] == [
        (48, "line 48"),
        (49, "line 49"),
    ]
    assert log.found(re.compile(b"^line 4", re.M), 99)[1] == 11


def test_a_line_that_was_half_is_told_again_when_it_is_whole(tmp_path):
    piece = _log(tmp_path, b"one\ntw").last(10)
    assert (_told(piece), piece.is_end) == ([(1, "one"), (2, "tw")], True)
    log = _log(tmp_path, b"one\ntwo\r\nthr\x0bee\n")
    after = log.after(piece.next_offset, piece.next_number, 10)
    assert _told(after) == [(2, "two\r"), (3, "thr\x0bee")]
    assert _told(log.after(after.next_offset, after.next_number, 10)) == []
    assert _told(_log(tmp_path, b"").last(10)) == []


def test_of_a_line_without_an_end_the_end_is_kept(tmp_path):
    (line,) = _log(tmp_path, b"".join(b"\r%d %%" % n for n in range(9000)), 1000).last(1).lines
    assert line.text.endswith("\r8999 %")
    assert len(line.text) < LINE_BYTES + 2000
