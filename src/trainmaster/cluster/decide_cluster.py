"""What to do next about a cluster: pure, without a clock or a provider.

`decide_cluster` looks at what is written of a cluster and at what was observed of its machines. It gives the
record as it must be written next, then what is to be done to the world. Everything may be repeated: machines
are asked for by token, a bootstrap finds what is there, and what is gone may be given back once more.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, cast

from trainmaster.cluster.decision import Action, ActionKind, Decision, Observation, Refusal, Stage, WaitLimits
from trainmaster.cluster.observed import Scaling
from trainmaster.cluster.record import ClusterRecord, ClusterState, Machine
from trainmaster.cluster.renting.plan import Rental, RolePlan
from trainmaster.providers.base import BOOT_S, Node, NodeState
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.providers.next_offer import CapacityFailure, next_offer
from trainmaster.spec.units import format_duration

#: A provider that has not listed a machine of ours for so long has forgotten it, and does not show it late.
FORGOTTEN_S: Final = 120.0
#: Times that differ by more are by clocks that were set otherwise.
_CLOCKS_DIFFER_S: Final = 5.0
#: How often it is written down that a machine still waits in a queue.
_QUEUED_EVERY_S: Final = 30.0
#: Hosts that others use now may be free soon; what a place with a queue refuses is closed or away for a time.
HOSTS_S: Final = 15.0
QUEUE_S: Final = 60.0
#: Names of one kind in a line for people.
_NAMED_MOST: Final = 4
#: So many machines of one seat may fail to become nodes before the run is ended.
BROKEN_MOST: Final = 3


def decide_cluster(
    record: ClusterRecord,
    seen: Observation,
    now: float,
    *,
    wanted: bool,
    ending: bool,
    patience: WaitLimits,
    scaling: Scaling | None = None,
    why_unpaid: Callable[[ClusterRecord], str] = lambda _: "",
) -> Decision:
    """The next step of a cluster.

    Args:
        record: as written.
        seen: as observed.
        now: Unix seconds.
        wanted: one of its experiments runs: it must have all its machines; else none is asked for.
        ending: the run needs it no more.
        patience: how long to wait for what.
        scaling: how many machines are enough for now; None: one for each seat.
        why_unpaid: why the money does not suffice for a record with what is to be asked for; empty if it
            does, or if the run could not go on without.
    """
    scaling = scaling or Scaling()
    decision = Decision(record)
    if record.state in (ClusterState.KEPT, ClusterState.ENDED):
        return decision
    _take_answers(decision, seen, now)
    _take_news(decision, seen, now, patience)
    if ending or record.state is ClusterState.ENDING:
        _end(decision, seen, now)
        return decision
    if not wanted and decision.record.state is ClusterState.PLANNED:
        return decision
    _give_up_surplus(decision, scaling.surplus(decision.record, seen.stages))
    if wanted:
        _fill_seats(decision, seen, now, patience, scaling, why_unpaid)
        _lose_patience(decision, seen, now, patience)
    _bring_up(decision, seen, now, scaling)
    _tell_lost(decision, wanted=wanted)
    decision.actions = list(dict.fromkeys(decision.actions))
    return decision


# --- what has become of the machines -----------------------------------------------------------------


def _take_answers(decision: Decision, seen: Observation, now: float) -> None:
    """Requests that were answered, with machines or without."""
    record, held = decision.record, decision.record.held
    for token, ids in seen.rented.items():
        waiting = [m for m in record.live if m.token == token and not m.id]
        named = [replace(machine, id=node) for machine, node in zip(waiting, ids, strict=False)]
        left_out = [replace(m, is_over=True, reason="left out") for m in waiting[len(named) :]]
        record = record.changed([*named, *left_out])
    for token, refusal in seen.refusals.items():
        waiting = [m for m in record.live if m.token == token and not m.id]
        if not waiting or (not refusal.is_capacity and not refusal.is_final):
            continue  # it could not be asked: asked again with the same token
        seats = {m.seat for m in waiting}
        if refusal.is_final and seats <= {m.seat for m in record.live if m.is_slow and not m.is_leaving}:
            record = record.changed(replace(m, is_over=True, reason=refusal.reason) for m in waiting)
            record = _without_another(decision, record, seats, f": {refusal.reason}")
            continue
        if refusal.is_final and (seen.is_formed or record.waited_s is not None):
            decision.notes.append(_goes_on(record, waiting, refusal))
            continue
        rental = waiting[0].rental
        record = record.changed(replace(m, is_over=True, reason=refusal.reason) for m in waiting)
        if refusal.is_final:
            decision.fatal, decision.is_users = refusal.reason, True
            continue
        # A refusal that names no zone is of all of them; hosts have none.
        places = (refusal.zones or (rental.zone,)) if rental.zone else ("",)
        failures = [_failure(rental, zone, now) for zone in places]
        record = replace(record, failures=(*record.failures, *failures))
        if refusal.reason != held:
            decision.notes.append(f"no capacity for {len(waiting)} {rental.words}: {refusal.reason}")
        if not rental.is_rented:
            record = _without_another(decision, record, seats)
    decision.record = record


def _without_another(
    decision: Decision, record: ClusterRecord, seats: set[str], why: str = ""
) -> ClusterRecord:
    """Slow machines stay where no other one can be had: that is not asked again and again."""
    slow = [m for m in record.live if m.is_slow and not m.is_leaving and m.seat in seats]
    decision.notes += [f"{_name(record, machine)} stays, though it is slow{why}" for machine in slow]
    return record.changed(replace(machine, is_slow=False) for machine in slow)


def _goes_on(record: ClusterRecord, missing: list[Machine], refusal: Refusal) -> str:
    """What is told while machines cannot be replaced until somebody mends something: nothing else ends."""
    there = len(record.rented)
    so_far = f"goes on with {there} of its machines" if there else "waits, and nothing is rented"
    return (
        f"{record.plan.name} {so_far}: {_names(record, missing)} cannot be rented now, and is asked for "
        f"again in a minute: {refusal.reason}"
    )


def _take_news(decision: Decision, seen: Observation, now: float, patience: WaitLimits) -> None:
    """Machines that are gone, leave, never came up, or are silent."""
    for machine in decision.record.rented:
        node = seen.latest.get(machine.id)
        if node is not None:
            machine = _told(decision, machine, node, seen, now)
        if seen.stages.get(machine.id) is Stage.JOINED and not machine.has_joined:
            machine = replace(machine, has_joined=True)
            decision.record = decision.record.changed([machine])
        why = _why_over(machine, node, seen, now, patience)
        if node is not None and node.state is NodeState.LEAVING and not machine.is_leaving and not why:
            _leaves(decision, machine, node, now)
        elif why:
            _is_over(decision, machine, node, seen, now, why)
        elif decision.record.is_outgrown(machine):
            _is_replaced(decision, machine, node, seen, now)
        elif machine.is_leaving and machine.id in seen.vacant and _may_go(machine, node):
            why_gone = "another one has taken its place" if machine.is_slow else "it was not needed any more"
            _is_over(decision, machine, node, seen, now, (why_gone, True))
    _settle_over(decision, seen, now)


def _settle_over(decision: Decision, seen: Observation, now: float) -> None:
    """Machines that were given up cost money until their provider says that they have ended."""
    if seen.nodes is None:
        return
    live = {machine.id for machine in decision.record.live}
    for machine in decision.record.machines:
        if not (machine.is_over and machine.id) or machine.ended_at is not None or machine.id in live:
            continue
        node = seen.nodes.get(machine.id)
        if node is not None and node.state is not NodeState.GONE:
            decision.act(ActionKind.GIVE_BACK, [machine.id])
        elif machine.started_at is not None:
            if node is not None:
                machine = _told(decision, machine, node, seen, now)
            ended_at = (node.ended_at if node else None) or _ended_by(decision.record, machine, now)
            decision.record = decision.record.changed([replace(machine, ended_at=ended_at)])


def _told(decision: Decision, machine: Machine, node: Node, seen: Observation, now: float) -> Machine:
    """What the provider says of it, written down: the bill depends on it.

    A driver whose clock was set otherwise may have written when it started: then what is told now holds.
    """
    started_at = machine.started_at or node.started_at or None
    if started_at and node.started_at and seen.nodes is not None:
        differ_s = abs(started_at - node.started_at)
        started_at = started_at if differ_s <= _CLOCKS_DIFFER_S else node.started_at
    known = replace(machine, zone=node.zone or machine.zone, started_at=started_at)
    if node.is_queued and seen.nodes is not None and now - (machine.asked_at or 0.0) > _QUEUED_EVERY_S:
        known = replace(known, asked_at=now)  # what waits in a queue has not begun, however long it waits
    if known != machine:
        decision.record = decision.record.changed([known])
    return known


def _why_over(
    machine: Machine, node: Node | None, seen: Observation, now: float, patience: WaitLimits
) -> tuple[str, bool] | None:
    """Why a machine must be given up, and whether it is there to be given back."""
    if node is not None and node.state is NodeState.GONE:
        return _with_lapse(node.reason or "it is gone", machine, seen), False
    # By when we heard of it: times that others have stated, or written down, are by clocks of theirs.
    known_s = now - seen.known_since.get(machine.id, now) if machine.started_at else 0.0
    if seen.nodes is not None and node is None and known_s > FORGOTTEN_S:
        return _with_lapse("its provider knows nothing of it any more", machine, seen), False
    stage = seen.stages.get(machine.id, Stage.NEW)
    if stage is Stage.BROKEN:
        return seen.troubles.get(machine.id, "it cannot become a node"), True
    is_booting = seen.nodes is not None and node is not None and node.state is NodeState.STARTING
    if is_booting and known_s > BOOT_S:
        return f"it has not come up for {BOOT_S:.0f} s", True
    lost_since = seen.lost_since.get(machine.id)
    if lost_since is not None and now - lost_since > patience.lost_s:
        return f"it has answered nobody for {now - lost_since:.0f} s", True
    return None


def _with_lapse(reason: str, machine: Machine, seen: Observation) -> str:
    lapse = seen.lapsed.get(machine.id)
    return f"{reason}; {lapse}" if lapse else reason


def _leaves(decision: Decision, machine: Machine, node: Node, now: float) -> None:
    left_s = max((node.leaves_at or now) - now, 0.0)
    record = decision.record.changed([replace(machine, is_leaving=True)])
    # That others want it says that there are none; that its time is over does not.
    decision.record = _with_failure(record, machine, now) if machine.rental.spot else record
    decision.act(ActionKind.DRAIN, [machine.id])
    why = f" ({node.reason})" if node.reason else ""
    decision.lost[machine.seat] = f"{_name(record, machine)} is taken back in {left_s:.0f} s{why}"


def _is_replaced(
    decision: Decision, machine: Machine, node: Node | None, seen: Observation, now: float
) -> None:
    """A machine with too little memory goes as soon as nothing works on it any more."""
    is_unused = not (seen.is_formed or seen.head)
    leaving = replace(machine, is_leaving=True, is_too_small=True)  # no loss: why it goes was told
    if is_unused or machine.id in seen.vacant:
        _is_over(decision, leaving, node, seen, now, ("one with more memory takes its place", True))
    elif not machine.is_leaving:
        decision.record = decision.record.changed([leaving])
        decision.act(ActionKind.DRAIN, [machine.id])


def _may_go(machine: Machine, node: Node | None) -> bool:
    """Whether it is there, and its provider does not take it back because others want it."""
    leaves = node is not None and node.state is NodeState.LEAVING and not machine.rental.spot
    return leaves or (node is not None and node.state is NodeState.READY)


def _give_up_surplus(decision: Decision, surplus: Iterable[Machine]) -> None:
    """Release surplus machines once no gang was submitted to them."""
    for machine in surplus:
        decision.record = decision.record.changed([replace(machine, is_leaving=True, is_surplus=True)])
        decision.act(ActionKind.DRAIN, [machine.id])
        decision.notes.append(f"{_name(decision.record, machine)} is given back: it is not needed now")


def _is_over(
    decision: Decision,
    machine: Machine,
    node: Node | None,
    seen: Observation,
    now: float,
    why: tuple[str, bool],
) -> None:
    reason, is_there = why
    ended_at = None
    if not is_there:
        ended_at = (node.ended_at if node else None) or _ended_by(decision.record, machine, now)
    stuck = is_there and seen.stages.get(machine.id) is Stage.BROKEN
    over = replace(
        machine,
        is_over=True,
        is_broken=stuck,
        reason=reason,
        ended_at=machine.ended_at or ended_at,
        leased_until=decision.record.leased_until,
    )
    record = decision.record.changed([over])
    if machine.rental.spot and not is_there and not machine.is_leaving:
        record = _with_failure(record, machine, now)
    decision.record = record
    if seen.stages.get(machine.id) is Stage.JOINED:
        decision.act(ActionKind.DROP, [machine.id])
    if is_there:
        decision.act(ActionKind.GIVE_BACK, [machine.id])
    if record.state is not ClusterState.ENDING and not machine.is_leaving:  # else that it goes was told
        if machine.has_joined:
            decision.lost[machine.seat] = f"{_name(record, machine)} is lost: {reason}"
        else:
            decision.notes.append(f"{_name(record, machine)} is given up: {reason}")
    # A host that does not answer is left for another; what is wrong with one that does is somebody's to mend.
    may_be_another = machine.rental.is_rented or (node is not None and bool(node.reason))
    if stuck and (not may_be_another or _broken_in_a_row(record, machine.seat) >= BROKEN_MOST):
        role = next(role for seat, role in record.seats if seat == machine.seat)
        if _count(record, role) < role.needed or machine.rental.is_rented:
            decision.fatal = f"{_name(record, machine)} cannot be used: {reason}"


def _tell_lost(decision: Decision, *, wanted: bool) -> None:
    """One line for each machine: which one, why, and what follows."""
    for seat, what in decision.lost.items():
        follows = "; what ran there goes on from its newest checkpoint" if wanted else ""
        rental = decision.replaced.get(seat)
        if rental is not None:
            follows += f", {rental.words} is asked for in its place"
        decision.losses.append(what + follows)


def _name(record: ClusterRecord, machine: Machine) -> str:
    """For people: its name in the cluster, and that of its provider."""
    return f"{record.name_of(machine.seat)} ({machine.id})"


def _names(record: ClusterRecord, machines: Iterable[Machine]) -> str:
    return ", ".join(record.name_of(machine.seat) for machine in machines)


def _ended_by(record: ClusterRecord, machine: Machine, now: float) -> float:
    """When a machine has ended of which its provider does not say when: with its lease at the latest."""
    # Leases of a cluster go on with those that were asked for since it was given up.
    leased_until = machine.leased_until or record.leased_until or now
    if machine.started_at is not None and machine.started_at > now:
        return max(leased_until, machine.started_at)  # both were written by a clock that was ahead
    return min(now, leased_until)


def _broken_in_a_row(record: ClusterRecord, seat: str) -> int:
    """How many machines of a seat could not become nodes, since one could."""
    tried = [m for m in record.machines if m.seat == seat and m.is_over and m.id]
    return next((n for n, m in enumerate(reversed(tried)) if not m.is_broken), len(tried))


def _failure(rental: Rental, zone: str, now: float) -> CapacityFailure:
    return CapacityFailure(rental.region, zone, rental.spot, now, rental.instance_type)


def _with_failure(record: ClusterRecord, machine: Machine, now: float) -> ClusterRecord:
    rental = machine.rental
    failure = _failure(rental, machine.zone or rental.zone, now)
    return replace(record, failures=(*record.failures, failure))


# --- what is missing --------------------------------------------------------------------------------------


def _count(record: ClusterRecord, role: RolePlan) -> int:
    return sum(m.role == role.role and m.holds_seat for m in record.live)


def _fill_seats(
    decision: Decision,
    seen: Observation,
    now: float,
    patience: WaitLimits,
    scaling: Scaling,
    why_unpaid: Callable[[ClusterRecord], str],
) -> None:
    """Ask for machines for the seats that have none."""
    for machine in decision.record.live:
        if not machine.id and machine.token not in seen.renting | seen.postponed:
            decision.act(ActionKind.RENT, token=machine.token)  # asked before a crash, or not answered
    if decision.fatal:
        return
    wanted: list[tuple[RolePlan, Rental, str]] = []
    least: set[str] = set()
    for role in decision.record.plan.roles:
        held = {m.seat for m in decision.record.live if m.holds_seat}
        free = [seat for seat, of in decision.record.seats if of is role and seat not in held]
        if not role.rentals[0].is_rented and _count(decision.record, role) >= role.needed:
            # Another host is no other than the one that could not be used: those that are left are enough.
            free = [seat for seat in free if seat not in {m.seat for m in decision.record.machines}]
        missing = scaling.of(role.role, role.count) - _count(decision.record, role)
        free = free[: max(missing, 0)]
        if free and (rental := _rental(decision, role, free, now, patience)) is not None:
            wanted += [(role, rental, seat) for seat in free]
            least.update(free[: max(role.needed - _count(decision.record, role), 0)])
    # First what nothing goes on without: one more worker is of no use before there is a parameter server.
    wanted.sort(key=lambda each: each[2] not in least)
    paid = _paid(decision, wanted, seen, now, why_unpaid)
    for role in decision.record.plan.roles:
        if mine := [(rental, seat) for of, rental, seat in paid if of is role]:
            _ask(decision, role, mine[0][0], [seat for _, seat in mine], now, patience)


def _paid(
    decision: Decision,
    wanted: list[tuple[RolePlan, Rental, str]],
    seen: Observation,
    now: float,
    why_unpaid: Callable[[ClusterRecord], str],
) -> list[tuple[RolePlan, Rental, str]]:
    """What the money suffices for of what is wanted, unless that is too little for a cluster.

    The rest is not written down either, as that would count. It is asked for once there is more money.
    """
    record = decision.record
    machines = [Machine(seat, role.role, "", rental, asked_at=now) for role, rental, seat in wanted]

    def why(count: int) -> str:
        return why_unpaid(replace(record, machines=(*record.machines, *machines[:count])))

    if not wanted or not (why_not := why(len(wanted))):
        return wanted
    count = bisect_left(range(1, len(wanted) + 1), True, key=lambda n: bool(why(n)))
    if not seen.is_formed and any(
        _count(record, role) + sum(of is role for of, *_ in wanted[:count]) < role.needed
        for role in record.plan.roles
    ):
        count = 0
    slow = {machine.seat for machine in record.live if machine.is_slow and not machine.is_leaving}
    decision.record = _without_another(
        decision, record, slow & {one[2] for one in wanted[count:]}, f": {why_not}"
    )
    if rest := [one for one in wanted[count:] if one[2] not in slow]:
        there = len(record.live) + count
        so_far = f"with {there} of its machines" if there else f"without machines of {record.provider}"
        names = [record.name_of(seat) for *_, seat in rest]
        what = _missing([rental for _, rental, _ in rest], names)
        decision.unpaid = f"{record.plan.name} goes on {so_far}: {what} not asked for: {why_not}"
    return wanted[:count]


def _rental(
    decision: Decision, role: RolePlan, seats: list[str], now: float, patience: WaitLimits
) -> Rental | None:
    """What machines of a role are asked for as; None if there are none now."""
    record = decision.record
    cool_down_s = patience.cool_down_s
    if not role.rentals[0].is_rented:
        cool_down_s = min(cool_down_s, HOSTS_S)
    elif capabilities_of(record.provider).queues:
        cool_down_s = min(cool_down_s, QUEUE_S)
    found = next_offer(cast("Any", role.rentals), record.failures, now, cool_down_s)
    names = [record.name_of(seat) for seat in seats]
    if found.offer is None:
        decision.retry_at = found.retry_at
        decision.waits = f"waits for {_missing(role.rentals, names)}: there are none {_where(role)}"
    return cast("Rental | None", found.offer)


def _ask(
    decision: Decision, role: RolePlan, rental: Rental, seats: list[str], now: float, patience: WaitLimits
) -> None:
    record = decision.record
    token = f"{role.role}-{record.asked}"
    asked = tuple(Machine(seat, role.role, token, rental, asked_at=now) for seat in seats)
    record = replace(
        record,
        state=ClusterState.ACTIVE,
        asked=record.asked + 1,
        asked_at=record.asked_at or now,
        machines=(*record.machines, *asked),
        failures=tuple(f for f in record.failures if now < f.at + patience.cool_down_s),
    )
    decision.record = record
    decision.act(ActionKind.RENT, token=token)
    decision.replaced |= {seat: rental for seat in seats if seat in decision.lost}
    new = [machine for machine in asked if machine.seat not in decision.lost]
    if new and not record.held:  # that they are asked for again and again is no news
        decision.notes.append(f"{len(new)} x {rental.words} for {_names(record, new)}")


def _lose_patience(decision: Decision, seen: Observation, now: float, patience: WaitLimits) -> None:
    """The user does not want to wait any longer for machines without which nothing goes on."""
    since = None if seen.is_formed else decision.record.waiting_since or now
    record = decision.record = replace(decision.record, waiting_since=since)
    known = [seen.latest.get(machine.id) for machine in record.rented]
    why = decision.waits or next((node.reason for node in known if node is not None and node.is_queued), "")
    if since is None or decision.fatal or not why:
        return
    waited_s = now - since
    has_some = any(node is not None and node.state is NodeState.READY for node in known)
    may_leave = patience.elsewhere_s < math.inf and not has_some
    if waited_s >= patience.machines_s and (patience.was_asked or not may_leave):
        limit = format_duration(patience.machines_s)
        decision.fatal = f"{record.plan.name} has no machines after {limit} (budget.wait): {why}"
        decision.is_users = True
    elif may_leave and (decision.waits or waited_s >= patience.elsewhere_s):
        decision.elsewhere = why  # where nothing has any, waiting is of no use


def _missing(rentals: Iterable[Rental], names: list[str]) -> str:
    kinds = list(dict.fromkeys(rental.instance_type or "host" for rental in rentals))
    return f"{len(names)} x {' or '.join(kinds[:_NAMED_MOST])} ({', '.join(names[:_NAMED_MOST])})"


def _where(role: RolePlan) -> str:
    """The places that were asked, for people."""
    places = list(dict.fromkeys(rental.place for rental in role.rentals if rental.place))
    more = f" and {len(places) - _NAMED_MOST} more" if len(places) > _NAMED_MOST else ""
    return f"in {', '.join(places[:_NAMED_MOST])}{more}" if places else "free that are suited"


# --- becoming one cluster -----------------------------------------------------------------------------


def _bring_up(decision: Decision, seen: Observation, now: float, scaling: Scaling) -> None:
    record = decision.record
    there = [m for m in record.rented if (node := seen.latest.get(m.id)) and node.state is NodeState.READY]
    stages = {m.id: seen.stages.get(m.id, Stage.NEW) for m in there}
    if new := [node for node, stage in stages.items() if stage is Stage.NEW]:
        decision.act(ActionKind.PREPARE, new)
    if seen.is_forming:
        return
    answers = [m for m in there if m.id not in seen.lost_since]
    ready = [m for m in answers if stages[m.id] in (Stage.READY, Stage.JOINED)]
    if not seen.is_formed:
        is_there = any(m.id == seen.head for m in ready)  # what runs there need not wait for the others
        if is_there or (ready and all(_enough(record, role, ready, scaling) for role in record.plan.roles)):
            decision.act(ActionKind.FORM, [m.id for m in _in_order(record, ready, seen.head)])
        return
    # No member can start before its engine knows the machines, which takes some 7 s on a small one.
    alive = [m for m in answers if m.id in seen.alive]
    is_up = all(_enough(record, role, alive, scaling) for role in record.plan.roles)
    if is_up and record.waited_s is None and record.asked_at is not None:
        decision.record = replace(record, waited_s=now - record.asked_at)
    free = [m.id for m in record.live if m.id in seen.vacant and seen.stages.get(m.id) is Stage.JOINED]
    if drop := [*(m.id for m in answers if m.id in seen.disconnected), *free]:
        decision.act(ActionKind.DROP, drop)
    if join := [m.id for m in answers if stages[m.id] is Stage.READY]:
        decision.act(ActionKind.JOIN, join)


def _enough(record: ClusterRecord, role: RolePlan, ready: list[Machine], scaling: Scaling) -> bool:
    """Whether a role has the nodes that it needs, and no more are on the way."""
    mine = {m.id for m in ready if m.role == role.role}
    if len(mine) >= role.count or len(mine) < scaling.of(role.role, role.needed):
        return len(mine) >= role.count
    return all(m.role != role.role or m.id in mine or m.is_leaving for m in record.live)


def _in_order(record: ClusterRecord, machines: list[Machine], head: str) -> list[Machine]:
    """As the seats are: the first one becomes the head, on demand before what may be taken back."""
    order = {seat: number for number, (seat, _) in enumerate(record.seats)}
    return sorted(machines, key=lambda m: (m.id != head, m.rental.spot, order[m.seat]))


# --- the end ------------------------------------------------------------------------------------------------


def _end(decision: Decision, seen: Observation, now: float) -> None:
    record = decision.record
    is_unasked = record.state is ClusterState.PLANNED and not record.live
    if is_unasked or (seen.is_released and not seen.renting):
        over = [
            replace(m, is_over=True, ended_at=_ended_at(m, record, seen, now) if m.started_at else None)
            for m in record.machines
            if m.ended_at is None
        ]
        decision.record = replace(record.changed(over), state=ClusterState.ENDED)
        decision.actions = []
        return
    decision.record = replace(record, state=ClusterState.ENDING)
    # What is just being started on hosts of one's own would be left there.
    is_started = seen.is_forming and not any(m.rental.is_rented for m in record.machines)
    decision.actions = [] if seen.renting or is_started else [Action(ActionKind.RELEASE)]


def _ended_at(machine: Machine, record: ClusterRecord, seen: Observation, now: float) -> float:
    node = (seen.nodes or {}).get(machine.id)
    return (node.ended_at if node else None) or _ended_by(record, machine, now)
