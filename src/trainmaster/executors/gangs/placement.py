"""Where the members of a gang may go: what is asked of the engine for it, and where there is room. Pure."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainmaster.dataclass import dataclass
from trainmaster.spec.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from trainmaster.executors.wire import Message

    #: Of a bundle: its node, slots and GPUs.
    Taken = tuple[str, float, int]

PACK = "PACK"
STRICT_SPREAD = "STRICT_SPREAD"
#: A bundle of nothing may be refused; an engine may count in ten-thousandths.
_LEAST_SLOTS = 0.001
_SHRINK = 0.9
#: One that has waited for so long holds back all later ones, so that it gets its turn.
STUCK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class LiveNode:
    """A node that is not known to be dead.

    Attributes:
        key: its name in the cluster.
        node_id: the engine's; a node that comes back has another one.
        address: private.
        slots: how many there are in all.
        gpus: how many there are in all.
        labels: what it was started with.
        is_head: the cluster ends with it.
        unreachable_since: Unix time in seconds since when it has not answered, None while it does. The
            driver's to say: engines leave it out.
    """

    key: str
    node_id: str
    address: str
    slots: float
    gpus: int
    labels: Mapping[str, str]
    is_head: bool = False
    unreachable_since: float | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        """It has all of these."""
        return all(self.labels.get(name) == value for name, value in labels.items())


@dataclass(frozen=True, slots=True)
class Bundle:
    """Members that go to the same node, and what they take there."""

    members: tuple[str, ...]
    slots: float
    gpus: int
    labels: tuple[tuple[str, str], ...]

    @property
    def resources(self) -> dict[str, float]:
        """By the names that engines have for them."""
        found: dict[str, float] = {"CPU": self.slots} if self.slots else {}
        if self.gpus:
            found["GPU"] = self.gpus
        return found or {"CPU": _LEAST_SLOTS}

    @property
    def shape(self) -> tuple[object, ...]:
        """Equal for bundles that can use each other's place."""
        return (self.slots, self.gpus, self.labels)


@dataclass(frozen=True, slots=True)
class Placement:
    """All bundles of a gang, and whether each needs a node of its own."""

    bundles: tuple[Bundle, ...]
    strategy: str

    @property
    def shape(self) -> tuple[object, ...]:
        """Equal for gangs that can use each other's reservation."""
        return (self.strategy, *(each.shape for each in self.bundles))

    def places(self, nodes: Sequence[LiveNode]) -> dict[str, tuple[str, str, str]]:
        """Key, id and address of each member's node, by a node for each bundle."""
        return {
            name: (node.key, node.node_id, node.address)
            for bundle, node in zip(self.bundles, nodes, strict=True)
            for name in bundle.members
        }

    def led_by_head(self, nodes: Sequence[LiveNode], dispensable: Collection[str] = ()) -> list[LiveNode]:
        """Which node each bundle gets, of those that the engine has chosen for them.

        The head gets members that the others cannot do without, where bundles are alike: it takes a gang
        along when it is lost, so what a framework survives can be lost with the other nodes only.

        Args:
            nodes: one per bundle, as the engine has placed them.
            dispensable: members that the others can do without.
        """
        found = list(nodes)
        first = next(
            (i for i, each in enumerate(self.bundles) if not set(each.members) <= set(dispensable)), 0
        )
        for index, node in enumerate(nodes):
            if node.is_head and self.bundles[index].shape == self.bundles[first].shape:
                found[index], found[first] = found[first], node
                break
        return found


def plan_gang(request: Message, nodes: Sequence[LiveNode]) -> Placement | None:
    """What to reserve for a gang; None while these nodes could not hold it even if they were empty.

    A gang that wants more slots than there are gets what there is, and so runs alone.

    >>> node = LiveNode("a", "1", "10.0.0.1", 4, 0, {})
    >>> worker = {"name": "worker-0", "gpus": 0}
    >>> plan_gang({"members": [worker], "slots": 9, "per_node": 0}, [node]).bundles[0].slots
    4.0
    """
    if not nodes or not request["members"]:
        return None
    total = sum(node.slots for node in nodes)
    per_node, bundles = request.get("per_node", 0), _bundles(request)
    if per_node:
        bundles = _fold(bundles, len(nodes))
    strategy = STRICT_SPREAD if per_node and len(bundles) > 1 else PACK
    if request["slots"] > total:  # as much as there is: a little less until it can be cut into bundles
        factor = total / request["slots"]
        while factor > _LEAST_SLOTS:
            smaller = [replace(each, slots=_rounded(each.slots * factor)) for each in bundles]
            if fits(smaller, nodes, strategy):
                return Placement(tuple(smaller), strategy)
            factor *= _SHRINK
        return None
    return Placement(tuple(bundles), strategy) if fits(bundles, nodes, strategy) else None


