"""What to do next about a cluster: pure, without a clock or a provider.

`decide_cluster` looks at what is written of a cluster and at what was observed of its machines. It gives the
record as it must be written next, then what is to be done to the world. Everything may be repeated: machines
are asked for by token, a bootstrap finds what is there, and what is gone may be given back once more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from trainmaster.cluster.decide_requests import (
    WhyUnpaid,
    fill_seats,
    filled,
    lose_patience,
    name_of,
    take_answers,
    with_failure,
)
from trainmaster.cluster.decision import Action, ActionKind, Decision, Observation, Stage, WaitLimits
from trainmaster.cluster.observed import Scaling
from trainmaster.cluster.record import ClusterRecord, ClusterState, Machine
from trainmaster.cluster.renting.plan import RolePlan
from trainmaster.providers.base import BOOT_S, Node, NodeState

#: A provider that has not listed a machine of ours for so long has forgotten it, and does not show it late.
FORGOTTEN_S: Final = 120.0
#: Times that differ by more are by clocks that were set otherwise.
_CLOCKS_DIFFER_S: Final = 5.0
#: How often it is written down that a machine still waits in a queue.
_QUEUED_EVERY_S: Final = 30.0
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
    why_unpaid: WhyUnpaid = lambda _, __: "",
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
        why_unpaid: see `WhyUnpaid`; empty also where the run could not go on without.
    """
    scaling = scaling or Scaling()
    decision = Decision(record)
    if record.state in (ClusterState.KEPT, ClusterState.ENDED):
        return decision
    take_answers(decision, seen, now)
    _take_news(decision, seen, now, patience)
    if ending or record.state is ClusterState.ENDING:
        _end(decision, seen, now)
        return decision
    if not wanted and decision.record.state is ClusterState.PLANNED:
        return decision
    _give_up_surplus(decision, scaling.surplus(decision.record, seen.stages))
    if wanted:
        fill_seats(decision, seen, now, patience, scaling, why_unpaid)
        lose_patience(decision, seen, now, patience)
    _bring_up(decision, seen, now, scaling)
    _tell_lost(decision, wanted=wanted)
    decision.actions = list(dict.fromkeys(decision.actions))
    return decision


# --- what has become of the machines -----------------------------------------------------------------


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
    decision.record = with_failure(record, machine, now) if machine.rental.spot else record
    decision.act(ActionKind.DRAIN, [machine.id])
    why = f" ({node.reason})" if node.reason else ""
    decision.lost[machine.seat] = f"{name_of(record, machine)} is taken back in {left_s:.0f} s{why}"


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
        decision.notes.append(f"{name_of(decision.record, machine)} is given back: it is not needed now")


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
        record = with_failure(record, machine, now)
    decision.record = record
    if seen.stages.get(machine.id) is Stage.JOINED:
        decision.act(ActionKind.DROP, [machine.id])
    if is_there:
        decision.act(ActionKind.GIVE_BACK, [machine.id])
    if record.state is not ClusterState.ENDING and not machine.is_leaving:  # else that it goes was told
        if machine.has_joined:
            decision.lost[machine.seat] = f"{name_of(record, machine)} is lost: {reason}"
        else:
            decision.notes.append(f"{name_of(record, machine)} is given up: {reason}")
    # A host that does not answer is left for another; what is wrong with one that does is somebody's to mend.
    may_be_another = machine.rental.is_rented or (node is not None and bool(node.reason))
    if stuck and (not may_be_another or _broken_in_a_row(record, machine.seat) >= BROKEN_MOST):
        role = next(role for seat, role in record.seats if seat == machine.seat)
        if filled(record, role) < role.needed or machine.rental.is_rented:
            decision.fatal = f"{name_of(record, machine)} cannot be used: {reason}"


def _tell_lost(decision: Decision, *, wanted: bool) -> None:
    """One line for each machine: which one, why, and what follows."""
    for seat, what in decision.lost.items():
        follows = "; what ran there goes on from its newest checkpoint" if wanted else ""
        rental = decision.replaced.get(seat)
        if rental is not None:
            follows += f", {rental.words} is asked for in its place"
        decision.losses.append(what + follows)


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
