"""Which gang gets slots and GPUs next. Pure: no clock, no processes.

* First come, first served within a group of a run; a group that is full lets the run's other groups pass.
* Runs of a team take turns.
* Between teams it is deficit round robin: next is the team that holds the fewest slots; among those that
  hold as many, the one that was given the fewest so far. What a team does not take, or may not, it has not
  saved up, but for one node full. One that holds all that it may lets the others pass.
* A gang that does not fit because the node is too full may be overtaken by smaller ones only
  until they took as many slots as it needs itself; then no other is granted before it. So a big gang waits
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
        self._teams: dict[str, str] = {}
        self._most: dict[str, int] = {}
        self._team_used: dict[str, int] = {}
        self._given: dict[str, int] = {}
        self._most_given = 0
        self._widest = 0
        # team -> run -> group -> tickets; the order of runs is the order of turns
        self._queues: dict[str, dict[str, dict[str, deque[Ticket]]]] = {}
        self._waiting: dict[str, Ticket] = {}
        self._holders: dict[str, Ticket] = {}
        self._preferred: Ticket | None = None
        self._count = 0

    def set_capacity(
        self, run: str, slots: int, gpus: Sequence[str] = (), team: str = "", team_slots: int = 0
    ) -> None:
        """What the node offers to a run; holds for what is granted from now on.

        Args:
            run: its id.
            slots: see `Capacity`.
            gpus: see `Capacity`.
            team: whose it is; a run keeps the one that was said first.
            team_slots: most that all runs of the team hold at once; 0 is any.
        """
        self._capacity[run] = slots
        self._widest = max(self._widest, slots)
        self._gpus[run] = tuple(gpus)
        self._most[self._teams.setdefault(run, team)] = team_slots

    def offers_gpus(self, run: str) -> int:
        """How many GPUs a gang of the run can get at most."""
        return len(self._gpus.get(run, ()))

    def add(self, ticket: Ticket) -> None:
        """Queue a gang."""
        self._count += 1
        ticket.number = self._count
        self._waiting[ticket.key] = ticket
        team = self._team_of(ticket)
        runs = self._queues.setdefault(team, {})
        runs.setdefault(ticket.run, {}).setdefault(ticket.group, deque()).append(ticket)

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
        for used, name in self._counts(ticket):
            left = used.pop(name, 0) - ticket.need
            if left > 0:
                used[name] = left

    def queue_place(self, run: str) -> list[Any] | None:
        """What a run waits for of which nothing runs, since others hold it; see `QueuePlace`.

        Returns:
            Slots and GPUs of its first gang, its place among the runs that wait, the slots that each
            run of its team holds, those that other teams hold, and how many there are; where the team holds
            all that it may, none of others, and how many that is. None if the run holds slots itself,
            or waits for none.
        """
        team = self._teams.get(run, "")
        if run in self._run_used or run not in self._queues.get(team, {}) or not self.used:
            return None
        first = min((queue[0] for queue in self._queues[team][run].values()), key=_number)
        ahead = [each for other in self._turns() for each in self._queues[other]]
        own = {each: used for each, used in self._run_used.items() if self._teams.get(each, "") == team}
        others = {each: used for each, used in self._team_used.items() if each != team}
        of = self._capacity.get(run, 1) if others else 0
        if not self._team_has_room(first):
            others, of = {}, self._most[team]
        return [first.need, first.gpus, ahead.index(run) + 1, own, others, of]

    def grant(self) -> list[Ticket]:
        """All that can start now, in the order in which they should."""
        granted: list[Ticket] = []
        while (ticket := self._next()) is not None:
            del self._waiting[ticket.key]
            self._unqueue(ticket)
            self._take(ticket, self._free_gpus(ticket.run)[: ticket.gpus])
            team = self._team_of(ticket)
            self._given[team] = self._given_to(team) + ticket.need
            self._most_given = max(self._most_given, self._given[team])
            runs = self._queues.get(team, {})
            groups = runs.pop(ticket.run, None)
            if groups is not None:  # its run goes to the end of the turns
                runs[ticket.run] = groups
            granted.append(ticket)
        return granted

    def _next(self) -> Ticket | None:
        if not self._waiting:
            return None
        if self._preferred is not None and self._team_has_room(self._preferred):
            return self._preferred if self._fits(self._preferred) else None
        self._preferred = None  # else what its team may has become less meanwhile
        blocked: list[Ticket] = []
        for groups in (groups for team in self._turns() for groups in self._queues[team].values()):
            for ticket in sorted((queue[0] for queue in groups.values()), key=_number):
                if not self._group_has_room(ticket) or not self._team_has_room(ticket):
                    continue
                if self._fits(ticket):
                    return self._overtake(blocked, ticket)
                blocked.append(ticket)
        return None

    def _turns(self) -> list[str]:
        """The teams that wait, whose turn it is first."""
        if len(self._queues) < 2:
            return list(self._queues)
        return sorted(self._queues, key=lambda team: (self._team_used.get(team, 0), self._given_to(team)))

    def _given_to(self, team: str) -> int:
        """Slots that count as given to it so far."""
        return max(self._given.get(team, 0), self._most_given - self._widest)

    def _team_of(self, ticket: Ticket) -> str:
        return self._teams.get(ticket.run, "")

    def _team_has_room(self, ticket: Ticket) -> bool:
        team = self._team_of(ticket)
        most = self._most.get(team, 0)
        return not most or self._team_used.get(team, 0) + ticket.need <= most

    def _counts(self, ticket: Ticket) -> tuple[tuple[dict[str, int], str], ...]:
        """Where its slots count, and as whose."""
        return (
            (self._group_used, ticket.group),
            (self._run_used, ticket.run),
            (self._team_used, self._team_of(ticket)),
        )

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
        for used, name in self._counts(ticket):
            used[name] = used.get(name, 0) + ticket.need
        self._holders[ticket.key] = ticket

    def _unqueue(self, ticket: Ticket) -> None:
        if self._preferred is ticket:
            self._preferred = None
        team = self._team_of(ticket)
        runs = self._queues[team]
        groups = runs[ticket.run]
        queue = groups[ticket.group]
        if queue[0] is ticket:
            queue.popleft()
        else:
            queue.remove(ticket)
        if not queue:
            del groups[ticket.group]
        if not groups:
            del runs[ticket.run]
        if not runs:
            del self._queues[team]


def _number(ticket: Ticket) -> int:
    return ticket.number
