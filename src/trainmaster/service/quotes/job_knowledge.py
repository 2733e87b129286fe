"""`JobKnowledge`: what is known of a recipe's jobs from runs and the user's points, or is measured now."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Final

from trainmaster.advisor.model.measurement import HELD, held_words
from trainmaster.advisor.quote.beliefs import STARTUP_UNSEEN_SPREAD
from trainmaster.control.task.gangs import workers_per_node
from trainmaster.service.quotes.candidate_offers import catalogue_is_own, measured_elsewhere, measured_for
from trainmaster.service.quotes.home_load import HomeLoad
from trainmaster.service.quotes.own_points import OwnPoints, with_shipped
from trainmaster.service.quotes.worker_counts import allowed_workers, with_length
from trainmaster.spec import Experiment, Recipe
from trainmaster.spec.errors import UsageError, one_line
from trainmaster.spec.units import counted

if TYPE_CHECKING:
    from trainmaster.advisor.model.knowledge import Knowledge
    from trainmaster.advisor.model.measurement import Measurement
    from trainmaster.control.measure.profile_progress import ProfileProgress
    from trainmaster.service.quotes.earlier_trials import EarlierTrials
    from trainmaster.service.quotes.history import History
    from trainmaster.service.quotes.knowledge_builder import KnowledgeBuilder
    from trainmaster.service.quotes.profiling import Profiler
    from trainmaster.service.quotes.quote_options import QuoteOptions
    from trainmaster.service.service import Service

UNKNOWN: Final = "nothing is known of it, and code of others is not measured here"
_MEASURE: Final = "`trainmaster quote` measures it, or says what that costs"
UNASKED: Final = f"nothing is known of it ({_MEASURE})"
OF_A_PERSON: Final = "it ends when whoever works in it does"
NO_LENGTH: Final = (
    "its recipe has no length: set `steps`, or `epochs` with `examples` and `batch`, let it print "
    "`step 1/800`, or run it to its end"
)
ONE_MACHINE: Final = (
    "it shows no steps and was seen on one machine only, so what its workers send each other between "
    "machines is not known: let it print `step 1/800`, or run it to its end there"
)
#: A minute of measuring shows no more.
NOT_SHOWN: Final = (NO_LENGTH, ONE_MACHINE)
NOT_MEASURED: Final = "nothing was measured before (`trainmaster quote` does so, or says what that costs)"
EPOCHS_FOR_STEPS: Final = (
    "its script shows epochs, and how many steps each has is not known: each is taken for a step, so it may "
    "take far less; let it print `step 1/800` or `Epoch 1/8`, or give `epochs` with `examples` and `batch`"
)
NO_END: Final = "it is a service, and has no end: `trainmaster run` says what it costs per hour"


#: Of its processors, in the last minute (the load average): less is quiet.
_QUIET: Final = 0.25


def is_quiet(load: Callable[[], tuple[float, float, float]] = os.getloadavg) -> bool:
    """Whether this machine has little to do: what other work disturbed can be measured again."""
    from trainmaster.executors.capacity import detect_capacity

    try:
        return load()[0] < _QUIET * detect_capacity().cores
    except OSError:  # it is unknown
        return False


def _helps_again(known: Knowledge) -> bool:
    """Whether something was disturbed on this machine, and not measured again since."""
    from trainmaster.advisor.model.knowledge import shape_of

    shapes = list(map(shape_of, known.seen))
    return known.held > HELD and known.measured.offer == "local" and len(set(shapes)) == len(shapes)


def is_elsewhere(known: Knowledge) -> bool:
    """Whether it was measured in other places only, whose machines are not those that are asked for."""
    from trainmaster.advisor.model.devices import ELSEWHERE

    return known.measured.offer.startswith(ELSEWHERE)


def _elsewhere(known: Knowledge) -> str:
    machines = dict.fromkeys(each.measured.offer.partition(":")[2] for each in known.types)
    return f"it ran on {' and '.join(machines)} only; how fast other machines are is unknown"


class NotMeasured(UsageError):  # noqa: N818 - the name of what happened
    """How many workers a run takes would be measured first, and what it costs then is not agreed to."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(
            f"{', '.join(names)}: how many workers it takes, and so its price, is measured first",
            "Nothing was started. `trainmaster quote` measures it; `--yes` (by REST `max_usd`) agrees.",
        )


