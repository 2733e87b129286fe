"""`ClusterRecord`: a cluster as its row keeps it. Pure values; all that must survive a crash is in here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from enum import StrEnum
from typing import Any, Final

from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan
from trainmaster.control.decide.budget import BOOTING_S, SWITCH_OFF_S, USUAL_LEASE_S
from trainmaster.dataclass import dataclass
from trainmaster.db import ClusterRow
from trainmaster.providers.next_offer import CapacityFailure
from trainmaster.spec.errors import StoreError, one_line
from trainmaster.spec.plain_json import EXACTLY, parsed_json, typed


class DamagedClusterError(StoreError):
    """What is written of a cluster means nothing: its machines may be rented all the same."""


class ClusterState(StrEnum):
    """How far a cluster is.

    PLANNED: nothing was asked for yet. ACTIVE: its machines are asked for, boot, or work.
    KEPT: warm and unwatched, for a run to come; its machines end themselves at ``kept_until``.
    ENDING: it is given back. ENDED: nothing of it is there any more.
    """

    PLANNED = "PLANNED"
    ACTIVE = "ACTIVE"
    KEPT = "KEPT"
    ENDING = "ENDING"
    ENDED = "ENDED"


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that was asked for, for one seat of the cluster. Only ever changed forwards.

    Attributes:
        seat: its place, such as ``worker-0``; its successors have the same.
        role: ``worker`` or ``ps``.
        token: under which it was asked for, together with those that have the same.
        rental: what was asked for.
        id: as the provider names it; empty until the provider has answered.
        zone: where it came to be.
        started_at, ended_at: Unix seconds between which it is billed; None: not yet.
        is_leaving: its provider takes it back soon: its seat is free, though it still works.
        is_too_small: something ran out of memory on such machines: it leaves for one with more.
        is_surplus: it is not needed, and leaves: that is no loss.
        is_over: it is given back, gone, or was refused: its seat is free.
        is_broken: it could not become a node.
        has_joined: it was a node of the cluster, whichever process drives the run now.
        reason: why it is over, in words.
        asked_at: Unix seconds; of one that waits in a queue, when that was heard last.
        leased_until: of one that is over: Unix seconds at which it has ended itself at the latest.
        is_slow: another one is to take its place: its seat is free, though it works until that one does.
        slow_at: Unix seconds when that was decided. slow_why: for what reason. slowdown: how many times as
            long steps took.
        left_provider: that rented it, if its cluster has gone on to another one since; else empty.
    """

    __pydantic_config__ = EXACTLY
    seat: str
    role: str
    token: str
    rental: Rental
    id: str = ""
    zone: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    is_leaving: bool = False
    is_over: bool = False
    reason: str = ""
    is_broken: bool = False
    asked_at: float | None = None
    leased_until: float | None = None
    has_joined: bool = False
    is_slow: bool = False
    slow_at: float | None = None
    slow_why: str = ""
    slowdown: float = 1.0
    left_provider: str = ""
    is_too_small: bool = False
    is_surplus: bool = False

    @property
    def holds_seat(self) -> bool:
        """Whether no other one is asked for in its place; of one that is over that is another question."""
        return not (self.is_leaving or self.is_slow)

    def billed_usd(self, now: float) -> float:
        """What it has cost until then, or until its end, whatever clock tells us the time."""
        if self.started_at is None:
            return 0.0
        until = now if self.ended_at is None else self.ended_at
        return self.rental.billed_usd(max(until - self.started_at, 0.0))

    def moved(self, by_s: float) -> Machine:
        """With all times by a clock that is ahead of that which they are by."""
        times = ("started_at", "ended_at", "asked_at", "leased_until", "slow_at")
        return replace(self, **_later(self, by_s, *times))

    def most_usd(self, now: float, until: float, leased_until: float | None, paid_from: float) -> float:
        """What may be billed for it at most until a later time, from when the present run pays.

        Args:
            now: Unix seconds.
            until: the later time, Unix seconds.
            leased_until: see `ClusterRecord`.
            paid_from: see `ClusterRecord`.
        """
        started_at = self._started_at_most(now, until, leased_until)
        ended_at = until if self.ended_at is None else self.ended_at
        if started_at is None or ended_at < paid_from:
            return 0.0
        usd = self.rental.billed_usd(max(ended_at - started_at, 0.0), at_most=True)
        if started_at < paid_from:  # the run before has paid for that
            usd -= self.rental.billed_usd(paid_from - started_at, at_most=True)
        return usd

    def _started_at_most(self, now: float, until: float, leased_until: float | None) -> float | None:
        """From when on to count: as long as it may be billed for, if it goes on until then.

        What was asked for and not seen yet may be there already. What has not renewed its lease, asleep for
        instance, knows that it was not there after it. One that was given up, and cannot be ended now, is
        billed until the end of its lease.
        """
        started_at = self.started_at
        if started_at is None:
            if self.is_over and not self.id:
                return None
            # Its first lease begins when it has booted, and cannot be renewed before it was seen.
            unseen_s = max(now - (self.asked_at or now), 0.0)
            started_at = now - BOOTING_S - min(unseen_s, USUAL_LEASE_S + SWITCH_OFF_S)
        elif self.ended_at is None:
            leased_until = self.leased_until or leased_until  # the others' leases go on
            if leased_until is None:  # nothing was renewed yet: it lives as long as after its boot
                leased_until = started_at + BOOTING_S + USUAL_LEASE_S + SWITCH_OFF_S
            started_at += max(now - max(leased_until, started_at), 0.0)
        if self.ended_at is None and self.leased_until is not None:
            started_at -= max(self.leased_until - until, 0.0)
        return started_at


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """What is written of a cluster.

    Attributes:
        id: what its machines are tagged with.
        provider: that rents it. home_id: for which home.
        plan: what it is to be; None of its machines are named there.
        state: see `ClusterState`.
        machines: all that were ever asked for, in that order.
        failures: where machines could not be had lately.
        formed: how often its nodes were made one cluster: each time has a directory of its own.
        asked: how many requests were made; their tokens are numbered.
        keep_s: how long it is to stay warm afterwards, where it can; see `keepable_s`.
        kept_until: Unix seconds, while KEPT.
        paid_from: Unix seconds from which on the present run pays, if it took over a warm one; else 0.
        brought: hashes of what the run before has brought there, if it took over a warm one; None: unknown.
        leased_until: Unix seconds at which its machines have ended themselves, unless their lease is renewed.
        asked_at: Unix seconds of the first request.
        waited_s: from then to the first time that it was up, and its engine knew its machines.
        waiting_since: Unix seconds since when its run, or who resumed that, waits for it; None: it is up.
    """

    __pydantic_config__ = EXACTLY
    id: str
    provider: str
    home_id: str
    plan: ClusterPlan
    state: ClusterState = ClusterState.PLANNED
    machines: tuple[Machine, ...] = ()
    failures: tuple[CapacityFailure, ...] = ()
    formed: int = 0
    asked: int = 0
    keep_s: float = 0.0
    kept_until: float | None = None
    paid_from: float = 0.0
    brought: tuple[str, ...] | None = None
    leased_until: float | None = None
    asked_at: float | None = None
    waited_s: float | None = None
    waiting_since: float | None = None

    @property
    def seats(self) -> tuple[tuple[str, RolePlan], ...]:
        """Every place of the cluster with its role; the first one is its head's."""
        return tuple((f"{role.role}-{n}", role) for role in self.plan.roles for n in range(role.count))

    def name_of(self, seat: str) -> str:
        """What people call the machine there: members have names like seats, and may be elsewhere.

        The first one is ``node-1``, also after it was replaced.
        """
        numbers = {known: number for number, (known, _) in enumerate(self.seats, 1)}
        return f"node-{numbers[seat]}" if seat in numbers else seat

    @property
    def live(self) -> tuple[Machine, ...]:
        """Machines that hold a seat."""
        return tuple(machine for machine in self.machines if not machine.is_over)

    @property
    def rented(self) -> tuple[Machine, ...]:
        """Machines that hold a seat and have a name."""
        return tuple(machine for machine in self.live if machine.id)

    @property
    def held(self) -> str:
        """Why hosts of one's own are not there: others use them, or they do not answer; empty if some are.

        It holds while they are asked for again, until some are given.
        """
        had = {machine.token for machine in self.machines if machine.id}
        last = next((m for m in reversed(self.machines) if m.is_over or m.token in had), None)
        if self.rented or last is None or last.token in had or last.rental.is_rented:
            return ""
        return last.reason

    def is_outgrown(self, machine: Machine) -> bool:
        """Whether its role has no such machines any more, as something ran out of memory on one.

        A way to have machines may also be left out because so many of them would be too dear.
        """
        ways = [r for role in self.plan.roles if role.role == machine.role for r in role.rentals]
        has_more = any(r.outgrows(machine.rental, device=gpu) for r in ways for gpu in (False, True))
        return has_more and machine.rental.instance_type not in {r.instance_type for r in ways}

    def machine(self, node: str) -> Machine | None:
        """The machine with that name; a host of one's own may come back, then its last time counts."""
        return next((machine for machine in reversed(self.machines) if machine.id == node), None)

    def successor(self, slow: Machine) -> Machine | None:
        """The machine that is to take the place of a slow one; None while there is none."""
        return next((m for m in self.live if m.seat == slow.seat and m.holds_seat), None)

    def changed(self, machines: Iterable[Machine]) -> ClusterRecord:
        """With these in place of those with the same token and seat."""
        new = {(machine.token, machine.seat): machine for machine in machines}
        return replace(
            self,
            machines=tuple(new.get((machine.token, machine.seat), machine) for machine in self.machines),
        )

    def moved(self, by_s: float) -> ClusterRecord:
        """With all times by a clock that is ahead of that which they are by."""
        return replace(
            self,
            machines=tuple(machine.moved(by_s) for machine in self.machines),
            failures=tuple(replace(failure, at=failure.at + by_s) for failure in self.failures),
            paid_from=self.paid_from + by_s if self.paid_from else 0.0,
            **_later(self, by_s, "kept_until", "leased_until", "asked_at", "waiting_since"),
        )

    def spent_usd(self, now: float) -> float:
        """What the present run has to pay for it until now.

        What has not renewed leases, asleep for instance, knows of the machines only that they end themselves
        with them: until their provider tells when they did, they are billed until then.
        """
        return sum(self.spent_by_provider(now).values())

    def spent_by_provider(self, now: float) -> dict[str, float]:
        """The same, by who has rented the machines: one, unless it has gone on to another."""
        found: dict[str, float] = {}
        for machine in self.machines:
            leased_until = machine.leased_until or self.leased_until or now
            until = min(now, leased_until) if machine.ended_at is None else now
            if machine.started_at is None or (machine.ended_at or until) < self.paid_from:
                continue
            usd = machine.billed_usd(until)
            if machine.started_at < self.paid_from:  # the run before has paid for that
                usd -= machine.rental.billed_usd(self.paid_from - machine.started_at)
            provider = self.provider_of(machine)
            found[provider] = found.get(provider, 0.0) + usd
        return found

    def provider_of(self, machine: Machine) -> str:
        """Who has rented it."""
        return machine.left_provider or self.provider

    @property
    def keepable_s(self) -> float:
        """How long it stays warm. Hosts of one's own do not: nothing there would end what is ours."""
        is_rented = any(rental.is_rented for role in self.plan.roles for rental in role.rentals)
        return self.keep_s if is_rented else 0.0

    def idle_usd(self, now: float, over_at: float | None = None) -> float:
        """What it has cost since no run uses it, which is on no run's bill.

        Args:
            now: Unix seconds.
            over_at: when its run was over, if that could not give it back; None while a run uses it.
        """
        if self.state is ClusterState.KEPT and self.kept_until is not None:
            over_at, now = self.kept_until - self.keep_s, min(now, self.kept_until)
        if over_at is None:
            return 0.0
        return replace(self, paid_from=max(over_at, self.paid_from)).spent_usd(now)

    def most_usd(self, now: float, until: float) -> float:
        """What its provider bills the present run at most, if all that is asked for is there until then.

        Args:
            now: Unix seconds.
            until: Unix seconds, not before.
        """
        return sum(m.most_usd(now, until, self.leased_until, self.paid_from) for m in self.machines)

    def usd_per_hour(self) -> float:
        """Price of what is rented now."""
        return sum(m.rental.usd_per_hour for m in self.machines if m.started_at and m.ended_at is None)

    def as_row(self) -> ClusterRow:
        """For the store."""
        data = asdict(self)
        for name in _COLUMNS:
            del data[name]
        if self.brought is None:  # 0.2.0 does not know the key
            del data["brought"]
        for machine in data["machines"]:
            for name in ("left_provider", "is_too_small", "is_surplus"):  # nor these
                if not machine[name]:
                    del machine[name]
        return ClusterRow(
            self.id,
            self.provider,
            self.home_id,
            self.state,
            json.dumps(data, separators=(",", ":")),
            self.kept_until,
            self.waited_s,
        )

    @classmethod
    def of_row(cls, row: Mapping[Any, Any]) -> ClusterRecord:
        """What `as_row` gave.

        Raises:
            DamagedClusterError: something else is there.
        """
        try:
            columns = {name: row[name] for name in _COLUMNS}
            found = typed(cls, {**parsed_json(row["data"]), **columns})
            if problem := _problem(found):
                raise ValueError(problem)
        except (ValueError, TypeError) as error:
            words = " ".join(str(error).split())[:300]
            raise DamagedClusterError(
                f"the row of cluster {row['id']} in the database (table cluster) is damaged: {words}",
                f"Machines of it may be rented: `trainmaster clusters end {row['id']}` gives them back; "
                "unrenewed they end themselves. If a later Trainmaster has written it, use that one.",
            ) from None
        return found


