"""`NodeWatch`: whether machines answer, and that leases are renewed. As the engine, it tells of lost nodes.

A machine lives as long as its lease, which is renewed over SSH: what can log in keeps it alive, whatever
its provider's API says or does not say.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from trainmaster.dataclass import dataclass
from trainmaster.providers.dead_man_switch import RENEWALS
from trainmaster.spec.errors import TrainmasterError

if TYPE_CHECKING:
    from trainmaster.cluster.node_access import NodeAccess
    from trainmaster.cluster.node_provisioner import NodeProvisioner
    from trainmaster.providers.base import Node
    from trainmaster.transport.base import Connection

#: How often each machine is asked for a sign of life.
PROBE_S: Final = 2.0
_PROBE_TIMEOUT_S: Final = 4.0
#: A shorter one could be over before a renewal over a slow line has arrived.
LEAST_LEASE_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class _Renewal:
    """What was granted last: leases get shorter as money runs out, and longer again when less is rented."""

    at: float
    lease_s: float = math.inf

    def is_over(self, now: float, lease_s: float) -> bool:
        """Whether the next one is due, by the shorter of that lease and the present one."""
        return now - self.at >= min(self.lease_s, lease_s) / RENEWALS


class NodeWatch:
    """Keeps a login on every node. Threads share it.

    Args:
        provisioner: sets dead-man switches.
        clock: gives Unix seconds; never set back.
    """

    def __init__(self, provisioner: NodeProvisioner, clock: Callable[[], float]) -> None:
        self._provisioner = provisioner
        self._clock = clock
        self._lock = threading.Lock()
        self._connections: dict[str, Connection] = {}
        self._next_at: dict[str, float] = {}
        self._renewals: dict[str, _Renewal] = {}
        self._leased_until: dict[str, float] = {}
        self._lost_since: dict[str, float] = {}
        self._silent_until: dict[str, float] = {}
        self._excused_at = 0.0
        self._told = _Renewal(float("-inf"))
        self._setting: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._kept: set[str] = set()

    def only(self, machines: set[str], lease_s: float, late: Collection[str] = ()) -> None:
        """Watch these, which have all been reached, and no others.

        Args:
            machines: their ids.
            lease_s: of those that are new; it is renewed when they are first asked.
            late: those that did not answer at first; see `NodeAccess.was_silent`.
        """
        now = self._clock()
        with self._lock:
            for machine in machines - self._next_at.keys():
                self._next_at[machine] = now + PROBE_S  # it has just answered
                self._leased_until[machine] = now + lease_s
                if machine in late:
                    self._silent_until[machine] = now
            gone = self._next_at.keys() - machines
        for machine in gone:
            self.end(machine)

    def end(self, machine: str) -> None:
        """It is watched no more."""
        with self._lock:
            connection = self._connections.pop(machine, None)
            for memory in (
                self._next_at, self._renewals, self._leased_until, self._lost_since, self._silent_until
            ):  # fmt: skip
                memory.pop(machine, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Hang up everywhere."""
        for machine in list(self._connections):
            self.end(machine)

    def due(self, now: float) -> list[str]:
        """Ids of machines that it is time to ask, those that have waited longest first: none is left out."""
        with self._lock:
            waiting = [(at, machine) for machine, at in self._next_at.items() if at <= now]
        return [machine for _, machine in sorted(waiting)]

    def renewal_is_due(self, now: float, lease_s: float) -> bool:
        """Whether it is time to tell the provider that machines are still wanted; it then counts as told."""
        if not self._told.is_over(now, lease_s):
            return False
        self._told = _Renewal(now, lease_s)
        return True

    def renewed(self, at: float) -> None:
        """The provider was told at that time, Unix seconds."""
        self._told = _Renewal(at)

    def lost_since(self) -> dict[str, float]:
        """Since when machines have not answered though they could, Unix seconds."""
        with self._lock:
            return {machine: max(at, self._excused_at) for machine, at in self._lost_since.items()}

    def silent_since(self, since: float) -> set[str]:
        """Ids of machines that have not answered for a while at some time since then, Unix seconds."""
        with self._lock:
            since = max(since, self._excused_at)
            return {machine for machine, until in self._silent_until.items() if until > since}

    def leased_until(self) -> dict[str, float]:
        """When machines end themselves, as their leases were last set by us; Unix seconds."""
        with self._lock:
            return dict(self._leased_until)

    def woke(self, now: float) -> None:
        """This process did not run for a while, in which it heard no answer."""
        self.excuse(now)
        with self._lock:
            self._next_at = dict.fromkeys(self._next_at, now)

    def excuse(self, now: float) -> None:
        """That machines have not answered until now is not their fault."""
        with self._lock:
            self._excused_at = now

    def probe(self, access: NodeAccess, node: Node, lease_s: float) -> None:
        """Ask a machine for a sign of life, and renew its lease when that is due."""
        asked_at = self._clock()
        last = self._renewals.get(access.id)
        renews = last is None or last.is_over(asked_at, lease_s)
        is_sent = False
        try:
            connection = self._connection(access)
            if renews:
                with self._lock_of(access.id):
                    is_sent = access.id not in self._kept
                    if is_sent:
                        self._provisioner.set_switch(connection, node, lease_s)
            else:
                connection.run(":", timeout_s=_PROBE_TIMEOUT_S)
        except (TrainmasterError, OSError):
            self._hang_up(access.id)
            with self._lock:
                if access.id in self._next_at:
                    self._silent_until[access.id] = self._clock()
                    if is_sent and self._leased_until[access.id] >= asked_at:
                        # An answer that was lost may have been a yes.
                        until = max(self._leased_until[access.id], self._clock() + lease_s)
                        self._leased_until[access.id] = until
                    self._lost_since.setdefault(access.id, asked_at)
                    self._next_at[access.id] = self._clock() + PROBE_S / 2
            return
        with self._lock:
            is_watched = access.id in self._next_at
            was_lost = self._lost_since.pop(access.id, None) is not None
            if is_watched:
                if was_lost:
                    self._silent_until[access.id] = self._clock()
                if renews:
                    self._renewals[access.id] = _Renewal(asked_at, lease_s)
                    self._leased_until[access.id] = self._clock() + lease_s
                self._next_at[access.id] = self._clock() + PROBE_S
        if not is_watched:  # it is not asked any more
            self._hang_up(access.id)

    def renew(self, machine: str, node: Node, lease_s: float) -> None:
        """Set the switch of a machine that is watched for the last time: probes under way do not any more.

        Raises:
            TrainmasterError: it cannot be reached.
        """
        from trainmaster.providers.hosts_over_ssh import target_of

        # One of its own: a probe that was under way hangs up at its end.
        connection = self._provisioner.transport.connect(target_of(node))
        with contextlib.closing(connection), self._lock_of(machine):
            self._kept.add(machine)
            self._provisioner.set_switch(connection, node, lease_s)

    def _lock_of(self, machine: str) -> threading.Lock:
        with self._lock:
            return self._setting[machine]

    def _connection(self, access: NodeAccess) -> Connection:
        connection = self._connections.get(access.id)
        if connection is None or connection.is_closed:
            connection = self._connections[access.id] = access.connect()
        return connection

    def _hang_up(self, machine: str) -> None:
        connection = self._connections.pop(machine, None)
        if connection is not None:
            with contextlib.suppress(TrainmasterError, OSError):
                connection.close()
