"""`Services`: looks after the services of a run: what was observed, and what becomes of what is decided.

It decides nothing (`decide_service`) and keeps nothing of its own: a driver that takes over reads the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from trainmaster.control.decide.service import (
    ObservedReplica,
    Replica,
    ServiceDecision,
    ServiceState,
    decide_service,
    wanted_count,
)
from trainmaster.control.loop.health import HealthChecks, ProbeHistory
from trainmaster.control.loop.run_state import ExperimentState, RunState, Task
from trainmaster.control.task.layout import attempt_id
from trainmaster.dataclass import dataclass, field
from trainmaster.db.changes import Change, EndpointChange, ExperimentChange, Note
from trainmaster.db.endpoint_changes import ReplicaState
from trainmaster.executors.base import GangStatus, Phase
from trainmaster.spec.serve import Serve
from trainmaster.spec.states import EndReason, State

#: How often it is read what proxies have in flight, and what the alias of a model means.
LOADS_S: Final = 1.0
MODEL_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Load:
    """What proxies tell of a service.

    Attributes:
        in_flight: requests with each replica, by number.
        asked_ago_s: since somebody was turned away as none was ready; None if none was.
    """

    in_flight: Mapping[int, int] = field(default_factory=dict)
    asked_ago_s: float | None = None


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a service's model means now.

    Attributes:
        version: such as ``digits@4``.
        uri: where it is published.
    """

    version: str
    uri: str


class ServiceSurroundings(Protocol):
    """What services need of their surroundings; see `trainmaster.service.endpoints.service_surroundings`."""

    def load(self, experiment: str) -> Load:
        """What proxies tell."""

    def model(self, experiment: str) -> ServedModel | str:
        """What the service's model means now, or why that is not known."""

    def node(self, attempt: str, member: str) -> str | None:
        """The machine of a member; None if that is the home's."""

    def need(self, experiment: str, replicas: int) -> None:
        """A service that is scaled has so many replicas: there may be machines for no more."""

    def stops_in_s(self, attempt: str) -> float | None:
        """After how long an attempt is told to end as its machine is taken back; None if it is not."""

    def reach(self, attempt: str, member: str, port: int) -> AbstractContextManager[tuple[str, int]]:
        """Host and port here that lead to a port of a member, while inside ``with``."""


