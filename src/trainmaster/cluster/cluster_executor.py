"""`ClusterExecutor`: all clusters of a run as one executor; gangs wait in it until their cluster is there.

Implements `Executor` for all clusters of a run. When a cluster's head is lost, everything that
ran there is reported lost, and what is submitted next waits for the new one.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from trainmaster.cluster.cluster_connection import ClusterConnection, Opener, Places
from trainmaster.cluster.gang_ends import FailureDetector, GangEnds, GangPlaces, with_overuse
from trainmaster.cluster.node_links import BUSY_GREETING_S, NodeFailureDetector
from trainmaster.cluster.record import ClusterRecord, ClusterState, Machine
from trainmaster.cluster.renting.growth import Growth, growth
from trainmaster.cluster.run_costs import RunCosts
from trainmaster.cluster.task_spread import TaskSpread
from trainmaster.control.decide.effects import MoreMemory
from trainmaster.control.loop.jobs import THREADS
from trainmaster.db.changes import Note
from trainmaster.executors.base import Capacity, Executor, GangRequest, GangStatus, Phase
from trainmaster.spec.clocks import steady_s
from trainmaster.spec.facts import QueuedMachines
from trainmaster.spec.states import EndReason, State
from trainmaster.spec.units import format_duration

if TYPE_CHECKING:
    from trainmaster.cluster.cluster_loop import ClusterLoop
    from trainmaster.cluster.member_places import MemberPlaces
    from trainmaster.cluster.node_access import NodeAccess
    from trainmaster.control.decide.budget import Meter
    from trainmaster.control.loop.run_state import RunState

#: With several clusters each one is listened to for so long at a time.
_SLICE_S: Final = 0.05
#: How long to wait for a cluster at a time before the run is looked after.
_SOUGHT_S: Final = 0.2
#: Time to ask for the end of all machines, even without waiting for it.
_HURRIED_S: Final = 10.0
#: Tasks that leave something to be saved if they have to end now.
_WITH_OUTPUT: Final = frozenset({State.RUNNING, State.STOPPING, State.SAVING})
#: A machine of a gang with a failed member must answer at once, and once more after as long.
_ANSWERS_AGAIN_S: Final = 1.0
#: Keeping machines for less than that is of no use.
_KEPT_LEAST_S: Final = 60.0


class ClusterExecutor:
    """See `Executor` for the methods of that name.

    Args:
        loops: by experiment; several experiments may share one, and tasks of one spread over several.
        opener: makes the executor of a cluster that is up.
        write_cost: keeps what the run has cost, in dollars.
        member_places: keeps on which machine each member of an attempt runs.
        clock: gives Unix seconds that never jump.
        earlier_usd: what the run has paid for clusters that have ended, as expected and at most.
        per_hour_usd: what all machines may cost per hour.
        detector: asks machines of gangs whether they are there; by default over the network.
        undriven_until: see `GangEnds`.

    Attributes:
        costs: what the clusters cost.
        on_lost: is told which members of an attempt were lost with their nodes.
        holds: clusters whose experiments are over wait for `finish`.
        own_cluster: the one that this very process runs on, which is given back after all others; or empty.
        next_driver: id of the machine that is being made ready to drive the run; or empty.
    """

    def __init__(
        self,
        loops: Mapping[str, ClusterLoop | Sequence[ClusterLoop]],
        opener: Opener,
        write_cost: Callable[[float], None],
        member_places: MemberPlaces,
        clock: Callable[[], float] = steady_s,
        earlier_usd: tuple[float, float] = (0.0, 0.0),
        per_hour_usd: float = math.inf,
        detector: FailureDetector | None = None,
        undriven_until: float = 0.0,
    ) -> None:
        detector = detector or NodeFailureDetector(again_s=_ANSWERS_AGAIN_S, greeting_s=BUSY_GREETING_S)
        self._ends = GangEnds(detector, clock, undriven_until)
        self._wake = threading.Event()
        connections: dict[int, ClusterConnection] = {}

        def connected(loop: ClusterLoop) -> ClusterConnection:
            made = ClusterConnection(loop, opener, self._hello, self._wake, clock)
            return connections.setdefault(id(loop), made)

        places = {
            name: tuple(map(connected, each if isinstance(each, Sequence) else (each,)))
            for name, each in loops.items()
        }
        self._connections = {name: each[0] for name, each in places.items()}
        self._all = list(connections.values())
        self._spread = TaskSpread(places, member_places)
        its_loops = [connection.loop for connection in self._all]
        self.costs = RunCosts(its_loops, write_cost, clock, earlier_usd, per_hour_usd)
        for connection in self._all:
            connection.loop.why_unpaid = partial(self._spread.why_unpaid, connection, self.costs)
        self._member_places = member_places
        self._clock = clock
        self._run = ""
        self._capacity = Capacity(1)
        self._env: Mapping[str, str] = {}
        self._token = 0
        self._places: dict[str, Places] = {}
        self.on_lost: Callable[[str, Sequence[str]], None] = lambda *_: None
        self.own_cluster = self.next_driver = ""
        self.holds = False

    # --- Executor --------------------------------------------------------------------------------

    def open(self, run: str, capacity: Capacity, env: Mapping[str, str], token: int = 0) -> None:
        """Begin to take care of the clusters."""
        self._run, self._capacity, self._env, self._token = run, capacity, env, token
        for connection in self._all:
            connection.loop.start()

    def submit(self, gangs: Sequence[GangRequest]) -> None:
        """Queue gangs; those of a cluster that is not there yet wait here."""
        for gang in gangs:
            connection = self._connection(gang.attempt)
            if gang.attempt not in connection.sent:
                self._member_places.leave(gang.attempt)
            if not self._spread.take(gang):
                connection.take(gang)
        for connection in {id(p): p for p in (self._connection(gang.attempt) for gang in gangs)}.values():
            self._follow(connection)

    def launch(self, attempt: str, env: Mapping[str, Mapping[str, str]]) -> None:
        """Start a GRANTED gang."""
        self._connection(attempt).guarded(lambda executor: executor.launch(attempt, env))

    def observe(self, attempts: Sequence[str]) -> list[GangStatus]:
        """The present status of each attempt; UNKNOWN of those whose cluster cannot be asked, see `find`."""
        found: dict[str, GangStatus] = {}
        for connection in self._all:
            mine = [attempt for attempt in attempts if connection in self._spread.candidates(attempt)]
            found |= connection.news
            for status in connection.observe(mine) if mine else ():
                if self._spread.heard(status, connection):
                    found[status.attempt] = status
            found |= {attempt: GangStatus(attempt, Phase.QUEUED) for attempt in connection.waiting}
        found |= {attempt: GangStatus(attempt, Phase.QUEUED) for attempt in self._spread.waiting}
        return [self._noted(found.get(each, GangStatus(each, Phase.UNKNOWN))) for each in attempts]

    def changes(self, timeout_s: float) -> list[GangStatus]:
        """Wait until something changed; see `Executor.changes`."""
        for connection in self._all:
            self._follow(connection)
        for connection in self._spread.send():
            self._follow(connection)
        listening = [connection for connection in self._all if connection.executor is not None]
        wait_s = timeout_s if len(listening) == 1 and len(self._all) == 1 else min(timeout_s, _SLICE_S)
        if not listening and not any(connection.news for connection in self._all):
            self._wake.wait(min(timeout_s, _SLICE_S))
            self._wake.clear()
        for connection in listening:
            for status in connection.guarded(lambda executor: executor.changes(wait_s)) or ():
                connection.hear(status)
        found: list[GangStatus] = []
        for connection in self._all:
            news, connection.news = connection.news, {}
            found += map(self._noted, news.values())
        heard = {status.attempt for status in found}
        return found + self._judged_anew(heard)

    def output(self) -> list[tuple[str, str]]:
        """(attempt, member) of each member that wrote something since the last call."""
        found: list[tuple[str, str]] = []
        for connection in self._all:
            found += connection.guarded(lambda executor: executor.output()) or ()
        return found

    def queue_place(self) -> QueuedMachines | None:
        """What it waits for in its provider's queue, if no cluster is up; no other run uses them."""
        loops = [connection.loop for connection in self._all if not connection.loop.is_over]
        found = dict.fromkeys(why for loop in loops for why in loop.queued)
        is_idle = found and not any(loop.formation for loop in loops)
        return QueuedMachines(tuple(found)) if is_idle else None

    def stop(self, attempt: str, grace_s: float, *, stacks: bool = False) -> None:
        """Ask an attempt to end; one that was never sent is forgotten."""
        self._spread.stop(attempt)
        self._connection(attempt).loop.ends_on(self.machines_of(attempt))
        self._connection(attempt).stop(attempt, grace_s, stacks=stacks)

    def forget(self, attempts: Sequence[str]) -> None:
        """Their ends are recorded."""
        for attempt in attempts:
            self._connection(attempt).forget(attempt)
            self._spread.forget(attempt)
            self._ends.forget(attempt)
            self._places.pop(attempt, None)
            self._member_places.forget(attempt)

    def close(self) -> None:
        """Disconnect; running gangs go on, and machines live as long as their leases."""
        for connection in self._all:
            connection.close()
            connection.loop.close()

    # --- for the run's loop -------------------------------------------------------------------------

    def find(self, attempts: Sequence[str]) -> bool:
        """Look for clusters on which an earlier driver's attempts may run; waits a moment.

        Returns:
            False while there is one that may still be found: nothing can be said of its attempts.
        """
        every = (connection for attempt in attempts for connection in self._spread.candidates(attempt))
        connections = {id(connection): connection for connection in every}.values()
        for connection in connections:
            self._follow(connection)
        if not any(connection.is_sought for connection in connections):
            return True
        self._wake.wait(_SOUGHT_S)
        self._wake.clear()
        return False

    def look(self, run_state: RunState, meter: Meter | None, now: float) -> list[Note]:
        """Tell clusters that are needed no more to end; what the user is to be told.

        Args:
            run_state: the run.
            meter: is told what is billed at most.
            now: Unix seconds.

        Raises:
            TrainmasterError: a cluster cannot be had, whatever is tried.
        """
        notes: list[Note] = []
        idle: list[ClusterConnection] = []
        held, waits = run_state.held_by_people(), run_state.awaited_approval() is not None
        has_nodes = self._has_nodes
        for connection in self._all:
            is_own = connection.loop.record.id == self.own_cluster
            connection.loop.stays = has_nodes
            losses = self._said_of(connection, connection.loop.losses())
            notes += [Note(text, reason=EndReason.NODE_LOST) for text in losses]
            notes += map(Note, self._said_of(connection, connection.loop.notes() + connection.waits()))
            if connection.loop.fatal is not None:
                notes += map(Note, self._spread.without(connection, connection.loop.fatal))
            if connection.loop.fatal is not None or connection.loop.leaves_at < math.inf:
                connection.leave(now, is_own=is_own)
                continue
            mine = [run_state.experiments[name] for name in self._spread.experiments(connection)]
            over = all(experiment.state is State.DONE for experiment in mine)
            if over or run_state.state is not State.RUNNING:
                connection.loop.unwant()
            is_held = {each.name for each in mine if each.state is not State.DONE} <= held
            # What is being made ready to drive stays like what drives: else it would be lost on the way.
            drives = is_own or self.next_driver in {machine.id for machine in connection.loop.record.rented}
            stays = bool(connection.loop.record.keepable_s) or self.holds
            is_held = is_held and (waits or not over or (drives and not stays))
            connection.pause(now, is_over=over, is_held=is_held, drives=drives)
            is_known = connection in self._spread.surplus
            if not (over or stays) and self._spread.leave_surplus(connection, mine):
                record = connection.loop.record
                words = (
                    f"{record.plan.name}: machines of {record.provider} are given back: the rest is elsewhere"
                )
                had = record.state is ClusterState.ACTIVE and any(m.started_at for m in record.live)
                notes += [Note(words)] if had and not is_known else []
                connection.leave(now, is_own=is_own)
                continue
            if over and not drives:
                if not stays:
                    connection.loop.end()
                elif not self.holds:
                    idle.append(connection)
        if meter is not None:
            saving = sum(task.state in _WITH_OUTPUT for task in run_state.live_tasks())
            meter.publishing.rounds = max(math.ceil(saving / THREADS), 1)
            self.costs.pay_by(meter, now)
            if run_state.state not in (State.STOPPING, State.DONE):
                notes += map(Note, self._spread.without_dear(self.costs, meter, now, idle))
        self.costs.keep_written(now)
        return notes

    def _said_of(self, connection: ClusterConnection, texts: Sequence[str]) -> list[str]:
        """What is said of a cluster with its place, if the run has several: seats are called alike there."""
        has_places = len({each.loop.record.provider for each in self._all}) > 1
        place = f"{connection.loop.record.provider}: " if has_places else ""
        return [place + text for text in texts]

    @property
    def slots(self) -> int:
        """The most processes that one of its clusters takes at once."""
        return self._spread.slots

    def records(self) -> list[ClusterRecord]:
        """What is written of its clusters now."""
        return [connection.loop.record for connection in self._all]

    @property
    def elsewhere(self) -> str:
        """Why another place is to be asked for machines; empty if none is, or some are here already."""
        if self._has_nodes:
            return ""
        return next((each.loop.elsewhere for each in self._all if each.loop.elsewhere), "")

    @property
    def _has_nodes(self) -> bool:
        return any(each.loop.formation for each in self._all) or any(map(self.all_nodes, self._connections))

    def finish(
        self,
        tell: Callable[[str], None],
        *,
        keep: bool,
        patience_s: float,
        hurried: Callable[[], bool] = lambda: False,
        before_end: Callable[[ClusterLoop], None] = lambda _: None,
    ) -> float:
        """Give back, or keep warm, what is still rented; the whole bill in dollars.

        Args:
            tell: shows lines to the user.
            keep: clusters that are to be kept may be: the run has ended well.
            patience_s: for machines to be gone; of a longer wait one is told.
            hurried: whether the user does not want to wait for that.
            before_end: what is still to be done with a cluster of a run that has ended well.
        """
        for connection in self._all:
            record = connection.loop.record
            connection.close()
            is_up = record.state is ClusterState.ACTIVE
            if keep and is_up:
                before_end(connection.loop)
            if keep and record.keepable_s and is_up and self._keep(connection, tell):
                continue
            if record.id == self.own_cluster:
                connection.loop.close()  # our caller ends it last, and this process with it
                continue
            connection.loop.end()
            connection.loop.start()  # its loop may have ended with an error
        begun = self._clock()
        others = [
            connection.loop for connection in self._all if connection.loop.record.id != self.own_cluster
        ]
        while waiting := [loop for loop in others if not (loop.is_over or loop.is_kept)]:
            waited_s = self._clock() - begun
            is_late = waited_s > (min(patience_s, _HURRIED_S) if hurried() else patience_s)
            if is_late or not any(loop.is_running for loop in waiting):
                names = ", ".join(loop.record.id for loop in waiting)
                tell(
                    f"warning: {names}: machines are still being given back; they end themselves in any case"
                )
                break
            time.sleep(_SLICE_S)
            for connection in self._all:
                for note in self._said_of(connection, connection.loop.notes()):
                    tell(note)
        for connection in self._all:
            connection.loop.close()
        return self.costs.write(self._clock())

    def nodes_of(self, attempt: str) -> list[tuple[str, NodeAccess]]:
        """Members of an attempt with their nodes, in rank order; those whose node is unknown are missing."""
        nodes = self._connection(attempt).loop.present
        machines = self._member_places.machines(attempt, nodes)
        return [(name, nodes[machine]) for name, machine in machines if machine in nodes]

    def look_after(self, services: Mapping[str, float]) -> None:
        """Tasks of these experiments answer requests; with their grace in seconds.

        Where machines are taken back they are told to end as late as that allows: until then it is the run's
        loop that ends them, when they get no requests any more.
        """
        for name, grace_s in services.items():
            self._connections[name].services[name] = grace_s

    def need(self, experiment: str, share: float) -> None:
        """So much of its cluster is enough for a service; the machine of its driver stays in any case."""
        loop = self._connections[experiment].loop
        plan = loop.record.plan
        if plan.experiments == (experiment,) and len(plan.roles) == 1 and plan.roles[0].rentals[0].is_rented:
            least = int(loop.record.id == self.own_cluster)
            role = plan.roles[0]
            loop.scaling.needed = {role.role: max(least, math.ceil(share * role.count))}

    def stops_in_s(self, attempt: str) -> float | None:
        """After how long an attempt of a service is told to end as its machine is taken back.

        None if that is not so, and nothing if the machine waits until it is unused.
        """
        return self._connection(attempt).stops_in_s(attempt, self._places.get(attempt, ()))

    def is_coming(self, attempt: str) -> bool:
        """Whether a machine that a member ran on is rented, and not prepared yet; it may still be had."""
        loop = self._connection(attempt).loop
        nodes, gone = loop.present, loop.gone
        machines = {machine for _, machine in self._member_places.machines(attempt, nodes)}
        rented = {machine.id for machine in loop.record.rented}
        return bool((machines & rented) - set(nodes) - gone)

    def first_machine(self) -> tuple[str, NodeAccess] | None:
        """The first machine of a cluster that is up, unless it may be taken back, with the cluster's id."""
        for connection in self._all:
            record, formation = connection.loop.record, connection.loop.formation
            if formation is None:
                continue
            head = next((machine for machine in record.rented if machine.id == formation.first), None)
            node = None if head is None else connection.loop.present.get(head.id)
            if head is not None and node is not None and not head.rental.spot and not head.is_leaving:
                return record.id, node
        return None

    def all_nodes(self, experiment: str) -> list[NodeAccess]:
        """Nodes that an experiment may run on now."""
        found = []
        for loop in (connection.loop for connection in self._spread.places[experiment]):
            here = {machine.id for machine in loop.record.rented}
            found += [access for node, access in list(loop.accesses.items()) if node in here]
        return found

    def loop_of(self, attempt: str) -> ClusterLoop:
        """What takes care of an attempt's cluster."""
        return self._connection(attempt).loop

    def machine_of(self, attempt: str, member: str) -> Machine | None:
        """What a member runs on; None if that is gone, or not known."""
        loop = self._connection(attempt).loop
        machines = dict(self._member_places.machines(attempt, loop.present))
        return loop.record.machine(machines.get(member, ""))

    def machines_of(self, attempt: str) -> set[str]:
        """Ids of the machines that its members are on."""
        present = self._connection(attempt).loop.present
        return {machine for _, machine in self._member_places.machines(attempt, present)}

    def why_kept(self, machine: Machine) -> str:
        """Why no other one may take its place: it drives the run, or is to; or that was decided before."""
        loop = next(each.loop for each in self._all if machine in each.loop.record.machines)
        is_own = loop.record.id == self.own_cluster and loop.formation is not None
        drives = is_own and loop.formation is not None and loop.formation.first == machine.id
        if drives or machine.id == self.next_driver:
            return "the slow machine drives the run"
        is_kept = machine.slow_at is not None or not machine.holds_seat
        return "it was decided before that this machine stays" if is_kept else ""

    def node_sizes(self, experiment: str) -> list[tuple[int, int]]:
        """Processes that each node of an experiment's clusters takes at once, and its GPUs, as planned."""
        plans = [connection.loop.record.plan for connection in self._spread.places[experiment]]
        roles = [role for plan in plans for role in plan.roles]
        return [(each.rentals[0].slots, each.rentals[0].gpus) for each in roles for _ in range(each.count)]

    def more_memory(self, gang: GangStatus, message: str) -> MoreMemory | None:
        """Larger machines for an attempt that ran out of memory; None if there are none to choose."""
        connection = self._connection(gang.attempt)
        found = self._growth(connection, gang, message)
        if found is None:
            return None
        if found.is_planned:
            return MoreMemory(found.words(gang.attempt), is_planned=True)
        why = self.costs.why_not(connection.loop, found)
        if why:
            return MoreMemory(found.refused(gang.attempt, why), is_allowed=False)
        return MoreMemory(found.words(gang.attempt))

    def enlarge(self, gang: GangStatus, message: str) -> None:
        """From now on its cluster has such machines, and gives up the others."""
        connection = self._connection(gang.attempt)
        found = self._growth(connection, gang, message)
        if found is not None and not found.is_planned:
            connection.loop.grow(found.after)

    # --- private -----------------------------------------------------------------------------------

    def _growth(self, connection: ClusterConnection, gang: GangStatus, message: str) -> Growth | None:
        places = self._member_places.machines(gang.attempt, connection.loop.present)
        out = {member.name for member in gang.members if member.oom}
        machines = {machine for name, machine in places if not out or name in out}
        return growth(connection.loop.record, machines, gang, message)

    def _keep(self, connection: ClusterConnection, tell: Callable[[str], None]) -> bool:
        """Leave a cluster warm, as long as is asked for and paid for."""
        record = connection.loop.record
        keep_s = self.costs.keepable_s(record.keepable_s)
        if keep_s < _KEPT_LEAST_S:
            tell(f"{record.id}: {self.costs.limit} leaves no money to keep it warm, it is given back")
            return False
        if not connection.loop.keep(keep_s, self._clock()):
            tell(f"{record.id}: cannot be kept warm, it is given back")
            return False
        usd = connection.loop.record.usd_per_hour() * keep_s / 3600
        is_less = keep_s < record.keep_s
        asked = f" (not {format_duration(record.keep_s)}, because of {self.costs.limit})" * is_less
        kept = f"{format_duration(keep_s)}{asked}, at most ${usd:.2g} more"
        tell(f"{record.id}: kept warm for {kept}; `trainmaster clusters end {record.id}` ends it")
        return True

    def _connection(self, attempt: str) -> ClusterConnection:
        return self._spread.connection(attempt)

    def _hello(self, executor: Executor) -> None:
        executor.open(self._run, self._capacity, self._env, self._token)

    def _follow(self, connection: ClusterConnection) -> None:
        connection.keep_up(self._places)

    def _noted(self, status: GangStatus) -> GangStatus:
        """Remember where its members are: their files are looked for there, also after its end."""
        self._spread.noted(status)
        if status.addresses:
            places = tuple(
                (member.name, status.addresses[member.name])
                for member in status.members
                if member.name in status.addresses
            ) or tuple(status.addresses.items())
            self._places[status.attempt] = places
            loop = self._connection(status.attempt).loop
            self._member_places.hear(
                status.attempt,
                places,
                loop.present,
                [machine.id for machine in loop.record.machines],
                has_started=status.phase in (Phase.RUNNING, Phase.EXITED),
            )
        elif status.phase is Phase.QUEUED:
            self._member_places.forget(status.attempt)  # it will get a place
        elif status.phase is Phase.UNKNOWN:  # wherever it waited, it does so no more
            self._places.pop(status.attempt, None)
        if not status.addresses and status.attempt in self._places:  # its head was lost before it said them
            status = replace(status, addresses=dict(self._places[status.attempt]))
        if lost := [member.name for member in status.members if member.lost]:
            self.on_lost(status.attempt, lost)
        return self._judged(status)

    def _judged(self, status: GangStatus) -> GangStatus:
        """See `GangEnds.judged`."""
        connection = self._connection(status.attempt)
        nodes = connection.loop.present
        machines = self._member_places.machines(status.attempt, nodes)
        is_asked = connection.is_asked_to_end(status.attempt)
        judged = self._ends.judged(status, GangPlaces(machines, nodes, connection.loop.troubles, is_asked))
        judged = with_overuse(status, machines, connection.loop.overused()) or judged
        if silent := self._ends.silent(judged, machines):
            self.on_lost(status.attempt, silent)
        return judged

    def _judged_anew(self, heard: Set[str]) -> list[GangStatus]:
        """Ends of gangs of which something else is known by now, but for attempts that were just heard."""
        found = []
        for status in self._ends.ended:
            if status.attempt in heard:
                continue
            before = self._ends.verdict(status.attempt)
            judged = self._judged(status)
            if judged != before:
                found.append(judged)
        return found
