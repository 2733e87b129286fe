"""`ObservedCluster`: what this process knows of a cluster's machines. Nothing of it needs to survive a crash.

`Scaling`: how many machines of a cluster are needed, which are awaited, and which are surplus. Pure.

Replicas of a service come and go: the run's loop says how many machines are enough for those that there are,
and on which ones nothing works. As long as it says nothing, every seat needs a machine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, cast

from trainmaster.cluster.decision import Observation, Refusal, Stage
from trainmaster.cluster.node_access import NodeAccess
from trainmaster.cluster.node_provisioner import key_of, words
from trainmaster.cluster.provider_outage import Reminder
from trainmaster.cluster.record import ClusterRecord, Machine
from trainmaster.dataclass import dataclass, field
from trainmaster.executors.gangs.recorded_cluster import RecordedCluster
from trainmaster.providers.base import NoCapacityError, Node, NodeState, ProviderGoneError
from trainmaster.spec.errors import UsageError


@dataclass(slots=True)
class Scaling:
    """What the run's loop has said.

    Attributes:
        needed: so many machines of each role are enough, none of a role without a number; None: one for
            each seat.
        unused: ids of machines on which nothing works, nor is about to.
    """

    needed: Mapping[str, int] | None = None
    unused: frozenset[str] = frozenset()

    @property
    def is_none(self) -> bool:
        """Whether no machine is needed."""
        return self.needed is not None and not any(self.needed.values())

    def of(self, role: str, most: int) -> int:
        """How many machines of a role are enough; it has no use for more than ``most``.

        >>> Scaling({"worker": 2}).of("worker", 3), Scaling({"worker": 2}).of("ps", 1), Scaling().of("ps", 1)
        (2, 0, 1)
        """
        return most if self.needed is None else min(most, self.needed.get(role, 0))

    def surplus(self, record: ClusterRecord, stages: Mapping[str, Stage]) -> list[Machine]:
        """Nodes that are more than are needed, and on which nothing works; the newest first."""
        if self.needed is None:
            return []
        found: list[Machine] = []
        for role in record.plan.roles:
            staying = [m for m in record.live if m.role == role.role and not m.is_leaving]
            unused = [m for m in staying if m.id in self.unused and stages.get(m.id) is Stage.JOINED]
            found += unused[::-1][: max(len(staying) - self.needed.get(role.role, 0), 0)]
        return found

    def awaits(self, record: ClusterRecord, stages: Mapping[str, Stage]) -> bool:
        """Whether there are fewer nodes than are needed."""
        joined = [m.role for m in record.rented if not m.is_leaving and stages.get(m.id) is Stage.JOINED]
        return self.needed is not None and any(
            joined.count(role.role) < self.of(role.role, role.count) for role in record.plan.roles
        )


log = logging.getLogger(__name__)

#: After a request that could not be sent, and after a cluster that could not be formed.
AGAIN_S: Final = 3.0
#: After a refusal that only somebody else can mend, such as credentials that have expired.
REFUSED_AGAIN_S: Final = 60.0
#: Nodes that are well but do not become one cluster for so long, and so many times, never will.
_FORM_TRIES: Final = 5
_FORM_PATIENCE_S: Final = 60.0
#: A node that has not joined so many times is given up.
_JOIN_TRIES: Final = 4
#: A node that has just joined is seen by the engine after so long at most.
_APPEAR_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Formation:
    """Nodes that are one cluster.

    Attributes:
        number: of the time that it was formed.
        cluster: it.
        head: id of the machine that it stands or falls with; empty if there is none.
        first: id of the machine that was first there.
    """

    number: int
    cluster: RecordedCluster
    head: str
    first: str


@dataclass(slots=True)
class ObservedCluster:
    """What was observed, and the results of what was done.

    Attributes:
        tell: shows a line to the user.
        nodes: the provider's machines of the cluster by id, as it told last; kept while it does not answer.
        is_told: it has just been asked; else ``nodes`` may be out of date, and is not all that there is.
        known_since: since when this process knows of machines, Unix seconds, by id.
        told_at: when it answered last, Unix seconds.
        away_since: since when it has not answered, Unix seconds; None while it does. away_error: why, then.
        stages: how far machines are as nodes, by id.
        troubles: why machines are BROKEN, by id.
        accesses: nodes by machine id, those that have gone too: what they left may be read for a while.
        leaving: when the provider takes machines back, Unix seconds, by private address.
        formation: where gangs are sent to; None while there is none.
        rented, refusals: answers to requests, by token, until they were taken in.
        head: id of the machine that the cluster of an earlier control process stands on; or empty.
        vacant: ids of machines that are taken back, and on which nothing works any more.
        scaling: what the run's loop says of how many machines are needed.
        ask_at: when what failed may be tried again, Unix seconds, by token.
        form_at: the same for forming.
        is_released: all has been given back.
        fatal: why the run cannot go on; None while it can.
    """

    tell: Callable[[str], None]
    nodes: dict[str, Node] = field(default_factory=dict)
    is_told: bool = False
    known_since: dict[str, float] = field(default_factory=dict)
    told_at: float = 0.0
    away_since: float | None = None
    away_error: str = ""
    stages: dict[str, Stage] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)
    accesses: dict[str, NodeAccess] = field(default_factory=dict)
    leaving: dict[str, float] = field(default_factory=dict)
    formation: Formation | None = None
    rented: dict[str, tuple[str, ...]] = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    head: str = ""
    vacant: frozenset[str] = frozenset()
    scaling: Scaling = field(default_factory=Scaling)
    ask_at: dict[str, float] = field(default_factory=dict)
    form_at: float = 0.0
    is_released: bool = False
    fatal: Exception | None = None
    _rent_told: Reminder = field(default_factory=Reminder)
    _release_told: Reminder = field(default_factory=Reminder)
    _form_failures: list[float] = field(default_factory=list)
    _form_told: str = ""
    _join_failures: dict[str, int] = field(default_factory=dict)
    _alive: frozenset[str] = frozenset()
    _alive_at: dict[str, float] = field(default_factory=dict)

    def node(self, machine: str) -> Node | None:
        """What the provider said last of a machine."""
        return self.nodes.get(machine)

    @property
    def gone(self) -> frozenset[str]:
        """Ids of nodes that the provider says are gone; one that it does not name may only be late."""
        nodes = self.nodes
        found = ((machine, nodes.get(machine)) for machine in list(self.accesses))
        return frozenset(
            machine for machine, node in found if node is not None and node.state is NodeState.GONE
        )

    def at(self, addresses: frozenset[str]) -> frozenset[str]:
        """Ids of the nodes that have these private addresses."""
        return frozenset(id_ for id_, access in list(self.accesses.items()) if access.address in addresses)

    def alive(self, keys: frozenset[str], now: float) -> None:
        """Which nodes the engine takes to be alive."""
        for key in keys:
            self._alive_at[key] = max(now, self._alive_at.get(key, now))
        self._alive = keys

    def seen(
        self,
        lost_since: Mapping[str, float],
        renting: set[str],
        now: float,
        *,
        is_forming: bool,
        lapsed: Mapping[str, str],
    ) -> Observation:
        """What `decide_cluster` looks at.

        Args:
            lost_since: since when machines do not answer.
            renting: tokens of requests under way.
            now: Unix seconds.
            is_forming: the cluster is being made or changed.
            lapsed: why the leases of machines were not renewed in time, by id.
        """
        found = Observation(
            nodes=self.nodes if self.is_told else None,
            known=self.nodes,
            known_since=self.known_since,
            stages=self.stages,
            troubles=self.troubles,
            lost_since=lost_since,
            disconnected=self._disconnected(now),
            alive=frozenset(machine for machine in self.stages if key_of(machine) in self._alive),
            rented=dict(self.rented),
            refusals=dict(self.refusals),
            renting=frozenset(renting),
            postponed=frozenset(token for token, at in self.ask_at.items() if now < at),
            head=self.head,
            vacant=self.vacant,
            is_formed=self.formation is not None,
            is_forming=is_forming or now < self.form_at,
            is_released=self.is_released,
            lapsed=lapsed,
        )
        self.rented.clear()
        self.refusals.clear()
        return found

    def _disconnected(self, now: float) -> frozenset[str]:
        if self.formation is None or not self._alive:
            return frozenset()
        return frozenset(
            machine
            for machine, stage in self.stages.items()
            if stage is Stage.JOINED
            and key_of(machine) not in self._alive
            and now - self._alive_at.get(key_of(machine), 0.0) > AGAIN_S
        )

    # --- results, by the names under which they were asked for -------------------------------------------

    def take(self, cluster: str, name: str, result: object, now: float) -> None:
        """Take in what a piece of work came to.

        Args:
            cluster: for the log.
            name: ``look``, ``rent TOKEN``, ``prepare ID``, ``form``, ``join ID...``, ``release``, ...
            result: or the exception.
            now: Unix seconds.
        """
        kind, _, what = name.partition(" ")
        failed = isinstance(result, Exception)
        if failed:
            log.info("%s: %s: %s", cluster, name, words(cast("Exception", result)))
        match kind:
            case "look" | "rent" if isinstance(result, ProviderGoneError):
                self._take_end_of_provider(result)
            case "look" if failed:
                self.is_told = False
                self.away_since = now if self.away_since is None else self.away_since
                self.away_error = words(cast("Exception", result))
            case "look":
                self._take_nodes(cast("list[Node]", result), now)
            case "rent":
                self._take_rented(what, result, now)
            case "prepare":
                self._take_prepared(what, result)
            case "form" if failed:
                self._take_failure(cast("Exception", result), now)
            case "form":
                self._take_formed(*cast("tuple[Formation, list[NodeAccess]]", result), now)
            case "join":
                self._take_joined(what.split(), result, now)
            case "release" if failed:
                self.ask_at["release"] = now + AGAIN_S
                reason = words(cast("Exception", result))
                if self._release_told.is_due(reason, now):
                    self.tell(f"machines could not be given back yet, which is tried on and on: {reason}")
            case "release":
                self.is_released = True
                if result is not None:
                    self._take_nodes(cast("list[Node]", result), now)
            case _:
                pass

    def _take_end_of_provider(self, error: ProviderGoneError) -> None:
        """It is over with all its machines: no answer is waited for."""
        reason = Exception.__str__(error)
        self.is_told = False
        self.nodes = {
            name: replace(node, state=NodeState.GONE, reason=reason) for name, node in self.nodes.items()
        }
        self.fatal = self.fatal or error

    def _take_nodes(self, nodes: list[Node], now: float) -> None:
        self.nodes = {node.id: node for node in nodes}
        self.is_told, self.told_at, self.away_since = True, now, None
        self.leaving = {
            node.private_address: node.leaves_at
            for node in nodes
            if node.state is NodeState.LEAVING and node.leaves_at is not None
        }

    def _take_rented(self, token: str, result: object, now: float) -> None:
        if isinstance(result, NoCapacityError):
            self.refusals[token] = Refusal(result.zones, Exception.__str__(result))
        elif isinstance(result, UsageError):
            self.ask_at[token] = now + REFUSED_AGAIN_S
            self.refusals[token] = Refusal(reason=words(result), is_final=True)
        elif isinstance(result, Exception):
            self.ask_at[token] = now + AGAIN_S
            if self._rent_told.is_due(words(result), now):
                self.tell(f"{words(result)}; it is asked again")
        else:
            nodes = cast("list[Node]", result)
            # One that has cost something is ours, and on the bill, though it is gone.
            had = [node for node in nodes if node.state is not NodeState.GONE or node.started_at]
            for node in nodes:
                if node not in had:
                    self.tell(f"left out: {node.reason}")
            self.rented[token] = tuple(node.id for node in had)
            self.nodes = {**self.nodes, **{node.id: node for node in had}}

    def _take_prepared(self, machine: str, result: object) -> None:
        if self.stages.get(machine) is not Stage.PREPARING:
            return  # given up meanwhile
        if isinstance(result, Exception):
            self.stages[machine] = Stage.BROKEN
            self.troubles[machine] = words(result)
        else:
            self.accesses[machine] = cast("NodeAccess", result)
            self.stages[machine] = Stage.READY

    def _take_failure(self, error: Exception, now: float) -> None:
        self.form_at = now + AGAIN_S
        self._form_failures.append(now)
        if self._form_told != words(error):
            self._form_told = words(error)
            self.tell(f"the nodes do not become one cluster: {self._form_told}; it is tried again")
        first = self._form_failures[0]
        if len(self._form_failures) >= _FORM_TRIES and now - first >= _FORM_PATIENCE_S:
            self.fatal = error

    def _take_formed(self, formation: Formation, accesses: list[NodeAccess], now: float) -> None:
        self._form_failures.clear()
        self._form_told = self.head = ""
        self._alive = self.vacant = self.scaling.unused = frozenset()
        for access in accesses:
            self.accesses[access.id] = access
            self._joins(access.id, now)
        self.formation = formation

    def _take_joined(self, machines: list[str], result: object, now: float) -> None:
        """Those that could not are tried again, not for ever: gangs wait for them."""
        if isinstance(result, Exception):
            failed: Mapping[str, str] = dict.fromkeys(machines, words(result))
        else:
            failed = cast("Mapping[str, str]", result)
        for machine in machines:
            if self.stages.get(machine) is not Stage.READY:
                continue  # given up meanwhile
            if machine not in failed:
                self._join_failures.pop(machine, None)
                self._joins(machine, now)
                continue
            self.form_at = now + AGAIN_S
            self._join_failures[machine] = self._join_failures.get(machine, 0) + 1
            if self._join_failures[machine] >= _JOIN_TRIES:
                del self._join_failures[machine]
                self.stages[machine] = Stage.BROKEN
                self.troubles[machine] = f"it cannot join the cluster: {failed[machine]}"

    def _joins(self, machine: str, now: float) -> None:
        self.stages[machine] = Stage.JOINED
        self._alive_at[key_of(machine)] = now + _APPEAR_S - AGAIN_S  # from then on it must be known