class Services:
    """The services of one run.

    Args:
        run: its id.
        serves: those of its experiments that are services.
        members: name of the member of each service's tasks that listens.
        states: as recorded.
        surroundings: what surrounds them.
        checks: of their health.

    Attributes:
        ends: tasks that have to end, with reason and words.
    """

    def __init__(
        self,
        run: str,
        serves: Mapping[str, Serve],
        members: Mapping[str, str],
        states: Mapping[str, ServiceState],
        surroundings: ServiceSurroundings,
        checks: HealthChecks,
    ) -> None:
        self._run, self._serves, self._members, self._states = run, serves, members, states
        self._surroundings, self._checks = surroundings, checks
        self._models = {
            (name, number): (each.version, each.model_uri)
            for name, state in states.items()
            for number, each in state.replicas.items()
        }
        self._loads: dict[str, Load] = {}
        self._loaded_at = self._asked_at = float("-inf")
        self._untold: dict[str, str] = {}
        self.ends: dict[tuple[str, int], tuple[EndReason, str]] = {}

    def look(self, run_state: RunState, gangs: Mapping[str, GangStatus], now: float) -> list[Change]:
        """What follows from what is observed now; all of it has to be committed, with the tasks that begin.

        Args:
            run_state: the run; its services get room for the tasks that begin.
            gangs: what is known of attempts.
            now: Unix seconds.
        """
        serving = [run_state.experiments[name] for name in self._serves]
        serving = [each for each in serving if each.state is State.RUNNING]
        if not serving:
            return []
        if now - self._loaded_at >= LOADS_S:
            self._loaded_at = now
            self._loads = {each.name: self._surroundings.load(each.name) for each in serving}
        asks = now - self._asked_at >= MODEL_S
        if asks:
            self._asked_at = now
        changes: list[Change] = []
        for experiment in serving:
            if asks and self._serves[experiment.name].model is not None:
                changes += self._follow_model(experiment.name)
            changes += self._look(experiment, gangs, now)
        return changes

    def model_of(self, experiment: str, number: int) -> tuple[str | None, str | None]:
        """Version and place of the model that a replica has."""
        return self._models.get((experiment, number), (None, None))

    def forget(self, experiment: str, number: int, attempt: int) -> None:
        """An attempt is over."""
        self._checks.forget(attempt_id(self._run, experiment, number, attempt))
        self.ends.pop((experiment, number), None)

    def close(self) -> None:
        """Stop asking."""
        self._checks.close()

    def _follow_model(self, name: str) -> list[Change]:
        """New replicas get what the alias means now."""
        state, serve = self._states[name], self._serves[name]
        if state.version is not None and not serve.follows_alias:
            return []
        found = self._surroundings.model(name)
        if isinstance(found, str):
            if self._untold.get(name) == found:
                return []
            self._untold[name] = found
            goes_on = f"; {state.version} goes on" if state.version else ""
            return [Note(f"{found}{goes_on}", name)]
        self._untold.pop(name, None)
        if found.version == state.version:
            return []
        fresh = {"refused": None, "failures": 0, "try_at": 0.0}
        fields = {"version": found.version, "model_uri": found.uri, **fresh}
        changes: list[Change] = [EndpointChange(name, fields)]
        if state.version is not None:
            told = f"{serve.model} means {found.version} now, and no more {state.version}"
            changes.append(Note(told, name))
        for change in changes:
            state.apply(change)
        return changes

    def _look(self, experiment: ExperimentState, gangs: Mapping[str, GangStatus], now: float) -> list[Change]:
        name = experiment.name
        serve, state, load = self._serves[name], self._states[name], self._loads.get(name, Load())
        seen = {
            number: self._seen(replica, experiment, gangs, load.in_flight.get(number, 0), now)
            for number, replica in state.replicas.items()
        }
        wanted = wanted_count(serve, state, sum(load.in_flight.values()), load.asked_ago_s, now)
        decision = decide_service(serve, state, seen, wanted, experiment.created, now)
        if serve.scale is not None:
            staying = sum(each not in seen or seen[each].stops_in_s is None for each in state.replicas)
            self._surroundings.need(
                name, max(staying, min(wanted, 1))
            )  # one that failed begins again in a moment
        for number, replica in state.replicas.items():
            self._models[name, number] = (replica.version, replica.model_uri)
        self.ends |= {(name, number): how for number, how in decision.ends.items()}
        experiment.total = experiment.created + decision.begins
        return [*decision.changes, *self._failed(experiment, decision)]

    def _failed(self, experiment: ExperimentState, decision: ServiceDecision) -> list[Change]:
        if decision.fails is None:
            return []
        reason, words = decision.fails
        change = ExperimentChange(
            experiment.name, State.RUNNING, State.STOPPING, reason, words, rest_reason=reason
        )
        experiment.state, experiment.reason = change.after, change.reason
        experiment.message, experiment.rest_reason = change.message, change.rest_reason
        return [change]

    def _seen(
        self,
        replica: Replica,
        experiment: ExperimentState,
        gangs: Mapping[str, GangStatus],
        in_flight: int,
        now: float,
    ) -> ObservedReplica:
        task = experiment.live.get(replica.number)
        if task is None:
            reason, message = experiment.last_ends.pop(replica.number, (None, ""))
            return ObservedReplica(is_over=True, reason=reason, message=message, in_flight=in_flight)
        name, member = experiment.name, self._members[experiment.name]
        attempt = attempt_id(self._run, name, task.number, task.attempt)
        gang = gangs.get(attempt)
        port = self._port(replica, task, gang, member)
        node = None if port is None else self._surroundings.node(attempt, member)
        if gang is None or gang.phase is not Phase.RUNNING or port is None or task.state is not State.RUNNING:
            return ObservedReplica(task.attempt, in_flight=in_flight, node=node, port=port)
        heard = self._heard(replica, task, attempt, member, port)
        return ObservedReplica(
            attempt=task.attempt,
            running_s=now - heard.since,
            is_healthy=heard.is_healthy,
            silent_s=heard.silent_s(now),
            said=heard.said,
            in_flight=in_flight,
            node=node,
            port=port,
            stops_in_s=self._surroundings.stops_in_s(attempt),
        )

    def _port(self, replica: Replica, task: Task, gang: GangStatus | None, member: str) -> int | None:
        """What the recipe says; else what was granted, and is recorded before its members start."""
        fixed = self._serves[task.experiment].port
        if fixed is not None:
            return fixed
        if gang is not None and gang.phase is Phase.GRANTED and (granted := gang.ports.get(member)):
            return granted[-1]
        return replica.port if replica.attempt == task.attempt else None

    def _heard(self, replica: Replica, task: Task, attempt: str, member: str, port: int) -> ProbeHistory:
        was_ready = replica.attempt == task.attempt and replica.state is not ReplicaState.STARTING
        return self._checks.ask(
            attempt,
            lambda: self._surroundings.reach(attempt, member, port),
            self._serves[task.experiment].health,
            was_healthy=was_ready,
        )


def services_from_rows(
    experiments: Sequence[str],
    endpoints: Sequence[Mapping[Any, Any]],
    replicas: Sequence[Mapping[Any, Any]],
) -> dict[str, ServiceState]:
    """The services that rows describe.

    Args:
        experiments: that serve.
        endpoints: rows of the run.
        replicas: rows of those, of tasks that may not be over.
    """
    found = {name: ServiceState(name) for name in experiments}
    names = {}
    for row in endpoints:
        state = found[row["experiment"]]
        names[row["id"]] = state.experiment
        for column in ("version", "model_uri", "refused", "failures", "try_at"):
            setattr(state, column, row[column])
    for row in replicas:
        fields = {name: row[name] for name in Replica.__slots__ if name not in ("number", "state")}
        replica = Replica(row["task"], state=ReplicaState(row["state"]), **fields)
        found[names[row["endpoint_id"]]].replicas[replica.number] = replica
    return found