_COLUMNS: Final = ("id", "provider", "home_id", "state", "kept_until", "waited_s")
#: More than any of them ever is: what is beyond would only make sums of money that are none.
_MOST_NODES: Final = 1 << 20
_MOST: Final = 1e12


def _problem(record: ClusterRecord) -> str:
    """What cannot be in a record of ours; empty if it is one."""
    if not record.id or "/" in record.id or record.id.startswith(".") or not record.id.isprintable():
        return "its id is none"  # a directory has this name
    if any(not role.rentals or role.count < 0 for role in record.plan.roles):
        return "its plan has a role without machines"
    if record.plan.nodes > _MOST_NODES:
        return f"it has {record.plan.nodes} nodes"
    seats = {seat for seat, _ in record.seats}
    if any(machine.seat not in seats for machine in record.live):
        return "a machine has no seat in it"
    rentals = [machine.rental for machine in record.machines]
    rentals += [rental for role in record.plan.roles for rental in (*role.rentals, *role.larger)]
    for rental in rentals:
        numbers = (
            rental.usd_per_hour,
            rental.most_usd_per_hour,
            rental.extras_usd_per_hour,
            rental.minimum_s,
        )
        if any(not 0 <= number < _MOST for number in numbers) or not 1e-3 <= rental.quantum_s < _MOST:
            return f"the price of a machine ({rental.words})"
    times = [record.kept_until, record.paid_from, record.leased_until, record.keep_s]
    times += [at for m in record.machines for at in (m.started_at, m.ended_at, m.leased_until)]
    if any(at is not None and not 0 <= at < _MOST for at in times):
        return "a time"
    return ""


