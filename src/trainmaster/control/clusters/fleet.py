"""`Fleet`: all clusters of a run as one executor; gangs wait in it until their cluster is there.

To the run's loop it is an `Executor` like that of one machine. When a cluster's head is lost, everything that
ran there is reported lost, and what is submitted next waits for the new one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, runtime_checkable

from trainmaster.control.clusters.record import ClusterRecord, ClusterState
from trainmaster.executors.base import (
    Capacity,
    Executor,
    GangRequest,
    GangStatus,
    MemberStatus,
    Phase,
)
from trainmaster.spec.errors import ExecutorError, TrainmasterError

if TYPE_CHECKING:
    from trainmaster.control.board import Board
    from trainmaster.control.budget import Meter
    from trainmaster.control.clusters.cluster_loop import ClusterLoop
    from trainmaster.control.clusters.node_access import NodeAccess
    from trainmaster.control.clusters.sight import Formation

log = logging.getLogger(__name__)

#: With several clusters each one is listened to for so long at a time.
_SLICE_S: Final = 0.05
#: A head that answers us by SSH, but whose Ray does not for so long, is not waited for.
_MUTE_S: Final = 20.0
_REOPEN_S: Final = 1.0
_COST_S: Final = 5.0
#: A machine that is taken back: its members have ended so long before.
_SPARE_S: Final = 5.0

T = TypeVar("T")


class Alive(Protocol):
    """A node that an executor takes to be alive."""

    @property
    def key(self) -> str:
        """Its name in the cluster."""
        ...


@runtime_checkable
class ManyNodes(Protocol):
    """What an executor of several nodes tells beyond `Executor`."""

    is_lost: bool

    def nodes(self) -> Sequence[Alive]:
        """Those that are alive."""
        ...


#: Makes the executor of a cluster that is up.
Opener = Callable[["ClusterLoop", "Formation"], Executor]


@dataclass(slots=True)
class _Post:
    """What goes to one cluster.

    Attributes:
        loop: takes care of it.
        executor: of its present formation; None while there is none, or it does not answer.
        number: of the formation that `executor` is for, or was.
        waiting: gangs that are not sent yet.
        sent: members of gangs that were sent, and when they started, by attempt.
        mute_since: since when the executor cannot be reached, Unix seconds.
        vacated: attempts that were asked to end as their node is taken back.
    """

    loop: ClusterLoop
    executor: Executor | None = None
    number: int | None = None
    waiting: dict[str, GangRequest] = field(default_factory=dict)
    sent: dict[str, tuple[MemberStatus, ...]] = field(default_factory=dict)
    graces: dict[str, float] = field(default_factory=dict)
    mute_since: float | None = None
    reopen_at: float = 0.0
    vacated: set[str] = field(default_factory=set)


class Fleet:
    """See `Executor` for the methods of that name.

    Args:
        loops: by experiment; several experiments may share one.
        opener: makes the executor of a cluster that is up.
        write_cost: keeps what the run has cost, in dollars.
        tell_places: keeps on which machine each member of an attempt runs.
        clock: gives Unix seconds.
    """

    def __init__(
        self,
        loops: Mapping[str, ClusterLoop],
        opener: Opener,
        write_cost: Callable[[float], None],
        tell_places: Callable[[str, Mapping[str, str]], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        posts: dict[int, _Post] = {}
        self._posts = {name: posts.setdefault(id(loop), _Post(loop)) for name, loop in loops.items()}
        self._all = list(posts.values())
        self._opener = opener
        self._write_cost = write_cost
        self._tell_places = tell_places
        self._cost_at = 0.0
        self._clock = clock
        self._run = ""
        self._capacity = Capacity(1)
        self._env: Mapping[str, str] = {}
        self._news: dict[str, GangStatus] = {}
        self._lock = threading.Lock()
        self._members: dict[str, tuple[tuple[str, str], ...]] = {}

    # --- Executor --------------------------------------------------------------------------------

    def open(self, run: str, capacity: Capacity, env: Mapping[str, str]) -> None:
        """Begin to take care of the clusters."""
        self._run, self._capacity, self._env = run, capacity, env
        for post in self._all:
            post.loop.start()

    def submit(self, gangs: Sequence[GangRequest]) -> None:
        """Queue gangs; those of a cluster that is not there yet wait here."""
        for gang in gangs:
            post = self._post(gang.attempt)
            post.loop.want()
            if gang.attempt not in post.sent:
                post.waiting[gang.attempt] = gang
                post.graces[gang.attempt] = gang.grace_s
        for post in self._all:
            self._send(post)

    def launch(self, attempt: str, env: Mapping[str, Mapping[str, str]]) -> None:
        """Start a GRANTED gang."""
        post = self._post(attempt)
        self._guarded(post, lambda executor: executor.launch(attempt, env))

    def observe(self, attempts: Sequence[str]) -> list[GangStatus]:
        """The present status of each attempt; waits for clusters that an earlier driver had formed."""
        found: dict[str, GangStatus] = {}
        for post in self._all:
            mine = [attempt for attempt in attempts if self._post(attempt) is post]
            if not mine:
                continue
            if any(attempt not in post.waiting for attempt in mine):
                self._await(post)
            for status in self._guarded(post, partial(_observe, mine)) or ():
                if status.phase is not Phase.UNKNOWN:
                    post.sent[status.attempt] = status.members
                found[status.attempt] = self._noted(status)
        return [
            GangStatus(attempt, Phase.QUEUED)
            if attempt in self._post(attempt).waiting
            else found.get(attempt) or self._news.get(attempt) or GangStatus(attempt, Phase.UNKNOWN)
            for attempt in attempts
        ]

    def changes(self, timeout_s: float) -> list[GangStatus]:
        """Wait until something changed; see `Executor.changes`."""
        for post in self._all:
            self._keep_up(post)
        listening = [post for post in self._all if post.executor is not None]
        wait_s = timeout_s if len(listening) == 1 and len(self._all) == 1 else min(timeout_s, _SLICE_S)
        if not listening and not self._news:
            time.sleep(min(timeout_s, _SLICE_S))
        for post in listening:
            for status in self._guarded(post, lambda executor: executor.changes(wait_s)) or ():
                self._hear(post, status)
        news, self._news = self._news, {}
        return list(news.values())

    def output(self) -> list[tuple[str, str]]:
        """(attempt, member) of each member that wrote something since the last call."""
        found: list[tuple[str, str]] = []
        for post in self._all:
            found += self._guarded(post, lambda executor: executor.output()) or ()
        return found

    def stop(self, attempt: str, grace_s: float) -> None:
        """Ask an attempt to end; one that was never sent is forgotten."""
        post = self._post(attempt)
        if post.waiting.pop(attempt, None) is not None:
            self._news[attempt] = GangStatus(attempt, Phase.UNKNOWN)
            return
        self._guarded(post, lambda executor: executor.stop(attempt, grace_s))

    def forget(self, attempts: Sequence[str]) -> None:
        """Their ends are recorded."""
        for attempt in attempts:
            post = self._post(attempt)
            post.waiting.pop(attempt, None)
            post.sent.pop(attempt, None)
            post.graces.pop(attempt, None)
            post.vacated.discard(attempt)
            self._guarded(post, partial(_forget, attempt))
            with self._lock:
                self._members.pop(attempt, None)

    def close(self) -> None:
        """Disconnect; running gangs go on, and machines live as long as their leases."""
        for post in self._all:
            if post.executor is not None:
                post.executor.close()
                post.executor = None
            post.loop.close()

    # --- for the run's loop -------------------------------------------------------------------------

    def look(self, board: Board, meter: Meter | None, now: float) -> list[str]:
        """Tell clusters that are needed no more to end; what the user is to be told.

        Args:
            board: the run.
            meter: is told what has been spent, and the price of what is rented.
            now: Unix seconds.

        Raises:
            TrainmasterError: a cluster cannot be had, whatever is tried.
        """
        notes: list[str] = []
        for post in self._all:
            notes += post.loop.notes()
            if post.loop.fatal is not None:
                raise post.loop.fatal
            mine = [board.experiments[name] for name, other in self._posts.items() if other is post]
            over = all(experiment.state.name == "DONE" for experiment in mine)
            if over and not post.loop.record.keep_s:
                post.loop.end()
        if meter is not None:
            meter.settled_usd, meter.since = self.spent_usd(now), now
            meter.usd_per_hour = self.usd_per_hour()
        if now - self._cost_at >= _COST_S:
            self._cost_at = now
            self._write_cost(self.spent_usd(now))
        return notes

    @property
    def slots(self) -> int:
        """The most processes that one of its clusters takes at once."""
        return max(post.loop.record.plan.slots for post in self._all)

    def records(self) -> list[ClusterRecord]:
        """What is written of its clusters now."""
        return [post.loop.record for post in self._all]

    def spent_usd(self, now: float) -> float:
        """Dollars that the run has to pay until now."""
        return sum(post.loop.record.spent_usd(now) for post in self._all)

    def usd_per_hour(self) -> float:
        """Price of what is rented now."""
        return sum(post.loop.record.usd_per_hour() for post in self._all)

    def finish(self, tell: Callable[[str], None], *, keep: bool, patience_s: float) -> float:
        """Give back, or keep warm, what is still rented; the whole bill in dollars.

        Args:
            tell: shows lines to the user.
            keep: clusters that are to be kept may be: the run has ended well.
            patience_s: for machines to be gone; whoever waits longer is told.
        """
        for post in self._all:
            record = post.loop.record
            if post.executor is not None:
                post.executor.close()
                post.executor = None
            if keep and record.keep_s and record.state is ClusterState.ACTIVE:
                if post.loop.keep(record.keep_s, self._clock()):
                    tell(f"{record.id}: kept warm for {record.keep_s:.0f} s")
                    continue
                tell(f"{record.id}: cannot be kept warm, it is given back")
            post.loop.end()
            post.loop.start()  # its loop may have ended with an error
        deadline = self._clock() + patience_s
        while waiting := [p.loop for p in self._all if not (p.loop.is_over or p.loop.is_kept)]:
            if self._clock() > deadline or not any(loop.is_running for loop in waiting):
                names = ", ".join(loop.record.id for loop in waiting)
                tell(
                    f"warning: {names}: machines are still being given back; they end themselves in any case"
                )
                break
            time.sleep(_SLICE_S)
            for post in self._all:
                for note in post.loop.notes():
                    tell(note)
        for post in self._all:
            post.loop.close()
        cost_usd = self.spent_usd(self._clock())
        self._write_cost(cost_usd)
        return cost_usd

    def nodes_of(self, attempt: str) -> list[tuple[str, NodeAccess]]:
        """Members of an attempt with their nodes, in rank order; those whose node is unknown are missing."""
        with self._lock:
            members = self._members.get(attempt, ())
        accesses = {access.address: access for access in list(self._post(attempt).loop.accesses.values())}
        return [(name, accesses[address]) for name, address in members if address in accesses]

    def all_nodes(self, experiment: str) -> list[NodeAccess]:
        """Nodes that an experiment may run on now."""
        loop = self._posts[experiment].loop
        here = {machine.id for machine in loop.record.rented}
        return [access for node, access in list(loop.accesses.items()) if node in here]

    def slots_of(self, experiment: str) -> list[int]:
        """Processes that each node of an experiment's cluster takes at once, as planned."""
        plan = self._posts[experiment].loop.record.plan
        return [role.rentals[0].slots for role in plan.roles for _ in range(role.count)]

    # --- private -----------------------------------------------------------------------------------

    def _post(self, attempt: str) -> _Post:
        return self._posts[attempt.split("/")[1]]

    def _noted(self, status: GangStatus) -> GangStatus:
        """Remember where its members are: their files are looked for there, also after its end."""
        if status.addresses:
            places = tuple(
                (member.name, status.addresses[member.name])
                for member in status.members
                if member.name in status.addresses
            ) or tuple(status.addresses.items())
            with self._lock:
                is_new = self._members.get(status.attempt) != places
                self._members[status.attempt] = places
            if is_new:
                self._tell_places(
                    status.attempt, {name: node.id for name, node in self.nodes_of(status.attempt)}
                )
        return status

    def _hear(self, post: _Post, status: GangStatus) -> None:
        if status.phase is Phase.UNKNOWN:  # it may be sent again
            post.sent.pop(status.attempt, None)
        elif status.attempt in post.sent and status.members:
            post.sent[status.attempt] = status.members
        self._news[status.attempt] = self._noted(status)

    def _keep_up(self, post: _Post) -> None:
        """Follow the cluster: connect to a new one, report what a lost one has taken along."""
        formation = post.loop.formation
        if formation is None or formation.number != post.number:
            if post.number is not None and (post.sent or post.executor is not None):
                self._lose(post)
            if formation is not None:
                self._connect(post, formation)
        elif post.executor is None:
            self._connect(post, formation)
        self._send(post)
        self._vacate(post)
        if isinstance(post.executor, ManyNodes) and post.number is not None:
            post.loop.alive(frozenset(node.key for node in post.executor.nodes()))
            if post.executor.is_lost:
                post.loop.broken(post.number)

    def _connect(self, post: _Post, formation: Formation) -> None:
        now = self._clock()
        if now < post.reopen_at:
            return
        executor = self._opener(post.loop, formation)
        try:
            executor.open(self._run, self._capacity, self._env)
            if post.sent:  # it was out of reach for a while: what has changed meanwhile is news
                for status in executor.observe(list(post.sent)):
                    self._hear(post, status)
        except ExecutorError as error:
            self._mute(post, error)
            post.number = formation.number
            return
        post.executor, post.number, post.mute_since = executor, formation.number, None

    def _mute(self, post: _Post, error: TrainmasterError) -> None:
        """It cannot be reached: tried again, until its head is lost, or is well and still says nothing."""
        now = self._clock()
        log.info("%s: %s", post.loop.record.id, error)
        if post.executor is not None:
            try:
                post.executor.close()
            except TrainmasterError:
                log.info("%s: was closed badly", post.loop.record.id)
        post.executor = None
        post.mute_since = post.mute_since or now
        post.reopen_at = now + _REOPEN_S
        if now - post.mute_since > _MUTE_S and post.loop.head_answers and post.number is not None:
            post.loop.broken(post.number)

    def _lose(self, post: _Post) -> None:
        now = self._clock()
        if post.executor is not None:
            post.executor.close()
        post.executor, post.number, post.mute_since = None, None, None
        for attempt, members in post.sent.items():
            known = self._news.get(attempt)
            if known is not None and known.phase is Phase.EXITED:
                continue
            lost = tuple(m if m.ended_at else replace(m, lost=True, ended_at=now) for m in members)
            started = [m.started_at for m in members if m.started_at]
            if lost and started:
                self._news[attempt] = GangStatus(
                    attempt, Phase.EXITED, lost, started_at=min(started), ended_at=now
                )
            else:  # it never ran: it may be submitted again
                self._news[attempt] = GangStatus(attempt, Phase.UNKNOWN)
        post.sent.clear()

    def _send(self, post: _Post) -> None:
        if post.executor is None or not post.waiting:
            return
        gangs = list(post.waiting.values())
        if self._guarded(post, partial(_submit, gangs)):
            for gang in gangs:
                post.sent[gang.attempt] = tuple(MemberStatus(member.name) for member in gang.members)
            post.waiting.clear()

    def _vacate(self, post: _Post) -> None:
        """Members on machines that are taken back are asked to end while there is time to save their work."""
        leaving = dict(post.loop.leaving)
        if not leaving:
            return
        with self._lock:
            members = {attempt: self._members.get(attempt, ()) for attempt in post.sent}
        for attempt, places in members.items():
            times = [leaving[address] for _, address in places if address in leaving]
            if times and attempt not in post.vacated:
                post.vacated.add(attempt)
                grace_s = max(min(post.graces.get(attempt, 20.0), min(times) - self._clock() - _SPARE_S), 1.0)
                self._guarded(post, partial(_stop, attempt, grace_s))

    def _await(self, post: _Post) -> None:
        """An earlier driver's gangs run on a cluster: it must be found before anything is said of them."""
        loop = post.loop
        while (
            loop.record.state is ClusterState.ACTIVE
            and loop.record.waited_s is not None
            and loop.fatal is None
            and (post.executor is None)
        ):
            loop.want()
            self._keep_up(post)
            if post.executor is None:
                time.sleep(_SLICE_S)

    def _guarded(self, post: _Post, call: Callable[[Executor], T]) -> T | None:
        """Call its executor, if it has one that can be reached."""
        if post.executor is None:
            return None
        try:
            return call(post.executor)
        except ExecutorError as error:
            self._mute(post, error)
            return None


def _submit(gangs: Sequence[GangRequest], executor: Executor) -> bool:
    executor.submit(gangs)
    return True


def _observe(attempts: Sequence[str], executor: Executor) -> list[GangStatus]:
    return executor.observe(attempts)


def _forget(attempt: str, executor: Executor) -> None:
    executor.forget([attempt])


def _stop(attempt: str, grace_s: float, executor: Executor) -> None:
    executor.stop(attempt, grace_s)
