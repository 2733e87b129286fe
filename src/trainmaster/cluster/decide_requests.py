"""Which machines a cluster asks for, and what becomes of these requests: a part of `decide_cluster`."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any, Final, cast

from trainmaster.cluster.decision import ActionKind, Decision, Observation, Refusal, WaitLimits
from trainmaster.cluster.observed import Scaling
from trainmaster.cluster.record import ClusterRecord, ClusterState, Machine
from trainmaster.cluster.renting.plan import Rental, RolePlan
from trainmaster.providers.base import NodeState
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.providers.next_offer import CapacityFailure, next_offer
from trainmaster.spec.units import format_duration

#: Hosts that others use now may be free soon; what a place with a queue refuses is closed or away for a time.
HOSTS_S: Final = 15.0
QUEUE_S: Final = 60.0
#: Names of one kind in a line for people.
_NAMED_MOST: Final = 4

#: Given a record with the machines that would be asked for, and whether the run needs all of these to go
#: on: why the money does not suffice for them; empty if it does.
WhyUnpaid = Callable[[ClusterRecord, bool], str]


def take_answers(decision: Decision, seen: Observation, now: float) -> None:
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
        record = _without_repeats(record)
    decision.record = record


def _without_repeats(record: ClusterRecord) -> ClusterRecord:
    """Of the refusals of a seat, one after the other, the first and the last: a wait may take days."""
    refused: dict[str, list[Machine]] = {}
    between: set[tuple[str, str]] = set()
    for machine in record.machines:
        if machine.id or not machine.is_over:
            refused.pop(machine.seat, None)
            continue
        row = refused.setdefault(machine.seat, [])
        row.append(machine)
        if len(row) > 2:
            between.add((row[-2].token, machine.seat))
    return replace(record, machines=tuple(m for m in record.machines if (m.token, m.seat) not in between))


def _without_another(
    decision: Decision, record: ClusterRecord, seats: set[str], why: str = ""
) -> ClusterRecord:
    """Slow machines stay where no other one can be had: that is not asked again and again."""
    slow = [m for m in record.live if m.is_slow and not m.is_leaving and m.seat in seats]
    decision.notes += [f"{name_of(record, machine)} stays, though it is slow{why}" for machine in slow]
    return record.changed(replace(machine, is_slow=False) for machine in slow)


def _goes_on(record: ClusterRecord, missing: list[Machine], refusal: Refusal) -> str:
    """What is told while machines cannot be replaced until somebody mends something: nothing else ends."""
    there = len(record.rented)
    so_far = f"goes on with {there} of its machines" if there else "waits, and nothing is rented"
    return (
        f"{record.plan.name} {so_far}: {_names(record, missing)} cannot be rented now, and is asked for "
        f"again in a minute: {refusal.reason}"
    )


def fill_seats(
    decision: Decision,
    seen: Observation,
    now: float,
    patience: WaitLimits,
    scaling: Scaling,
    why_unpaid: WhyUnpaid,
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
        if not role.rentals[0].is_rented and filled(decision.record, role) >= role.needed:
            # Another host is no other than the one that could not be used: those that are left are enough.
            free = [seat for seat in free if seat not in {m.seat for m in decision.record.machines}]
        missing = scaling.of(role.role, role.count) - filled(decision.record, role)
        free = free[: max(missing, 0)]
        if free and (rental := _rental(decision, role, free, now, patience)) is not None:
            wanted += [(role, rental, seat) for seat in free]
            least.update(free[: max(role.needed - filled(decision.record, role), 0)])
    least -= _slow(decision.record)  # they work on until another one is there
    # First what nothing goes on without: one more worker is of no use before there is a parameter server.
    wanted.sort(key=lambda each: each[2] not in least)
    paid = _paid(decision, wanted, least, seen, now, why_unpaid)
    for role in decision.record.plan.roles:
        if mine := [(rental, seat) for of, rental, seat in paid if of is role]:
            _ask(decision, role, mine[0][0], [seat for _, seat in mine], now, patience)


def _paid(
    decision: Decision,
    wanted: list[tuple[RolePlan, Rental, str]],
    least: Collection[str],
    seen: Observation,
    now: float,
    why_unpaid: WhyUnpaid,
) -> list[tuple[RolePlan, Rental, str]]:
    """What the money suffices for of what is wanted, unless that is too little for a cluster.

    The rest is not written down either, as that would count. It is asked for once there is more money.

    Args:
        decision: so far.
        wanted: what each seat would have, the ``least`` that a cluster needs first.
        least: seats that nothing goes on without.
        seen: as observed.
        now: Unix seconds.
        why_unpaid: see `decide_cluster`.
    """
    record = decision.record
    machines = [Machine(seat, role.role, "", rental, asked_at=now) for role, rental, seat in wanted]

    def why(count: int) -> str:
        with_them = replace(record, machines=(*record.machines, *machines[:count]))
        return why_unpaid(with_them, count <= len(least))

    if not wanted or not (why_not := why(len(wanted))):
        return wanted
    count = bisect_left(range(1, len(wanted) + 1), True, key=lambda n: bool(why(n)))
    if not seen.is_formed and any(
        filled(record, role) + sum(of is role for of, *_ in wanted[:count]) < role.needed
        for role in record.plan.roles
    ):
        count = 0
    slow = _slow(record)
    decision.record = _without_another(
        decision, record, slow & {one[2] for one in wanted[count:]}, f": {why_not}"
    )
    if rest := [one for one in wanted[count:] if one[2] not in slow]:
        there = sum(not machine.is_leaving for machine in record.live) + count
        so_far = f"with {there} of its machines" if there else f"without machines of {record.provider}"
        names = [record.name_of(seat) for *_, seat in rest]
        what = _missing([rental for _, rental, _ in rest], names)
        decision.unpaid = f"{record.plan.name} goes on {so_far}: {what} not asked for: {why_not}"
    return wanted[:count]


def _slow(record: ClusterRecord) -> set[str]:
    """Seats of machines that are to be replaced as they are slow."""
    return {machine.seat for machine in record.live if machine.is_slow and not machine.is_leaving}


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


def lose_patience(decision: Decision, seen: Observation, now: float, patience: WaitLimits) -> None:
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


def filled(record: ClusterRecord, role: RolePlan) -> int:
    """How many seats of a role have a machine, or one that was asked for."""
    return sum(m.role == role.role and m.holds_seat for m in record.live)


def name_of(record: ClusterRecord, machine: Machine) -> str:
    """For people: its name in the cluster, and that of its provider."""
    return f"{record.name_of(machine.seat)} ({machine.id})"


def _names(record: ClusterRecord, machines: Iterable[Machine]) -> str:
    return ", ".join(record.name_of(machine.seat) for machine in machines)


def _failure(rental: Rental, zone: str, now: float) -> CapacityFailure:
    return CapacityFailure(rental.region, zone, rental.spot, now, rental.instance_type)


def with_failure(record: ClusterRecord, machine: Machine, now: float) -> ClusterRecord:
    """With that machines such as this one are not to be had for a time."""
    rental = machine.rental
    failure = _failure(rental, machine.zone or rental.zone, now)
    return replace(record, failures=(*record.failures, failure))
