"""The quote: a cluster with time and price as intervals, and what it rests on."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainmaster.advisor.model.measurement import Measurement
from trainmaster.advisor.quote.interval import Interval
from trainmaster.advisor.quote.quoted_target import QuotedTarget
from trainmaster.advisor.quote.unknown_time import UnknownTime
from trainmaster.dataclass import dataclass, field
from trainmaster.providers import Offer
from trainmaster.spec.log_normal import LogNormal
from trainmaster.spec.plain_json import JsonObject, plain, typed
from trainmaster.spec.redaction import redacted
from trainmaster.spec.units import counted, dollars, format_duration


@dataclass(frozen=True, slots=True)
class Rented(JsonObject):
    """Machines of one role.

    Attributes:
        instance: type. count: how many machines. spot: whether they may be taken back.
        provider, region: where. usd_per_hour: of one.
    """

    instance: str
    count: int
    spot: bool = False
    provider: str = ""
    region: str = ""
    usd_per_hour: float = 0.0

    @classmethod
    def of(cls, offer: Offer, count: int) -> Rented:
        """So many machines of an offer."""
        price = offer.price_usd_per_hour
        return cls(offer.instance_type, count, offer.spot, offer.provider, offer.region, price)


@dataclass(frozen=True, slots=True)
class ClusterShape(JsonObject):
    """What to rent for one experiment.

    Attributes:
        worker: the workers' machines. server: those of parameter servers; None without.
        workers: training processes of one task. at_once: tasks that run at the same time.
    """

    worker: Rented
    server: Rented | None = None
    workers: int = 1
    at_once: int = 1

    @property
    def usd_per_hour(self) -> float:
        """Of all its machines."""
        total = self.worker.usd_per_hour * self.worker.count
        return total + (self.server.usd_per_hour * self.server.count if self.server else 0.0)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "worker": {**self.worker.as_dict(), "processes": self.workers},
            "parameter_server": plain(self.server),
            "tasks_at_once": self.at_once,
            "usd_per_hour": round(self.usd_per_hour, 6),
        }

    def words(self) -> str:
        """For people: ``2 x g3.4xlarge + 1 x m4.large (parameter server)``.

        >>> ClusterShape(Rented("g3.4xlarge", 2, True), Rented("m4.large", 1)).words()
        '2 x g3.4xlarge (spot) + 1 x m4.large (parameter server)'
        """
        text = f"{self.worker.count} x {self.worker.instance}{' (spot)' if self.worker.spot else ''}"
        if self.server:
            text += f" + {self.server.count} x {self.server.instance} (parameter server)"
        return text


@dataclass(frozen=True, slots=True)
class Alternative(JsonObject):
    """A cluster on the Pareto front: medians."""

    cluster: ClusterShape
    time_s: float
    cost_usd: float


@dataclass(frozen=True, slots=True)
class ExplainedPhase(JsonObject):
    """A phase of what one waits for.

    Attributes:
        name: ``machines``, ``image``, ``setup``, ``data``, ``staging``, ``first step``, ``steps``,
            ``learning curve`` (steps beyond the earliest that the target may be reached), ``pauses``,
            ``end of the tasks``, ``interruptions``, ``saving`` or ``giving back``.
        time_s: that it takes.
        doubt: its share of the doubt about the whole time.
    """

    name: str
    time_s: Interval
    doubt: float

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"phase": self.name, "time_s": self.time_s.as_dict(), "doubt": round(self.doubt, 4)}


@dataclass(frozen=True, slots=True)
class MoreMeasuring(JsonObject):
    """What a minute of the job on one machine would make of the interval.

    Attributes:
        instance: the machine. seconds: with what comes before the minute. cost_usd: of that.
        now_s, then_s: the time as it is known, and as it would be if the median stays.
    """

    instance: str
    seconds: float
    cost_usd: float
    now_s: Interval
    then_s: Interval


@dataclass(frozen=True, slots=True)
class NextMeasurement(JsonObject):
    """The measurement that would narrow the quote most.

    Attributes:
        workers: processes of the shape to measure. instance: on what.
        seconds: it would take. cost_usd: it would cost.
        width_now, width_then: p95 over p50 of the step time, now and as expected after it.
        time_s: the experiment's time as it would then be known, if the median stays.
    """

    workers: int
    instance: str
    seconds: float
    cost_usd: float
    width_now: float
    width_then: float
    time_s: Interval | None = None

    def to_measure(self, cluster: ClusterShape) -> dict[str, Any]:
        """Its machines, for `Quote.to_measure`: those of the quoted cluster, for one task of so many workers.

        >>> quoted = ClusterShape(Rented("m4.large", 3), Rented("t2.small", 1), workers=6)
        >>> point = NextMeasurement(2, "m4.large", 70.0, 0.01, 2.0, 1.5).to_measure(quoted)
        >>> point["processes"], point["machines"]
        (2, {'m4.large': 1, 't2.small': 1})
        >>> sweep = ClusterShape(Rented("m4.large", 8), workers=1, at_once=8)
        >>> NextMeasurement(1, "m4.large", 70.0, 0.01, 2.0, 1.5).to_measure(sweep)["machines"]
        {'m4.large': 1}
        """
        worker, server = cluster.worker, cluster.server
        of_all = cluster.workers * cluster.at_once
        machines = {worker.instance: math.ceil(self.workers * worker.count / of_all)}
        usd = {worker.instance: worker.usd_per_hour}
        if server is not None:
            of_one = math.ceil(server.count / cluster.at_once)
            machines[server.instance] = machines.get(server.instance, 0) + of_one
            usd[server.instance] = server.usd_per_hour
        return {
            "workers": [worker.instance],
            "servers": [server.instance] if server is not None else [],
            "processes": self.workers,
            "machines": machines,
            "seconds": round(self.seconds, 1),
            "usd_per_hour": usd,
            "traffic_mbps": {},
            "traffic": False,
        }


@dataclass(frozen=True)
class Types(JsonObject):
    """What one of FC2's policies chose from.

    Attributes:
        workers, servers: instance types (the paper's L^w and L^p); servers in the order they are tried.
        usd_per_hour: of each of them.
        traffic_mbps: of one worker (its b_t), of those where it is known.
        provider: whose they are, if that is known.
    """

    workers: tuple[str, ...]
    servers: tuple[str, ...]
    traffic_mbps: Mapping[str, float] = field(default_factory=dict)
    usd_per_hour: Mapping[str, float] = field(default_factory=dict)
    provider: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {name: each for name, each in JsonObject.as_dict(self).items() if each or name != "provider"}


@dataclass(frozen=True)
class ExperimentQuote(JsonObject):
    """Of one experiment.

    Attributes:
        name: of the experiment.
        cluster: what to rent.
        time_s, cost_usd: of the whole experiment; None where that is not known.
        step_s: of one step; None without steps.
        bottleneck: what limits it, in words; empty if unknown.
        pareto: clusters that none beats in both time and cost, fastest first.
        memory_headroom: share of the memory (of a device, else of a node) that stays free; None if unknown.
        measurements: how many the quote rests on. similar: how many of them are of similar jobs.
        next_measurement: None if nothing is worth measuring.
        candidates: how many clusters were compared.
        notes: what the user should know.
        fingerprint: of what it rests on.
        measured: the measurements themselves.
        types: of a policy of FC2.
        phases: where the time goes, and where the doubt comes from.
        more_measuring: what a minute on one machine would buy; None if next to nothing.
        target: when it is reached; None without one.
        attempt_s: of one attempt at a task, from the start of its members; None if unknown.
        end_usd: what its run keeps of ``budget.total`` for its end beside its cost, at the highest prices.
    """

    name: str
    cluster: ClusterShape
    time_s: Interval | None = None
    cost_usd: Interval | None = None
    step_s: Interval | None = None
    bottleneck: str = ""
    pareto: tuple[Alternative, ...] = ()
    memory_headroom: float | None = None
    measurements: int = 0
    similar: int = 0
    next_measurement: NextMeasurement | None = None
    candidates: int = 0
    notes: tuple[str, ...] = ()
    fingerprint: str = ""
    measured: tuple[Measurement, ...] = ()
    types: Types | None = None
    phases: tuple[ExplainedPhase, ...] = ()
    more_measuring: MoreMeasuring | None = None
    target: QuotedTarget | None = None
    attempt_s: Interval | None = None
    end_usd: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        told = JsonObject.as_dict(self)
        told["step_time_s"] = told.pop("step_s")
        silent = {"name", "attempt_s", "end_usd", *(name for name in ("types", "target") if not told[name])}
        return {name: each for name, each in told.items() if name not in silent}


@dataclass(frozen=True, slots=True)
class QuotedQueue(JsonObject):
    """How long machines wait in their provider's queue: before all that is quoted, and no part of it.

    Attributes:
        time_s: None if nothing is known. reckoned_s: as the provider reckons now; None if it does not.
        seen: how many earlier waits are known. ranks: how the provider ranks what waits there now.
        holders: who holds the hosts that are waited for; empty where there is a queue.
    """

    time_s: Interval | None = None
    reckoned_s: float | None = None
    seen: int = 0
    ranks: str = ""
    holders: str = ""

    @classmethod
    def of(cls, reckoned_s: float | None, seen: Sequence[float], ranks: str = "") -> QuotedQueue:
        """By what the provider reckons now, else by earlier waits, in seconds.

        >>> QuotedQueue.of(None, [60.0, 60.0]).words, QuotedQueue.of(None, []).words
        ('1 min (33 s to 1 min 49 s) in the queue, by 2 earlier jobs', 'in the queue: unknown')
        >>> QuotedQueue.of(None, [], "2 jobs wait there").words
        'in the queue: unknown (2 jobs wait there)'
        """
        if reckoned_s is None and not seen:
            return cls(ranks=ranks)
        first = max(seen[0] if reckoned_s is None else reckoned_s, 1.0)
        belief = LogNormal(first, 1.0, 0.3).learnt(seen if reckoned_s is None else ())
        return cls(Interval(*belief.quantiles), reckoned_s, len(seen), ranks)

    @property
    def words(self) -> str:
        """For people."""
        if self.holders:
            long = "nothing says how long" if self.time_s is None else self.time_s.words(format_duration)
            return f"for hosts that others hold, {long} ({self.holders})"
        ranks = f" ({self.ranks})" if self.ranks else ""
        if self.time_s is None:
            return f"in the queue: unknown{ranks}"
        jobs = f"{counted(self.seen, 'earlier job')}"
        source = f"by {jobs}" if self.reckoned_s is None else "as its scheduler reckons now"
        return f"{self.time_s.words(format_duration)} in the queue, {source}{ranks}"

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {**JsonObject.as_dict(self), "words": self.words}


@dataclass(frozen=True)
class Quote(JsonObject):
    """Of a whole recipe.

    Attributes:
        experiments: by name, in the order of the recipe.
        time_s, cost_usd: of the run: the critical path, and the sum; None where that is not known. Of a run
            of which not all is quoted they are of the rest: see `without`.
        policy: that decided. catalogue: where the prices are from. as_of: of what day they are.
        not_quoted: experiments that could not be measured, and why.
        notes: what the user should know.
        to_measure: what of `not_quoted` can be measured first, and which point would narrow the rest, on
            which machines; see `measuring_runs`.
        queue: what is waited for machines before; None where there is no queue.
        places: all places of a recipe that names several, with what each would take; else empty.
        unknown: what can be said where nothing is known of its jobs, in place of time and cost.
        end_usd: what its run keeps of ``budget.total`` beside its cost, for its end: with less it is ended.
        warm: experiments that are quoted on machines which an earlier run has kept.
    """

    experiments: Mapping[str, ExperimentQuote]
    time_s: Interval | None
    cost_usd: Interval | None
    policy: str = "quote"
    catalogue: str = ""
    as_of: str = ""
    not_quoted: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    to_measure: Mapping[str, Any] = field(default_factory=dict)
    queue: QuotedQueue | None = None
    places: tuple[PlaceRow, ...] = ()
    unknown: UnknownTime | None = None
    end_usd: float = 0.0
    warm: tuple[str, ...] = ()

    @property
    def without(self) -> str:
        """What of the run is not in its time and cost, in words; empty if all is.

        >>> Quote({}, None, None, not_quoted={"train": "it comes after 'prep'"}).without
        'without train'
        """
        return f"without {' and '.join(self.not_quoted)}" if self.not_quoted else ""

    @property
    def is_unknown(self) -> bool:
        """Nothing is known of its jobs, so it has neither time nor cost."""
        return self.unknown is not None

    @property
    def main(self) -> ExperimentQuote:
        """The only or dearest experiment; where nothing costs, the longest."""

        def weight(quote: ExperimentQuote) -> tuple[float, float]:
            cost = quote.cost_usd.p50 if quote.cost_usd else quote.cluster.usd_per_hour
            return cost, quote.time_s.p50 if quote.time_s else 0.0

        return max(self.experiments.values(), key=weight)

    def as_dict(self) -> dict[str, Any]:
        """What ``quote --json`` prints: at the top the only or dearest experiment, ``total`` is the run."""
        return {
            **self.main.as_dict(),
            "experiment": self.main.name,
            "experiments": {name: quote.as_dict() for name, quote in self.experiments.items()},
            "total": {
                "time_s": plain(self.time_s),
                "cost_usd": plain(self.cost_usd),
                **({"end_usd": round(self.end_usd, 6)} if self.end_usd else {}),
                **({"without": list(self.not_quoted)} if self.not_quoted and self.time_s else {}),
            },
            "policy": self.policy,
            "catalogue": self.catalogue,
            "as_of": self.as_of,
            "not_quoted": dict(self.not_quoted),
            **({"to_measure": dict(self.to_measure)} if self.to_measure else {}),
            **({"queue": self.queue.as_dict()} if self.queue else {}),
            **({"places": plain(self.places)} if self.places else {}),
            **({"unknown": self.unknown.as_dict()} if self.unknown else {}),
            **({"warm": list(self.warm)} if self.warm else {}),
            "warnings": list(self.notes),
        }

    def to_json(self) -> str:
        """`as_dict` as the line that ``trainmaster quote --json`` prints."""
        return redacted(json.dumps(self.as_dict(), allow_nan=False))


@dataclass(frozen=True, slots=True)
class PlaceRow(JsonObject):
    """A place with its quote, if one can be made.

    Attributes:
        place: the provider.
        machines: in words: the quoted cluster, else what is asked for; empty if it would give none.
        usd_per_hour: of all of them.
        time_s, cost_usd: of the run, without its wait; None without a quote.
        is_unknown: nothing is known of the job, so there is neither time nor cost.
        wait: until they begin to start, in words; empty if it does not wait.
        is_taken: the run, or a part of it, is there.
        tasks: of each experiment that runs there, where the run is in several places.
        why_not: why it is not taken; empty if it is.
        no_quote: why there is no quote; empty if there is one, or it would give nothing.
    """

    place: str
    machines: str = ""
    usd_per_hour: float = 0.0
    time_s: Interval | None = None
    cost_usd: Interval | None = None
    is_unknown: bool = False
    wait: str = ""
    is_taken: bool = False
    why_not: str = ""
    no_quote: str = ""
    tasks: Mapping[str, int] = field(default_factory=dict)

    @property
    def taken_for(self) -> str:
        """What of the run is there, for people; empty if all of it is.

        >>> PlaceRow("hosts", tasks={"train": 4, "test": 1}).taken_for
        '4 tasks of train and 1 task of test'
        """
        return " and ".join(f"{counted(n, 'task')} of {name}" for name, n in self.tasks.items())

    def quoted(self, quote: Quote) -> PlaceRow:
        """With the quote of that place.

        What is unknown is quoted with the fewest machines, and runs on those that the place would give.
        """
        clusters = dict.fromkeys(one.cluster.words() for one in quote.experiments.values())
        return replace(
            self,
            machines=self.machines if quote.is_unknown and self.machines else " and ".join(clusters),
            time_s=quote.time_s,
            cost_usd=quote.cost_usd,
            is_unknown=quote.is_unknown,
            wait=quote.queue.words if quote.queue is not None else self.wait,
        )

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """For people: the place, its machines, time, price; its wait, and why it is not taken."""
        time = "not known" if self.is_unknown else "no quote"
        usd = f"${self.usd_per_hour:.4g} an hour" if self.machines else ""
        if self.time_s is not None:
            time = self.time_s.words(format_duration)
        if self.is_unknown and not self.usd_per_hour:
            usd = "$0"
        if self.cost_usd is not None:
            usd = self.cost_usd.words(dollars) if self.cost_usd.p95 else "$0"
        taken = f"taken: {self.taken_for}" if self.tasks else "taken"
        said = [taken if self.is_taken else f"no: {self.why_not}"]
        said += [f"waits {self.wait}" if self.wait[:1].isdigit() else self.wait] * bool(self.wait)
        said += [f"no quote: {self.no_quote}"] * bool(self.no_quote)
        return self.place, self.machines, time if self.machines else "", usd, "; ".join(said)

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> PlaceRow:
        """From `as_dict` of this version or another one."""
        return typed(cls, found, strict=False)
