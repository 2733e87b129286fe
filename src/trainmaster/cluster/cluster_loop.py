"""`ClusterLoop`: one cluster from its first request to the last machine given back, in a thread of its own.

It observes (`ObservedCluster`), decides (`decide_cluster`), writes down and acts (`Actuator`), as the loop of
a run does, which looks at what is public here and says what it needs; nothing else is shared. The row is
written before anything is done: a successor goes on where this one was killed.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Final

from trainmaster.cluster.actuator import Actuator, Threads
from trainmaster.cluster.cluster_leases import ClusterLeases
from trainmaster.cluster.decide_cluster import decide_cluster
from trainmaster.cluster.decide_requests import WhyUnpaid, name_of
from trainmaster.cluster.decision import Action, ActionKind, Stage, WaitLimits
from trainmaster.cluster.node_access import NodeAccess
from trainmaster.cluster.node_provisioner import NodeProvisioner, key_of, words
from trainmaster.cluster.node_watch import NodeWatch
from trainmaster.cluster.observed import Formation, ObservedCluster
from trainmaster.cluster.provider_looks import LOOK_S, ProviderLooks
from trainmaster.cluster.provider_outage import AWAY_S, ProviderOutage, clock_time
from trainmaster.cluster.record import ClusterRecord, ClusterState, Machine, marked_slow, swapped
from trainmaster.cluster.renting.growth import grown
from trainmaster.cluster.renting.plan import RolePlan
from trainmaster.executors.gangs.silence import LATE_S
from trainmaster.providers.base import Node, NodeState, Provider
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.providers.dead_man_switch import RENEWALS
from trainmaster.spec.clocks import steady_s
from trainmaster.spec.errors import LeaseLostError, ProviderError, TrainmasterError, UsageError

log = logging.getLogger(__name__)

_TICK_S: Final = 0.25
_CLOSE_S: Final = 10.0
#: What is still done to a cluster that cannot be had as a whole.
_LETS_GO: Final = frozenset({ActionKind.DROP, ActionKind.DRAIN, ActionKind.GIVE_BACK})


class ClusterLoop:
    """Takes care of one cluster; see above. The methods and attributes are for the run's loop.

    Args:
        record: as written.
        provider: that rents them.
        provisioner: makes nodes of machines.
        write: puts a record into the store. Raises `LeaseLostError` when somebody else drives the run.
        patience: how long to wait for what.
        clock: gives Unix seconds; never set back, and goes on while the machine sleeps.
        wall: gives Unix seconds as other processes have them, for what they read.
        tasks: makes what does the work, woken by an event; simulations have their own.
        content: see `NodeRequest`.

    Attributes:
        record: the cluster as it is written now.
        leases: until when its machines live.
        scaling: how many of them are needed, for the run's loop to say.
        affords: whether the budget allows to ask for what is not there yet.
        why_unpaid: see `decide_cluster`.
        leaves_at: when all of it is given back, Unix seconds, as the run goes on elsewhere for less.
        elsewhere: why another place is to be asked for its machines; empty if none is.
        stays: some of the run's machines are here, so that no other place is asked.
    """

    def __init__(
        self,
        record: ClusterRecord,
        provider: Provider,
        provisioner: NodeProvisioner,
        write: Callable[[ClusterRecord], None],
        patience: WaitLimits | None = None,
        clock: Callable[[], float] = steady_s,
        wall: Callable[[], float] = time.time,
        tasks: Callable[[threading.Event], Threads] = Threads,
        content: tuple[str, ...] = (),
    ) -> None:
        self.record = record
        self.affords: Callable[[], bool] = lambda: True
        self.why_unpaid: WhyUnpaid = lambda _, __: ""
        self.leaves_at = math.inf
        self.elsewhere = ""
        self.stays = False
        self._patience = patience or WaitLimits()
        self._provider = provider
        self._provisioner = provisioner
        self._write = write
        self._clock = clock
        self._wall = wall
        self._wake = threading.Event()
        self._tasks = tasks(self._wake)
        self._watch = NodeWatch(provisioner, clock)
        self._notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._losses: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._observed = ObservedCluster(self._notes.put)
        self.scaling = self._observed.scaling
        self._observed.head = provisioner.head_of(record)
        self._actuator = Actuator(provider, provisioner, self._tasks, self._observed, content)
        self.leases = ClusterLeases(
            provider, provisioner, self._watch, self._observed, self._tasks, self._notes.put
        )
        self._wanted = self._ending = self._closed = False
        self._broken: int | None = None
        self._told_silent: set[str] = set()
        self._ends_on: set[str] = set()  # machines with members that are asked to end
        self._unpaid_after = -1
        self._grown: dict[str, RolePlan] = {}
        self._slow: queue.SimpleQueue[Callable[[ClusterRecord], ClusterRecord]] = queue.SimpleQueue()
        self._outage = ProviderOutage(record.plan.name, record.provider)
        # A site's own scheduler tells shortly before it takes machines back.
        self._looks = ProviderLooks(is_queue=capabilities_of(record.provider).queues)
        self._is_look_stale = False
        self._decide_at = 0.0
        self._thread: threading.Thread | None = None

    # --- for the run's loop ------------------------------------------------------------------------

    @property
    def formation(self) -> Formation | None:
        """Where gangs are sent to; None while there is none."""
        return self._observed.formation

    @property
    def accesses(self) -> dict[str, NodeAccess]:
        """Nodes by machine id, those that have gone too: what they left may be read for a while."""
        return self._observed.accesses

    @property
    def present(self) -> dict[str, NodeAccess]:
        """Nodes that are not gone, by machine id."""
        gone = self.gone
        return {machine: node for machine, node in list(self.accesses.items()) if machine not in gone}

    @property
    def gone(self) -> frozenset[str]:
        """Ids of nodes of which the provider says that they are gone."""
        return self._observed.gone

    @property
    def leaving(self) -> dict[str, float]:
        """When machines go, Unix seconds, by private address: they are taken back, replaced, or too many.

        Others than those that are taken back wait until nothing works on them any more.
        """
        found = dict(self._observed.leaving)
        record = self.record
        for machine in record.rented:
            node = self._observed.node(machine.id)
            is_leaving = machine.is_leaving or record.is_outgrown(machine) or self.leaves_at < math.inf
            if node is not None and is_leaving:
                found.setdefault(node.private_address, self.leaves_at)
        return found

    @property
    def queued(self) -> list[str]:
        """Why machines are not there yet that wait in their provider's queue, or that others hold."""
        nodes = map(self._observed.node, [machine.id for machine in self.record.rented])
        found = [node.reason for node in nodes if node is not None and node.is_queued]
        return [*found, *filter(None, [self.record.held])]

    @property
    def fatal(self) -> Exception | None:
        """Why the run cannot go on; None while it can."""
        return self._observed.fatal

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is left."""
        return self.record.state is ClusterState.ENDED

    @property
    def is_kept(self) -> bool:
        """Whether it waits, warm, for another run."""
        return self.record.state is ClusterState.KEPT

    @property
    def is_running(self) -> bool:
        """Whether anybody looks after it."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_sought(self) -> bool:
        """Whether a cluster that an earlier control process has left may still be found."""
        head = self._observed.head
        return (
            self.record.state is ClusterState.ACTIVE
            and self.formation is None
            and self.fatal is None
            and any(machine.id == head for machine in self.record.rented)
        )

    @property
    def head_address(self) -> str:
        """Private address of the machine that the cluster stands or falls with; empty while there is none."""
        head = self.formation and self.formation.cluster.head
        return head.address if head else ""

    @property
    def first_address(self) -> str:
        """Private address of the machine that is given back last: it may drive the run."""
        nodes = self.formation.cluster.nodes if self.formation else ()
        return nodes[0].address if nodes else ""

    @property
    def head_answers(self) -> bool:
        """Whether the machine that the cluster stands or falls with answers us by SSH."""
        formation = self.formation
        if formation is None or not formation.head:
            return False
        return formation.head not in self._watch.lost_since()

    def start(self) -> None:
        """Begin, or go on after `close`."""
        self._closed = False
        self._outage.paused()
        if not self.is_running:
            self._thread = threading.Thread(target=self._run, name=f"cluster {self.record.id}", daemon=True)
            self._thread.start()

    def recall(self) -> None:
        """It was kept warm: go on with what is known of its machines, and ask their provider in a moment."""
        record = self.record
        nodes = self._remembered()
        unknown = len(nodes) < len(record.rented)
        if unknown or any(m.id and m.ended_at is None for m in record.machines if m.is_over):
            return
        now = self._clock()
        self._observed.nodes, self._observed.is_told, self._observed.told_at = nodes, True, now
        self._looks.in_a_moment(now)
        self._watch.renewed(now + LOOK_S - self._provisioner.lease_s / RENEWALS)

    def want(self) -> None:
        """Experiments of it run: it must have its machines."""
        if not self._wanted:
            self._wanted = True
            self._wake.set()

    def unwant(self) -> None:
        """Nothing new will run there: what is lost from now on is not replaced."""
        self._wanted = False

    def ends_on(self, machines: Collection[str]) -> None:
        """A task is asked to end that has members on these: it is told if one of them is waited for."""
        self._ends_on.update(machines)

    def end(self) -> None:
        """It is needed no more: give all back. `is_over` tells when that is done."""
        if not self._ending:
            self._ending = True
            self._wake.set()

    def grow(self, role: RolePlan) -> None:
        """From now on nodes of a role have other machines; those that are there go when they are free."""
        self._grown[role.role] = role
        self._wake.set()

    def replace(self, machine: str, why: str, slowdown: float) -> None:
        """Another machine is to take the place of a slow one; nothing if that was decided before.

        Args:
            machine: its id.
            why: for people.
            slowdown: how many times as long steps take.
        """
        found = partial(marked_slow, machine=machine, why=why, slowdown=slowdown, now=self._clock())
        self._slow.put(found)
        self._wake.set()

    def swap(self, machine: str, *, keep: bool) -> None:
        """The successor of a slow machine is there: one of the two goes as soon as nothing works on it.

        Args:
            machine: id of the slow one.
            keep: that one stays.
        """
        self._slow.put(partial(swapped, machine=machine, keep=keep))
        self._wake.set()

    def successor_is_there(self, machine: Machine) -> bool:
        """Whether the one that is to take the place of a slow machine is a node."""
        found = self.record.successor(machine)
        return found is not None and self._observed.stages.get(found.id) is Stage.JOINED

    @property
    def awaits(self) -> bool:
        """Whether it has fewer nodes than are needed."""
        return self.scaling.awaits(self.record, self._observed.stages)

    def unused(self, addresses: frozenset[str]) -> None:
        """On which nodes nothing works, nor is about to, by private address."""
        self.scaling.unused = self._observed.at(addresses)

    def broken(self, number: int) -> None:
        """The cluster of that formation answers no more, though its head does: make it again."""
        self._broken = number
        self._wake.set()

    def alive(self, keys: frozenset[str]) -> None:
        """Which nodes the engine takes to be alive."""
        self._observed.alive(keys, self._clock())

    def idle(self, addresses: frozenset[str]) -> None:
        """On which nodes that are taken back nothing works any more, by private address."""
        self._observed.vacant = self._observed.at(addresses)

    def is_gone(self, key: str) -> bool:
        """Tells of a node that the engine cannot reach: whether it is gone."""
        machine = next((m for m in self.record.rented if key_of(m.id) == key), None)
        if machine is None:
            return True
        node = self._observed.node(machine.id)
        return node is not None and node.state is NodeState.GONE

    def troubles(self, since: float) -> dict[str, str]:
        """Machines that were lost, silent for a while or taken back since then, in words, by id.

        Args:
            since: Unix seconds.
        """
        taken_back = self._observed.leaving
        found = dict.fromkeys(self._watch.silent_since(since), "did not answer for a while")
        for machine in self.record.machines:
            node = self._observed.node(machine.id) if machine.id else None
            if machine.id in self.gone or (machine.id and machine.is_over):
                found[machine.id] = "was lost"
            elif node is not None and node.private_address in taken_back:
                found[machine.id] = "is taken back by its provider"
            elif machine.id and self.leaves_at < math.inf:
                found[machine.id] = "is given back, so that the run stays below its cap"
        return found

    def overused(self) -> dict[str, Node]:
        """Machines that were ended as what ran on them used more than it had asked for, by id."""
        return {name: node for name, node in self._observed.nodes.items() if node.overused is not None}

    def notes(self) -> list[str]:
        """What the user is to be told, since the last call."""
        return _taken(self._notes)

    def losses(self) -> list[str]:
        """Which machines were lost, and what follows, since the last call."""
        return _taken(self._losses)

    def keep(self, keep_s: float, now: float) -> bool:
        """Leave it warm for another run instead of ending it; False if that is not possible."""
        self.close()
        if self.formation is None or self.record.state is not ClusterState.ACTIVE:
            return False
        try:
            kept = self.leases.keep(self.record, keep_s, now + keep_s)
        except (TrainmasterError, OSError) as error:
            self._notes.put(f"{self.record.id} cannot be kept: {words(error)}")
            return False
        finally:
            self._watch.close()
        if kept is None:
            return False
        self._record(kept)
        return True

    def close(self) -> None:
        """Stop looking after it; machines live on as long as their leases do."""
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
        self._watch.close()

    # --- the loop ------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not (self._closed or self.is_over):
                self._turn()
                self._wake.wait(_TICK_S)
                self._wake.clear()
        except Exception as error:
            self._observed.fatal = error if isinstance(error, TrainmasterError) else _internal(error)
            if isinstance(error, LeaseLostError):  # somebody else looks after it now
                self.record = replace(self.record, state=ClusterState.ENDED)
            else:
                log.exception("the loop of cluster %s has ended", self.record.id)

    def _turn(self) -> None:
        now = self._clock()
        self._notice_sleep(now)
        while self._grown:
            _, role = self._grown.popitem()
            self._record(replace(self.record, plan=grown(self.record.plan, [role])))
        while not self._slow.empty():
            self._record(self._slow.get()(self.record))
        for name, result in self._tasks.collect():
            self._take(name, result, now)
        had = self.formation
        if had is not None and (
            had.number == self._broken or (had.head and all(m.id != had.head for m in self.record.rented))
        ):
            self._actuator.dissolve(self.record)
        self._look(now)
        self._notice_outage(now)
        if not self._ending:
            self._tell_silent(now)
        if now < self._decide_at and not self._ending:
            return  # what is known is of before we slept: nothing is given up, or asked for, because of it
        actions = self._decide(now)
        self._record(self.leases.renew(self.record, now))  # gangs may be on them, whatever has failed
        for action in actions:
            if self.fatal is not None and not self._ending and action.kind not in _LETS_GO:
                continue
            if action.kind is ActionKind.RENT:
                if not self.affords():
                    continue  # asked for again in the next turn
                self.leases.asks(now)
            self._actuator.perform(self.record, action, now)
        if had is not None and self.formation is None and not self._ending:
            self._record(replace(self.record, formed=had.number + 1))

    def _decide(self, now: float) -> list[Action]:
        """What follows is written down, and told; what is to be done."""
        observed = self._observed
        self._note_known()
        seen = observed.seen(
            self._watch.lost_since(),
            self._tasks.running("rent "),
            now,
            is_forming=any(map(self._tasks.running, ("form", "join ", "drop "))),
            lapsed=self._outage.lapsed(self._watch.leased_until(), self._watch.lost_since(), now),
        )
        wanted = self._wanted and observed.fatal is None
        patience = replace(self._patience, elsewhere_s=math.inf) if self.stays else self._patience
        decision = decide_cluster(
            self.record, seen, now, wanted=wanted, ending=self._ending, patience=patience,
            scaling=replace(self.scaling), why_unpaid=self.why_unpaid,
        )  # fmt: skip
        self._record(decision.record)
        waiting = ""
        if decision.waits or not decision.record.held:  # else hosts are asked for again, and it waits on
            waiting = self._outage.waiting_note(decision.waits, decision.retry_at, now)
        unpaid = decision.unpaid if self._unpaid_after != decision.record.asked else ""
        if unpaid:  # told once, until more is asked for
            self._unpaid_after = decision.record.asked
        for note in filter(None, (*decision.notes, waiting, unpaid)):
            self._notes.put(note)
        for loss in decision.losses:
            self._losses.put(loss)
        self.elsewhere = decision.elsewhere
        if decision.fatal and observed.fatal is None:
            kind = UsageError if decision.is_users else ProviderError
            observed.fatal = kind(decision.fatal, "Nothing runs on; what was rented is given back.")
        return decision.actions

    def _take(self, name: str, result: object, now: float) -> None:
        if name == "look" and self._is_look_stale:  # what it says was true before we slept
            self._is_look_stale = False
            self._looks.at_once(now)
            return
        if name == "look":
            self._decide_at = 0.0
        was_away = self._observed.away_since is not None
        self._observed.take(self.record.id, name, result, now)
        if name.startswith(("rent ", "back ")):
            self._looks.sooner(now)
        if name != "look":
            return
        away_since = self._observed.away_since
        if was_away and away_since is None:  # it could not be told of leases, by which others reap
            self._watch.renewed(float("-inf"))
        if away_since is None:
            return
        if now - away_since > AWAY_S:
            self._looks.later(now)
        for machine, node in self._remembered().items():  # an earlier control process had learnt it
            self._observed.nodes.setdefault(machine, node)

    def _remembered(self) -> dict[str, Node]:
        return self._provisioner.memory(self.record.id).nodes(machine.id for machine in self.record.rented)

    def _record(self, record: ClusterRecord) -> None:
        if record == self.record:
            return
        # Others judge it by their own clocks, which may have been set since this process began.
        ahead_s = self._wall() - self._clock()
        self._write(record if abs(ahead_s) < 1 else record.moved(ahead_s))
        self.record = record
        self._note_known()

    def _note_known(self) -> None:
        """Machines are known as soon as they have a name: this machine may sleep before the next turn."""
        for machine in self.record.rented:
            self._observed.known_since.setdefault(machine.id, self._clock())

    def _notice_sleep(self, now: float) -> None:
        """This machine may have slept, or this process been stopped: nothing was renewed meanwhile."""
        if not self._outage.turned(now):
            return
        self._watch.woke(now)
        self._observed.is_told = False
        self._is_look_stale = self._tasks.is_running("look")
        self._looks.at_once(now)
        self._decide_at = now + AWAY_S
        if self.record.rented:
            last = max(self._watch.leased_until().values(), default=self.record.leased_until or now)
            self._notes.put(self._outage.sleep_note(last))

    def _notice_outage(self, now: float) -> None:
        """A provider that does not answer is no reason to end anything, but one to tell."""
        observed, rented = self._observed, self.record.rented
        lost = self._watch.lost_since().keys()
        # Neither the provider nor any machine answers: then it is this machine that cannot be reached.
        is_cut_off = bool(rented) and now - observed.told_at > AWAY_S and all(m.id in lost for m in rented)
        if is_cut_off:
            self._watch.excuse(now)
        if self.record.state is not ClusterState.ENDING:
            since, error, is_used = observed.away_since, observed.away_error, bool(rented)
            note = self._outage.away_note(since, error, now, is_cut_off=is_cut_off, is_used=is_used)
            if note:
                self._notes.put(note)

    def _tell_silent(self, now: float) -> None:
        """What is waited for, while all that runs there or a task is to end, is told once of each machine."""
        since = self._watch.lost_since()
        for machine in self.record.live:
            if self._wanted and machine.id not in self._ends_on:
                continue
            at = since.get(machine.id)
            if at is not None and now - at >= LATE_S and machine.id not in self._told_silent:
                self._told_silent.add(machine.id)
                until = clock_time(at + self._patience.lost_s)
                name = name_of(self.record, machine)
                self._notes.put(
                    f"{name} has not answered since {clock_time(at)}: it is waited for until {until}"
                )

    def _look(self, now: float) -> None:
        """Ask the provider, and the machines themselves."""
        if self.record.state is ClusterState.PLANNED:
            return
        is_ending = self.record.state is ClusterState.ENDING
        if self._looks.is_due(now) and not self._tasks.is_running("look"):
            self._looks.begin(self._observed.nodes.values(), now)
            self._tasks.start("look", partial(self._provider.nodes, self.record.id))
        elif self._observed.away_since is None and (self._watch.lost_since() or is_ending):
            self._looks.knows_more()
        if not is_ending:
            self.leases.probe(self.record, now)


def _taken(lines: queue.SimpleQueue[str]) -> list[str]:
    found = []
    with contextlib.suppress(queue.Empty):
        while True:
            found.append(lines.get_nowait())
    return found


def _internal(error: Exception) -> ProviderError:
    hint = "Nothing runs on; what was rented is given back."
    return ProviderError(f"internal error of a cluster's loop: {words(error)}", hint)