def lacking(request: Message, nodes: Sequence[LiveNode]) -> str:
    """Why empty nodes could not hold a gang, in words; empty if they could.

    >>> node = LiveNode("a", "1", "10.0.0.1", 4, 0, {})
    >>> worker = {"name": "worker-0", "gpus": 1}
    >>> lacking({"members": [worker], "slots": 1, "per_node": 0}, [node])
    'a node with 1 GPU; the only node has 0'
    """
    if plan_gang(request, nodes) is not None or not request["members"]:
        return ""
    if not nodes:
        return "a machine, and none is ready"
    per_node, bundles = request.get("per_node", 0), _bundles(request)
    kinds: dict[tuple[tuple[str, str], ...], list[Bundle]] = {}
    for bundle in bundles:
        kinds.setdefault(bundle.labels, []).append(bundle)
    for labels, alike in kinds.items():
        there = [node for node in nodes if node.matches(dict(labels))]
        words = f" with {', '.join(f'{name}={value}' for name, value in labels)}" if labels else ""
        if not there:
            return f"a node{words}; there is none among {len(nodes)}"
        gpus, slots = max(each.gpus for each in alike), max(each.slots for each in alike)
        among = f"the most that one of the {len(there)} nodes{words} has are"
        if len(there) == 1:
            among = f"the only node{words} has"
        if gpus > (most := max(node.gpus for node in there)):
            return f"a node with {counted(gpus, 'GPU')}; {among} {most}"
        if slots > (room := max(node.slots for node in there)) and not per_node:
            return f"a node with {slots:g} slot{'s' * (slots != 1)}; {among} {room:g}"
        if per_node and len(alike) > len(there):
            each = "each" if per_node == 1 else f"every {per_node}"
            verb = "is" if len(there) == 1 else "are"
            return f"{len(alike)} nodes{words}, one for {each} of its members; there {verb} {len(there)}"
    slots = sum(bundle.slots for bundle in bundles)
    gpus = sum(bundle.gpus for bundle in bundles)
    wanted = f"{slots:g} slot{'s' * (slots != 1)}" + (f" and {gpus} GPU{'s' * (gpus != 1)}" if gpus else "")
    return f"{wanted} on {len(nodes)} nodes that together do not have them as it needs them"


def fits(bundles: Sequence[Bundle], nodes: Sequence[LiveNode], strategy: str) -> bool:
    """Whether empty nodes can hold these bundles."""
    return assign(bundles, nodes, strategy) is not None


def assign(bundles: Sequence[Bundle], nodes: Sequence[LiveNode], strategy: str) -> list[str] | None:
    """The node of each bundle, by its id, where nodes have that much left; None if they cannot hold all."""
    found = _matched(bundles, nodes) if strategy == STRICT_SPREAD else _packed(bundles, nodes)
    return None if found is None else [nodes[index].node_id for index in found]


def _bundles(request: Message) -> list[Bundle]:
    per_node, share = request.get("per_node", 0), request["slots"] / len(request["members"])
    groups: list[list[Message]] = []
    for member in request["members"]:
        last = groups[-1] if groups else []
        if per_node and 0 < len(last) < per_node and _kind(last[0]) == _kind(member):
            last.append(member)
        else:
            groups.append([member])
    return [
        Bundle(
            tuple(member["name"] for member in group),
            _rounded(share * len(group)),
            sum(member["gpus"] for member in group),
            _labels(group[0]),
        )
        for group in groups
    ]


