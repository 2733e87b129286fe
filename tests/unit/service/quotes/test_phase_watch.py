"""Phases of a run that is driven here: kept, gone on with, told once when they are late."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from trainmaster.advisor.quote.interval import Interval
from trainmaster.control.loop.run_state import ExperimentState, RunState, Task
from trainmaster.service.quotes.phase_watch import PhaseWatch
from trainmaster.service.runs.summary import phase_summary
from trainmaster.spec.clocks import driven_clock
from trainmaster.spec.facts import AwaitedApproval
from trainmaster.spec.states import EndReason, State

BEGAN = 1000.0


class Store:
    data = None

    def forecast_of(self, _run):
        return self.data

    def put_forecast(self, _run, data):
        self.data = data


class World:
    """One task of a run that has been driven for 100 s before."""

    held = ""

    def __init__(self, store=None, earlier_s=0.0, stepless=(), services=(), began=BEGAN, started=None):
        self.store = store or Store()
        self.task = Task("train", 0, State.STAGING, attempt=1)
        experiment = ExperimentState("train", (), 1, 1, State.RUNNING, live={0: self.task}, created=1)
        self.run_state = RunState("r", {"train": experiment}, State.RUNNING)
        self.progress = {}
        self.has_machines = False
        self.watch = PhaseWatch(
            self.store,
            "r",
            stepless,
            lambda _: self.has_machines,
            lambda: {"train": [("machines", (5, 6, 8)), ("setup", (5, 6, 8)), ("steps", (20, 25, 30))]},
            driven_clock(earlier_s, began),
            services=services,
            earlier_s=earlier_s,
            started=started,
            held=lambda _: self.held,
        )

    def look(self, at):
        return [note.message for note in self.watch.look(self.run_state, self.progress, BEGAN + at)]

    @property
    def course(self):
        return self.watch.courses["train"]

    def step(self, at):
        self.task.state, self.task.started_at = State.RUNNING, BEGAN + at - 2
        self.progress["train", 0] = SimpleNamespace(trace=SimpleNamespace(first_at=BEGAN + at))


def test_phases_follow_each_other_and_what_is_late_is_told_once():
    world = World()
    assert world.look(2) == world.look(7) == []
    world.has_machines, world.task.doing = True, "setup"
    assert world.look(8) == world.look(15) == []
    assert world.look(20) == ["train: setup is late: 12 s until now, expected were at most 8 s"]
    assert world.look(21) == []
    world.step(30)
    assert world.look(31) == []
    assert world.course.now == "steps"
    assert dict(world.course.took) == {"machines": 8.0, "setup": 22.0}
    assert world.course.since == 30.0


def test_what_tasks_did_while_nothing_drove_them_is_no_staging():
    """Their driver was killed in its first second: all until the next one came was said to be staging."""
    world = World(earlier_s=11.0, began=BEGAN + 11)
    world.has_machines = True
    world.step(3)
    assert world.look(11.5) == []
    assert dict(world.course.took) == {"staging": 1.0, "first step": 2.0}
    assert (world.course.now, world.course.since) == ("steps", 3.0)


def test_what_an_earlier_try_took_is_no_staging_of_the_one_that_goes_on():
    world = World(earlier_s=30.0, began=BEGAN + 300)
    world.has_machines = True
    world.look(301)
    world.step(305)
    world.look(306)
    assert dict(world.course.took) == {"staging": 5.0}


def test_what_short_tasks_before_the_first_look_took_is_no_staging():
    world = World(started={"train": BEGAN + 0.5})
    world.has_machines = True
    world.run_state.experiments["train"].ended[EndReason.SUCCEEDED] = 1
    world.step(5.5)
    world.look(6)
    assert dict(world.course.took) == {"staging": 0.5}
    assert (world.course.now, world.course.since) == ("steps", 0.5)


def test_a_first_step_is_late_once_all_steps_were_to_be_made():
    """A gang across a network showed none for 65 s of a quote of 19 s: no phase was late."""
    world = World()
    world.has_machines, world.task.state, world.task.started_at = True, State.RUNNING, BEGAN + 5
    assert world.look(6) == world.look(36) == []
    assert world.look(40) == [
        "train: first step is late: 35 s until now, expected were at most 30 s for all steps"
    ]
    assert world.look(60) == []


def test_late_steps_say_what_others_hold_of_the_processors():
    world = World()
    world.has_machines, world.held = True, "other work holds its processors for 45 % of the time"
    world.step(10)
    (told,) = world.look(50)
    assert told.endswith("expected were at most 30 s; other work holds its processors for 45 % of the time")


def test_late_steps_are_told_until_a_quote_is_binding_also_by_the_next_driver():
    any_time = Interval(40, 50, 60)
    world = World()
    world.has_machines = True
    world.step(10)
    world.watch.forecast(any_time, any_time, {}, BEGAN + 12)
    assert world.look(39) == []
    assert world.look(50) == ["train: steps are late: 40 s until now, expected were at most 30 s"]
    assert world.look(51) == []
    foretold = World()
    foretold.has_machines = True
    foretold.step(10)
    foretold.look(11)
    foretold.watch.forecast(any_time, any_time, {"train": (40, 50, 60)}, BEGAN + 12)
    assert foretold.look(12) == ["train: steps will take 52 s, expected were at most 30 s"]
    promised = World()
    promised.has_machines = True
    promised.step(10)
    promised.look(11)
    promised.watch.forecast(any_time, any_time, {}, BEGAN + 12, is_promised=True)
    again = World(promised.store)
    again.has_machines = True
    again.step(10)
    assert promised.look(50) == again.look(50) == []


def test_a_service_makes_no_steps_but_serves():
    world = World(stepless=("train",), services=("train",))
    world.has_machines = True
    world.look(3)
    world.task.state, world.task.started_at = State.RUNNING, BEGAN + 4
    world.look(9)
    assert (world.course.now, world.course.since) == ("serving", 4.0)
    world.run_state.experiments["train"].state = State.DONE
    world.look(30)
    assert dict(world.course.took) == {"staging": 4.0, "serving": 26.0}


def test_a_service_that_ended_before_the_first_look_has_served():
    world = World(stepless=("train",), services=("train",))
    world.has_machines = True
    world.task.state, world.task.started_at = State.STOPPING, BEGAN + 2
    world.look(9)
    assert dict(world.course.took) == {"staging": 2.0, "serving": 7.0}


def test_a_task_that_is_told_to_end_is_not_late_while_it_uses_its_grace():
    world = World()
    world.has_machines = True
    world.step(10)
    world.look(11)
    world.task.state = State.STOPPING
    world.watch.courses["train"] = replace(
        world.course, expected={**world.course.expected, "saving": (1, 2, 3)}
    )
    assert world.look(12) == world.look(40) == []
    world.task.state = State.SAVING
    assert world.look(41) == ["train: saving is late: 29 s until now, expected were at most 3 s"]


def test_waiting_for_others_is_no_phase():
    world = World()
    world.has_machines = True
    world.look(1)
    world.run_state.queue_wait.place, world.run_state.queue_wait.is_told = AwaitedApproval(("train",)), True
    assert world.look(2) == world.look(900) == []
    assert world.course.now == ""
    world.run_state.queue_wait.is_told = False
    world.look(901)
    assert (world.course.now, dict(world.course.took)) == ("staging", {"staging": 2.0})


def test_what_was_waited_before_it_was_driven_is_no_late_phase():
    world = World()
    world.run_state.queue_wait.earlier_s = 900.0
    assert world.look(902) == world.look(907) == []
    world.has_machines = True
    world.look(908)
    assert dict(world.course.took) == {"machines": 8.0}


def test_until_there_is_room_beside_other_tasks_nothing_is_late():
    world = World()
    world.has_machines, world.task.state = True, State.ACQUIRING
    assert world.look(1) == world.look(900) == []
    world.task.state, world.task.doing = State.STAGING, "setup"
    assert world.look(901) == world.look(908) == []
    world.step(911)
    world.look(911)
    assert dict(world.course.took) == {"setup": 11.0}


def test_another_driver_goes_on_and_what_nothing_drove_does_not_count():
    world = World()
    world.look(6)
    later = World(world.store, earlier_s=7.0)
    later.look(2)
    (machines,) = [line for line in later.course.lines(9.0) if line.state == "now"]
    assert (machines.phase, machines.seconds, machines.late_s) == ("machines", 9.0, 0.0)


def test_a_machine_that_is_lost_is_a_phase_of_its_own():
    world = World()
    world.has_machines = True
    world.step(3)
    world.look(4)
    world.task.state, world.task.attempt = State.RECOVERING, 1
    assert world.look(10) == []
    assert world.course.now == "interruptions"


def test_the_wait_for_another_machine_is_part_of_an_interruption():
    world = World()
    world.has_machines = True  # one of two is left
    world.step(3)
    world.look(4)
    world.task.state, world.task.attempt, world.task.free_restarts = State.ACQUIRING, 2, 1
    assert world.look(5) == world.look(30) == []
    assert world.course.now == "interruptions"


def test_live_lines_and_status_say_the_same_of_an_experiment_that_is_over_while_others_go_on():
    world = World()
    world.watch.expect({"train": [("saving", (0.1, 0.2, 0.4))]})
    world.has_machines = True
    world.step(3)
    world.look(4)
    experiment = world.run_state.experiments["train"]
    experiment.state, experiment.live = State.DONE, {}
    world.look(9)
    *before, steps = world.watch.told(world.run_state, BEGAN + 9)["phases"]["train"]
    row = {"id": "r", "ended_at": None}
    assert phase_summary(world.store, row, 9.0, ["train"])["phases"]["train"] == [*before, steps]
    assert (steps["phase"], steps["state"]) == ("steps", "done")


def test_an_interruption_of_what_shows_no_steps_is_over_when_it_runs_again():
    world = World(stepless=("train",))
    world.has_machines = True
    world.step(3)
    world.progress.clear()
    world.look(4)
    world.task.state, world.task.attempt, world.task.free_restarts = State.ACQUIRING, 2, 1
    world.look(10)
    world.task.state, world.task.started_at = State.RUNNING, BEGAN + 19
    world.look(20)
    assert (world.course.now, world.course.took["interruptions"]) == ("steps", 9.0)


def test_a_retry_that_waits_for_room_is_no_interruption():
    """Nor is a run that was resumed: no machine was lost."""
    world = World()
    world.has_machines = True
    world.step(3)
    world.look(4)
    world.task.state, world.task.attempt, world.task.retries_used = State.ACQUIRING, 2, 1
    assert world.look(5) == world.look(30) == []
    assert world.course.now == ""


def test_what_is_saved_at_the_first_look_has_made_its_steps_before():
    world = World()
    world.has_machines = True
    world.watch.expect({"train": [("saving", (0.1, 0.1, 0.1))]})
    world.step(1)
    world.task.state = State.SAVING
    assert world.look(6) == []
    assert (world.course.now, dict(world.course.took)) == ("saving", {"first step": 1.0, "steps": 5.0})


def test_tasks_that_are_saved_have_made_their_first_steps_where_others_are_to_come():
    """The first two of a search ended together: all until then was told as a first step that is late."""
    world = World()
    world.has_machines, world.run_state.experiments["train"].total = True, 4
    world.step(10)
    world.look(11)
    world.task.state, world.progress = State.SAVING, {}
    assert world.look(45) == ["train: steps are late: 35 s until now, expected were at most 30 s"]
    assert (world.course.now, world.course.since) == ("steps", 10.0)


def test_a_forecast_is_kept_with_what_is_left_of_the_steps():
    world = World()
    world.has_machines = True
    world.step(3)
    world.look(4)
    world.watch.forecast(Interval(40, 50, 60), Interval(0, 0, 0), {"train": (50, 60, 70)}, BEGAN + 4)
    (steps,) = [line for line in World(world.store).course.lines(4.0) if line.state == "now"]
    assert steps.late_s == 31.0
    (left, at) = {"train": (50, 60, 70)}, BEGAN + 4
    world.watch.forecast(Interval(40, 50, 60), Interval(0, 0, 0), left, at, is_promised=True)
    assert world.course.expected["steps"] == (51, 61, 71)
    assert not any(line.late_s for line in world.course.lines(4.0))


def test_what_a_stop_took_is_an_interruption_of_a_run_that_goes_on():
    store = Store()
    world = World(store)
    world.has_machines = True
    world.step(6)
    world.look(8)
    world.task.state = State.STOPPING
    world.look(20)
    assert world.course.now == "saving"
    again = World(store)
    again.has_machines = True
    again.task.state = State.STAGING
    again.look(30)
    phases = [
        (each["phase"], each["state"])
        for each in again.watch.told(again.run_state, BEGAN + 31)["phases"]["train"]
    ]
    assert ("interruptions", "done") in phases, phases
    assert ("saving", "done") not in phases, phases


def test_what_came_before_the_first_look_is_in_a_phase():
    """A short run is not looked at for some seconds: what its members took to start was in none."""
    world = World()
    world.has_machines = True
    world.step(5)
    world.look(8)
    assert (world.course.now, world.course.since) == ("steps", 5.0)
    assert dict(world.course.took) == {"staging": 3.0, "first step": 2.0}
