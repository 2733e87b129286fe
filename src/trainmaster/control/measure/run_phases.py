"""`PhaseProgress`: what an experiment has done from the command to giving its machines back, what is late.

Pure: it is told what is seen, and when. Waiting for others is no phase, and never late.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from trainmaster.dataclass import dataclass, field
from trainmaster.spec.plain_json import typed

#: Seconds: p5, p50, p95.
Span = tuple[float, float, float]

#: Phases in their order. Those of a quote that no look can tell apart are counted with another one.
PHASES: Final = (
    "machines",
    "image",
    "setup",
    "data",
    "staging",
    "serving",
    "first step",
    "steps",
    "saving",
    "giving back",
)
AGAIN: Final = "interruptions"
_COUNTED_WITH: Final = {"pauses": "steps", "end of the tasks": "steps"}
#: By less than so much nothing is late: looks are a second apart.
LATE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class ObservedExperiment:
    """What is seen of an experiment.

    Attributes:
        waits: for others: for a turn, a person, or experiments before it.
        has_machines: those that it needs are there.
        staging: what is done for a task before its members start; empty if nothing is.
        has_started: members of one of its tasks have started.
        has_steps: one of them has shown its first step, or shows none.
        is_again: all that goes on begins again: a machine was lost, say.
        is_saving: all that is left of it is being saved.
        is_over: it is.
        serves: its tasks are replicas of a service, which make no steps.
    """

    waits: bool = False
    has_machines: bool = True
    staging: str = ""
    has_started: bool = False
    has_steps: bool = False
    is_again: bool = False
    is_saving: bool = False
    is_over: bool = False
    serves: bool = False

    @property
    def phase(self) -> str:
        """Which that is; empty while it waits, and once it is over.

        >>> ObservedExperiment(has_machines=False).phase, ObservedExperiment(staging="setup").phase
        ('machines', 'setup')
        >>> ObservedExperiment(has_started=True).phase
        'first step'
        """
        if self.waits or self.is_over:
            return ""
        if self.is_again:
            return AGAIN
        if self.is_saving:
            return "saving"
        if self.has_started and self.serves:
            return "serving"
        if self.has_started:
            return "steps" if self.has_steps else "first step"
        return "machines" if not self.has_machines else self.staging or "staging"


@dataclass(frozen=True, slots=True)
class PhaseLine:
    """A phase, as it is told.

    Attributes:
        phase: its name.
        state: ``done``, ``now`` or ``ahead``.
        seconds: that it has taken until now.
        span: that were expected; None if unknown.
        late_s: beyond their p95; of a first step of which nothing was expected beyond that of all steps; 0 if
            it is not late.
    """

    phase: str
    state: str
    seconds: float
    span: Span | None
    late_s: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        told = {"phase": self.phase, "state": self.state, "seconds": round(self.seconds, 2)}
        return {**told, "expected_s": self.span and _told(self.span), "late_s": round(self.late_s, 2)}


def _told(span: Span) -> dict[str, float]:
    return {name: round(seconds, 3) for name, seconds in zip(("p5", "p50", "p95"), span, strict=True)}


@dataclass(frozen=True, slots=True)
class PhaseProgress:
    """Of one experiment.

    Attributes:
        now: its phase; empty while it waits for others, and once it is over. since: when that began, as all
            times here in seconds for which the run was driven: what passes without a driver does not count.
        took: seconds of each phase until then. expected: of each that may come.
        left_s: of its steps, as a forecast says; None without one. left_at: when it was made.
    """

    now: str = ""
    since: float = 0.0
    took: Mapping[str, float] = field(default_factory=dict)
    expected: Mapping[str, Span] = field(default_factory=dict)
    left_s: float | None = None
    left_at: float = 0.0

    def seen(self, phase: str, at: float) -> PhaseProgress:
        """With what is seen now.

        >>> course = PhaseProgress()
        >>> course = course.seen("setup", 10.0).seen("", 15.0).seen("setup", 60.0).seen("steps", 62.0)
        >>> course.now, dict(course.took)
        ('steps', {'setup': 7.0})

        What was saved before it went on again was an interruption; its own saving is ahead.

        >>> dict(PhaseProgress("steps").seen("saving", 20.0).seen("staging", 26.0).took)
        {'steps': 20.0, 'interruptions': 6.0}

        Args:
            phase: see `ObservedExperiment`.
            at: when.
        """
        if phase == self.now:
            return self
        took = dict(self.took)
        if self.now:
            took[self.now] = took.get(self.now, 0.0) + max(at - self.since, 0.0)
        if "saving" in took and phase in (AGAIN, *PHASES[: PHASES.index("saving")]):
            took[AGAIN] = took.get(AGAIN, 0.0) + took.pop("saving")
        return replace(self, now=phase, since=at, took=took)

    def spans(self) -> dict[str, dict[str, float]]:
        """What is expected, for JSON."""
        return {name: _told(span) for name, span in self.expected.items()}

    def expecting(self, spans: Iterable[tuple[str, Span]]) -> PhaseProgress:
        """With what is expected of phases; what was expected of others stays."""
        found: dict[str, Span] = {}
        for name, span in spans:
            known = _COUNTED_WITH.get(name, name)
            had = found.get(known, (0.0, 0.0, 0.0))
            found[known] = (had[0] + span[0], had[1] + span[1], had[2] + span[2])
        return replace(self, expected={**self.expected, **found})

    def lines(self, at: float, *, is_over: bool = False) -> Iterator[PhaseLine]:
        """What it has done, does, and will do.

        Args:
            at: when.
            is_over: nothing is ahead any more: what was not seen was too short for that.
        """
        names = [name for name in PHASES if name in self.took or name in self.expected or name == self.now]
        if AGAIN in self.took or self.now == AGAIN:
            names.insert(len(names) - sum(name in ("saving", "giving back") for name in names), AGAIN)
        reached = max((PHASES.index(each) for each in (*self.took, self.now) if each in PHASES), default=-1)
        for name in names:
            is_now = name == self.now
            span = self.expected.get(name)
            seconds = self.took.get(name, 0.0) + (max(at - self.since, 0.0) if is_now else 0.0)
            has_come = is_now or name in self.took
            if not has_come and (is_over or (name in PHASES and PHASES.index(name) < reached)):
                continue  # it was passed by: an image that was there, say
            state = "now" if is_now else "done" if has_come else "ahead"
            yield PhaseLine(name, state, seconds, span, self._late_s(name, seconds, span, at))

    def _late_s(self, name: str, seconds: float, span: Span | None, at: float) -> float:
        if span is None and name == "first step":  # all steps were to be made by then
            span = self.expected.get("steps")
        if span is None and name != AGAIN:
            return 0.0
        most_s = 0.0 if span is None else span[2]
        if name == self.now == "steps" and self.left_s is not None:
            seconds += max(self.left_s - max(at - self.left_at, 0.0), 0.0)
        return seconds - most_s if seconds - most_s > LATE_S else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For the database."""
        return asdict(self)

    @classmethod
    def of_dict(cls, data: Mapping[str, Any]) -> PhaseProgress:
        """What `as_dict` has made."""
        return typed(cls, data, strict=False)