def _fold(bundles: list[Bundle], nodes: int) -> list[Bundle]:
    """Where there are too few nodes, roles share them: chiefs and parameter servers go to workers' nodes."""
    if len(bundles) <= nodes:
        return bundles
    roles = [each.members[0].rpartition("-")[0] for each in bundles]
    first = "worker" if "worker" in roles else roles[0]
    main = [each for each in bundles if each.members[0].rpartition("-")[0] == first]
    others = [each for each in bundles if each not in main]
    place = 0
    for extra in tuple(others):
        hosts = [index for index, each in enumerate(main) if each.labels == extra.labels]
        if len(main) + len(others) <= nodes:
            break
        if not hosts:
            continue
        others.remove(extra)
        index = hosts[place % len(hosts)]
        place += 1
        host = main[index]
        main[index] = replace(
            host,
            members=host.members + extra.members,
            slots=_rounded(host.slots + extra.slots),
            gpus=host.gpus + extra.gpus,
        )
    return main + others


def _kind(member: Message) -> tuple[object, ...]:
    return (member["name"].rpartition("-")[0], _labels(member))


def _labels(member: Message) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((member.get("node_labels") or {}).items()))


def _rounded(slots: float) -> float:
    return int(slots * 10_000) / 10_000


def _can_hold(node: LiveNode, bundle: Bundle) -> bool:
    has_slots = bundle.slots <= node.slots + _LEAST_SLOTS / 10  # sums are not exact
    return node.matches(dict(bundle.labels)) and has_slots and bundle.gpus <= node.gpus


def _matched(bundles: Sequence[Bundle], nodes: Sequence[LiveNode]) -> list[int] | None:
    """Each bundle has a node of its own (augmenting paths), in the order of nodes if that will do."""
    holder: dict[int, int] = {}

    def place(bundle: int, tried: set[int]) -> bool:
        fitting = [index for index, node in enumerate(nodes) if _can_hold(node, bundles[bundle])]
        for index in sorted(fitting, key=holder.__contains__):  # free ones first
            if index in tried:
                continue
            tried.add(index)
            if index not in holder or place(holder[index], tried):
                holder[index] = bundle
                return True
        return False

    if not all(place(bundle, set()) for bundle in range(len(bundles))):
        return None
    places = {bundle: index for index, bundle in holder.items()}
    return [places[bundle] for bundle in range(len(bundles))]


def _packed(bundles: Sequence[Bundle], nodes: Sequence[LiveNode]) -> list[int] | None:
    """The largest first, to where the most is left: gangs use all nodes; the others beside it, if they can.

    GPUs are kept for those that need some.
    """
    left = list(nodes)
    places: dict[int, int] = {}
    sizes = [(bundle.gpus, bundle.slots) for bundle in bundles]
    for number in sorted(range(len(bundles)), key=sizes.__getitem__, reverse=True):
        bundle = bundles[number]
        fitting = [index for index, node in enumerate(left) if _can_hold(node, bundle)]
        if not fitting:
            return None
        beside = [index for index in fitting if index in places.values()]
        sign = 1 if bundle.gpus else -1
        best = max(beside or fitting, key=lambda index: (sign * left[index].gpus, left[index].slots))
        node = left[best]
        left[best] = replace(node, slots=node.slots - bundle.slots, gpus=node.gpus - bundle.gpus)
        places[number] = best
    return [places[number] for number in range(len(bundles))]


class Reservation:
    """What a gang holds, or waits for.

    Args:
        plan: of the gang, None when another driver has made it.
        name: of the reservation, by which it is found again; an engine may have none.
        bundles: node, slots and GPUs of each bundle; empty while it waits.

    Attributes:
        since: monotonic time in seconds since when it has waited, or has been there.
    """

    def __init__(
        self, plan: Placement | None, since: float, name: str = "", bundles: Sequence[Taken] = ()
    ) -> None:
        self.plan = plan
        self.since = since
        self.name = name
        self.bundles = list(bundles)

    @property
    def slots(self) -> float:
        """Of all its bundles, as far as they are known."""
        if self.plan is not None:
            return sum(bundle.slots for bundle in self.plan.bundles)
        return sum(slots for _, slots, _ in self.bundles)


