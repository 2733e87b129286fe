"""The first lines of a run's page: progress, what is left, its quote, why it failed."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from trainmaster.service.runs.highlights import TaskLine
from trainmaster.web.run_header import RunHeader, TaskFailure, first_failure

QUOTED = {"p5": 50.0, "p50": 60.0, "p95": 100.0}
FREE = {"p5": 0.0, "p50": 0.0, "p95": 0.0}


def counts(total=1, **of):
    return {"tasks": {"total": total, "running": 0, "waiting": 0, **of}}


def status(seconds, experiments=None, cost=FREE, kept=None, quote=True, by_hand=False, outside=None, **more):
    said = {"time_s": QUOTED, "cost_usd": cost, "kept": kept, "ended_by_hand": by_hand, "outside": outside}
    promised = {"quote": said} if quote else {}
    found = {"state": "RUNNING", "seconds": seconds, "cost_usd": 0.5, "driver": {"pid": 1}}
    return {**found, "experiments": experiments or {"train": counts(running=1)}, **promised, **more}


def line(step, experiment="train"):
    return TaskLine(experiment, 0, 1, None, "", {"step": step})


def test_a_run_with_steps_says_how_far_it_is_and_what_is_left():
    found = RunHeader.of(status(40.0), {"train": 2000}, [line(1000)])
    assert (found.percent, found.words, found.steps) == ("50 %", "step 1,000 of 2,000", 2000)
    assert found.left_s == pytest.approx(40.0)
    bar = found.bar
    assert (bar.left, bar.at) == (pytest.approx(47.62, abs=0.01), pytest.approx(38.1, abs=0.01))
    assert bar.end == pytest.approx(2 * bar.at, abs=0.02), "by its speed until now"
    assert found.quote.endswith(": in it")


def test_without_steps_the_quote_says_what_is_left_and_without_a_quote_nothing_does():
    found = RunHeader.of(status(40.0), {"train": None}, [line(7)])
    assert (found.percent, found.words, round(found.left_s)) == ("", "step 7", 22), "it is not at its fastest"
    beyond_half = RunHeader.of(status(80.0), {"train": None}, [line(7)])
    assert beyond_half.left_s > 5, "what has passed its median is not over at once"
    assert RunHeader.of(status(101.0), {"train": None}, [line(7)]).left_s is None
    nothing = RunHeader.of(status(40.0, quote=False), {"train": None}, [])
    assert (nothing.left, nothing.quote, nothing.bar) == ("", "", None)


def test_what_just_began_is_not_extrapolated():
    assert RunHeader.of(status(1.0, quote=False), {"train": 2000}, [line(1000)]).left_s is None
    assert RunHeader.of(status(60.0, quote=False), {"train": 2000}, [line(1)]).left_s is None


def test_what_machines_cost_after_the_end_is_said_beside_a_quote_that_does_not_count_it():
    def said(**cost):
        over = status(70.0, cost={"p5": 0.1, "p50": 0.2, "p95": 0.4}, state="DONE", kept=True)
        over["quote"]["actual"] = {"time_s": 70.0, **cost}
        return RunHeader.of(over, {"train": 100}, [])

    warm = said(cost_usd=0.3)
    assert warm.quote.endswith(": kept; $0.20 of the bill came after its end")
    assert not warm.is_beyond
    assert said(cost_usd=0.5).quote.endswith(": kept")


def test_a_quote_that_was_late_says_which_attempts_failed():
    late = status(150.0, state="DONE", kept=False, outside="late")
    late["quote"]["actual"] = {
        "time_s": 150.0,
        "cost_usd": 0.0,
        "failed_attempts": {"NODE_LOST": 2, "OOM": 1},
        "held": "other work held its processors",
    }
    said = ": not kept; attempts failed: 2 NODE_LOST, 1 OOM; other work held its processors"
    assert said in RunHeader.of(late, {"train": 100}, []).quote


@pytest.mark.parametrize(
    ("seconds", "more", "said", "is_beyond"),
    [
        (150.0, {}, "beyond it", True),
        (207.0, {"queued_s": 200.0, "queued": {"waits_for": "2 cores"}}, "in it", False),
        (70.0, {"cost": {"p5": 0.1, "p50": 0.2, "p95": 0.4}}, "beyond it", True),
        (70.0, {"cost": {"p5": 0.5, "p50": 0.5, "p95": 0.4999995}}, "in it", False),
        (70.0, {"state": "DONE", "kept": True}, "kept", False),
        (150.0, {"state": "DONE", "kept": False, "outside": "late"}, "not kept", True),
        (110.0, {"state": "DONE", "kept": False}, "not kept, as the run did not succeed", True),
        (150.0, {"state": "DONE"}, "not judged", False),
        (150.0, {"state": "DONE", "by_hand": True}, "not judged, ended by hand", False),
    ],
)
def test_a_quote_is_kept_or_not_and_waiting_is_not_being_late(seconds, more, said, is_beyond):
    found = RunHeader.of(status(seconds, **more), {"train": 100}, [line(10)])
    assert found.quote.endswith(f": {said}")
    assert found.is_beyond is is_beyond
    assert (found.bar is None) is ("queued" in more or "state" in more), "what waits or is over has none"


def test_of_many_tasks_those_that_are_over_count_and_of_several_experiments_no_share_is_known():
    search = {"tune": counts(44, running=2, waiting=24)}
    running = [line(50, "tune"), line(0, "tune")]
    found = RunHeader.of(status(100.0, search, quote=False), {"tune": 100}, running)
    assert found.share == pytest.approx((18 + 0.5) / 44)
    assert found.words == "18 of 44 tasks"
    both = {"a": counts(), "b": counts(running=1)}
    found = RunHeader.of(status(100.0, both), {"a": None, "b": 100}, [line(50, "b")])
    assert (found.share, found.words) == (None, "1 of 2 tasks, b at step 50 of 100")
    over = {"tune": counts(500, succeeded=440, pruned=8, failed=52)}
    found = RunHeader.of(status(100.0, over, quote=False, state="DONE"), {"tune": 100}, [])
    assert found.words == "448 of 500 tasks succeeded"


LOG = """\
step 38
Traceback (most recent call last):
  File "/home/ann/code/train.py", line 5, in <module>
    fit(d)
  File "/v/lib/python3/site-packages/lib/fit.py", line 77, in fit
    d['missing_key']