def has_unknown_length(experiment: Experiment) -> bool:
    """Whether it is a gang whose recipe has no length: its script may say it, or a run to its end show it."""
    from trainmaster.advisor.market.workload import Workload

    return experiment.distributed is not None and not Workload.of(experiment, 0).has_length


def spans_machines(experiment: Experiment) -> bool:
    """Whether the workers of a gang have to be on several machines."""
    return experiment.distributed is not None and allowed_workers(experiment)[0] > workers_per_node(
        experiment
    )


def same_seen(known: Knowledge) -> tuple[Measurement, ...]:
    """What was measured of the very job; nothing where it is known by other versions only."""
    return () if known.similar else known.seen


def why_no_length(experiment: Experiment, known: Knowledge | None = None, *, is_here: bool = True) -> str:
    """Why nothing is known of how long it trains, and what to do.

    Empty if its recipe, its script or a run says it.

    Args:
        experiment: of the recipe.
        known: what was measured of it; None if that is nothing.
        is_here: it is to run on this machine.
    """
    from trainmaster.advisor.market.workload import Workload

    if known is not None:
        experiment = with_length(experiment, same_seen(known))
    has_length = Workload.of(experiment, 0).has_length
    needs_steps = False
    if known is not None and not is_here and spans_machines(experiment):
        needs_steps = all(each.measured.offer == "local" for each in known.types)
        if needs_steps and known.model is None:
            return ONE_MACHINE
    if has_length or (known is not None and known.duration_s is not None and not needs_steps):
        return ""
    if known is None or known.model is None:
        if not has_unknown_length(experiment):
            return ""
        return f"{NO_LENGTH}; {_MEASURE}{_asked_for(experiment)}" if known is None else NO_LENGTH
    seen = [m.point.step_time_s for m in known.seen if m.point is not None and m.point.step_time_s]
    return f"{NO_LENGTH} (a step takes {median(seen):.3g} s)" if seen else NO_LENGTH


def counts_epochs(experiment: Experiment, known: Knowledge) -> bool:
    """Whether a step of its recipe is taken for an epoch of its script, as no more is known of either."""
    seen = [each for each in known.seen if each.point is not None]
    is_open = known.duration_s is None and experiment.steps is not None
    return is_open and bool(seen) and all(each.unit == "epoch" for each in seen)


def _asked_for(experiment: Experiment) -> str:
    """How long its command asks its script to train, if it does; a measurement shows whether that is so."""
    from trainmaster.spec.length_options import lengths_asked_for

    asked = [counted(many, unit[:-1]) for unit, many in lengths_asked_for(experiment.command).items()]
    return f" (its command asks for {' and '.join(asked)})" if asked else ""


