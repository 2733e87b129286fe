"""`PhaseWatch`: follows the phases of a run that is driven here, keeps them, and tells which one is late."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from trainmaster.control.measure.run_phases import AGAIN, PHASES, ObservedExperiment, PhaseProgress, Span
from trainmaster.db import Note
from trainmaster.service.quotes.steadiness import begins_again, has_passed, is_saving
from trainmaster.spec.errors import StoreError
from trainmaster.spec.states import State
from trainmaster.spec.units import format_duration

if TYPE_CHECKING:
    from trainmaster.advisor.quote.interval import Interval
    from trainmaster.control.loop.run_state import ExperimentState, RunState, Task
    from trainmaster.control.measure.progress import TaskProgress
    from trainmaster.db import Database

Spans = Iterable[tuple[str, Span]]

_QUEUED: Final = frozenset({State.WAITING, State.PLANNED, State.ACQUIRING})
#: Of what was over before it was looked at so much can be told later.
_UNSEEN: Final = ("staging", "first step", "steps")
_UNSEEN_OF_SERVICES: Final = ("staging", "serving")


class PhaseWatch:
    """Of one run.

    Args:
        database: keeps them.
        run: its id.
        stepless: experiments that show no steps, or none that are to be counted; they may become fewer.
        has_machines: whether those of an experiment are there.
        expected: what is expected of an experiment's phases, before anything of it was seen.
        elapsed: for how long the run has been driven at a Unix time.
        load: of this machine as the run began.
        services: experiments that make no steps, but serve.
        earlier_s: for how long others have driven the run before.
        started: by experiment when the first of its tasks did, seen before anything was looked at here.
        held: by experiment what others hold of its processors, in words.
    """

    def __init__(
        self,
        database: Database,
        run: str,
        stepless: Container[str],
        has_machines: Callable[[str], bool],
        expected: Callable[[], Mapping[str, Spans]],
        elapsed: Callable[[float], float],
        load: float | None = None,
        services: Iterable[str] = (),
        earlier_s: float = 0.0,
        started: Mapping[str, float] | None = None,
        held: Callable[[str], str] = lambda _: "",
    ) -> None:
        self._earlier_s, self._started, self._held = earlier_s, started or {}, held
        self._database = database
        self._run = run
        self._stepless, self._services = stepless, frozenset(services)
        self._has_machines = has_machines
        self._waited: dict[str, float] = {}  # until when, as far as that was seen
        stored = json.loads(database.forecast_of(run) or "{}")
        self._ends: dict[str, Any] = stored.get("ends", {})
        self._load = stored.get("load", load)
        self._told = {(name, phase) for name, phase in stored.get("late", ())}
        self._is_promised = bool(stored.get("is_promised"))
        #: Why it is not known any more how long an experiment trains, in words.
        self.passed: dict[str, str] = stored.get("passed", {})
        self.courses = {name: PhaseProgress.of_dict(each) for name, each in stored.get("courses", {}).items()}
        self._elapsed = elapsed
        for name, spans in expected().items():
            if name not in self.courses:
                self.courses[name] = PhaseProgress().expecting(spans)

    def expect(self, spans: Mapping[str, Spans]) -> None:
        """More is known of what is to be expected of an experiment's phases."""
        for name, found in spans.items():
            self.courses[name] = self.courses.get(name, PhaseProgress()).expecting(found)

    def forecast(
        self,
        time_s: Interval,
        cost_usd: Interval,
        left_s: Mapping[str, Span],
        at: float,
        *,
        is_promised: bool = False,
    ) -> None:
        """When the run will end, as things stand.

        Args:
            time_s: of the whole run.
            cost_usd: of the whole run.
            left_s: until the last step of each experiment.
            at: Unix seconds when that was so.
            is_promised: from now on this is what is expected of what trains.
        """
        at = self._elapsed(at)
        self._is_promised |= is_promised
        self._ends = {"time_s": time_s.as_dict(), "cost_usd": cost_usd.as_dict(), "at": at}
        for name, left in left_s.items():
            course = replace(self.courses.get(name, PhaseProgress()), left_s=left[1], left_at=at)
            if is_promised and course.now == "steps":
                took = course.took.get("steps", 0.0) + at - course.since
                course = course.expecting([("steps", (took + left[0], took + left[1], took + left[2]))])
            self.courses[name] = course
        self._keep()

    def pass_length(self, name: str, found: TaskProgress, most: int, sources: str) -> list[Note]:
        """Tell once that a task trains longer than such ones did: nothing foretold of its steps holds then.

        Args:
            name: of its experiment.
            found: how far it is.
            most: steps that such tasks made.
            sources: whose these were, in words.
        """
        made = found.trace.steps_done if found.trace is not None and found.trace.first_at is not None else 0.0
        if name in self.passed or not has_passed(made, most):
            return []
        passed = f"{name} has passed the {most:,} steps of {sources}"
        why = self.passed[name] = f"{passed}: how long it trains is not known"
        self._ends, course = {}, self.courses.get(name, PhaseProgress())
        expected = {phase: span for phase, span in course.expected.items() if phase != "steps"}
        self.courses[name] = replace(course, expected=expected, left_s=None)
        self._keep()
        return [Note(f"{why}; what was foretold of it does not hold any more", name)]

    def has_no_end(self, run_state: RunState) -> bool:
        """Whether something goes on of which it is not known any more how long it trains."""
        return any(run_state.experiments[name].state is not State.DONE for name in self.passed)

    def told(self, run_state: RunState, now: float) -> dict[str, Any]:
        """How far it is, as ``status --json`` has it."""
        at = self._elapsed(now)
        over = {name for name, each in run_state.experiments.items() if each.state is State.DONE}
        phases = {
            name: [line.as_dict() for line in each.lines(at, is_over=name in over)]
            for name, each in self.courses.items()
        }
        found = {"seconds": at - run_state.queue_wait.waited_s(now), "phases": phases}
        passed = [why for name, why in self.passed.items() if name not in over]
        found |= {"passed": "; ".join(passed)} if passed else {}
        return found | ({"ends": self._ends} if self._ends else {})

    def look(
        self, run_state: RunState, progress: Mapping[tuple[str, int], TaskProgress], now: float
    ) -> list[Note]:
        """What is late, once for each phase."""
        has_moved = False
        for name, experiment in run_state.experiments.items():
            before = self.courses.get(name, PhaseProgress())
            # Until it was its turn, as where it had to fit in a budget, nothing drove it that could look.
            self._waited.setdefault(name, run_state.queue_wait.waited_s(now))
            phase = self._sight(run_state, experiment, progress, now).phase
            if not phase:
                self._waited[name] = self._elapsed(now)
            if phase != before.now:
                self._catch_up(phase, experiment, progress, now)
                since = self._since(phase, experiment, progress, now)
                self.courses[name] = self.courses.get(name, before).seen(phase, since)
                has_moved = True
        if has_moved:
            self._keep()
        # What is told to end uses the time that it has for that: nothing is late.
        ends = {
            name
            for name, experiment in run_state.experiments.items()
            if any(task.state is State.STOPPING for task in experiment.live.values())
        }
        notes = [note for name in self.courses if name not in ends for note in self._late(name, now)]
        if notes:
            self._keep()
        return notes

    def _sight(
        self,
        run_state: RunState,
        experiment: ExperimentState,
        progress: Mapping[tuple[str, int], TaskProgress],
        now: float,
    ) -> ObservedExperiment:
        name, tasks = experiment.name, list(experiment.live.values())
        found = [progress[task.key] for task in tasks if task.key in progress]
        traces = [each.trace for each in found if each.trace is not None]
        has_ended = bool(experiment.ended)
        has_machines = has_ended or self._has_machines(name)
        # Until there is room for one of them beside what else runs there. A task whose machine was lost waits
        # for another one: the interruption takes that long.
        is_queued = has_machines and bool(tasks) and all(_is_queued(task) for task in tasks)
        is_stepless = name in self._stepless
        return ObservedExperiment(
            waits=run_state.queue_wait.is_told or experiment.state is State.WAITING or is_queued,
            has_machines=has_machines,
            staging=next((task.doing or "staging" for task in tasks if task.state is State.STAGING), ""),
            has_started=has_ended or any(task.started_at is not None for task in tasks),
            has_steps=has_ended
            or is_stepless
            or any(trace.first_at is not None for trace in traces)
            or any(task.state is State.SAVING for task in tasks),
            # No step tells when one that shows none is where it was: it is as soon as it runs.
            is_again=not has_ended
            and not (is_stepless and any(task.state is State.RUNNING for task in tasks))
            and begins_again(tasks, progress, now),
            is_saving=is_saving(experiment),
            is_over=experiment.state is State.DONE,
            serves=name in self._services,
        )

    def _catch_up(
        self,
        phase: str,
        experiment: ExperimentState,
        progress: Mapping[tuple[str, int], TaskProgress],
        now: float,
    ) -> None:
        """Take in what came before the first look: short runs are not looked at for some seconds."""
        course = self.courses.get(experiment.name, PhaseProgress())
        if course.now or course.took or phase not in PHASES:
            return
        if (
            experiment.ended
            and phase == "steps"
            and (first := self._started.get(experiment.name)) is not None
        ):
            # Its first task is over: those that go on began after steps had been made.
            course = course.seen("staging", self._since("staging", experiment, progress, now))
            self.courses[experiment.name] = course.seen("steps", max(self._elapsed(first), course.since))
            return
        unseen = _UNSEEN_OF_SERVICES if experiment.name in self._services else _UNSEEN
        came = [each for each in unseen if PHASES.index(each) < PHASES.index(phase)]
        since = [self._since(each, experiment, progress, now) for each in (*came, phase)]
        if phase == "saving":
            since[-1] = self._elapsed(now)
        for each, at, until in zip(came, since, since[1:], strict=False):
            if until > at:
                course = course.seen(each, at).seen("", until)
        self.courses[experiment.name] = course

    def _since(
        self,
        phase: str,
        experiment: ExperimentState,
        progress: Mapping[tuple[str, int], TaskProgress],
        now: float,
    ) -> float:
        """When a phase has begun, as near as that is known."""
        before = self.courses.get(experiment.name, PhaseProgress())
        tasks = experiment.live.values()
        if phase == "steps" and experiment.name not in self._stepless:
            traces = [each.trace for task in tasks if (each := progress.get(task.key)) is not None]
            seen = [trace.first_at for trace in traces if trace is not None and trace.first_at is not None]
        elif phase in ("serving", "first step", "steps"):
            seen = [task.started_at for task in tasks if task.started_at is not None]
        else:
            seen = []
        first = before == PhaseProgress(expected=before.expected)  # it has done so from the beginning
        ran = any(task.started_at is not None for task in tasks)  # else all before was another try
        waited = max(self._waited.get(experiment.name, 0.0), 0.0 if ran else self._earlier_s)
        begun = [*map(self._elapsed, seen)] or [waited] * first
        return max(min([self._elapsed(now), *begun]), before.since)

    def _late(self, name: str, now: float) -> Iterable[Note]:
        """What takes too long now; of steps the quote tells as soon as it is binding."""
        course = self.courses[name]
        untold = ("", "steps", AGAIN) if self._is_promised else ("", AGAIN)
        if course.now in untold or (name, course.now) in self._told:
            return
        for line in course.lines(self._elapsed(now)):
            span = line.span or course.expected.get("steps")
            if line.state == "now" and line.late_s and span is not None:
                self._told.add((name, line.phase))
                took, most = format_duration(line.seconds), format_duration(span[2])
                late = f"{'are' if line.phase == 'steps' else 'is'} late: {took} until now"
                if line.seconds <= span[2]:  # a forecast says it of steps
                    late = f"will take {format_duration(span[2] + line.late_s)}"
                of_all = "" if line.span else " for all steps"
                held = f"; {words}" if line.phase == "steps" and (words := self._held(name)) else ""
                told = f"{name}: {line.phase} {late}, expected were at most {most}{of_all}{held}"
                yield Note(told, name)

    def _keep(self) -> None:
        courses = {name: each.as_dict() for name, each in self.courses.items()}
        data = {"courses": courses, "ends": self._ends, "late": sorted(self._told), "load": self._load}
        data |= {"is_promised": self._is_promised, "passed": self.passed}
        with suppress(StoreError):  # the run matters more
            self._database.put_forecast(self._run, json.dumps(data))


def _is_queued(task: Task) -> bool:
    return task.state in _QUEUED and not task.free_restarts