KeyError: 'missing_key'
"""


def test_a_failure_is_the_exception_and_where_in_the_script_it_was():
    task = TaskLine("train", 0, 1, "USER_ERROR", "exit code 1 (KeyError: 'missing_key')", {})
    found = TaskFailure.of(task, LOG)
    assert (found.error, found.how) == ("KeyError: 'missing_key'", "exit code 1")
    assert found.where == "train.py, line 5", "of the own code"
    assert found.lines.endswith("d['missing_key']"), "the error stands above it"
    killed = TaskFailure.of(TaskLine("train", 0, 1, "OOM", "killed: out of memory", {}), LOG)
    assert (killed.error, killed.how, killed.where) == ("killed: out of memory", "", "")


def test_what_somebody_has_ended_is_no_failure():
    ended = TaskLine("train", 0, 1, "CANCELLED", "worker-0: its machine died", {})
    failed = TaskLine("train", 1, 1, "USER_ERROR", "exit code 1", {})
    assert first_failure([ended]) is None
    assert first_failure([ended, failed]) is failed


def test_phases_are_drawn_as_long_as_they_took_or_will_take():
    span = {"p5": 20.0, "p50": 30.0, "p95": 40.0}
    setup = {"phase": "setup", "state": "done", "seconds": 10.0, "expected_s": None, "late_s": 4.0}
    steps = {"phase": "steps", "state": "now", "seconds": 15.0, "expected_s": span, "late_s": 0.0}
    saving = {"phase": "saving", "state": "ahead", "seconds": 0.0, "expected_s": span, "late_s": 0.0}
    found = RunHeader.of(status(40.0, phases={"train": [setup, steps, saving], "none": []}), {}, [])
    assert list(found.phases) == ["train"]
    drawn = [(part.name, part.state, part.words) for part in found.phases["train"]]
    assert drawn == [
        ("setup", "done", "10 s, 4 s late"),
        ("steps", "now", "15 s of 30 s"),
        ("saving", "ahead", "about 30 s"),
    ]
    assert sum(part.width for part in found.phases["train"]) == pytest.approx(100.0, abs=0.05)
    over = {**steps, "seconds": 50.0, "late_s": 10.0}
    (alone,) = RunHeader.of(status(60.0, phases={"train": [over]}), {}, []).phases["train"]
    assert (alone.width, alone.done) == (100.0, 100.0), "longer than expected"
    none = {**steps, "seconds": 0.0, "expected_s": None}
    (nothing,) = RunHeader.of(status(1.0, phases={"train": [none]}), {}, []).phases["train"]
    assert nothing.width == 0.0
