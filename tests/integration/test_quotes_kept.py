"""What runs say of their quotes is so: eight runs of four short kinds of `benchmarks/quotes_kept.py`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "quotes_kept.py"
#: Long enough to be quoted, short enough for each test run.
SHORT = {
    "here-single": {"steps": 60, "pause": 0.05},
    "here-setup": {"steps": 40, "pause": 0.05, "sleep": 1},
    "here-sweep": {"steps": 10, "pause": 0.05, "seed": 0},
    "here-target": {"steps": 100, "pause": 0.03, "loss": 0.5},
}


@pytest.mark.timeout(600)
def test_what_runs_say_of_their_quotes_is_so(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("quotes_kept", SCRIPT)
    kept = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "quotes_kept", kept)
    spec.loader.exec_module(kept)
    bench, quoted = kept.Bench(tmp_path), 0
    for number in range(2):  # the second of a kind has an estimate, by the first
        for name, draws in SHORT.items():
            record = bench.run(name, number, **draws)
            assert record["reason"] == "SUCCEEDED", record
            assert kept.untrue(record) == [], record
            quoted += bool(record["quotes"])
    assert quoted >= len(SHORT) // 2, "a second run is quoted, unless it ends too soon"
