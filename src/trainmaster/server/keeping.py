"""`QuoteKeeper`: says what a run will take, and tells when that turns out wrong.

Two stages: an *estimate* from what earlier runs measured, and a *binding* quote from the first minutes
of this one. The binding quote is never changed; a forecast that leaves it is told.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from trainmaster.control.gangs import slots_of
from trainmaster.control.measuring import measurement_of
from trainmaster.executors import detect_capacity
from trainmaster.server.promise import Promise, told
from trainmaster.spec import Recipe
from trainmaster.spec.states import State
from trainmaster.spec.units import format_duration
from trainmaster.store import NewQuote, Store

if TYPE_CHECKING:
    from trainmaster.advisor.forecast import Doing
    from trainmaster.advisor.measurement import Measurement
    from trainmaster.control.board import Board, Experiment
    from trainmaster.control.progress import TaskProgress
    from trainmaster.server.history import History

#: A binding quote is made when steps are steady, and no sooner; at the latest when they were measured
#: for so long.
BINDING_AFTER_S: Final = 10.0
ENOUGH_S: Final = 30.0
TIGHT: Final = 0.05
FORECAST_EVERY_S: Final = 60.0
_LOOK_EVERY_S: Final = 5.0
#: A task that has run for so long without anything to quote it by is worth a warning.
_WARN_AFTER_S: Final = 60.0
#: Of more tasks the newest say all that there is to say.
_MOST_LIVE: Final = 100
#: A forecast that has grown by so much since it was told is told again.
_WORSE: Final = 1.2

Histories = Callable[[], Mapping[str, "History"]]


@dataclass(slots=True)
class _Known:
    """What was measured, by experiment."""

    same: dict[str, list[Measurement]] = field(default_factory=dict)
    similar: dict[str, list[Measurement]] = field(default_factory=dict)
    live: dict[str, dict[int, Measurement]] = field(default_factory=dict)

    def of(self, name: str) -> tuple[list[Measurement], list[Measurement]]:
        """Those of this run if there are any; what they do not tell is taken from earlier ones."""
        live = list(self.live.get(name, {}).values())[-_MOST_LIVE:]
        earlier = self.same.get(name, [])
        if not live:
            return earlier, self.similar.get(name, [])
        tail = next((m.tail_s for m in earlier if m.tail_s is not None), None)
        pause = next((m.pause_s for m in earlier if m.pause_s is not None), None)
        return [
            replace(
                m,
                tail_s=tail if m.tail_s is None else m.tail_s,
                pause_s=pause if m.pause_s is None else m.pause_s,
            )
            for m in live
        ], []


class QuoteKeeper:
    """Keeps an eye on the quote of one run on the user's own machine; see `Forecaster`.

    Args:
        store: keeps the quotes.
        recipe: of the run. run: its id.
        histories: reads what was measured before.
        elapsed: seconds that the run has been driven at a Unix time.
        slots: processes that run at once.
    """

    def __init__(
        self,
        store: Store,
        recipe: Recipe,
        run: str,
        histories: Histories,
        elapsed: Callable[[float], float],
        slots: int,
    ) -> None:
        self._store = store
        self._recipe = recipe
        self._run = run
        self._histories = histories
        self._elapsed = elapsed
        self._slots = slots
        self._cores = detect_capacity().cores
        self._known = _Known()
        self._binding: Promise | None = None
        self._begun = False
        self._estimated = False
        self._told_s: float | None = None
        #: They do not say how long they train: how long their tasks take is all that can be known of them.
        self._lengthless = {
            name for name, each in recipe.experiments.items() if not each.builtin_values().get("steps")
        }
        self._warned: set[str] = set()
        self._next_at = 0.0
        self._done: queue.SimpleQueue[Promise | Exception] = queue.SimpleQueue()
        self._busy = False

    def look(self, board: Board, progress: Mapping[tuple[str, int], TaskProgress], now: float) -> list[str]:
        """See `Forecaster`. The maths is done by a thread: nobody waits for it."""
        try:
            return self._look(board, progress, now)
        except Exception as error:  # noqa: BLE001 - a run must not end because its end cannot be foretold
            self._next_at = float("inf")
            return [f"no quote: internal error: {type(error).__name__}: {error}"]

    def _look(self, board: Board, progress: Mapping[tuple[str, int], TaskProgress], now: float) -> list[str]:
        lines = self._collect(now)
        if self._busy or now < self._next_at or board.state is not State.RUNNING:
            return lines
        if not self._begun:
            self._begin()
            self._next_at = now + _LOOK_EVERY_S
            if not self._estimated:
                self._think("estimate", board, progress, now)
            return lines
        self._measure(board, progress, now)
        lines += self._warn(board, progress, now)
        self._next_at = now + (_LOOK_EVERY_S if self._binding is None else FORECAST_EVERY_S)
        if self._binding is not None:
            self._think("forecast", board, progress, now)
        elif self._is_time(board, progress, now):
            self._think("binding", board, progress, now)
        return lines

    def _begin(self) -> None:
        """Read what was measured and promised before; a run that is resumed keeps its quote."""
        self._begun = True
        for name, history in self._histories().items():
            self._known.same[name], self._known.similar[name] = history.same, history.similar
        for row in self._store.quotes_of(self._run):
            self._estimated = True
            if row["kind"] == "binding":
                self._binding = Promise.of_row(row)

    def _measure(self, board: Board, progress: Mapping[tuple[str, int], TaskProgress], now: float) -> None:
        """What the steps of this run say; of tasks without steps, what the store has learnt meanwhile."""
        for (name, number), found in progress.items():
            task = board.experiments[name].live.get(number)
            if name in self._lengthless or found.trace is None or task is None or task.started_at is None:
                continue
            measured = measurement_of(
                self._recipe.experiments[name],
                found.trace,
                found.directory,
                started_at=task.started_at,
                ended_at=None,
                now=now,
                cores=self._cores,
            )
            if measured is not None:
                self._known.live.setdefault(name, {})[number] = measured
        if self._binding is None and any(
            board.experiments[name].ended and name not in self._known.live for name in board.experiments
        ):
            for name, history in self._histories().items():
                self._known.same[name], self._known.similar[name] = history.same, history.similar

    def _is_time(self, board: Board, progress: Mapping[tuple[str, int], TaskProgress], now: float) -> bool:
        """True if a binding quote can be made: what runs is measured well, and the rest is known."""
        if self._elapsed(now) < BINDING_AFTER_S:
            return False
        for name, experiment in board.experiments.items():
            if experiment.state is State.DONE:
                continue
            if not self._is_known(name):
                return False
            if not self._is_measured(name, progress):
                return False
        return True

    def _is_measured(self, name: str, progress: Mapping[tuple[str, int], TaskProgress]) -> bool:
        """True if the steps of what runs of an experiment are known well, or it shows none."""
        if name in self._lengthless:
            return True
        running = [found for (of, _), found in progress.items() if of == name]
        stepped = any(m.point is not None for m in self._known.of(name)[0])
        if not running or not stepped:
            return True
        traces = [found.trace for found in running if found.trace is not None]
        return any(
            trace.is_tight(TIGHT) or (trace.last_at or 0) - (trace.first_at or 0) >= ENOUGH_S
            for trace in traces
            if trace.steady() is not None
        )

    def _warn(self, board: Board, progress: Mapping[tuple[str, int], TaskProgress], now: float) -> list[str]:
        """Which key to set where no quote can be made, once for each experiment."""
        lines = []
        for (name, number), found in progress.items():
            task = board.experiments[name].live.get(number)
            if self._binding is not None or name in self._warned or task is None or task.started_at is None:
                continue
            if now - task.started_at < _WARN_AFTER_S or self._is_known(name):
                continue
            self._warned.add(name)
            if found.trace is None or found.trace.first_at is None:
                lines.append(
                    f"warning: no quote for {name}: no steps are seen; show them with "
                    "trainmaster.report(step=...), or set metrics.pattern to what it prints"
                )
            elif name in self._lengthless:
                lines.append(
                    f"warning: no quote for {name}: how long it trains is unknown; set steps, or epochs with "
                    "examples and batch"
                )
            else:
                self._warned.discard(name)  # its steps are few, but they come
        return lines

    def _is_known(self, name: str) -> bool:
        """True if there is something to quote an experiment by."""
        same, similar = self._known.of(name)
        if name in self._lengthless:
            return any(each.duration_s is not None for each in same or similar)
        return bool(same or similar)

    # --- thinking --------------------------------------------------------------------------------

    def _think(
        self, kind: str, board: Board, progress: Mapping[tuple[str, int], TaskProgress], now: float
    ) -> None:
        """Let a thread work out what is to be expected, from a copy of how far everything is."""
        doing: dict[str, tuple[bool, Doing]] = {
            name: (experiment.state is State.DONE, _doing(experiment, progress, now))
            for name, experiment in board.experiments.items()
        }
        known = {name: self._known.of(name) for name in board.experiments}
        elapsed = self._elapsed(now)
        self._busy = True

        def work() -> None:
            try:
                self._done.put(self._promise(kind, now, elapsed, doing, known))
            except Exception as error:  # noqa: BLE001 - told by whoever collects it
                self._done.put(error)

        threading.Thread(target=work, name="forecast", daemon=True).start()

    def _promise(
        self,
        kind: str,
        now: float,
        elapsed_s: float,
        doing: Mapping[str, tuple[bool, Doing]],
        known: Mapping[str, tuple[Sequence[Measurement], Sequence[Measurement]]],
    ) -> Promise:
        from datetime import UTC, datetime

        from trainmaster.advisor.forecast import forecast, remaining_s
        from trainmaster.advisor.knowledge import Knowledge
        from trainmaster.advisor.own_machine import own_cluster, own_load, own_timing
        from trainmaster.advisor.workload import Workload
        from trainmaster.providers import load_catalogue
        from trainmaster.server.quoting import local_device

        catalogue = load_catalogue("local", today=datetime.fromtimestamp(now, UTC).date())
        left, load = {}, {}
        points = 0
        for number, (name, (is_over, how_far)) in enumerate(doing.items()):
            if is_over:
                continue
            experiment = self._recipe.experiments[name]
            same, similar = known[name]
            learnt = Knowledge.of(same, similar, {"local": local_device(experiment)}, {}, self._recipe.seed)
            workload = Workload.of(experiment, self._recipe.seed)
            if learnt is not None and learnt.model is not None and not workload.has_length:
                learnt = learnt.as_whole_tasks()
            if learnt is None:
                raise _Unknown(name)
            points += learnt.points
            timing = own_timing(workload, learnt, catalogue, self._slots, 100 * number)
            at_once = min(self._slots // slots_of(experiment), workload.spread or self._slots, workload.tasks)
            one = own_cluster(timing, self._slots, min(workload.lengths), max(at_once, 1))
            left[name] = remaining_s(timing, one, how_far)
            load[name] = float(own_load(workload, one, self._slots)[0])
        after = {name: self._recipe.experiments[name].depends_on for name in left}
        time_s, cost = forecast(elapsed_s, left, after, 0.0, load)
        return Promise(kind, now, time_s, cost, points)

    def _collect(self, now: float) -> list[str]:
        try:
            found = self._done.get_nowait()
        except queue.Empty:
            return []
        self._busy = False
        if isinstance(found, _Unknown):
            return []
        if isinstance(found, Exception):
            raise found
        if found.kind == "forecast":
            return self._compare(found)
        self._store.add_quote(NewQuote(self._run, None, found.kind, found.made_at, found.as_json()))
        if found.kind == "estimate":
            many = "1 measurement" if found.measurements == 1 else f"{found.measurements} measurements"
            return [f"estimate: {told(found.time_s)}, from {many} of earlier runs"]
        self._binding = found
        self._next_at = now + FORECAST_EVERY_S
        within = format_duration(found.time_s.p95)
        return [f"quote: {told(found.time_s)}; it is kept if the run ends within {within}"]

    def _compare(self, forecast: Promise) -> list[str]:
        """Tell when the forecast leaves the quote, and when it comes back."""
        assert self._binding is not None
        expected, quoted = forecast.time_s.p50, self._binding.time_s
        if expected <= quoted.p95:
            if self._told_s is None:
                return []
            self._told_s = None
            return [f"again within the quote: {told(forecast.time_s)}"]
        if self._told_s is not None and expected < _WORSE * self._told_s:
            return []
        self._told_s = expected
        return [
            f"it will take longer than quoted: {told(forecast.time_s)}; "
            f"quoted were at most {format_duration(quoted.p95)}. "
            f"Let it go on; or `trainmaster cancel {self._run}` stops it with its checkpoint, and "
            f"`trainmaster resume {self._run}` goes on from there when the machine is less busy"
        ]


class _Unknown(Exception):  # noqa: N818 - it is no error: not enough is known
    """Of this experiment nothing was measured, or its length is unknown."""


def _doing(experiment: Experiment, progress: Mapping[tuple[str, int], TaskProgress], now: float) -> Doing:
    from trainmaster.advisor.forecast import Doing, RunningTask

    running = []
    for task in experiment.live.values():
        if task.started_at is None or task.state is State.WAITING:
            continue
        found = progress.get(task.key)
        share = None if found is None else _share(found)
        running.append(RunningTask(max(now - task.started_at, 0.0), share))
    return Doing(sum(experiment.ended.values()), tuple(running))


def _share(found: TaskProgress) -> float | None:
    """Of its steps that a task has made; None where it shows none, or nobody knows how many there are.

    A script that goes on from a checkpoint counts on: its own number tells more than what was seen of it.
    One that numbers the steps of each epoch from the start tells less.
    """
    step, trace = found.metrics.get("step"), found.trace
    seen = trace.steps_done if trace is not None and trace.first_at is not None else None
    if isinstance(step, int | float) and math.isfinite(step):
        seen = max(float(step), seen or 0.0)
    return None if seen is None or not found.total_steps else max(seen, 0.0) / found.total_steps