def readable(rows: Iterable[Mapping[Any, Any]], tell: Callable[[str], None]) -> list[ClusterRecord]:
    """Clusters as they are written, without those whose rows are damaged, which are told."""
    found = []
    for row in rows:
        try:
            found.append(ClusterRecord.of_row(row))
        except DamagedClusterError as error:
            tell(f"note: {one_line(error)}")
    return found


def _later(of: Machine | ClusterRecord, by_s: float, *names: str) -> dict[str, Any]:
    return {name: at + by_s for name in names if (at := getattr(of, name)) is not None}


def cluster_id(run: str, plan: ClusterPlan) -> str:
    """What the machines of a run's cluster are tagged with; also the name of a directory."""
    return f"{run}.{plan.name}"


def new_record(run: str, plan: ClusterPlan, home_id: str, keep_s: float = 0.0) -> ClusterRecord:
    """A cluster that is to be had."""
    return ClusterRecord(cluster_id(run, plan), plan.provider, home_id, plan, keep_s=keep_s)


def elsewhere(record: ClusterRecord, plan: ClusterPlan) -> ClusterRecord:
    """A cluster whose machines are all over, to be had from another provider; its bill stays."""
    left = tuple(replace(each, left_provider=record.provider_of(each)) for each in record.machines)
    return replace(
        record,
        provider=plan.provider,
        machines=left,
        plan=plan,
        state=ClusterState.PLANNED,
        failures=(),
        waiting_since=None,
        leased_until=None,
    )


