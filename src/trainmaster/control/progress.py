"""How far running tasks are: last metrics, steps per second, time left. Read from their files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainmaster.advisor.step_trace import StepTrace
from trainmaster.control.attempt_words import metrics_pattern
from trainmaster.control.gangs import member_names
from trainmaster.control.job_context import TaskContext
from trainmaster.control.layout import AttemptPlace
from trainmaster.control.measuring import trace_of
from trainmaster.executors.log_metrics import LogMetrics
from trainmaster.executors.logs import read_log
from trainmaster.executors.metrics import MetricsReader, StepRate, json_safe
from trainmaster.spec import Experiment
from trainmaster.sweeps.curve import Curve

#: A controller looks that often.
LOOK_S = 0.5


@dataclass(slots=True)
class TaskProgress:
    """What a running attempt has told so far.

    Attributes:
        metrics: last value per key of rank 0, JSON-safe.
        steps_per_s: recent rate, None until known.
        examples_per_s: the same; where only examples are counted, both are known if ``examples_per_step`` is.
        eta_s: seconds left until ``total_steps`` or ``total_examples``, None if unknown.
        changed: there is something new since this was last set to False.
        metric: of the search, if it has a pruner.
        curve: that metric by step, over all attempts.
        trace: of its steps, if they are to be measured.
    """

    directory: Path
    first_member: str
    total_steps: int | None
    reader: MetricsReader
    scanner: LogMetrics
    total_examples: int | None = None
    examples_per_step: int | None = None
    rate: StepRate = field(default_factory=StepRate)
    metrics: dict[str, object] = field(default_factory=dict)
    log_offset: int = 0
    changed: bool = False
    metric: str | None = None
    curve: Curve = field(default_factory=Curve)
    trace: StepTrace | None = None

    @classmethod
    def of(
        cls, context: TaskContext, curve: Curve | None = None, resolution_s: float = LOOK_S
    ) -> TaskProgress:
        """Start to follow an attempt.

        Args:
            context: the attempt.
            curve: of the attempts before, to be continued; None if nobody needs a curve.
            resolution_s: how often `update` will be called.
        """
        experiment, search = context.experiment, context.experiment.search
        values, first = experiment.builtin_values(), context.members[0]
        epochs, examples = experiment.epochs, experiment.examples
        return cls(
            directory=context.place.directory,
            first_member=first,
            total_steps=values.get("steps"),
            total_examples=epochs * examples if epochs and examples else None,
            examples_per_step=values.get("batch_global"),
            reader=MetricsReader(context.place.metrics(first)),
            scanner=LogMetrics(metrics_pattern(context)),
            metric=search.metric if search is not None and curve is not None else None,
            curve=Curve() if curve is None else curve,
            trace=trace_of(experiment, resolution_s),
        )

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
        rows = self.reader.read()
        data = b""
        if not rows and not self.reader.offset:  # it reports nothing: perhaps it prints something
            data, self.log_offset, _ = read_log(self.directory, self.first_member, self.log_offset)
            rows = self.scanner.feed(data) if data else []
        for row in rows:
            self.metrics.update(json_safe(row))
            self.changed = True
            if self.metric is not None:
                self._draw(row, self.metric)
            if self.trace is not None:
                self.trace.add(now, row.get("step"), row.get("examples"), row.get("epoch"))
        if rows:
            step, examples = self._last("step"), self._last("examples")
            if step is None and examples is not None and self.examples_per_step:
                step = examples / self.examples_per_step
            self.rate.observe(now, step, examples)
        return bool(rows or data)

    def _last(self, key: str) -> float | None:
        value = self.metrics.get(key)
        return value if isinstance(value, int | float) else None

    def _draw(self, row: Mapping[str, object], metric: str) -> None:
        value = row.get(metric)
        if not isinstance(value, int | float):
            return
        for key in ("step", "epoch"):
            step = row.get(key, self.metrics.get(key))
            if isinstance(step, int | float):
                self.curve.add(step, value)
                return
        self.curve.add(self.curve.last_step + 1 if len(self.curve) else 1, value)


def read_curve(experiment: Experiment, places: Iterable[AttemptPlace]) -> Curve:
    """A search's metric by step, over attempts at one task, read from the files that they left.

    Args:
        experiment: with a ``search``.
        places: of the attempts, the first one first.
    """
    curve = Curve()
    first = "{}-{}".format(*member_names(experiment)[0])
    for place in places:
        progress = TaskProgress(
            directory=place.directory,
            first_member=first,
            total_steps=None,
            reader=MetricsReader(place.metrics(first)),
            scanner=LogMetrics(experiment.metrics.pattern if experiment.metrics else None),
            metric=experiment.search.metric if experiment.search else None,
            curve=curve,
        )
        while progress.update(0.0):
            pass
    return curve
