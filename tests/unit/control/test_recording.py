"""The attempts of a run as measurements: which are kept, how many, and what they say."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from trainmaster.control.decide.task import Effect, EffectKind, Job, PhaseDuration, Policy
from trainmaster.control.loop.recording import (
    MOST_DURATIONS,
    MOST_PHASES,
    MOST_TRACES,
    AttemptMachine,
    Recorder,
)
from trainmaster.control.loop.run_state import Task
from trainmaster.control.measure.measuring import WatchedAttempt, held_share, trace_of, wanted_cores
from trainmaster.control.measure.progress import TaskProgress
from trainmaster.control.task.layout import AttemptPlace
from trainmaster.executors.base import GangStatus, MemberStatus, Phase
from trainmaster.executors.telemetry.member_metrics import MemberMetrics
from trainmaster.executors.telemetry.usage import SAMPLES_FILE, Usage
from trainmaster.spec import read_recipe
from trainmaster.spec.states import State

BEGAN = 1000.0


class Bench:
    """A recorder, and attempts that it sees."""

    def __init__(self, directory):
        path = directory / "recipe.yaml"
        path.write_text(json.dumps({"name": "job", "experiments": {"main": {"command": "true"}}}))
        self.directory = directory
        self.recipe = read_recipe(path)
        self.kept = []
        self.calls = 0
        self.recorder = Recorder(
            run="r",
            recipe=self.recipe,
            policies={"main": Policy()},
            where=lambda _: AttemptMachine("local", 2),
            attempt_directory=lambda experiment, task, attempt: self.place(task).directory,
            keep=self.keep,
        )

    def keep(self, found):
        self.calls += 1
        self.kept += found

    def place(self, number):
        return AttemptPlace(self.directory / str(number))

    def gang(self, number, seconds=None, code=0, stopped=False):
        ended = None if seconds is None else BEGAN + seconds
        member = MemberStatus("worker-0", 1, BEGAN, ended, None if ended is None else code, stopped=stopped)
        phase = Phase.RUNNING if ended is None else Phase.EXITED
        return GangStatus(f"r/main/{number}/1", phase, (member,), {}, BEGAN, ended)

    def end(self, number, seconds, **how):
        effect = Effect(EffectKind.FORGET, "main", number, 1)
        self.recorder.ended(effect, self.gang(number, seconds, **how), BEGAN + seconds)

    def run(self, number, seconds, step_s=0.1, first_look_s=0.5, is_behind=False, **how):
        """An attempt that is looked at, and reports its steps."""
        place = self.place(number)
        place.directory.mkdir()
        progress = TaskProgress(
            MemberMetrics(place.directory, "worker-0"),
            total_steps=None,
            said_steps=0,
            trace=trace_of(self.recipe.experiments["main"], 0.5),
            is_behind=is_behind,
        )
        task = Task("main", number, State.RUNNING, attempt=1)
        written, look_s = 0, first_look_s
        with place.metrics("worker-0").open("a") as file:
            while look_s < seconds:
                while (written + 1) * step_s <= look_s:
                    written += 1
                    file.write(json.dumps({"step": written}) + "\n")
                file.flush()
                progress.update(BEGAN + look_s)
                self.recorder.look(task, progress, self.gang(number), BEGAN + look_s)
                look_s += 0.5
        self.end(number, seconds, **how)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_the_first_tasks_that_show_no_steps_are_kept_by_their_duration(bench):
    for number in range(3 * MOST_DURATIONS):
        bench.end(number, 1.5)
    bench.recorder.flush(BEGAN)
    assert [each.attempt for each in bench.kept] == [f"r/main/{n}/1" for n in range(MOST_DURATIONS)]
    assert {each.measurement.duration_s for each in bench.kept} == {1.5}
    assert bench.calls == 1  # one transaction


def test_what_failed_or_was_stopped_has_no_duration(bench):
    bench.end(0, 1.0, code=3)
    bench.end(1, 1.0, code=0, stopped=True)
    bench.recorder.ended(Effect(EffectKind.FORGET, "main", 2, 1), None, BEGAN)
    bench.recorder.flush(BEGAN)
    assert bench.kept == []


def test_an_attempt_with_steps(bench):
    bench.run(0, 30.2)
    (kept,) = bench.kept
    found = kept.measurement
    assert kept.attempt == "r/main/0/1"
    assert found.point.step_time_s == pytest.approx(0.1, rel=0.02)
    assert found.steps_done == 300
    assert found.duration_s == pytest.approx(30.2)
    assert found.startup_s == pytest.approx(0.1, abs=0.05)


def test_steps_of_a_failed_attempt_are_steps_too(bench):
    bench.run(0, 20.0, code=1)
    (kept,) = bench.kept
    assert kept.measurement.point.step_time_s == pytest.approx(0.1, rel=0.05)
    assert kept.measurement.duration_s is None
    assert kept.measurement.tail_s is None


def test_a_long_attempt_is_kept_while_it_runs(bench):
    bench.run(0, 200.0)
    assert Counter(each.attempt for each in bench.kept) == {"r/main/0/1": 4}
    assert [each.measurement.duration_s for each in bench.kept] == [None, None, None, 200.0]


def test_an_attempt_that_was_found_running_tells_no_startup(bench):
    """Its controller was killed: what it had reported by then comes all at once."""
    bench.run(0, 60.0, first_look_s=30.0)
    bench.recorder.flush(BEGAN)
    (kept,) = bench.kept
    assert kept.measurement.point is None
    assert kept.measurement.duration_s == 60.0


def test_an_attempt_that_another_driver_began_tells_its_steps_and_its_startup(bench):
    """It is driven by its first machine from then on."""
    bench.run(0, 60.0, first_look_s=20.0, is_behind=True)
    (kept,) = bench.kept
    assert kept.measurement.point.step_time_s == pytest.approx(0.1, rel=0.02)
    assert kept.measurement.startup_s == pytest.approx(0.1, abs=1.0)
    assert kept.measurement.steps_done == pytest.approx(600, abs=5)  # as of the last look
    assert kept.measurement.duration_s == 60.0


def test_attempts_with_steps_are_not_kept_without_end(bench):
    for number in range(MOST_TRACES + MOST_DURATIONS + 5):
        bench.run(number, 8.0)
    bench.recorder.flush(BEGAN)
    assert sum(each.measurement.point is not None for each in bench.kept) == MOST_TRACES
    assert len(bench.kept) == MOST_TRACES + MOST_DURATIONS


def test_what_ran_elsewhere_says_on_what_and_on_how_many_machines(tmp_path):
    bench = Bench(tmp_path)
    bench.recorder.where = lambda _: AttemptMachine("m4.large", 4)
    addresses = {"chief-0": "10.0.0.1", "worker-0": "10.0.0.1", "worker-1": "10.0.0.2", "ps-0": "10.0.0.3"}
    plain = bench.gang
    bench.gang = lambda *given, **more: replace(plain(*given, **more), addresses=addresses)
    bench.run(0, 20)
    (kept,) = bench.kept
    assert (kept.measurement.offer, kept.measurement.point.nodes) == ("m4.large", 2)
    assert kept.measurement.point.offer == "m4.large"


def test_each_attempt_of_a_sweep_over_several_places_is_kept_with_its_own_machine(bench):
    """Where it was is asked for while that is known: what is put by is kept later."""
    places = {"r/main/0/1": AttemptMachine("host", 8), "r/main/1/1": AttemptMachine("aws:g4dn.xlarge", 4)}
    bench.recorder.where = places.__getitem__
    bench.end(0, 1.5)
    bench.end(1, 1.5)
    places.clear()
    bench.recorder.flush(BEGAN)
    assert [each.measurement.offer for each in bench.kept] == ["host", "aws:g4dn.xlarge"]


def test_a_place_whose_tasks_come_last_is_measured_too(bench):
    """However many others ran before: each kind of machine has its own first ones."""
    phases = []
    bench.recorder.keep_phases = phases.extend
    setup = {EffectKind.STAGE: Job(True, took=(PhaseDuration("setup", "pip", 3.0),))}
    for place in ("host", "m4.large"):
        bench.recorder.where = lambda _, place=place: AttemptMachine(place, 2)
        for number in range(MOST_DURATIONS + 1):
            bench.recorder.took(Effect(EffectKind.FORGET, "main", number, 1), setup, BEGAN)
            bench.end(number, 1.5)
    each = {"host": MOST_DURATIONS, "m4.large": MOST_DURATIONS}
    assert Counter(found.measurement.offer for found in bench.kept) == each
    assert [found.offer for found in phases] == ["host", "m4.large"]


def test_how_long_what_comes_once_took_is_kept_of_the_first_attempts_only(tmp_path):
    bench, kept = Bench(tmp_path), []
    bench.recorder.keep_phases = kept.extend
    took = (PhaseDuration("setup", "a", 8.0), PhaseDuration("staging", "", 0.5))
    jobs = {
        EffectKind.STAGE: Job(True, took=took),
        EffectKind.SAVE: Job(True, took=(PhaseDuration("saving", "", 1.0),)),
    }
    for number in range(10):
        bench.recorder.took(Effect(EffectKind.FORGET, "main", number, 1), jobs, BEGAN)
    phases = Counter(each.took.phase for each in kept)
    assert phases == {"setup": 1, "staging": MOST_PHASES, "saving": MOST_PHASES}
    assert (kept[0].attempt, kept[0].offer, kept[0].at) == ("r/main/0/1", "local", BEGAN)


def test_machines_that_were_there_are_waited_for_until_the_first_has_its_place(bench):
    kept, forget = [], Effect(EffectKind.FORGET, "main", 0, 1)
    bench.recorder.keep_phases = kept.extend
    jobs = {EffectKind.STAGE: Job(True, took=(PhaseDuration("staging", "", 0.5),))}
    bench.recorder.where = lambda _: AttemptMachine("m4.large", 2)
    bench.recorder.took(forget, jobs, BEGAN, place_s=2.0)
    bench.recorder.where = lambda _: AttemptMachine("m4.large", 2, was_there=True)
    bench.recorder.took(forget, jobs, BEGAN, place_s=2.0)
    bench.recorder.took(forget, jobs, BEGAN)
    phases = [(each.took.phase, each.took.seconds) for each in kept]
    assert phases == [("staging", 0.5), ("staging", 0.5), ("machines", 1.5), ("staging", 0.5)]


def test_until_it_ran_is_staging_too(bench):
    kept = []
    bench.recorder.keep_phases = kept.extend
    jobs = {
        EffectKind.STAGE: Job(
            True, took=(PhaseDuration("setup", "a", 8.0), PhaseDuration("staging", "", 0.5))
        )
    }
    for number, launch_s in enumerate((0.75, None)):
        bench.recorder.took(Effect(EffectKind.FORGET, "main", number, 1), jobs, BEGAN, launch_s=launch_s)
    assert [(each.took.phase, each.took.seconds) for each in kept] == [
        ("setup", 8.0),
        ("staging", 1.25),
        ("staging", 0.5),
    ]


@pytest.mark.parametrize(
    ("waited", "used", "by_all", "stolen", "is_here", "held"),
    [
        (0.0, 10.0, 20.0, 0.0, True, 0.0),  # it waited for nothing, whatever else was going on
        (5.0, 10.0, 20.0, 0.0, True, 0.5),  # others kept one of two processors
        (9.0, 10.0, 14.0, 0.0, True, 0.2),  # more than they kept it did not wait for them
        (9.0, 19.9, 20.0, 0.0, True, 0.005),  # its own threads wait for each other
        (5.0, 10.0, 20.0, 0.0, False, 0.0),  # a rented machine has no others: that is its own limit
        (0.0, 10.0, 10.0, 5.0, False, 0.25),  # but its hypervisor
        (50.0, 0.1, 20.0, 20.0, True, 0.9),
    ],
)
def test_what_other_work_has_held(waited, used, by_all, stolen, is_here, held):
    usage = Usage(10.0, used, used / 10.0, 1, cpu_wait_seconds=waited, machine_cpu_seconds=by_all,
                  stolen_seconds=stolen)  # fmt: skip
    assert held_share({"a": usage}, 2, is_here=is_here) == pytest.approx(held, abs=1e-3)
    assert held_share({"a": replace(usage, machine_cpu_seconds=None)}, 2, is_here=is_here) is None


def test_what_members_wanted_of_processors_is_told_of_all_together():
    one = Usage(10.0, 1.0, 0.1, 1, cpu_wait_seconds=2.0)
    assert wanted_cores([one, replace(one, cpu_share=0.3)]) == pytest.approx(0.8)
    assert wanted_cores([one, replace(one, cpu_wait_seconds=None)]) is None
    assert wanted_cores([]) is None


def test_steps_in_bursts_leave_a_doubt_that_a_quote_can_be_made_of(bench):
    """A volume comes in large parts over a network: most steps wait for nothing, and some for all others."""
    experiment = bench.recipe.experiments["main"]
    trace = trace_of(experiment, 0.5)
    at = BEGAN
    long = {3: 10.0, 9: 5.0, 16: 3.3}
    for step in range(1, 21):
        at += long.get(step, 0.02)
        trace.add(at, step)
    place = bench.place(0).directory
    found = WatchedAttempt(experiment, place, "local", 2, BEGAN, at, at, trace).measurement()
    assert 0.5 < found.step_spread < 3.0


def test_what_a_gang_sent_is_known_of_an_attempt_of_two_seconds_too(bench):
    """Without it three ranks were quoted 48 s (9 s to 45 min)."""
    experiment, place = bench.recipe.experiments["main"], bench.place(0).directory
    trace, ended_at = trace_of(experiment, 0.02), BEGAN + 2.5
    for step in range(151):
        trace.add(BEGAN + 1 + step / 100, step)
    looks = [
        look_at(name, at, 0.0, 0.0) | {"bytes_sent": 1000 * steps, "bytes_received": 2000 * steps}
        for name in ("worker-0", "worker-1")
        for at, steps in ((1.0, 0), (2.5, 150))
    ]
    place.mkdir(parents=True, exist_ok=True)
    (place / SAMPLES_FILE).write_text("".join(f"{json.dumps(each)}\n" for each in looks))
    found = WatchedAttempt(experiment, place, "local", 2, BEGAN, ended_at, ended_at, trace).measurement()
    assert found.point.bytes_out == pytest.approx(1000, rel=0.05)
    assert found.point.bytes_in == pytest.approx(2000, rel=0.05)


def look_at(member, at, cpu_wait_s, machine_s):
    return {
        "member": member,
        "seconds": at,
        "cpu_seconds": at,
        "peak_rss_bytes": 1,
        "cpu_wait_seconds": cpu_wait_s,
        "machine_cpu_seconds": machine_s,
        "stolen_seconds": 0.0,
    }


@pytest.mark.parametrize(
    ("offer", "machines", "held"),
    [
        ("local", {}, 0.5),
        ("host", {}, 0.5),
        ("host", {"worker-0": "a", "worker-1": "a"}, 0.0),  # they keep it from each other
        ("host", {"worker-0": "a", "worker-1": "b"}, 0.5),
        ("m4.large", {"worker-0": "a", "worker-1": "b"}, 0.0),
    ],
)
def test_own_hosts_have_others_on_them_as_this_machine_has(bench, offer, machines, held):
    """A quote that was bound beside other work on a host was as narrow as if the host were quiet.

    Of a gang over two hosts one has other work on it.
    """
    experiment, place = bench.recipe.experiments["main"], bench.place(0).directory
    looks = [look_at("worker-0", at, at / 2, 2 * at) for at in (1.0, 10.0)]
    if machines:
        alone = len(set(machines.values())) > 1
        looks += [look_at("worker-1", at, 0.0, at if alone else 2 * at) for at in (1.0, 10.0)]
    place.mkdir(parents=True, exist_ok=True)
    (place / SAMPLES_FILE).write_text("".join(f"{json.dumps(each)}\n" for each in looks))
    now = BEGAN + 10.0
    found = WatchedAttempt(experiment, place, offer, 1, BEGAN, now, now, addresses=machines).measurement()
    assert found.held == pytest.approx(held, abs=0.01)
    assert (found.step_spread > 0.1) == (held > 0.0), "its interval is as much wider"