def marked_slow(record: ClusterRecord, machine: str, why: str, slowdown: float, now: float) -> ClusterRecord:
    """Another one is to take the place of a machine; nothing changes if that was decided before."""
    found = record.machine(machine)
    if found is None or found.is_over or found.slow_at is not None or not found.holds_seat:
        return record
    return record.changed([replace(found, is_slow=True, slow_at=now, slow_why=why, slowdown=slowdown)])


def swapped(record: ClusterRecord, machine: str, *, keep: bool) -> ClusterRecord:
    """The successor of a slow machine has taken its place, or is given up for it; at most once."""
    found = record.machine(machine)
    if found is None or found.is_over or found.is_leaving or not found.is_slow:
        return record
    if not keep:
        return record.changed([replace(found, is_leaving=True)])
    successor = record.successor(found)
    kept = replace(found, is_slow=False)
    return record.changed(
        [kept] if successor is None else [kept, replace(successor, is_leaving=True, is_surplus=True)]
    )


def fits(kept: ClusterRecord, plan: ClusterPlan) -> bool:
    """Whether a warm cluster is what a plan asks for: as many machines of kinds that it would take.

    Disks are compared as they were asked for; what a provider takes where nothing was said is not known here.
    """
    if (kept.provider, kept.plan.engine) != (plan.provider, plan.engine) or not kept.rented:
        return False
    have = {role.role: role for role in kept.plan.roles}
    if have.keys() != {role.role for role in plan.roles}:
        return False
    for role in plan.roles:
        machines = [machine for machine in kept.rented if machine.role == role.role]
        if len(machines) != role.count or dict(have[role.role].labels) != dict(role.labels):
            return False
        if role.disk_bytes > have[role.role].disk_bytes:
            return False
        kinds = {_kind(rental) for rental in role.rentals}
        if not all(_kind(machine.rental) in kinds for machine in machines):
            return False
    return True


