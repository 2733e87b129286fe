"""The pure parts of `benchmarks/quotes_kept.py`: what runs say of their quotes is so; what picks cost."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from trainmaster.spec import read_recipe

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "quotes_kept.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        spec = importlib.util.spec_from_file_location("quotes_kept", SCRIPT)
        module = importlib.util.module_from_spec(spec)
        sys.modules["quotes_kept"] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(SCRIPT.parent))


def record(truth_s, kept, reason="SUCCEEDED", told=None, usd=0.0):
    span, cost = {"p5": 8.0, "p50": 10.0, "p95": 12.0}, {"p5": 0.0, "p50": 0.0, "p95": 0.0}
    quote = {"time_s": span, "cost_usd": cost, "kept": kept, "truth_s": truth_s, "truth_usd": usd}
    said = None if told is None else {"kept": told, "time_s": span}
    return {"reason": reason, "quotes": {"binding": quote}, "told": said}


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (record(11.0, True, told=True), 0),
        (record(13.0, False, told=False), 0),
        (record(13.0, True), 1),
        (record(11.0, False), 1),
        (record(11.0, True, reason="FAILED"), 1),
        (record(11.0, True, usd=0.1), 1),
        (record(11.0, True, told=False), 1),
        (record(11.0, None), 1),
        (record(None, None, reason="CANCELLED"), 0),
        ({"reason": "SUCCEEDED", "quotes": {}}, 0),
    ],
)
def test_what_a_run_says_of_its_quote_is_held_against_its_record(bench, found, wrong):
    assert len(bench.untrue(found)) == wrong


def test_the_regret_is_of_the_same_job_on_all_of_its_clusters(bench):
    of = {"kind": "lab-single", "number": 10_000, "commit": "bb2a19cf"}

    def ran(instance, seconds, steps=300, reason="SUCCEEDED"):
        drawn = {"steps": steps, "instance": instance}
        return of | {"drawn": drawn, "seconds": seconds, "reason": reason}

    def picked(instance, steps=300):
        return of | {"drawn": {"steps": steps}, "picked": {"instance": instance}}

    ran_on = [ran("small", 30.0), ran("large", 20.0), ran("large", 22.0), ran("huge", 1.0, reason="FAILED")]
    others = [ran("small", 5.0, steps=50)]
    assert bench.regrets([*ran_on, *others, picked("large")]) == [0.0]
    assert bench.regrets([*ran_on, *others, picked("small")]) == [pytest.approx(30 / 21 - 1)]
    assert bench.regrets([*ran_on, picked("huge"), picked("small", steps=50)]) == []
    elsewhere = [ran("small", 1.0) | {"number": 7}, ran("small", 1.0) | {"commit": "631aa542"}]
    assert bench.regrets([*ran_on, *elsewhere, picked("large")]) == [0.0]
    again = [each | {"commit": "2e4b27f4"} for each in [*ran_on, picked("large")]]
    rounds = [*ran_on, picked("small"), *again]
    assert bench.regrets(rounds) == [0.0], "the newest round of a job stands for it"
    paid = [run | {"cost_usd": usd} for run, usd in zip(ran_on, (0.1, 0.2, 0.2, 0.0), strict=True)]
    assert bench.regrets([*paid, picked("large") | {"objective": "cheapest"}]) == [pytest.approx(1.0)]


def test_there_are_eight_kinds_of_which_the_best_cluster_can_be_looked_for(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "take_java_along", lambda _: None)  # 20 s of CPU, and no word of a recipe
    open_ones = [name for name, kind in bench.KINDS.items() if len(kind.draws.get("instance", ())) > 1]
    assert len(open_ones) >= 8
    one = bench.Bench(tmp_path)
    for name in bench.KINDS:
        path, _ = one.recipe(name, bench.BRUTE)
        assert read_recipe(path).experiments


def test_the_subset_is_of_twelve_kinds_and_draws_the_same_everywhere(bench, tmp_path):
    assert len(bench.SUBSET) == 12
    one, other = bench.Bench(tmp_path / "a"), bench.Bench(tmp_path / "b")
    for name, number in bench.SUBSET.items():
        assert one.recipe(name, number)[1] == other.recipe(name, number)[1]
