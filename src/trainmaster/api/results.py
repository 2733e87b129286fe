"""What a run's questions are answered with: frozen, and the same values as the command line's JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.advisor.quote.interval import Interval
from trainmaster.dataclass import dataclass, field
from trainmaster.spec.errors import UsageError
from trainmaster.spec.plain_json import typed
from trainmaster.spec.states import EndReason, State

if TYPE_CHECKING:
    from trainmaster.advisor.quote.quote import Quote


@dataclass(frozen=True, slots=True)
class ExperimentStatus:
    """How far an experiment is.

    Attributes:
        state: WAITING, RUNNING, STOPPING or DONE.
        reason: why it ended; None before.
        message: what went wrong, or empty.
        tasks: how many of its tasks are ``succeeded``, ``failed``, ``running``, ``waiting``, ``pruned``,
            ``skipped`` or ``cancelled``, and ``total``.
        best: of a search, the best task: ``task``, ``value`` and ``parameters``; None without.
    """

    state: State
    reason: EndReason | None
    message: str
    tasks: Mapping[str, int]
    best: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RunQuote:
    """What was promised for a run, and whether it was kept.

    Attributes:
        kind: ``binding``, or ``estimate`` while too little is known of the job.
        time_s: seconds.
        cost_usd: US dollars.
        measurements: how many it rests on.
        kept: None before the run has ended.
    """

    kind: str
    time_s: Interval
    cost_usd: Interval
    measurements: int
    kept: bool | None


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One run, as ``trainmaster status RUN --json`` has it.

    Attributes:
        run: its id.
        state: WAITING, RUNNING, STOPPING or DONE.
        reason: why it ended; None before.
        message: what went wrong, or empty.
        seconds: how long it has been driven.
        cost_usd: US dollars until now.
        experiments: by name, in the recipe's order.
        quote: None while nothing is promised.
        json: the whole object.
    """

    run: str
    state: State
    reason: EndReason | None
    message: str
    seconds: float
    cost_usd: float
    experiments: Mapping[str, ExperimentStatus]
    quote: RunQuote | None
    json: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> RunStatus:
        """From the JSON object of ``status``."""
        experiments = {name: {"message": "", **each} for name, each in found["experiments"].items()}
        said = {"message": "", "quote": None, **found, "experiments": experiments}
        return typed(cls, {**said, "json": found}, strict=False)


@dataclass(frozen=True, slots=True)
class Model:
    """What a task left in ``TRAINMASTER_OUTPUT_DIR``.

    Attributes:
        run: id of the run.
        experiment: its name.
        task: its number.
        uri: where it is on the object store.
        metrics: the last values that the task reported.
        parameters: those of the task.
    """

    run: str
    experiment: str
    task: int
    uri: str
    metrics: Mapping[str, Any]
    parameters: Mapping[str, Any]

    def download(self, directory: str | os.PathLike[str]) -> Path:
        """Fetch its files, and compare their hashes.

        Args:
            directory: where to; empty, or not there yet.

        Returns:
            The directory.

        Raises:
            NotFoundError: the model is not on the store any more.
            UsageError: the directory is not empty.
            PublishError: a file is missing or damaged, or the store fails; nothing was changed.
        """
        from trainmaster.artifacts import fetch

        place = Path(directory)
        fetch(self.uri, place)
        return place


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a run.

    Attributes:
        id: grows with time, also over runs.
        at: seconds since 1970.
        kind: ``run``, ``experiment``, ``task`` or ``note``.
        before: the state until then; None if it is no change of a state.
        after: the state since then; None if it is no change of a state.
        reason: why it ended; None if it did not end.
        message: for people; may be empty.
        experiment: None if it is about the whole run.
        task: None if it is about no single task.
        attempt: None if it is about no single attempt.
    """

    id: int
    at: float
    kind: str
    before: State | None
    after: State | None
    reason: EndReason | None
    message: str
    experiment: str | None
    task: int | None
    attempt: int | None

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Event:
        """From a row of the database."""
        states = {key: found[key] and State(found[key]) for key in ("before", "after")}
        named = {**found, **states, "reason": _reason(found)}
        return cls(**{name: named[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run would rent and cost.

    Attributes:
        id: to be accepted by.
        provider: of the machines.
        most_usd_per_hour: to be agreed to; 0 if nothing is to be paid.
        lines: the machines, their price and what is to be expected, for people.
        notes: what was decided for the user, and what to know of it.
        quote: what is to be expected; None where nothing is known.
    """

    id: str
    provider: str
    most_usd_per_hour: float = 0.0
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    quote: Quote | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """A run that is written down, and is to be driven.

    Attributes:
        run: its id.
        notes: what the user may want to know.
        rents: it has machines that say themselves when they are lost.
        server: URL of the server that drives it in any case; empty if it is to be driven from here.
        moves: its first machine drives it as soon as that is there.
    """

    run: str
    notes: tuple[str, ...]
    rents: bool
    server: str = ""
    moves: bool = False


@dataclass(frozen=True, slots=True)
class Downloaded:
    """What was downloaded, and proved by its hashes.

    Attributes:
        files: how many.
        total_bytes: of all.
    """

    files: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Watched:
    """What happened to a run since the last look.

    Attributes:
        events: may be none.
        brief: its line in the list of runs.
        rents: it has machines that say themselves when they are lost.
    """

    events: tuple[Event, ...]
    brief: Mapping[str, Any]
    rents: bool


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which logs of a run.

    Attributes:
        follow: go on until the run has ended.
        experiment: only this one.
        task: only this number.
        member: only this one, such as ``worker-0``.
        tail: only so many last lines of each member.
        grep: only lines with this regular expression.
        since: only what was written since so long ago, such as ``5m``.
        system: instead what operating systems of machines said, ``member`` being one; not followed.
        attempt: only this number.

    Raises:
        UsageError: that is to be followed.
    """

    follow: bool = False
    experiment: str | None = None
    task: int | None = None
    member: str | None = None
    tail: int | None = None
    grep: str | None = None
    since: str | None = None
    system: bool = False
    attempt: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be had."""
        if self.follow and self.system:
            raise UsageError(
                "what an operating system says is not followed", "Leave one of --follow and --system out."
            )


def _reason(found: Mapping[str, Any]) -> EndReason | None:
    return None if found["reason"] is None else EndReason(found["reason"])