def as_there(plan: ClusterPlan, kept: ClusterRecord) -> ClusterPlan:
    """The plan with that way to have its machines first which those of a warm cluster that fits are.

    Args:
        plan: of what they are taken over for.
        kept: the warm cluster.
    """
    kinds = {machine.role: _kind(machine.rental) for machine in kept.rented}

    def ordered(role: RolePlan) -> RolePlan:
        return replace(
            role, rentals=tuple(sorted(role.rentals, key=lambda way: _kind(way) != kinds[role.role]))
        )

    return replace(plan, roles=tuple(map(ordered, plan.roles)))


def taken_over(
    kept: ClusterRecord, planned: ClusterRecord, now: float, brought: Iterable[str] = ()
) -> ClusterRecord:
    """A warm cluster that fits as the run's that has planned for one: it is to take what that plan says.

    Args:
        kept: the warm one.
        planned: what it is instead of.
        now: Unix seconds, from which on the run pays.
        brought: hashes of what the run before has brought there.
    """
    roles = {role.role: role for role in planned.plan.roles}
    slots = {
        (role.role, _kind(rental)): rental.slots for role in planned.plan.roles for rental in role.rentals
    }
    machines = [
        replace(
            machine,
            has_joined=False,  # nothing of this run was on it yet
            rental=replace(
                machine.rental,
                slots=slots.get((machine.role, _kind(machine.rental)), machine.rental.slots),
            ),
        )
        for machine in kept.machines
    ]
    return replace(
        kept,
        state=ClusterState.ACTIVE,
        kept_until=None,
        keep_s=planned.keep_s,
        paid_from=now,
        brought=tuple(sorted(brought)),
        machines=tuple(machines),
        plan=replace(
            planned.plan,
            roles=tuple(
                replace(role, rentals=roles[role.role].rentals, larger=roles[role.role].larger)
                for role in kept.plan.roles
            ),
        ),
    )


def resumed(records: Iterable[ClusterRecord]) -> list[ClusterRecord]:
    """What a run goes on with: one record for each of its plans, in a state to begin from.

    A cluster that was taken over has the run's plan, beside the record that was planned and never rented. One
    that was about to be given back when its driver was killed may have machines: those are looked at first.
    Which hosts were not to be had before the run ended says nothing any more.

    Args:
        records: all that the run has.
    """
    found: dict[str, ClusterRecord] = {}
    for record in sorted(records, key=lambda each: (bool(each.live), bool(each.machines))):
        found[record.plan.name] = record
    return [
        replace(
            record,
            state=ClusterState.ACTIVE if record.live else ClusterState.PLANNED,
            machines=tuple(m for m in record.machines if m.id or m.rental.is_rented or not m.is_over),
            waiting_since=None,
        )
        if record.state in (ClusterState.ENDED, ClusterState.ENDING)
        else record
        for record in found.values()
    ]


def _kind(rental: Rental) -> tuple[str, str, bool, int]:
    return rental.instance_type, rental.region, rental.spot, rental.gpus