class Reservations(ABC):
    """Room for gangs: all of a gang's bundles, or none.

    Args:
        ready: told the attempt and the node of each bundle; thirdly, perhaps, why it can have no room.
        clock: monotonic time in seconds.
    """

    def __init__(self, ready: Callable[..., None], clock: Callable[[], float] = time.monotonic) -> None:
        self._ready = ready
        self._clock = clock
        self._pending: dict[str, Reservation] = {}
        self._held: dict[str, Reservation] = {}

    @abstractmethod
    def take(self, attempt: str, plan: Placement, alive: Container[str]) -> None:
        """Reserve room; ``ready`` is told when it is there, perhaps at once."""

    @abstractmethod
    def give_back(self, attempt: str, alive: Container[str]) -> None:
        """The gang needs it no more, or never will."""

    @abstractmethod
    def id_of(self, attempt: str) -> str:
        """What `adopt` needs to know of what a gang holds, empty if nothing."""

    @abstractmethod
    def adopt(self, attempt: str, reservation: str, nodes: list[str]) -> None:
        """A gang of an earlier driver holds it."""

    def remove_others(self, kept: Iterable[str]) -> None:
        """Remove what an earlier driver has left, but for these ids; here, nothing but what is adopted."""
        del kept

    @abstractmethod
    def has_idle(self, plan: Placement) -> bool:
        """One of that shape may be there at once."""

    @abstractmethod
    def tick(self) -> float | None:
        """Look what has become ready; seconds until the next look, None when there is nothing to look at."""

    @property
    def used(self) -> float:
        """Slots of all that are held or waited for."""
        return self.held + sum(each.slots for each in self._pending.values())

    @property
    def held(self) -> float:
        """Slots of those that are held."""
        return sum(each.slots for each in self._held.values())

    def hand_over(self, attempt: str, following: str) -> None:
        """Another gang holds it from now on."""
        if held := self._held.pop(attempt, None):
            self._held[following] = held

    def is_late(self, attempt: str, patience_s: float) -> bool:
        """No room has been found for it for so long."""
        pending = self._pending.get(attempt)
        return pending is not None and self._clock() - pending.since > patience_s

    def stuck(self) -> bool:
        """One waits for longer than it should: later ones are held back."""
        now = self._clock()
        return any(now - each.since > STUCK_S for each in self._pending.values())


class OwnPlacement(Reservations):
    """Room where the nodes are ours alone: counted, not asked for.

    Args:
        ready: told the attempt and the node of each bundle.
        nodes: those that can be reached now.
    """

    def __init__(
        self, ready: Callable[[str, list[str]], None], nodes: Callable[[], Sequence[LiveNode]]
    ) -> None:
        super().__init__(ready, time.monotonic)
        self._nodes = nodes

    def take(self, attempt: str, plan: Placement, alive: Container[str]) -> None:
        """Reserve room; ``ready`` is told at once if there is some."""
        del alive
        self._pending[attempt] = Reservation(plan, self._clock())
        self._place(attempt, plan)

    def give_back(self, attempt: str, alive: Container[str]) -> None:
        """See `Reservations`."""
        del alive
        self._pending.pop(attempt, None)
        self._held.pop(attempt, None)

    def id_of(self, attempt: str) -> str:
        """See `Reservations`."""
        held = self._held.get(attempt)
        return json.dumps(held.bundles) if held else ""

    def adopt(self, attempt: str, reservation: str, nodes: list[str]) -> None:
        """See `Reservations`."""
        del nodes
        bundles = [(node, slots, gpus) for node, slots, gpus in json.loads(reservation)]
        self._held[attempt] = Reservation(None, self._clock(), bundles=bundles)

    def has_idle(self, plan: Placement) -> bool:
        """Whether there is room for it now."""
        return self._find(plan) is not None

    def tick(self) -> float | None:
        """Place what there is room for by now, the oldest first."""
        for attempt, waits in list(self._pending.items()):
            if attempt in self._pending and waits.plan is not None:
                self._place(attempt, waits.plan)
        return STUCK_S if self._pending else None

    def _place(self, attempt: str, plan: Placement) -> None:
        nodes = self._find(plan)
        if nodes is None:
            return
        del self._pending[attempt]
        bundles = [(node, each.slots, each.gpus) for node, each in zip(nodes, plan.bundles, strict=True)]
        self._held[attempt] = Reservation(plan, self._clock(), bundles=bundles)
        self._ready(attempt, nodes)

    def _find(self, plan: Placement) -> list[str] | None:
        """A node for each bundle."""
        left = {node.node_id: node for node in self._nodes()}
        for held in self._held.values():
            for node_id, slots, gpus in held.bundles:
                if (node := left.get(node_id)) is not None:
                    left[node_id] = replace(node, slots=node.slots - slots, gpus=node.gpus - gpus)
        return assign(plan.bundles, list(left.values()), plan.strategy)