class JobKnowledge:
    """Of the jobs of recipes.

    Args:
        service: of the user's home.
        tell: shows lines to the user.
        show: shows how far a measurement is.
        measures: False: what is not known is not measured on this machine.

    Attributes:
        notes: what a quote has to say of where this is from.
        earlier_trials: by experiment that was asked for, see `History`.
        has_measured: whether something was measured.
        fingerprints: exact ones by experiment, as far as it was asked for.
    """

    def __init__(
        self,
        service: Service,
        tell: Callable[[str], None],
        show: Callable[[ProfileProgress], None] | None,
        *,
        measures: bool = True,
    ) -> None:
        self._service, self._tell, self._show = service, tell, show
        self._measures = measures
        self._profiler: Profiler | None = None
        self.notes: list[str] = []
        self.has_measured = False
        self.earlier_trials: dict[str, tuple[EarlierTrials, ...]] = {}
        self.fingerprints: dict[str, str] = {}
        self._lent: set[str] = set()

    def interrupt(self) -> bool:
        """Ctrl-C: a measurement ends in order; False if none is under way. Signal-safe."""
        profiler = self._profiler
        if profiler is not None:
            profiler.interrupt()
        return profiler is not None

    def known(self, recipe: Recipe, names: Iterable[str], builder: KnowledgeBuilder) -> dict[str, Knowledge]:
        """What earlier runs and measurements say of experiments; without those of which that is nothing.

        Args:
            recipe: that they are of.
            names: of the experiments.
            builder: knows the machines.
        """
        wanted = [] if recipe.is_notebook else list(names)
        if not wanted:
            return {}
        load = HomeLoad.now().of(offer.provider for offer in builder.catalogue)
        histories = self._service.measurements(recipe, load)
        self.fingerprints |= {name: each.fingerprint.exact for name, each in histories.items()}
        self._lent |= {name for name in wanted if name in histories and histories[name].has_lent_length}
        found = {
            name: self._of_history(recipe.experiments[name], histories[name], builder)
            for name in wanted
            if name in histories
        }
        self.earlier_trials |= {name: histories[name].earlier_trials for name in found}
        return {name: known for name, known in found.items() if known is not None}

    def _of_history(
        self, experiment: Experiment, history: History, builder: KnowledgeBuilder
    ) -> Knowledge | None:
        if not (history.same or history.similar):
            return None
        from trainmaster.service.quotes.history import experience_of

        same, similar = (
            measured_for(list(found), builder.catalogue) for found in (history.same, history.similar)
        )
        if not same and not similar:
            same, similar = (
                measured_elsewhere(each, builder.catalogue) for each in (history.same, history.similar)
            )
        experience = experience_of(self._service.database, history.fingerprint.exact, team=history.team)
        known = builder.knowledge(experiment, same, similar, experience)
        return known and replace(known, fingerprint=history.fingerprint.exact)

    def gather(
        self,
        recipe: Recipe,
        environ: Mapping[str, str],
        builder: KnowledgeBuilder,
        options: QuoteOptions,
        *,
        costs: bool,
    ) -> tuple[dict[str, Knowledge], dict[str, str]]:
        """What is known of each experiment after measuring; and of which nothing, and why.

        Args:
            recipe: with the experiments that are asked for.
            environ: of the caller.
            builder: knows the machines.
            options: what may be measured, and what was.
            costs: a run would rent machines.

        Raises:
            UsageError: code, data or secrets are not there, or a script shows no steps.
            NotMeasured: what only settles how many workers it takes is not known, and not to be measured.
            InterruptedByUser: while measuring.
        """
        from trainmaster.service.quotes.profiling import Profiler, Unmeasured, stepless_key

        measures = self._measures and options.measures
        only, unmeasured = dict[str, tuple[int, ...]](), Unmeasured(self._service.home)
        missing = dict[str, str]()
        wanted = [name for name in recipe.experiments if options.only is None or name in options.only]
        names = [name for name in wanted if recipe.experiments[name].serve is None]
        found = self._given(recipe, names, builder, options)
        if not options.fresh:
            earlier = self.known(recipe, (name for name in names if name not in found), builder)
            for name, known in earlier.items():
                points = known.all_points
                many = counted(points, "measurement")
                experiment = recipe.experiments[name]
                if has_unknown_length(experiment) and not why_no_length(experiment, known):
                    found[name] = known
                    self._tell(f"{name}: {many} of earlier runs used, which say how long it is")
                    continue
                if known.similar or (is_elsewhere(known) and measures):
                    continue
                if shapes := unmeasured.shapes(known.fingerprint):
                    only[name] = shapes
                    rest = f"the rest is measured now, with {' and '.join(map(str, shapes))} workers"
                    self._tell(f"{name}: {many} kept from a quote that was interrupted; {rest}")
                    continue
                if measures and _helps_again(known) and is_quiet():
                    again = "it is measured again, as they are free now"
                    self._tell(f"{name}: it was measured while {held_words(known.held)}; {again}")
                    continue
                found[name] = known
                self._tell(f"{name}: {many} of earlier runs used (--fresh measures again)")
            for name in names if self._measures else ():
                key = self.fingerprints.get(name, "")
                why = unmeasured.why(stepless_key(key, recipe.experiments[name]))
                if why and name not in found:  # else a run has shown some since
                    missing[name] = why
                    self._tell(f"{name}: it showed no steps when it was measured (--fresh measures again)")
        left = [name for name in names if name not in found]
        to_measure = [name for name in left if name not in missing]
        if to_measure and not measures:
            if self._measures and options.only is not None:
                raise NotMeasured(to_measure)
            why = UNASKED if self._measures else UNKNOWN
            missing |= {name: why + _asked_for(recipe.experiments[name]) for name in to_measure}
        elif to_measure:
            self._look(recipe, environ, costs=costs)
            self._profiler = Profiler(self._service)
            self._profiler.measure(recipe, environ, to_measure, self._show, only)
            self.has_measured = True
            missing |= self._profiler.not_measured
            self._profiler = None
        for name, known in self.known(recipe, left, builder).items():
            found[name] = known
            if known.similar:
                missing.pop(name, None)
        for name, known in found.items():
            if name in missing and not is_elsewhere(known):  # with some numbers of workers it showed no steps
                self.notes.append(f"{name}: not all of it could be measured: {missing[name]}")
            if is_elsewhere(known):
                self.notes.append(f"{name}: {_elsewhere(known)}")
            if name in self._lent:
                self.notes.append(f"{name}: it was not seen to its end: other versions say how long it is")
            if counts_epochs(recipe.experiments[name], known):
                self.notes.append(f"{name}: {EPOCHS_FOR_STEPS}")
            if words := held_words(known.held):
                self.notes.append(f"{name}: it was measured while {words}: the interval is as much wider")
        is_here = catalogue_is_own(builder.catalogue)
        for name in [*found]:
            if why := why_no_length(recipe.experiments[name], found[name], is_here=is_here):
                missing[name] = why
                del found[name]
        ordered = {name: found[name] for name in names if name in found}
        missing |= {name: NO_END for name in wanted if name not in names}
        return ordered, {name: why for name, why in missing.items() if name not in found}

    def _given(
        self, recipe: Recipe, names: Sequence[str], builder: KnowledgeBuilder, options: QuoteOptions
    ) -> dict[str, Knowledge]:
        """What the user's own points say."""
        if options.measurements is None:
            return {}

        builder = replace(builder, catalogue=with_shipped(builder.catalogue))
        own = OwnPoints.read(options.measurements, recipe, builder.catalogue)
        found = {}
        for name, points in own.measurements.items():
            known = builder.knowledge(recipe.experiments[name], points)
            if known is not None and name in names:
                unseen = [replace(each, startup_spread=STARTUP_UNSEEN_SPREAD) for each in known.types]
                found[name] = replace(unseen[0], fingerprint=own.fingerprint, others=tuple(unseen[1:]))
                self._tell(f"{name}: {counted(len(points), 'point')} of {options.measurements} used")
        self.notes.append(own.note)
        return found

    def _look(self, recipe: Recipe, environ: Mapping[str, str], *, costs: bool) -> None:
        """What is missing is said before anything is measured; what only a run needs is a note.

        Raises:
            UsageError: code, data or secrets are not there.
        """
        from trainmaster.service.driving.provider_connection import check_provider

        for note in self._service.check_inputs(recipe, environ, measures=True):
            self._tell(f"note: {note}")
        if costs:
            try:
                check_provider(recipe.provider, self._service.place(recipe.provider, environ), dials=False)
            except UsageError as error:
                self._tell(f"note: a run would be refused: {one_line(error)}")
