"""What to do next about the replicas of a service: pure, without a clock, a network or a database.

Each replica is a task, and goes the way of tasks: it is placed, and restarted when its machine is lost. What
is decided here is how many there are, of which version, which of them get requests, and which have to go.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from trainmaster.control.decide.outcome import MAX_BACKOFF_S, backoff_s
from trainmaster.dataclass import dataclass, field
from trainmaster.db.changes import Change, EndpointChange, Note, ReplicaChange
from trainmaster.db.endpoint_changes import ReplicaState
from trainmaster.spec.serve import Serve
from trainmaster.spec.states import EndReason
from trainmaster.spec.units import counted

#: A proxy may send requests to a replica that drains for a moment, until it hears of it and has counted them.
LEAST_DRAIN_S: Final = 5.0
#: A replica that was healthy for so long says that its version can work: what ends it is no fault of that.
STEADY_S: Final = 60.0
#: So many replicas in a row that never were healthy, and there is no use in more of them.
MOST_FAILURES: Final = 3
#: So many of a new version, while an old one answers.
MOST_REFUSALS: Final = 2
#: A request that was turned away may come back for so long.
ASKED_S: Final = 60.0
#: Of a replica that is not healthy so long after its start it is told what its checks see.
SLOW_START_S: Final = 20.0
_TAKEN_BACK: Final = "its machine is taken back"


@dataclass(slots=True)
class Replica:
    """A replica as recorded.

    Attributes:
        number: of its task.
        version: that it has; None without a model.
        model_uri: where that is published.
        state: GONE while its task still has to end.
        attempt: whose port it is.
        node: its machine; None for that of the home.
        port: at which it listens.
        said: what the health check saw last.
        ready_at: when it was healthy for the first time, Unix seconds.
        draining_since: Unix seconds.
    """

    number: int
    version: str | None = None
    model_uri: str | None = None
    state: ReplicaState = ReplicaState.STARTING
    attempt: int = 0
    node: str | None = None
    port: int | None = None
    said: str = ""
    ready_at: float | None = None
    draining_since: float | None = None


@dataclass(slots=True)
class ServiceState:
    """A service as recorded.

    Attributes:
        experiment: that serves.
        version: that replicas are to have.
        model_uri: where that is published.
        refused: the version that did not become healthy while another one answered.
        failures: unwanted ends of replicas in a row.
        try_at: before that none is begun, Unix seconds.
        replicas: by number, those whose tasks are not over.
        demand: how many were needed of late; not recorded.
    """

    experiment: str
    version: str | None = None
    model_uri: str | None = None
    refused: str | None = None
    failures: int = 0
    try_at: float = 0.0
    replicas: dict[int, Replica] = field(default_factory=dict)
    demand: Demand = field(default_factory=lambda: Demand())

    def apply(self, change: Change) -> None:
        """Carry out one change of this service."""
        if isinstance(change, EndpointChange):
            for name, value in change.fields.items():
                setattr(self, name, value)
        elif isinstance(change, ReplicaChange):
            replica = self.replicas.setdefault(change.task, Replica(change.task))
            for name, value in change.fields.items():
                setattr(replica, name, value)


@dataclass(frozen=True, slots=True)
class ObservedReplica:
    """What was observed of a replica.

    Attributes:
        attempt: of its task now; 0 before the first.
        is_over: its task is DONE.
        reason, message: of a task that is: why.
        running_s: for how long its members run, as far as this driver knows; None if they do not.
        is_healthy: what the last health check of this attempt saw; None if there was none.
        silent_s: for how long it has not been healthy, since it was.
        said: what the last health check saw.
        in_flight: requests that proxies have with it.
        node, port: where its present attempt listens; None if that is not known (again).
        stops_in_s: its machine is about to be taken back: it is told to end after so long at the latest.
    """

    attempt: int = 0
    is_over: bool = False
    reason: EndReason | None = None
    message: str = ""
    running_s: float | None = None
    is_healthy: bool | None = None
    silent_s: float = 0.0
    said: str = ""
    in_flight: int = 0
    node: str | None = None
    port: int | None = None
    stops_in_s: float | None = None


@dataclass(slots=True)
class ServiceDecision:
    """What is to be done about a service.

    Attributes:
        changes: to commit.
        begins: how many tasks begin; their replicas are among the changes.
        ends: tasks that have to end, by number, with reason and words.
        fails: the service ends, for this reason and with these words.
    """

    changes: list[Change] = field(default_factory=list)
    begins: int = 0
    ends: dict[int, tuple[EndReason, str]] = field(default_factory=dict)
    fails: tuple[EndReason, str] | None = None


class Demand:
    """How many replicas requests have needed of late: more count at once, fewer only after a while."""

    def __init__(self) -> None:
        self._peaks: deque[tuple[float, int]] = deque()  # falling: the first is the most

    def note(self, needed: int, now: float, down_after_s: float) -> int:
        """Take in how many are needed now; the most of the last ``down_after_s``."""
        while self._peaks and self._peaks[-1][1] <= needed:
            self._peaks.pop()
        self._peaks.append((now, needed))
        while self._peaks[0][0] < now - down_after_s:
            self._peaks.popleft()
        return self._peaks[0][1]

    @property
    def is_new(self) -> bool:
        """Whether nothing is known."""
        return not self._peaks


def wanted_count(
    serve: Serve, service: ServiceState, in_flight: int, asked_ago_s: float | None, now: float
) -> int:
    """How many replicas there are to be.

    Args:
        serve: of the recipe.
        service: as recorded.
        in_flight: requests that proxies have with all of them.
        asked_ago_s: since somebody was turned away as none was ready; None if none was.
        now: Unix seconds.
    """
    if serve.scale is None:
        return serve.replicas.fewest
    needed = math.ceil(in_flight / serve.scale.in_flight)
    serving, down_after_s = _serving(service), serve.scale.down_after_s
    is_asked = asked_ago_s is not None and asked_ago_s < ASKED_S
    if is_asked or any(each.ready_at is None for each in serving):  # one that was asked for is there once
        needed = max(needed, 1)
    if service.demand.is_new:  # the driver before knew what was needed: what is there
        service.demand.note(len(serving), now, down_after_s)
    peak = service.demand.note(needed, now, down_after_s)
    return min(max(peak, serve.replicas.fewest), serve.replicas.most)


def decide_service(
    serve: Serve,
    service: ServiceState,
    seen: Mapping[int, ObservedReplica],
    wanted: int,
    next_number: int,
    now: float,
) -> ServiceDecision:
    """What follows from what was observed; ``service`` is brought up to date with every change.

    Args:
        serve: of the recipe.
        service: as recorded.
        seen: of each of its replicas, by number.
        wanted: how many there are to be.
        next_number: of the next task.
        now: Unix seconds.
    """
    turn = _DecisionBuilder(serve, service, seen, now)
    for replica in list(service.replicas.values()):
        turn.follow(replica)
    if turn.decision.fails is None:
        turn.refuse()
        turn.replace(wanted, next_number)
    for replica in service.replicas.values():
        if replica.state is ReplicaState.GONE and not seen[replica.number].is_over:
            reason = EndReason.UNHEALTHY if replica.draining_since is None else EndReason.DRAINED
            turn.decision.ends[replica.number] = (reason, replica.said)
    for number in [number for number, each in seen.items() if each.is_over]:
        service.replicas.pop(number, None)
    return turn.decision


class _DecisionBuilder:
    """One decision in the making."""

    def __init__(
        self, serve: Serve, service: ServiceState, seen: Mapping[int, ObservedReplica], now: float
    ) -> None:
        self.decision = ServiceDecision()
        self._serve, self._service, self._seen, self._now = serve, service, seen, now
        self._failed: Replica | None = None

    def follow(self, replica: Replica) -> None:
        """What was observed of one replica."""
        seen, serve = self._seen[replica.number], self._serve
        if replica.state is ReplicaState.GONE:
            return
        if seen.is_over:
            self._over(replica, seen)
            return
        draining = replica.state is ReplicaState.DRAINING
        moved: dict[str, object] = {
            name: getattr(seen, name)
            for name in ("attempt", "node", "port")
            if getattr(seen, name) is not None and getattr(seen, name) != getattr(replica, name)
        }
        if "attempt" in moved:  # of the one before it
            moved |= {"port": seen.port, "node": seen.node}
        if seen.running_s is None and draining:
            moved |= {"state": ReplicaState.GONE}
        elif seen.running_s is None and replica.state is ReplicaState.READY:
            self._note(f"replica {replica.number} does not run any more: it begins anew, or is replaced")
            moved |= {"state": ReplicaState.STARTING}
        if moved:
            self._write(replica, **moved)
        if replica.state is ReplicaState.DRAINING:
            self._drain(replica, seen)
        elif replica.state is ReplicaState.STARTING and seen.is_healthy and replica.port is not None:
            self._ready(replica)
        elif replica.state is ReplicaState.STARTING and (seen.running_s or 0.0) >= serve.start_s:
            said = f"it was not healthy within {serve.start_s:g} s: {seen.said or 'nothing was heard of it'}"
            self._fail(replica, EndReason.UNHEALTHY, said)
        elif replica.state is ReplicaState.STARTING and (seen.running_s or 0.0) >= SLOW_START_S:
            if seen.said and seen.said != replica.said:
                if not replica.said:
                    self._note(f"replica {replica.number} is not healthy yet: {seen.said}")
                self._write(replica, said=seen.said)
        elif replica.state is ReplicaState.READY and seen.silent_s >= serve.hang_s:
            said = f"it has not been healthy for {seen.silent_s:.0f} s: {seen.said}"
            self._fail(replica, EndReason.UNHEALTHY, said)

    def refuse(self) -> None:
        """A new version that does not become healthy is given up while another one answers."""
        service, failed = self._service, self._failed
        if failed is None or failed.version != service.version or failed.ready_at is not None:
            return
        old = self._other_version()
        if old is not None and service.failures >= MOST_REFUSALS and service.refused != service.version:
            self._change(refused=service.version, failures=0, try_at=0.0)
            self._note(f"{service.version} did not become healthy: {failed.said}; {old.version} goes on")

    def replace(self, wanted: int, next_number: int) -> None:
        """Begin replicas that are missing, and drain those that are too many or of another version."""
        service = self._service
        version, model_uri = self._target()
        leaving = [each for each in _serving(service) if self._seen_of(each).stops_in_s is not None]
        serving = [each for each in _serving(service) if each not in leaving]
        self._leave(
            leaving, is_needed=wanted > 0 and all(each.state is not ReplicaState.READY for each in serving)
        )
        new = [each for each in serving if each.version == version]
        old = [each for each in serving if each.version != version]
        ready = sum(each.state is ReplicaState.READY for each in new)
        if self._serve.model is None or version is not None:
            # One more than wanted, for the time of a change: so many machines there are.
            room = wanted + 1 - len(service.replicas)
            if self._serve.port:  # one that ends may still listen there, and whatever follows it is refused
                room -= any(
                    each.state is ReplicaState.GONE and not self._seen_of(each).is_over
                    for each in service.replicas.values()
                )
            missing = min(wanted - len(new), room) if self._may_begin() else 0
            for number in range(next_number, next_number + max(missing, 0)):
                begun = {"version": version, "model_uri": model_uri, "state": ReplicaState.STARTING}
                self._write(Replica(number), **begun)
                self.decision.begins += 1
        self._let_go(new, max(len(new) - wanted, 0), "there are more than are needed")
        refused = [each for each in old if each.version == service.refused]
        self._let_go(refused, len(refused), f"{version} goes on")
        old = [each for each in old if each.version != service.refused]
        self._let_go(old, len(old) - max(wanted - ready, 0), f"{version} takes its place")

    def _leave(self, leaving: Sequence[Replica], *, is_needed: bool) -> None:
        """Machines are taken back: what is there goes on while time lasts, if no other replica answers."""
        last_s = max(self._serve.drain_s, LEAST_DRAIN_S)
        for replica in leaving:
            is_ready = replica.state is ReplicaState.READY
            if not is_needed or (self._seen_of(replica).stops_in_s or 0.0) <= last_s:
                self._let_go([replica], 1, _TAKEN_BACK)
                if is_ready:
                    self._note(f"replica {replica.number} drains: {_TAKEN_BACK}")
            elif is_ready and replica.said != _TAKEN_BACK:
                self._write(replica, said=_TAKEN_BACK)
                self._note(f"replica {replica.number} goes on until another one is ready: {_TAKEN_BACK}")

    def _may_begin(self) -> bool:
        # The driver before may have had a clock that was ahead.
        return not self._now < self._service.try_at <= self._now + MAX_BACKOFF_S

    def _target(self) -> tuple[str | None, str | None]:
        """Which version new replicas get."""
        service = self._service
        if service.refused is None or service.refused != service.version:
            return service.version, service.model_uri
        old = self._other_version()
        if old is None:  # the one that answered is gone, too
            self._change(refused=None)
            return service.version, service.model_uri
        return old.version, old.model_uri

    def _other_version(self) -> Replica | None:
        """The newest replica of another version than is wanted; one that takes requests if there is one."""
        other = [each for each in _serving(self._service) if each.version != self._service.version]
        return max(other, key=lambda each: (each.state is ReplicaState.READY, each.number), default=None)

    def _let_go(self, replicas: Sequence[Replica], count: int, why: str) -> None:
        """Of replicas, first those that get no requests, then the least busy."""
        order = sorted(
            replicas,
            key=lambda each: (
                each.state is ReplicaState.READY, self._seen_of(each).in_flight, -each.number
            ),
        )  # fmt: skip
        for replica in order[: max(count, 0)]:
            if replica.state is ReplicaState.READY:
                self._write(replica, state=ReplicaState.DRAINING, draining_since=self._now, said=why)
            else:
                self._write(replica, state=ReplicaState.GONE, draining_since=self._now, said=why)

    def _drain(self, replica: Replica, seen: ObservedReplica) -> None:
        # A clock may have been ahead, or behind, of ours.
        since = min(replica.draining_since or self._now, self._now)
        drained_s = self._now - since
        if drained_s >= max(self._serve.drain_s, LEAST_DRAIN_S):
            if seen.in_flight:
                self._note(
                    f"replica {replica.number} ends with "
                    f"{counted(seen.in_flight, 'request')} in flight: it had {self._serve.drain_s:g} s"
                )
            self._write(replica, state=ReplicaState.GONE)
        elif drained_s >= LEAST_DRAIN_S and not seen.in_flight:
            self._write(replica, state=ReplicaState.GONE)

    def _ready(self, replica: Replica) -> None:
        self._write(replica, state=ReplicaState.READY, ready_at=replica.ready_at or self._now, said="")
        of = f" ({replica.version})" if replica.version else ""
        self._note(f"replica {replica.number}{of} is ready")

    def _over(self, replica: Replica, seen: ObservedReplica) -> None:
        """Its task is DONE although its end was not wanted here."""
        if replica.state is ReplicaState.DRAINING:
            self._write(replica, state=ReplicaState.GONE)
            return
        how = f"{seen.reason or 'it has ended'}{f': {seen.message}' if seen.message else ''}"
        if seen.reason is EndReason.SUCCEEDED:
            how = "its command has ended, with exit code 0"
        self._fail(replica, seen.reason or EndReason.INTERNAL, how)

    def _fail(self, replica: Replica, reason: EndReason, said: str) -> None:
        """It is replaced, later each time."""
        service, now = self._service, self._now
        was_steady = replica.ready_at is not None and now - replica.ready_at >= STEADY_S
        self._write(replica, state=ReplicaState.GONE, said=said)
        failures = 1 if was_steady else service.failures + 1
        self._change(failures=failures, try_at=now + backoff_s(failures))
        self._failed = replica
        never = replica.ready_at is None and not any(each.ready_at for each in _serving(service))
        if never and failures >= MOST_FAILURES:
            ended = EndReason.UNHEALTHY if reason is EndReason.SUCCEEDED else reason
            words = f"{failures} replicas in a row did not become healthy, the last: {said}"
            self.decision.fails = (ended, words)
        else:
            self._note(f"replica {replica.number} is replaced: {said}")

    def _seen_of(self, replica: Replica) -> ObservedReplica:
        return self._seen.get(replica.number, ObservedReplica())

    def _write(self, replica: Replica, **fields: object) -> None:
        self._keep(ReplicaChange(self._service.experiment, replica.number, fields))

    def _change(self, **fields: object) -> None:
        self._keep(EndpointChange(self._service.experiment, fields))

    def _note(self, text: str) -> None:
        self._keep(Note(text, self._service.experiment))

    def _keep(self, change: Change) -> None:
        self._service.apply(change)
        self.decision.changes.append(change)


def _serving(service: ServiceState) -> list[Replica]:
    """Those that take requests, or will."""
    return [
        each
        for each in service.replicas.values()
        if each.state in (ReplicaState.STARTING, ReplicaState.READY)
    ]
