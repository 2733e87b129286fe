"""What `decide_cluster` looks at, `Observation`, and what it gives, `Decision`. Pure values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum

from trainmaster.cluster.record import ClusterRecord
from trainmaster.cluster.renting.plan import Rental
from trainmaster.dataclass import dataclass, field
from trainmaster.executors.gangs.silence import GIVEN_UP_S
from trainmaster.providers.base import Node
from trainmaster.providers.next_offer import COOL_DOWN_S


class Stage(StrEnum):
    """How far a machine is as a node, as this control process knows it; nothing of it is written.

    NEW: not reached yet. PREPARING: it is bootstrapped. READY: it may join. JOINED: gangs run there.
    BROKEN: it cannot become a node.
    """

    NEW = "NEW"
    PREPARING = "PREPARING"
    READY = "READY"
    JOINED = "JOINED"
    BROKEN = "BROKEN"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer to a request for machines, other than machines.

    Attributes:
        zones: where there are none; empty: in the whole region.
        reason: in words.
        is_final: asking again will not help unless somebody mends it: credentials, permissions, a type.
        is_capacity: there are none there now; else the provider could not be asked.
    """

    zones: tuple[str, ...] = ()
    reason: str = ""
    is_final: bool = False
    is_capacity: bool = True


@dataclass(frozen=True, slots=True)
class Observation:
    """What was observed.

    Attributes:
        nodes: the provider's machines of this cluster by id; None if it could not be asked just now.
        known: the same as it told last, however long ago, together with what was rented since.
        known_since: since when this process knows of machines, Unix seconds, by id; missing: only now.
        stages: by machine id; `Stage.NEW` if missing.
        troubles: why machines are BROKEN, by id.
        lost_since: since when a machine is silent, Unix seconds, by id.
        disconnected: ids of machines that had joined, and that the cluster takes to be dead.
        alive: ids of machines that its engine takes to be alive, as it said last; none before it answers.
        rented: ids that requests were answered with, by token, in the order of their seats.
        refusals: of requests, by token.
        renting: tokens of requests under way.
        postponed: tokens of requests that failed and are not to be repeated yet.
        head: id of the machine that the cluster of an earlier control process stands on; empty for none.
        vacant: ids of machines that are taken back, and on which nothing works any more.
        is_formed: gangs may be sent to it.
        is_forming: that is being made.
        is_released: all has been given back.
        lapsed: why the leases of machines were not renewed in time, by id.
    """

    nodes: Mapping[str, Node] | None = None
    known: Mapping[str, Node] = field(default_factory=dict)
    known_since: Mapping[str, float] = field(default_factory=dict)
    stages: Mapping[str, Stage] = field(default_factory=dict)
    troubles: Mapping[str, str] = field(default_factory=dict)
    lost_since: Mapping[str, float] = field(default_factory=dict)
    disconnected: frozenset[str] = frozenset()
    alive: frozenset[str] = frozenset()
    rented: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    refusals: Mapping[str, Refusal] = field(default_factory=dict)
    renting: frozenset[str] = frozenset()
    postponed: frozenset[str] = frozenset()
    head: str = ""
    vacant: frozenset[str] = frozenset()
    is_formed: bool = False
    is_forming: bool = False
    is_released: bool = False
    lapsed: Mapping[str, str] = field(default_factory=dict)

    @property
    def latest(self) -> Mapping[str, Node]:
        """Machines as the provider told last; one that is missing may only not be known."""
        return self.known if self.nodes is None else self.nodes


class ActionKind(StrEnum):
    """What is done to the world, all safe to repeat.

    RENT: ask for the machines of a token. PREPARE: bootstrap machines. FORM: make one cluster of all that
    are READY (or find it). JOIN: READY ones become part of it. DROP: they are part of it no more. DRAIN:
    gangs on them are asked to end. GIVE_BACK: single machines. RELEASE: all, and what they stood on.
    """

    RENT = "RENT"
    PREPARE = "PREPARE"
    FORM = "FORM"
    JOIN = "JOIN"
    DROP = "DROP"
    DRAIN = "DRAIN"
    GIVE_BACK = "GIVE_BACK"
    RELEASE = "RELEASE"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do: for a token (RENT), or for machines."""

    kind: ActionKind
    ids: tuple[str, ...] = ()
    token: str = ""


@dataclass(slots=True)
class Decision:
    """What follows.

    Attributes:
        record: to be written before anything is done.
        actions: in this order.
        notes: for the user.
        losses: for the user, too: machines that are lost, or taken back, one line each.
        lost: what of it is known already, by seat. replaced: what is asked for instead.
        fatal: why the run cannot go on; empty if it can.
        is_users: only the user can mend that: keys that are refused, a permission, an image, a type.
        retry_at: Unix seconds at which something may be had again that there is none of now.
        waits: for what, in words, if for anything.
        elsewhere: why another place is to be asked for the machines; empty if none is.
        unpaid: what is not asked for, as the money does not suffice; empty if it does.
    """

    record: ClusterRecord
    actions: list[Action] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    replaced: dict[str, Rental] = field(default_factory=dict)
    fatal: str = ""
    is_users: bool = False
    retry_at: float | None = None
    waits: str = ""
    elsewhere: str = ""
    unpaid: str = ""

    def act(self, kind: ActionKind, ids: Iterable[str] = (), token: str = "") -> None:
        """One more thing to do."""
        self.actions.append(Action(kind, tuple(ids), token))


@dataclass(frozen=True, slots=True)
class WaitLimits:
    """How long to wait; seconds.

    Attributes:
        lost_s: for a silent machine, before it is given up and replaced.
        cool_down_s: before machines are asked for again where there were none.
        machines_s: for machines that a queue, or a cloud without capacity, does not give (`budget.wait`).
        elsewhere_s: the same, before another place is asked, where the recipe names one.
        was_asked: none of these would do.
    """

    lost_s: float = GIVEN_UP_S
    cool_down_s: float = COOL_DOWN_S
    machines_s: float = math.inf
    elsewhere_s: float = math.inf
    was_asked: bool = False
