"""What makes steps slower: a table of what was seen before, and what is seen now."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from trainmaster.advisor.model.step_trace import StepTrace
from trainmaster.control.measure import drift
from trainmaster.control.measure.drift import DriftMeter, StepProfile, drift_between
from trainmaster.control.task.layout import AttemptPlace

WAITS = {"worker-0": 0.1, "worker-1": 0.1}
NONE = {"worker-0": 0.0, "worker-1": 0.0}
GANG = StepProfile(1.0, 0.8, 1e6, 0.2, {"a": 0.8, "b": 0.8}, 2, WAITS, WAITS, NONE, NONE)
ALONE = StepProfile(
    1.0, 0.8, cpu_wait_s={"worker-0": 0.1}, stolen_s={"worker-0": 0.0}, io_wait_s={"worker-0": 0.0}
)
WORST = "worker-1"


@pytest.mark.parametrize(
    ("before", "now", "words", "member"),
    [
        (GANG, {"step_s": 1.1}, "", ""),
        (GANG, {"step_s": 0.5}, "", ""),
        (GANG, {"step_s": 2.0, "cpu_s": 1.6}, "computes more", ""),
        (GANG, {"step_s": 2.0, "round_trip_ms": 10.0}, "take 10 ms, not 0.2 ms", ""),
        (
            GANG,
            {"step_s": 2.0, "round_trip_ms": 0.5},
            "carries less (members send 0.5 MB/s, not 1)",
            "",
        ),
        (GANG, {"step_s": 2.0, "others": {"a": 0.8, "b": 1.2}}, "keeps 40 % of b busy", ""),
        (GANG, {"step_s": 2.0}, "network carries less", ""),
        (GANG, {"step_s": 2.0, "sent_bytes": 1e3}, "one of its machines is slow", ""),
        (GANG, {"step_s": 2.0, "sent_bytes": None, "round_trip_ms": None, "others": None}, "is slow", ""),
        (ALONE, {"step_s": 2.0}, "it sleeps, or waits for something else than disks", ""),
        (
            replace(ALONE, cpu_wait_s=None),
            {"step_s": 2.0},
            "network, or its machine has used its credits",
            "",
        ),
        (replace(ALONE, io_wait_s=None), {"step_s": 2.0}, "or waits for its data or something else", ""),
        # Who receives much, and less than before, waits for that; who receives hardly anything sleeps.
        (
            replace(ALONE, received_bytes=5e6),
            {"step_s": 2.0},
            "data from the network, of which 2.5 MB/s come, not 5",
            "",
        ),
        (replace(ALONE, received_bytes=1e3), {"step_s": 2.0}, "it sleeps", ""),
        # Credits of a virtual machine: what its kernel was not given, it cannot count as a wait.
        (ALONE, {"step_s": 2.0, "stolen_s": {"worker-0": 0.9}}, "loses 0.9 s of it to others", "worker-0"),
        (GANG, {"step_s": 2.0, "stolen_s": {"worker-0": 0.0, "worker-1": 0.9}}, "used its credits", WORST),
        (GANG, {"step_s": 2.0, "stolen_s": {"worker-0": 0.8, "worker-1": 0.9}}, "network carries less", ""),
        # Data: told, with the member, and no machine is replaced for it.
        (ALONE, {"step_s": 2.0, "io_wait_s": {"worker-0": 0.9}}, "data cannot keep up", ""),
        (GANG, {"step_s": 2.0, "io_wait_s": {"worker-0": 0.0, "worker-1": 0.9}}, "worker-1 waits 0.9 s", ""),
        (GANG, {"step_s": 2.0, "io_wait_s": {"worker-0": 0.1, "worker-1": 0.2}}, "network carries less", ""),
        (ALONE, {"step_s": 2.0, "cpu_s": 1.7}, "computes more", ""),
        # What hardly computes does not take longer as it computes a little more.
        (replace(GANG, cpu_s=0.01), {"step_s": 2.0, "cpu_s": 0.05}, "network carries less", ""),
        # Hosts of one machine are all as busy: who waits for its processors says which one is slow.
        (
            GANG,
            {"step_s": 2.0, "cpu_wait_s": {"worker-0": 0.1, "worker-1": 0.9}},
            "-1 waits 0.9 s",
            WORST,
        ),
        (GANG, {"step_s": 2.0, "cpu_wait_s": {"worker-0": 0.8, "worker-1": 0.9}}, "network carries less", ""),
        (GANG, {"step_s": 2.0, "sending_s": {"worker-0": 0.2, "worker-1": 1.1}}, "card of its", WORST),
        (GANG, {"step_s": 2.0, "sending_s": {"worker-0": 1.1, "worker-1": 1.1}}, "network carries less", ""),
        # Packets take longer between all: the one that all others talk to stands out, and is not to blame.
        (
            GANG,
            {"step_s": 2.0, "round_trip_ms": 600.0, "sending_s": {"worker-0": 1.9, "worker-1": 0.8}},
            "packets between",
            "",
        ),
        (
            GANG,
            {"step_s": 2.0, "round_trip_ms": 600.0, "sending_s": {"worker-0": 0.2, "worker-1": 1.1}},
            "card of its",
            WORST,
        ),
        (GANG, {"step_s": 2.0, "cpu_wait_s": {"worker-7": 0.9}}, "network carries less", ""),
        (ALONE, {"step_s": 2.0, "cpu_s": 1.7, "cpu_wait_s": {"worker-0": 1.0}}, "computes more", ""),
        (ALONE, {"step_s": 2.0, "cpu_wait_s": {"worker-0": 1.0}}, "replace the machine", "worker-0"),
    ],
)
def test_what_makes_steps_slower(before, now, words, member):
    told = drift_between(before, replace(before, **now))
    assert (told is not None) == bool(words)
    if told is not None:
        assert words in told.words
        assert (told.usual_s, told.step_s, told.member) == (1.0, now["step_s"], member)
        assert told.is_own == ("computes more" in words)


def slowed(tmp_path, begin, end):
    """The steps of a task that gets slow after 45 s, as far as they are seen; its samples are all there."""
    trace, rows = StepTrace(0.5), []
    for second in range(end):
        if second >= begin:
            trace.add(1000.0 + second, 10 * second if second < 45 else 450 + (second - 45) * 10 // 3)
        cpu_s = 0.9 * min(second, 45) + 0.3 * max(second - 45, 0)
        used = {"cpu_seconds": cpu_s, "peak_rss_bytes": 1, "seconds": float(second)}
        rows.append(json.dumps({"member": "worker-0", "time": 1000.0 + second, **used}))
    (tmp_path / "samples.jsonl").write_text("\n".join(rows) + "\n")
    return trace


def test_what_a_task_has_left_says_that_it_waits(tmp_path):
    told = DriftMeter().look(slowed(tmp_path, 0, 90), tmp_path, 1000.0, 1089.0)
    assert told is not None
    assert "it sleeps, or waits for its data or something else" in told.words
    assert told.words.startswith("a step takes 0.3")


@pytest.mark.parametrize("seen_s", [0, 9, 30])
def test_a_driver_that_came_when_steps_were_slow_knows_how_quick_they_were(tmp_path, seen_s):
    """If the one before has seen it: it could not tell it from what it sees itself."""
    DriftMeter().look(slowed(tmp_path, 0, seen_s + 1), tmp_path, 1000.0, 1000.0 + seen_s)
    told = DriftMeter().look(slowed(tmp_path, 46, 90), tmp_path, 1000.0, 1089.0)
    assert (told is not None) == (seen_s > 0)
    if told is not None:
        assert told.usual_s == pytest.approx(0.1, rel=0.1)
    AttemptPlace(tmp_path).pace.write_text("{")
    assert DriftMeter().look(slowed(tmp_path, 46, 90), tmp_path, 1000.0, 1089.0) is None, "it was damaged"


def test_how_steps_went_first_is_written_down_seldom(tmp_path, monkeypatch):
    """Each time it goes to the database, and to the store of a run that drives itself."""
    written, meter = [], DriftMeter()
    monkeypatch.setattr(drift, "write_private", lambda *args, **_: written.append(args))
    for second in range(4, 200):
        meter.look(slowed(tmp_path, 0, second), tmp_path, 1000.0, 1000.0 + second - 1)
    assert 3 <= len(written) <= 8
