"""Published throughput tables: the rows are sound, no split leaks, and the model does well on them."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from trainmaster.advisor.model.steptime import StepTimeModel

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "replay" / "published.py"


@pytest.fixture(scope="module")
def published() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("replay_published", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_job_has_rows_that_make_sense(published):
    jobs = published.published()
    assert len(jobs) > 200
    for points in jobs.values():
        assert len(points) >= 3
        assert len({p.workers for p in points}) > 1
        assert len({p.sync for p in points}) == 1
        for p in points:
            assert 0 < p.nodes <= p.workers <= 128
            assert p.step_time_s > 0
            assert p.sync.has_servers == (p.parameter_servers > 0)


def test_a_jobs_relatives_are_in_the_same_half(published):
    assert published.half("dlperf-bert-tf2-fp16-xla", servers=False) == published.half(
        "dlperf-bert-tf2-fp32", servers=False
    )
    assert published.half("cscs-daint-real", servers=True) == published.half("cscs-daint-synth", servers=True)
    halves = {name: set() for name in published.HALVES}
    for which in published.HALVES:
        for found in published.cases(which).values():
            halves[which] |= {job for job, _case in found}
    develop, report = halves.values()
    assert develop
    assert report
    assert not develop & report


def test_no_row_is_seen_and_asked_for(published):
    for which in published.HALVES:
        for name, found in published.cases(which).items():
            for _job, (seen, _times, asked, _truth) in found:
                assert len(seen) >= 2
                assert not [p for p in asked if any(p is q for q in seen)]
                assert len(seen) <= published.FEW or "leave-one-out" in name


@pytest.mark.parametrize(
    ("split", "floor"),
    [
        ("allreduce fewer devices -> whole node", 12),
        ("allreduce one and two nodes -> more", 25),
        ("ps-sync three smallest -> tenfold", 12),
    ],
)
def test_few_points_predict_published_clusters(published, split, floor):
    errors, inside = [], []
    for _job, (seen, times, asked, truth) in published.cases("develop")[f"published {split}"][::3]:
        measured = [replace(p, step_time_s=float(t)) for p, t in zip(seen, times, strict=True)]
        answer = StepTimeModel.fit(measured).predict(asked)
        errors += np.abs(answer.typical / truth - 1).tolist()
        inside += ((answer.low <= truth) & (truth <= answer.high)).tolist()
    assert 100 * np.mean(errors) < floor
    assert np.mean(inside) > 0.75
