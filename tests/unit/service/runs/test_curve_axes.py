"""What curves run over beside steps: time by what a member had written when it was looked at; epochs."""

from __future__ import annotations

import json

import pytest

from trainmaster.executors.member_metrics import MemberMetrics
from trainmaster.service.runs.curve_axes import ReportTimes


def _written(tmp_path, kind, looks):
    rows = [
        {
            "time": at,
            "member": "worker-0",
            "seconds": at - 1000,
            "cpu_seconds": 0,
            "peak_rss_bytes": 0,
            kind: size,
        }
        for at, size in looks
    ]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [(row["step"], at) for row, at in ReportTimes(MemberMetrics(tmp_path, "worker-0")).rows()]


@pytest.mark.parametrize("kind", ["reported_bytes", "log_bytes"])
def test_reports_are_between_the_looks_at_which_there_was_more_and_more(tmp_path, kind):
    name, line = {
        "reported_bytes": ("worker-0.metrics.jsonl", '{"step": %3d, "loss": 0.5}\n'),
        "log_bytes": ("worker-0.log", "step %3d loss 0.5\n"),
    }[kind]
    size = len(line % 1)
    (tmp_path / name).write_text("".join(line % step for step in range(1, 11)))
    looks = [(1001, 0), (1002, 0), (1004, 4 * size), (1005, 4 * size), (1010, 8 * size)]
    found = _written(tmp_path, kind, looks)
    assert found[:4] == [(1, 1002.5), (2, 1003.0), (3, 1003.5), (4, 1004.0)]
    assert [round(at, 2) for _, at in found[4:]] == [1005.5, 1007.0, 1008.5, 1010.0, 1011.5, 1013.0]


def test_without_looks_nothing_is_known_of_time(tmp_path):
    (tmp_path / "worker-0.metrics.jsonl").write_text('{"step": 1, "loss": 1}\n')
    assert _written(tmp_path, "log_bytes", [(1001, None)]) == [(1, None)]
