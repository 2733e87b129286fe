"""Which gang gets slots and GPUs next. Pure: no clock, no processes.

* First come, first served within a group of a run; a group that is full lets the run's other groups pass.
* Runs take turns.
* A gang that does not fit because the node is too full may be overtaken by smaller ones only
  until they took as many slots as it needs itself; then nobody is granted before it. So a big gang waits
  for the node to drain once, and small ones do not stand still because a big one came.
"""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class Ticket:
    """One gang's place in the queue.

    Attributes:
        key: the attempt.
        run: whose turn it is when it is granted.
        need: slots.
        group: see `GangRequest`.
        group_slots: most slots that the group takes together.
        gpus: how many GPUs.
        gpu_ids: those it was given.
        overtaken: slots given to others while it could have started but for them.
    """

    def __init__(self, key: str, run: str, need: int, group: str, group_slots: int, gpus: int = 0) -> None:
        self.key = key
        self.run = run
        self.need = need
        self.group = group
        self.group_slots = group_slots
        self.gpus = gpus
        self.gpu_ids: tuple[str, ...] = ()
        self.overtaken = 0
        self.number = 0


class Slots:
    """The slots of one node."""

    def __init__(self) -> None:
        self.used = 0
        self._capacity: dict[str, int] = {}
        self._gpus: dict[str, tuple[str, ...]] = {}
        self._gpus_used: set[str] = set()
        self._group_used: dict[str, int] = {}
        self._run_used: dict[str, int] = {}
        # run -> group -> tickets; the order of runs is the order of turns
        self._queues: dict[str, dict[str, deque[Ticket]]] = {}
        self._waiting: dict[str, Ticket] = {}
        self._holders: dict[str, Ticket] = {}
        self._preferred: Ticket | None = None
        self._count = 0

    def set_capacity(self, run: str, slots: int, gpus: Sequence[str] = ()) -> None:
        """What the node offers to a run; holds for what is granted from now on."""
        self._capacity[run] = slots
        self._gpus[run] = tuple(gpus)

    def offers_gpus(self, run: str) -> int:
        """How many GPUs a gang of the run can get at most."""
        return len(self._gpus.get(run, ()))

    def add(self, ticket: Ticket) -> None:
        """Queue a gang."""
        self._count += 1
        ticket.number = self._count
        self._waiting[ticket.key] = ticket
        groups = self._queues.setdefault(ticket.run, {})
        groups.setdefault(ticket.group, deque()).append(ticket)

    def hold(self, ticket: Ticket) -> None:
        """Count a gang that runs already."""
        self._take(ticket, ())

    def remove(self, key: str) -> None:
        """Take a gang out of the queue, or give its slots and GPUs back; unknown ones are ignored."""
        ticket = self._waiting.pop(key, None)
        if ticket is not None:
            self._unqueue(ticket)
            return
        ticket = self._holders.pop(key, None)
        if ticket is None:
            return
        self.used -= ticket.need
        self._gpus_used.difference_update(ticket.gpu_ids)
        for used, name in ((self._group_used, ticket.group), (self._run_used, ticket.run)):
            left = used.pop(name, 0) - ticket.need
            if left > 0:
                used[name] = left

    def queue_place(self, run: str) -> list[Any] | None:
        """What a run waits for of which nothing runs, since others hold it; see `QueuePlace`.

        Returns:
            Slots and GPUs of its first gang, its place among the runs that wait, and the slots that each
            run holds; None if the run holds slots itself, or waits for none.
        """
        if run in self._run_used or run not in self._queues or not self.used:
            return None
        first = min((queue[0] for queue in self._queues[run].values()), key=_number)
        return [first.need, first.gpus, list(self._queues).index(run) + 1, dict(self._run_used)]

    def grant(self) -> list[Ticket]:
        """All that can start now, in the order in which they should."""
        granted: list[Ticket] = []
        while (ticket := self._next()) is not None:
            del self._waiting[ticket.key]
            self._unqueue(ticket)
            self._take(ticket, self._free_gpus(ticket.run)[: ticket.gpus])
            groups = self._queues.pop(ticket.run, None)
            if groups is not None:  # its run goes to the end of the turns
                self._queues[ticket.run] = groups
            granted.append(ticket)
        return granted

    def _next(self) -> Ticket | None:
        if not self._waiting:
            return None
        if self._preferred is not None:
            return self._preferred if self._fits(self._preferred) else None
        blocked: list[Ticket] = []
        for groups in self._queues.values():
            for ticket in sorted((queue[0] for queue in groups.values()), key=_number):
                if not self._group_has_room(ticket):
                    continue
                if self._fits(ticket):
                    return self._overtake(blocked, ticket)
                blocked.append(ticket)
        return None

    def _overtake(self, blocked: list[Ticket], ticket: Ticket) -> Ticket | None:
        for waiting in blocked:
            waiting.overtaken += ticket.need
            # one that asks for more GPUs than its run is offered by now must not hold back the others
            possible = waiting.gpus <= self.offers_gpus(waiting.run)
            if waiting.overtaken > waiting.need and possible and self._preferred is None:
                self._preferred = waiting
        return ticket if self._preferred is None else None

    def _group_has_room(self, ticket: Ticket) -> bool:
        used = self._group_used.get(ticket.group, 0)
        return used == 0 or used + ticket.need <= ticket.group_slots

    def _fits(self, ticket: Ticket) -> bool:
        room = self.used == 0 or self.used + ticket.need <= self._capacity.get(ticket.run, 1)
        return room and ticket.gpus <= len(self._free_gpus(ticket.run))

    def _free_gpus(self, run: str) -> tuple[str, ...]:
        return tuple(gpu for gpu in self._gpus.get(run, ()) if gpu not in self._gpus_used)

    def _take(self, ticket: Ticket, gpu_ids: tuple[str, ...]) -> None:
        ticket.gpu_ids = gpu_ids
        self._gpus_used.update(gpu_ids)
        self.used += ticket.need
        for used, name in ((self._group_used, ticket.group), (self._run_used, ticket.run)):
            used[name] = used.get(name, 0) + ticket.need
        self._holders[ticket.key] = ticket

    def _unqueue(self, ticket: Ticket) -> None:
        if self._preferred is ticket:
            self._preferred = None
        groups = self._queues[ticket.run]
        queue = groups[ticket.group]
        if queue[0] is ticket:
            queue.popleft()
        else:
            queue.remove(ticket)
        if not queue:
            del groups[ticket.group]
        if not groups:
            del self._queues[ticket.run]


def _number(ticket: Ticket) -> int:
    return ticket.number
