"""How far running tasks are: last metrics, steps per second, time left. Read from their files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster.control.task.attempt_end import metrics_of
from trainmaster.control.task.gangs import member_names
from trainmaster.control.task.job_context import TaskContext
from trainmaster.control.task.layout import AttemptPlace
from trainmaster.dataclass import dataclass, field
from trainmaster.executors.telemetry.member_metrics import MemberMetrics
from trainmaster.executors.telemetry.metrics import StepRate, json_safe
from trainmaster.executors.telemetry.usage import SilenceMeter
from trainmaster.spec import Experiment
from trainmaster.spec.length_options import lengths_asked_for
from trainmaster.spec.metric_names import TOTAL_STEPS
from trainmaster.spec.until import Until

if TYPE_CHECKING:
    from trainmaster.advisor.model.step_trace import StepTrace
    from trainmaster.sweeps import Curve

#: A controller looks that often.
LOOK_S = 0.5
#: Signs of work are looked for that often, from then on.
SIGNS_AFTER_S = 10.0
SIGNS_EVERY_S = 5.0
#: A follower of an attempt that runs already gets what was written before within that time, also from a node;
#: a look that still brings so many bytes goes on with it.
CATCH_UP_S = 3.0
CATCH_UP_BYTES = 16 << 10
#: So much later than it is looked for, a first checkpoint is published.
SAVED_S = 15.0
#: What goes on may come to its first checkpoint yet: only after so long it is believed to make none.
FIRST_SAVED_S = 3600.0


@dataclass(slots=True)
class TaskProgress:
    """What a running attempt has told so far.

    Attributes:
        metrics: last value per key of rank 0, JSON-safe; of a search's metric the one that counts.
        steps_per_s: recent rate, None until known.
        examples_per_s: the same; where only examples are counted, both are known if ``examples_per_step`` is.
        eta_s: seconds left until ``total_steps`` or ``total_examples``, None if unknown.
        said_steps: how many it makes in all by what it prints or reports, or is asked for; 0 where the recipe
            says that.
        attempt: which one it is.
        epochs: of the recipe, or that the command asks for; what the script prints of their length counts
            where the recipe says none.
        asked_steps: that the command asks for; 0 if it does not say.
        changed: there is something new since this was last set to False.
        metric: of the search, if it has a pruner.
        curve: that metric by step, over all attempts.
        trace: of its steps, once the first one was seen.
        make_trace: makes an empty one, if steps are to be measured.
        goes_on: it begins with what an attempt before it (or another task) has left.
        is_behind: it ran before it was followed: how fast it was then is not to be seen from what it wrote.
        from_step: the step that it has gone on from, as it says itself; of one that was followed later, the
            last one before that. None until that is known, and of attempts that begin with nothing.
        came_to: the last step of the attempt before it, None if unknown.
        has_checkpoint: there was one for it to go on from.
        until: what ends it early.
        aimed: the metric of `until` by step, of this attempt; None where nothing ends it early.
        reached: what it reported when that held, in words; empty before.
        moved_at: when it last reported anything, by the clock of `update`; None before.
        longest_pause_s: between two looks that brought something; None until there were two.
        silent_s: for how long it has shown no sign of work, metrics included.
        checkpoint_at: when its newest checkpoint was published, by the clock of `update`; None before.
        checkpoints: how many of it were published while it was followed.
        addresses: the machine of each member; empty where all are on this one.
    """

    source: MemberMetrics
    total_steps: int | None
    total_examples: int | None = None
    said_steps: int = 0
    attempt: int = 1
    epochs: int | None = None
    asked_steps: int = 0
    examples_per_step: int | None = None
    rate: StepRate = field(default_factory=StepRate)
    metrics: dict[str, object] = field(default_factory=dict)
    changed: bool = False
    metric: str | None = None
    curve: Curve | None = None
    trace: StepTrace | None = None
    make_trace: Callable[[], StepTrace] | None = None
    goes_on: bool = False
    is_behind: bool = False
    from_step: float | None = None
    came_to: float | None = None
    has_checkpoint: bool = True
    until: Until | None = None
    reached: str = ""
    aimed: Curve | None = None
    moved_at: float | None = field(default=None, init=False)
    longest_pause_s: float | None = field(default=None, init=False)
    silent_s: float = field(default=0.0, init=False)
    checkpoint_at: float | None = field(default=None, init=False)
    checkpoints: int = field(default=0, init=False)
    addresses: Mapping[str, str] = field(default_factory=dict, init=False)
    _signs: SilenceMeter | None = field(default=None, init=False)
    _signs_at: float | None = field(default=None, init=False)
    _has_begun: bool = field(default=False, init=False)
    _reported_total: float | None = field(default=None, init=False)
    _has_length: bool = field(default=False, init=False)
    _caught_up_at: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """What the recipe says of its length is not learnt."""
        self._has_length = bool(self.total_steps)

    @classmethod
    def of(
        cls,
        context: TaskContext,
        curve: Curve | None = None,
        resolution_s: float = LOOK_S,
        *,
        earlier: Mapping[str, object] | None = None,
        is_behind: bool = False,
        has_checkpoint: bool = True,
    ) -> TaskProgress:
        """Start to follow an attempt.

        Args:
            context: the attempt.
            curve: of the attempts before, to be continued; None if no curve is needed.
            resolution_s: how often `update` will be called.
            earlier: the last metrics of the attempt before it.
            is_behind: it has run for a while.
            has_checkpoint: there was one for it to go on from.
        """
        experiment, search = context.experiment, context.experiment.search
        values = experiment.builtin_values()
        epochs, examples = experiment.epochs, experiment.examples
        asked = {} if values.get("steps") else lengths_asked_for(experiment.script(context.parameters))

        def trace() -> StepTrace:
            from trainmaster.control.measure.measuring import trace_of

            return trace_of(experiment, resolution_s)

        aimed: Curve | None = None
        if experiment.ends_at is not None:
            from trainmaster.sweeps import Curve

            aimed = Curve()
        return cls(
            source=metrics_of(context),
            total_steps=values.get("steps"),
            total_examples=epochs * examples if epochs and examples else None,
            attempt=context.attempt,
            epochs=epochs or asked.get("epochs"),
            asked_steps=asked.get("steps", 0),
            examples_per_step=values.get("batch_global"),
            metric=search.metric if search is not None and curve is not None else None,
            curve=curve,
            make_trace=trace,
            goes_on=context.goes_on,
            is_behind=is_behind,
            came_to=None if is_behind else _number(earlier or {}, "step"),
            has_checkpoint=has_checkpoint or is_behind,
            until=experiment.ends_at,
            aimed=aimed,
        )

    def saved(self, at: float | None) -> None:
        """A checkpoint was published then."""
        if at is not None and at != self.checkpoint_at:
            self.checkpoint_at, self.checkpoints = at, self.checkpoints + 1

    def saves_every_s(
        self, started_at: float, now: float, every_s: float, *, is_sure: bool = False
    ) -> float | None:
        """Seconds from one of its checkpoints to the next; 0 if it makes none, None if that is not known yet.

        Args:
            started_at: of its members.
            now: by the same clock.
            every_s: how often it is looked whether there is a new one.
            is_sure: it has succeeded, or cannot write any; else it may not have come to its first one.
        """
        if self.is_behind:
            return None
        if self.checkpoint_at is not None:
            return (self.checkpoint_at - started_at) / self.checkpoints
        patience_s = SAVED_S if is_sure else FIRST_SAVED_S
        return 0.0 if now - started_at > every_s + patience_s else None

    @property
    def directory(self) -> Path:
        """Of the attempt."""
        return self.source.directory

    @property
    def steps_per_s(self) -> float | None:
        """Recent rate."""
        return self.rate.steps_per_s

    @property
    def examples_per_s(self) -> float | None:
        """Recent rate."""
        return self.rate.examples_per_s

    @property
    def eta_s(self) -> float | None:
        """Seconds left."""
        left_s = self.rate.eta_s(self.total_steps) if self.total_steps else None
        if left_s is None and self.total_examples and self.rate.steps_per_s is None:
            left_s = self.rate.examples_eta_s(self.total_examples)
        return left_s

    def update(self, now: float) -> bool:
        """Read what is new; a bounded amount per call. False if there was nothing."""
        self._look_for_signs(now)
        rows, size = self.source.read()
        if rows and self.trace is None and self.make_trace is not None:
            self.trace = self.make_trace()
        for row in rows:
            self.metrics.update(json_safe(row))
            self.changed = True
            if self.until is not None and not self.reached and self.until.holds(row):
                self.reached = self.until.reached({**self.metrics, **row})
            if self.aimed is not None and self.until is not None:
                self._draw(row, self.until.metric, self.aimed)
            if self.metric is not None and self.curve is not None:
                self._draw(row, self.metric, self.curve)
            if self.trace is not None:
                epochs = self.source.totals.get("epoch", 0)
                if self._has_length and self.total_steps and "step" not in self.metrics:
                    self.trace.learn_epochs(self.total_steps, epochs)
                self.trace.add(now, row.get("step"), row.get("examples"), self._epoch(row))
            self._learn_totals(row)
        if rows:
            if self.source.value is not None:
                self.metrics.update(json_safe(self.source.value.metrics))
            if self.moved_at is not None:
                self.longest_pause_s = max(self.longest_pause_s or 0.0, now - self.moved_at)
            self.moved_at = now
            if self.is_behind or self._begins(rows):  # nothing of that was done since we looked last
                self.rate = StepRate()
                if self.trace is not None:
                    self.trace.restart(now, is_own=not self.goes_on)
            step, examples = _number(self.metrics, "step"), _number(self.metrics, "examples")
            if step is None and examples is not None and self.examples_per_step:
                step = examples / self.examples_per_step
            self.rate.observe(now, step, examples)
        if self.is_behind:
            self._catch_up(now, size)
        return bool(size)

    def _look_for_signs(self, now: float) -> None:
        if self._signs_at is None:
            self._signs_at = now + SIGNS_AFTER_S
        if now < self._signs_at:
            return
        self._signs_at = now + SIGNS_EVERY_S
        if self._signs is None:
            self._signs = SilenceMeter(self.directory)
        silent_s = self._signs.look()
        self.silent_s = silent_s if self.moved_at is None else min(silent_s, now - self.moved_at)

    def _learn_totals(self, row: Mapping[str, object]) -> None:
        """Where the recipe does not say how long it is, what is printed, reported or asked for tells."""
        if self._has_length:
            return
        before = self._reported_total
        self._reported_total = _number(row, TOTAL_STEPS) or before
        done, per_epoch, totals = _number(self.metrics, "step"), self.source.per_epoch, self.source.totals
        epochs, each = self.epochs or 0, self.examples_per_step
        self.total_examples = self.total_examples or epochs * per_epoch.get("examples", 0) or None
        if self._reported_total is not None:  # some call that so which they count, and so it grows
            said = int(self._reported_total) if self._reported_total == before else 0
        elif done is not None:
            said = totals.get("step", 0) or epochs * per_epoch.get("step", 0) or self.asked_steps
        elif each and "examples" in self.metrics:
            said = math.ceil((self.total_examples or 0) / each)
        else:
            said = totals.get("epoch", 0) or epochs
        self.said_steps = said if said >= (done or 0.0) else 0
        self.total_steps = self.said_steps or None

    def _epoch(self, row: Mapping[str, object]) -> object:
        """With the part of it that is done, where examples say that and nothing is finer."""
        examples, of = _number(row, "examples"), self.source.per_epoch.get("examples", 0)
        if examples is None or not of or self.examples_per_step:
            return row.get("epoch")
        return examples / of

    def _begins(self, rows: Iterable[Mapping[str, object]]) -> bool:
        """Whether an attempt that goes on shows its first progress only now: a step 0 before it is none."""
        if not self.goes_on or self._has_begun:
            return False
        for row in rows:
            step = _number(row, "step")
            done = step if step is not None else _number(row, "examples") or _number(row, "epoch")
            if done and done > 0:
                self._has_begun, self.from_step = True, step
                break
        return True

    def _catch_up(self, now: float, size: int) -> None:
        """What is there already comes at once, or in pieces, if it has to come from a node."""
        if self._caught_up_at is None:
            self._caught_up_at = now + CATCH_UP_S
        if now >= self._caught_up_at and size < CATCH_UP_BYTES:
            self.is_behind, self._has_begun = False, True
            self.from_step = _number(self.metrics, "step")

    def _draw(self, row: Mapping[str, object], metric: str, curve: Curve) -> None:
        value = row.get(metric)
        if not isinstance(value, int | float):
            return
        for key in ("step", "epoch"):
            step = row.get(key, self.metrics.get(key))
            if isinstance(step, int | float):
                curve.add(step, value)
                return
        curve.add(curve.last_step + 1 if len(curve) else 1, value)


def _number(row: Mapping[str, object], key: str) -> float | None:
    value = row.get(key)
    return value if isinstance(value, int | float) else None


def read_curve(experiment: Experiment, places: Iterable[AttemptPlace]) -> Curve:
    """A search's metric by step, over attempts at one task, read from the files that they left.

    Args:
        experiment: with a ``search``.
        places: of the attempts, the first one first.
    """
    from trainmaster.sweeps import Curve

    curve = Curve()
    for place in places:
        progress = progress_left(experiment, place.directory)
        progress.metric, progress.curve = experiment.search.metric if experiment.search else None, curve
        while progress.update(0.0):
            pass
    return curve


def progress_left(experiment: Experiment, directory: Path) -> TaskProgress:
    """Of an attempt that has ended, with nothing read yet.

    Args:
        experiment: that it is of.
        directory: of the attempt.
    """
    from trainmaster.sweeps import Curve

    first = "{}-{}".format(*member_names(experiment)[0])
    return TaskProgress(
        source=MemberMetrics(directory, first, experiment.metrics_pattern),
        total_steps=None,
        until=experiment.ends_at,
        aimed=Curve() if experiment.ends_at is not None else None,
    )
