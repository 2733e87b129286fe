"""`QuoteTracker`: says what a run will take, and tells when that turns out wrong.

Two stages: an *estimate* from what earlier runs measured, and a *binding* quote from the first minutes
of this one. The binding quote is never changed; a forecast that leaves it is told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from trainmaster.control.task.gangs import may_resize
from trainmaster.db import Database, NewQuoteRow, Note
from trainmaster.service.quotes.measured_now import MeasuredNow, RunPlace
from trainmaster.service.quotes.quote_danger import QuoteDanger, drift_words
from trainmaster.service.quotes.quote_record import QuoteRecord, cap_words, most_usd, told, told_in_full
from trainmaster.service.quotes.steadiness import (
    NARROW,
    WIDEST,
    has_outlived,
    is_upset,
    matters,
)
from trainmaster.service.quotes.training_watch import TrainingWatch
from trainmaster.spec import Recipe
from trainmaster.spec.states import State
from trainmaster.spec.topics import QUOTE_BOUND

if TYPE_CHECKING:
    from concurrent.futures import Future

    from trainmaster.advisor.quote.forecast import ExperimentProgress, Overhead
    from trainmaster.control.decide.resizing import SizeForecast
    from trainmaster.control.loop.recording import AttemptMachine
    from trainmaster.control.loop.run_state import RunState
    from trainmaster.control.measure.progress import TaskProgress
    from trainmaster.control.measure.run_phases import PhaseProgress, Span
    from trainmaster.executors.base import Capacity
    from trainmaster.service.cluster_costs import ClusterCosts
    from trainmaster.service.quotes.forecast_inputs import Forecast
    from trainmaster.service.quotes.history import History
    from trainmaster.service.quotes.phase_watch import PhaseWatch

#: Forecasts of a run with a quote: so often, or each tenth of what it takes.
_FORECAST_EVERY_S, _FORECAST_EVERY_SHARE = 60.0, 0.1
_LOOK_EVERY_S: Final = 5.0
#: So often while a run is so young: it may be a short one.
_LOOK_SOON_S: Final = 1.0
_YOUNG_S: Final = 30.0
#: One that has run for so long and shows nothing to quote it by is told what other jobs take.
_UNKNOWN_S: Final = 15.0
#: While nothing is bound yet, and of runs that are over before, nothing of their phases is told.
_FORECAST_SOON_S: Final = 15.0
_SHORT_S: Final = 3.0

Histories = Callable[[], Mapping[str, "History"]]


class QuoteTracker:
    """Keeps an eye on the quote of one run; see `Forecaster`.

    Args:
        database: keeps the quotes.
        recipe: of the run. run: its id.
        histories: reads what was measured before.
        elapsed: seconds that the run has been driven at a Unix time.
        capacity: what it may use of this machine, if nothing is rented.
        costs: of the machines that were rented for it; None if it runs on this one.
        beside: what is no training on this machine, by experiment.
        score: how such quotes turned out before, by their kind, in words; empty if unknown.
        promised: is told that a quote was written down, and what is set aside has changed by it.
        where: what an attempt runs on, by its id; None: what its experiment does.
        load: of this machine as the driver began.
        others_s: seconds that other jobs took; None: that is told already.
        earlier_s: for how long others have driven the run before.
        told_before: lines of earlier drivers of the run: no warning is given twice.

    Attributes:
        sizes: by experiment what other sizes of its gang would mean, where these may change.
    """

    def __init__(
        self,
        database: Database,
        recipe: Recipe,
        run: str,
        histories: Histories,
        elapsed: Callable[[float], float],
        capacity: Capacity,
        costs: ClusterCosts | None = None,
        score: Callable[[str], str] = lambda _: "",
        beside: Callable[[], Mapping[str, Overhead]] = dict,
        promised: Callable[[], None] = lambda: None,
        where: Callable[[str], AttemptMachine] | None = None,
        told_before: Collection[str] = (),
        load: float | None = None,
        others_s: Callable[[], Sequence[float]] | None = None,
        earlier_s: float = 0.0,
    ) -> None:
        self._database, self._earlier_s = database, earlier_s
        self._others_s = others_s
        self._told_before, self._load = told_before, load
        self._recipe = recipe
        self._run = run
        self._histories = histories
        self._elapsed = elapsed
        self._capacity = capacity
        self._costs = costs
        self._score = score
        self._beside_here = beside
        self._staging_since: dict[str, float] = {}
        self._first_start: dict[str, float] = {}
        self._watch: PhaseWatch | None = None
        self._promised = promised
        self._place = RunPlace(costs)
        capped = recipe.budget is not None and recipe.budget.total_usd is not None
        is_gang = any(each.distributed is not None for each in recipe.experiments.values())
        self._danger = QuoteDanger(run, is_rented=costs is not None, is_capped=capped, is_gang=is_gang)
        self._other = ""
        self._known = MeasuredNow()
        self._binding: QuoteRecord | None = None
        self._estimate: QuoteRecord | None = None
        self._forecast_at = 0.0
        self._begun = self._has_read = False
        self._estimated = False
        self._training = TrainingWatch(
            run, recipe, self._known, self._place, where, self._course, elapsed, told_before
        )
        self._lengths = self._training.lengths
        self._next_at = 0.0
        self._thinking: Future[tuple[QuoteRecord, Forecast] | None] | None = None
        self.sizes: Mapping[str, tuple[SizeForecast, ...]] = {}
        self._resizable = [name for name, each in recipe.experiments.items() if may_resize(each)]

    def resized(self, recipe: Recipe) -> None:
        """Gangs have these sizes from now on."""
        self._recipe = self._training.recipe = recipe
        self.sizes = {}
        self._read_histories()

    def tell_again(self) -> None:
        """Members went on elsewhere, or in another number: the next forecast is told, whatever it says."""
        self._danger.changed()
        self._next_at = 0.0

    def due(self, now: float) -> tuple[float, float]:
        """Seconds until the run is late, by its deadline or its quote, and dollars that it may cost then."""
        deadline_s = self._recipe.budget and self._recipe.budget.deadline_s
        if self._binding is None or (deadline_s and deadline_s < self._binding.time_s.p95):
            return (deadline_s or float("inf")) - self._elapsed(now), float("inf")
        return self._binding.time_s.p95 - self._elapsed(now), self._binding.cost_usd.p95

    def look(
        self, run_state: RunState, progress: Mapping[tuple[str, int], TaskProgress], now: float
    ) -> list[Note]:
        """See `Forecaster`. A thread does the maths: the loop does not wait for it."""
        try:
            return self._look(run_state, progress, now)
        except Exception as error:  # noqa: BLE001 - a run must not end because its end cannot be foretold
            self._next_at = float("inf")
            return [Note(f"no quote: internal error: {type(error).__name__}: {error}")]

    def _look(
        self, run_state: RunState, progress: Mapping[tuple[str, int], TaskProgress], now: float
    ) -> list[Note]:
        lines = self._collect(run_state, progress, now)
        self._read_promises()  # phases are followed from here on: what was estimated is expected of them
        for task in run_state.live_tasks() if self._watch is None else ():
            if task.started_at is not None:
                self._first_start.setdefault(task.experiment, task.started_at)
        if self._watch is not None or self._costs is not None or self._elapsed(now) > _SHORT_S:
            lines += self._phases().look(run_state, progress, now)
            run_state.course = self._phases().told(run_state, now)
        if self._thinking is not None or now < self._next_at or run_state.state is not State.RUNNING:
            return lines
        if not self._begun:
            self._begin()
            self._next_at = now + _LOOK_SOON_S
            if not self._estimated and any(map(self._lengths.is_known, run_state.experiments)):
                self._think("estimate", run_state, progress, now)
            return lines
        for task in run_state.live_tasks():
            if task.state is State.STAGING:
                self._staging_since.setdefault(task.experiment, now)
        for name in self._lengths.said(progress):
            self._goes_on(name)
        self._training.measure(run_state, progress, now)
        self._read_what_ended(run_state)
        lines += self._unknown(run_state, now)
        lines += self._training.warn(run_state, progress, now) if self._binding is None else []
        for name, found, most in self._lengths.outlived(run_state, progress):
            lines += self._phases().pass_length(name, found, most, self._known.sources())
        upset = is_upset(run_state, progress, now, self._lengths.stepless)
        begun_at = min((task.started_at or now for task in run_state.live_tasks()), default=now)
        look_s = _LOOK_SOON_S if now - begun_at < _YOUNG_S else _LOOK_EVERY_S
        self._next_at = now + (look_s if upset else self._pause_s(look_s))
        if self._watch is not None and self._watch.has_no_end(run_state):
            return lines
        if upset:  # how long it takes to begin again tells nothing of how long the rest takes
            return lines + self._danger.upset(self._binding)
        if self._binding is not None:
            self._think("forecast", run_state, progress, now)
        elif self._training.is_time(run_state, progress, now):
            self._think("binding", run_state, progress, now)
        elif now >= self._forecast_at and all(
            self._lengths.is_known(each.name) or each.state is State.DONE
            for each in run_state.experiments.values()
        ):
            self._forecast_at = now + _FORECAST_SOON_S
            self._think("forecast", run_state, progress, now)
        return lines

    def _pause_s(self, unbound_s: float) -> float:
        """Until the next look; ``unbound_s`` without a quote."""
        if self._binding is None:
            return unbound_s
        most_s = _FORECAST_SOON_S if self._resizable else _FORECAST_EVERY_S
        return min(max(_FORECAST_EVERY_SHARE * self._binding.time_s.p50, _FORECAST_SOON_S), most_s)

    def _phases(self) -> PhaseWatch:
        """What follows the phases of the run; most runs are over before they need it."""
        if self._watch is None:
            from trainmaster.service.quotes.phase_watch import PhaseWatch

            self._watch = PhaseWatch(
                self._database, self._run, self._lengths.stepless, self._place.has_machines,
                self._expected, self._elapsed, self._load, self._lengths.services,
                self._earlier_s, self._first_start, self._known.held_words,
            )  # fmt: skip
        return self._watch

    def _course(self, name: str) -> PhaseProgress | None:
        return self._phases().courses.get(name)

    def _expected(self) -> dict[str, list[tuple[str, Span]]]:
        """What is expected of all phases but the training, by experiment; of that what was estimated, too."""
        found = {
            name: [(phase, belief.quantiles) for phase, belief in (*one.before, ("saving", one.after))]
            for name, one in self._beside_of().items()
        }
        if self._costs is not None:
            for cluster in self._costs.clusters():
                for name in cluster.experiments:
                    found.setdefault(name, []).extend(self._costs.expected(cluster))
        for name, spans in found.items():
            if self._estimate is not None:
                spans += [
                    (phase, (span["p5"], span["p50"], span["p95"]))
                    for phase, span in self._estimate.phases_of(name).items()
                    if phase not in dict(spans)
                ]
        return {name: [each for each in spans if each[1][2] > 0] for name, spans in found.items()}

    def _begin(self) -> None:
        """Read what was measured before."""
        self._begun = True
        self._read_histories()
        # Of machines that are rented the estimate was told before they were; nothing new is known yet.
        self._estimated |= self._costs is not None

    def _read_promises(self) -> None:
        """What was estimated and promised before, once; a run that is resumed keeps its quote."""
        if self._has_read:
            return
        self._has_read = True
        for row in self._database.quotes_of(self._run):
            self._estimated = True
            promise = self._estimate = QuoteRecord.of_row(row)
            self._other = promise.other or self._other
            if row["kind"] == "binding":
                self._binding = promise
                if ends := json.loads(self._database.forecast_of(self._run) or "{}").get("ends"):
                    self._danger.resumed(promise, ends["time_s"]["p50"], ends["cost_usd"]["p50"])

    def _read_histories(self) -> None:
        """What was measured on the machines that the run has: of others only where they are much alike."""
        for name, history in self._histories().items():
            self._known.read(name, history, *self._place.offers(name))
            if self._lengths.read(name):
                self._goes_on(name)

    def _goes_on(self, name: str) -> None:
        """How long it is is known: that it has passed the steps of earlier runs does not matter any more."""
        if self._watch is not None:
            self._watch.passed.pop(name, None)

    def _read_what_ended(self, run_state: RunState) -> None:
        """Of tasks without steps the store has learnt how long they took."""
        if self._binding is None and any(
            run_state.experiments[name].ended and name not in self._known.live
            for name in run_state.experiments
        ):
            self._read_histories()

    def _unknown(self, run_state: RunState, now: float) -> list[Note]:
        """What other jobs took, once, of a run that is no short one; it promises nothing."""
        took_s = self._elapsed(now) - run_state.queue_wait.waited_s(now)
        if self._others_s is None or took_s < _UNKNOWN_S:
            return []
        others_s, self._others_s = self._others_s, None
        names = [name for name in run_state.experiments if name not in self._lengths.endless]
        marks = ("estimate: ", "no estimate: ")
        is_told = self._estimated or any(each.startswith(marks) for each in self._told_before)
        if is_told or not names or any(map(self._lengths.is_known, names)):
            return []
        seen = [each for each in others_s() if each > took_s]
        if not seen:
            return []
        from trainmaster.service.quotes.other_jobs import others_words

        said = f"{others_words(seen)} (of jobs that ran longer than this so far)"
        return [Note(f"no estimate: nothing is known of this job yet; {said}")]

    # --- thinking --------------------------------------------------------------------------------

    def _think(
        self, kind: str, run_state: RunState, progress: Mapping[tuple[str, int], TaskProgress], now: float
    ) -> None:
        """Let a thread work out what is to be expected, from a copy of how far everything is."""
        from trainmaster.service.quotes import forecast_inputs as inputs

        doing: dict[str, tuple[bool, ExperimentProgress]] = {
            name: (
                experiment.state is State.DONE,
                inputs.doing_of(
                    experiment,
                    progress,
                    now,
                    self._training.of_task,
                    has_length=name not in self._lengths.unknown,
                ),
            )
            for name, experiment in run_state.experiments.items()
        }
        known = {name: self._known.of(name) for name in run_state.experiments}
        curves, earlier_trials = dict(self._known.curves), dict(self._known.earlier_trials)
        recipe = self._recipe
        all_sizes = {name: self._known.of_all_sizes(name) for name in self._resizable}
        elapsed = self._elapsed(now) - run_state.queue_wait.waited_s(now)
        widest = NARROW if self._training.may_wait(run_state, progress, now) else WIDEST

        beside = self._beside(run_state, now)
        devices = {name: self._place.device(recipe.experiments[name]) for name in run_state.experiments}
        rented = None
        if self._costs is not None:
            costs = self._costs
            spent_usd, waited, gave_back_s = costs.spent_usd(now), costs.waited, costs.gave_back_s
            rented = inputs.RentedNow(costs.provider, spent_usd, costs.clusters(), waited, gave_back_s)

        def promised() -> tuple[QuoteRecord, Forecast] | None:
            try:
                found = inputs.forecast_inputs(
                    recipe, now, elapsed, doing, known, devices, self._capacity, rented, beside, curves,
                    all_sizes, earlier_trials,
                )  # fmt: skip
            except inputs.NotKnown:
                return None
            promise = QuoteRecord(kind, now, found.time_s, found.cost_usd, found.measurements)
            time_s = promise.time_s
            is_told = {
                "binding": matters(time_s.p50, elapsed) and time_s.p95 <= widest * time_s.p50,
                "estimate": not has_outlived(time_s.p50, elapsed),
            }
            return (promise, found) if is_told.get(kind, True) else None

        self._thinking = inputs.in_background(promised)

    def _beside(self, run_state: RunState, now: float) -> Mapping[str, Overhead]:
        """What of each experiment is no training, and how far it is."""
        found = self._beside_of()
        for name, experiment in run_state.experiments.items():
            tasks = experiment.live.values()
            has_begun = bool(experiment.ended) or any(task.started_at is not None for task in tasks)
            since = self._staging_since.get(name)
            if name in found:
                since_s = None if since is None else now - since
                found[name] = replace(found[name], is_over=has_begun, since_s=since_s)
        return found

    def _beside_of(self) -> dict[str, Overhead]:
        """What of each experiment is no training, on the machines that it has."""
        if self._costs is None:
            return dict(self._beside_here())
        return {name: one for each in self._costs.clusters() for name, one in each.beside().items()}

    def _collect(
        self, run_state: RunState, progress: Mapping[tuple[str, int], TaskProgress], now: float
    ) -> list[Note]:
        if self._thinking is None or not self._thinking.done():
            return []
        thought, self._thinking = self._thinking, None
        if (found := thought.result()) is None:
            return []
        promise, forecast = found
        self.sizes = forecast.sizes
        watch = self._phases()
        if watch.has_no_end(run_state):
            return []
        if promise.kind == "estimate":
            watch.expect({name: each.items() for name, each in forecast.training.items()})
        is_promised = promise.kind == "binding"
        found_at = promise.made_at
        watch.forecast(promise.time_s, promise.cost_usd, forecast.left_s, found_at, is_promised=is_promised)
        if promise.kind == "forecast":
            if self._binding is None:
                return []
            held = next(filter(None, map(self._known.held_words, self._known.live)), "")
            why = partial(drift_words, run_state, progress, now, held)
            return self._danger.compare(self._binding, promise, self._other, why)
        promise = replace(promise, phases={name: each.spans() for name, each in watch.courses.items()})
        return self._promise(promise, run_state, now)

    def _promise(self, found: QuoteRecord, run_state: RunState, now: float) -> list[Note]:
        """Write down what is quoted, and tell it."""
        new = NewQuoteRow(self._run, None, found.kind, found.made_at, found.as_json())
        most = None if self._costs is None else most_usd(found.cost_usd.p95, self._recipe)
        self._database.add_quote(new, most)
        self._promised()
        score = f"; {line}" if (line := self._score(found.kind)) else ""
        for experiment in self._recipe.experiments.values():
            if caveat := experiment.until_caveat:
                score = f"; {caveat}{score}"
        if run_state.queue_wait.waited_s(now):
            score = f"; what it waits for other runs, people or a driver is not counted{score}"
        if found.kind == "estimate":
            many = "1 measurement" if found.measurements == 1 else f"{found.measurements} measurements"
            return [Note(f"estimate: {told(found.time_s)}, from {many} of {self._known.sources()}{score}")]
        self._binding = found
        self._next_at = now + self._pause_s(0.0)
        words, then = told_in_full(found.time_s, found.cost_usd), found.kept_words
        if self._database.was_cancelled(self._run):
            then = "the run was ended by hand before, so it is not judged"
        clusters = () if self._costs is None else self._costs.clusters()
        there = [each for each in clusters if each.is_there]
        usd_per_hour, most = sum(c.usd_per_hour for c in there), sum(c.most_usd_per_hour for c in there)
        then += cap_words(self._recipe, found.cost_usd, usd_per_hour, most)
        return [Note(f"quote: {words}; {then}{score}", topic=QUOTE_BOUND)]
