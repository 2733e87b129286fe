"""`ClusterConnection`: what goes to one cluster and is heard from there, reachable or not."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from trainmaster.control.task.layout import experiment_of
from trainmaster.executors.base import GangRequest, GangStatus, MemberStatus, OneClusterExecutor, Phase
from trainmaster.executors.gangs.silence import MUTE_S
from trainmaster.spec.errors import ExecutorError, LeaseLostError, OtherVersionError, TrainmasterError

if TYPE_CHECKING:
    from trainmaster.cluster.cluster_loop import ClusterLoop
    from trainmaster.cluster.observed import Formation

log = logging.getLogger(__name__)

_REOPEN_S: Final = 1.0
#: A machine that is taken back: its members have ended so long before.
_MARGIN_S: Final = 5.0
_GRACE_S: Final = 20.0
#: A replica waits so long for a machine of its own before it goes where there is room.
_OWN_MACHINE_S: Final = 300.0

T = TypeVar("T")
#: Members of an attempt with the private addresses of their nodes.
Places = tuple[tuple[str, str], ...]
#: Makes the executor of a cluster that is up.
Opener = Callable[["ClusterLoop", "Formation"], OneClusterExecutor]
#: Opens an executor for the run.
Hello = Callable[[OneClusterExecutor], None]


class _Call:
    """Connecting to a cluster, in a thread: it takes a minute without an answer.

    Args:
        executor: to be opened.
        hello: opens it.
        attempts: that were sent there before, to be asked after.
        wake: is set when it is over.
    """

    def __init__(
        self, executor: OneClusterExecutor, hello: Hello, attempts: Sequence[str], wake: threading.Event
    ) -> None:
        self.executor = executor
        self.statuses: Future[Sequence[GangStatus]] = Future()
        self._work = partial(self._run, hello, attempts, wake)

    def begin(self) -> None:
        """In a thread of its own."""
        threading.Thread(target=self._work, name="connect", daemon=True).start()

    def drop(self) -> None:
        """It is not waited for any more."""
        self.statuses.add_done_callback(lambda _: hang_up(self.executor))

    def _run(self, hello: Hello, attempts: Sequence[str], wake: threading.Event) -> None:
        try:
            hello(self.executor)
            # It was out of reach for a while: what has changed meanwhile is news.
            self.statuses.set_result(self.executor.observe(attempts) if attempts else ())
        except TrainmasterError as error:
            hang_up(self.executor)
            self.statuses.set_exception(error)
        except Exception as error:
            log.exception("cannot connect")
            words = f"internal error: {type(error).__name__}: {error}"
            self.statuses.set_exception(ExecutorError(words))
        wake.set()


class ClusterConnection:
    """One cluster as its gangs see it. The run's loop owns it.

    Args:
        loop: takes care of the cluster.
        opener: makes the executor of a cluster that is up.
        hello: opens it.
        wake: is set when the cluster was reached.
        clock: gives Unix seconds.

    Attributes:
        executor: of the present formation; None while there is none, or it does not answer.
        waiting: gangs that are not sent yet.
        sent: gangs that were sent, as heard last, by attempt.
        news: what was heard and not told yet, by attempt.
        services: grace in seconds of experiments whose tasks answer requests.
    """

    def __init__(
        self,
        loop: ClusterLoop,
        opener: Opener,
        hello: Hello,
        wake: threading.Event,
        clock: Callable[[], float],
    ) -> None:
        self.loop = loop
        self.executor: OneClusterExecutor | None = None
        self.waiting: dict[str, GangRequest] = {}
        self.sent: dict[str, GangStatus] = {}
        self.news: dict[str, GangStatus] = {}
        self.services: dict[str, float] = {}
        self._opener = opener
        self._hello = hello
        self._wake = wake
        self._clock = clock
        self._number: int | None = None
        self._call: _Call | None = None
        self._graces: dict[str, float] = {}
        self._stops: dict[str, float] = {}  # also those that were not delivered yet
        self._forgotten: set[str] = set()  # also what it was not told yet
        self._drained: set[str] = set()
        self._told_waits: set[tuple[str, str]] = set()
        self._unresponsive_since: float | None = None
        self._held_since: float | None = None
        self._reopen_at = 0.0
        self._paused_since: float | None = None

    # --- gangs ---------------------------------------------------------------------------------------

    def take(self, gang: GangRequest) -> None:
        """Queue a gang; it is sent as soon as there is a cluster."""
        self.loop.want()
        if gang.attempt not in self.sent:
            self.waiting[gang.attempt] = gang
            self._graces[gang.attempt] = gang.grace_s

    def stop(self, attempt: str, grace_s: float, *, stacks: bool = False) -> None:
        """Ask an attempt to end; one that was never sent is forgotten."""
        if self.waiting.pop(attempt, None) is not None:
            self.news[attempt] = GangStatus(attempt, Phase.UNKNOWN)
        self._stops[attempt] = min(grace_s, self._stops.get(attempt, grace_s))
        self._ask_to_end(attempt, grace_s, stacks=stacks)

    def is_asked_to_end(self, attempt: str) -> bool:
        """Whether the run's loop wants its end."""
        return attempt in self._stops

    def forget(self, attempt: str) -> None:
        """Its end is recorded."""
        self.waiting.pop(attempt, None)
        self.sent.pop(attempt, None)
        self._graces.pop(attempt, None)
        self._drained.discard(attempt)
        if self._number is not None and not self._is_told_to_forget(attempt):
            self._forgotten.add(attempt)  # it was not delivered yet
        else:
            self._stops.pop(attempt, None)

    def observe(self, attempts: Sequence[str]) -> list[GangStatus]:
        """What its cluster says of attempts."""
        found = self.guarded(lambda executor: executor.observe(attempts)) or []
        for status in found:
            if status.phase is not Phase.UNKNOWN:
                self.sent[status.attempt] = status
        return found

    def hear(self, status: GangStatus) -> None:
        """Take in what its cluster says of an attempt."""
        attempt = status.attempt
        if status.phase is Phase.UNKNOWN:  # it may be sent again
            self.sent.pop(attempt, None)
            self._drained.discard(attempt)
        elif attempt in self.sent and status.members:
            self.sent[attempt] = status
        self.news[attempt] = status

    def waits(self) -> list[str]:
        """New reasons why gangs wait for room."""
        told = {} if self.executor is None else self.executor.waits()
        now = {(experiment_of(attempt), why) for attempt, why in told.items()}
        new, self._told_waits = now - self._told_waits, now
        return [f"{experiment} waits for room: {why}" for experiment, why in sorted(new)]

    # --- the cluster ---------------------------------------------------------------------------------

    @property
    def is_in_use(self) -> bool:
        """Whether gangs are on its machines, or what they left is still being saved."""
        return any(status.phase is not Phase.QUEUED for status in self.sent.values())

    @property
    def is_sought(self) -> bool:
        """Whether gangs of an earlier driver may run there, and it cannot be asked yet."""
        return self.executor is None and (self.loop.is_sought or self.loop.formation is not None)

    def keep_up(self, places: Mapping[str, Places]) -> None:
        """Follow the cluster: connect to a new one, report what a lost one has taken along.

        Args:
            places: where the members of attempts are.
        """
        formation = self.loop.formation
        if self._number is not None and (formation is None or formation.number != self._number):
            self._lose()
        if self._call is not None:
            self._answer(self._call)
        elif formation is not None and self.executor is None and self._clock() >= self._reopen_at:
            self._number = formation.number
            executor = self._opener(self.loop, formation)
            self._call = _Call(executor, self._hello, list(self.sent), self._wake)
            self._call.begin()
        if self.services or self.loop.scaling.needed is not None:
            self._note_unused(places)
        exposed = self._drain(places)
        if not exposed and not self._is_lost and not self._awaits_machine():
            self.send()
        if self.executor is not None and self._number is not None:
            self.loop.alive(frozenset(node.key for node in self.executor.nodes()))
            if self.executor.is_lost:
                self.loop.broken(self._number)

    def send(self) -> None:
        """Send what waits, if there is a cluster."""
        if self.executor is None or not self.waiting:
            return
        gangs = list(self.waiting.values())
        for gang in gangs:  # an earlier one of that name is another one
            self._stops.pop(gang.attempt, None)
        if self._delivers(lambda executor: executor.submit(gangs)):
            for gang in gangs:
                members = tuple(MemberStatus(member.name) for member in gang.members)
                self.sent[gang.attempt] = GangStatus(gang.attempt, Phase.QUEUED, members)
            self.waiting.clear()

    def guarded(self, call: Callable[[OneClusterExecutor], T]) -> T | None:
        """Call its executor, if it has one that can be reached."""
        if self.executor is None:
            return None
        try:
            return call(self.executor)
        except ExecutorError as error:
            self._note_unresponsive(error)
            return None

    def close(self) -> None:
        """Hang up; what runs goes on."""
        if self._call is not None:
            self._call.drop()
        if self.executor is not None:
            hang_up(self.executor)
        self._call = self.executor = None

    # --- its machines --------------------------------------------------------------------------------

    def leave(self, now: float, *, is_own: bool) -> None:
        """Others do its work: its machines are given back as soon as no gang is on them.

        Args:
            now: Unix seconds.
            is_own: this process runs on it: it is given back last.
        """
        loop = self.loop
        loop.unwant()
        if is_own or (self.is_in_use and loop.is_running and now < loop.leaves_at):
            return
        loop.end()
        if not (loop.is_running or loop.is_over):
            loop.start()  # an error has ended it

    def pause(self, now: float, *, is_over: bool, is_held: bool, drives: bool) -> None:
        """Where nothing runs before a person says so no machines are held, but for as long as they stay warm.

        Args:
            now: Unix seconds.
            is_over: its experiments are over.
            is_held: nothing runs there before a person approves it, or any more.
            drives: the run is driven on its first machine, or is to be; that one stays in any case.
        """
        loop = self.loop
        if not is_held:
            if self._paused_since is not None:
                self._paused_since, loop.scaling.needed = None, None
            return
        self._paused_since = now if self._paused_since is None else self._paused_since
        loop.unwant()  # what is lost meanwhile is not replaced
        if now - self._paused_since < loop.record.keepable_s:
            return
        if is_over and not drives:
            loop.end()
            return
        first = loop.formation and loop.formation.first
        roles = [machine.role for machine in loop.record.rented if machine.id == first]
        loop.scaling.needed = {(*roles, loop.record.plan.roles[0].role)[0]: int(drives)}

    # --- private -------------------------------------------------------------------------------------

    @property
    def _is_lost(self) -> bool:
        return self.executor is not None and self.executor.is_lost

    def _delivers(self, call: Callable[[OneClusterExecutor], object]) -> bool:
        """Whether its executor took a call."""
        return self.guarded(lambda executor: (call(executor),)) is not None

    def _ask_to_end(self, attempt: str, grace_s: float, *, stacks: bool = False) -> None:
        self.guarded(lambda executor: executor.stop(attempt, grace_s, stacks=stacks))

    def _is_told_to_forget(self, attempt: str) -> bool:
        return self._delivers(lambda executor: executor.forget([attempt]))

    def _answer(self, call: _Call) -> None:
        """Take in what became of connecting."""
        if not call.statuses.done():
            return
        self._call = None
        try:
            statuses = call.statuses.result()
        except (LeaseLostError, OtherVersionError):
            raise  # it is another driver's now, or was begun by another version of us
        except TrainmasterError as error:
            self._note_unresponsive(error)
            return
        self.executor, self._unresponsive_since = call.executor, None
        call.executor.hurry()  # from here on the run's loop waits for it
        for status in statuses:
            if status.attempt in self.sent:
                self.hear(status)
        for attempt, grace_s in list(self._stops.items()):
            if attempt in self.sent or attempt in self._forgotten:
                self._ask_to_end(attempt, grace_s)
        for attempt in list(self._forgotten):
            if self._is_told_to_forget(attempt):
                self._forgotten.discard(attempt)
                self._stops.pop(attempt, None)

    def _note_unresponsive(self, error: TrainmasterError) -> None:
        """It cannot be reached: tried again, until its head is lost, or is well and still says nothing."""
        now = self._clock()
        log.info("%s: %s", self.loop.record.id, error)
        self.close()
        self._unresponsive_since = self._unresponsive_since or now
        self._reopen_at = now + _REOPEN_S
        if now - self._unresponsive_since > MUTE_S and self.loop.head_answers and self._number is not None:
            self.loop.broken(self._number)

    def _lose(self) -> None:
        """The formation is gone, and with it all that ran there."""
        now = self._clock()
        self.close()
        self._number = self._unresponsive_since = None
        self._reopen_at = 0.0
        for attempt, status in self.sent.items():
            if status.phase is Phase.EXITED:
                continue  # that was heard; of one whose members have all ended, files may still have come
            lost = tuple(m if m.ended_at else replace(m, lost=True, ended_at=now) for m in status.members)
            started = [m.started_at for m in lost if m.started_at]
            if started:
                ended_at = max(m.ended_at or now for m in lost)
                self.news[attempt] = GangStatus(
                    attempt, Phase.EXITED, lost, started_at=min(started), ended_at=ended_at
                )
            else:  # it never ran: it may be submitted again
                self.news[attempt] = GangStatus(attempt, Phase.UNKNOWN)
        for memory in (self.sent, self._stops, self._forgotten, self._drained):
            memory.clear()

    def _drain(self, places: Mapping[str, Places]) -> bool:
        """Have members end on machines that are taken back while there is time to save their work.

        The engine does not know of such machines, so nothing is sent until they are out; whether so.
        """
        leaving = self._leaving()
        if leaving is None:
            return False
        head_at = leaving.get(self.loop.head_address)  # it takes all others along
        busy: set[str] = set()
        for attempt, status in list(self.sent.items()):
            where = [address for _, address in places.get(attempt, ())]
            is_queued = not where and not any(member.started_at for member in status.members)
            # Of one that is over, what it left is still being saved: until it is forgotten.
            busy.update(leaving if head_at is not None else where)
            if status.phase is Phase.EXITED:
                continue
            times = self._times(where, leaving)
            times += list(leaving.values()) if is_queued else []
            if times and attempt not in self._drained:
                left_s = min(times) - self._clock() - _MARGIN_S
                most_s = self.services.get(experiment_of(attempt))
                if most_s is not None and left_s > most_s and not is_queued:
                    continue  # it gets no more requests first
                self._drained.add(attempt)
                grace_s = max(min(self._graces.get(attempt, most_s or _GRACE_S), left_s), 1.0)
                self._ask_to_end(attempt, grace_s)
        self.loop.idle(frozenset(leaving.keys() - busy))
        return bool(leaving)

    def _awaits_machine(self) -> bool:
        """Replicas get machines of their own if these come soon, and others answer meanwhile."""
        sent = self.sent.values()
        others = any(m.started_at and m.ended_at is None for status in sent for m in status.members)
        are_replicas = all(experiment_of(attempt) in self.services for attempt in self.waiting)
        if not (self.waiting and are_replicas and others and self.loop.awaits):
            self._held_since = None
            return False
        now = self._clock()
        self._held_since = self._held_since or now
        return now - self._held_since < _OWN_MACHINE_S

    def _note_unused(self, places: Mapping[str, Places]) -> None:
        where = [places.get(attempt, ()) for attempt in self.sent]
        unused: set[str] = set()
        if self.executor is not None and not self.waiting and all(where):
            stays = {address for members in where for _, address in members}
            if self.sent or not self.loop.scaling.is_none:
                stays.add(self.loop.first_address)  # all others may need it
            unused = {node.address for node in self.executor.nodes()} - stays
        self.loop.unused(frozenset(unused))

    def stops_in_s(self, attempt: str, places: Places) -> float | None:
        """See `ClusterExecutor.stops_in_s`."""
        times = self._times([address for _, address in places], self._leaving() or {})
        if not times:
            return None
        left_s = min(times) - self._clock() - _MARGIN_S
        return 0.0 if left_s == math.inf else left_s - self.services.get(experiment_of(attempt), _GRACE_S)

    def _leaving(self) -> dict[str, float] | None:
        """When nodes are taken back, by address; None if there is nothing to announce."""
        leaving = self.loop.leaving
        if not leaving or self.executor is None:
            return None
        here = {node.address for node in self.executor.nodes()}
        return {address: at for address, at in leaving.items() if address in here}

    def _times(self, where: Sequence[str], leaving: Mapping[str, float]) -> list[float]:
        """When members at these addresses lose their nodes, or the head that they all need."""
        return [leaving[address] for address in (*where, self.loop.head_address) if address in leaving]


def hang_up(executor: OneClusterExecutor) -> None:
    """Close an executor, however it is."""
    try:
        executor.close()
    except TrainmasterError as error:
        log.info("closed badly: %s", error)
