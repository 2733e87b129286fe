"""`ClusterLeases`: until when the machines of a cluster live if their leases are not renewed any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from trainmaster.cluster.actuator import Threads
from trainmaster.cluster.decision import Stage
from trainmaster.cluster.node_provisioner import NodeProvisioner, words
from trainmaster.cluster.node_watch import LEAST_LEASE_S, NodeWatch
from trainmaster.cluster.observed import ObservedCluster
from trainmaster.cluster.record import ClusterRecord, ClusterState
from trainmaster.control.decide.budget import BOOTING_S
from trainmaster.providers.base import Provider
from trainmaster.providers.dead_man_switch import RENEWALS, TICK_S
from trainmaster.spec.errors import TrainmasterError


class ClusterLeases:
    """The leases of one cluster.

    Args:
        provider: is told that machines are still wanted.
        provisioner: has the length of a lease, one for all clusters of the run.
        watch: renews the leases that machines have themselves.
        observed: what is known of them.
        tasks: asks machines, and tells the provider.
        tell: shows a line to the user.
    """

    def __init__(
        self,
        provider: Provider,
        provisioner: NodeProvisioner,
        watch: NodeWatch,
        observed: ObservedCluster,
        tasks: Threads,
        tell: Callable[[str], None],
    ) -> None:
        self._provider, self._provisioner, self._watch = provider, provisioner, watch
        self._observed, self._tasks, self._tell = observed, tasks, tell
        self._booting_until = 0.0

    @property
    def lease_s(self) -> float:
        """How long machines live without a renewal of their lease; one for all clusters of the run.

        It may be set at any time: from the next renewal on it holds, and renewals come three times as often.
        """
        return self._provisioner.lease_s

    @lease_s.setter
    def lease_s(self, lease_s: float) -> None:
        self._provisioner.lease_s = max(lease_s, LEAST_LEASE_S)

    def last_until(self, record: ClusterRecord) -> float:
        """When the last machine ends itself without further renewals; 0 while there are none."""
        watched = self._watch.leased_until()
        last = max(watched.values(), default=0.0)
        if any(machine.id not in watched for machine in record.rented):  # it boots, or was found again
            return max(last, self._booting_until, record.leased_until or 0.0)
        return last

    def asks(self, now: float) -> None:
        """Machines are asked for: they begin with a lease."""
        self._booting_until = now + BOOTING_S + self.lease_s

    def renew(self, record: ClusterRecord, now: float) -> ClusterRecord:
        """Tell the provider that machines are still wanted, and note until when they live at most."""
        lease_s = self.lease_s
        if record.state is not ClusterState.ACTIVE:
            return record
        is_due = self._watch.renewal_is_due(now, lease_s)
        if is_due:
            self._tasks.start("renew", partial(self._provider.renew, record.id, lease_s))
        if not is_due and now < (record.leased_until or 0.0):
            return record
        # Only on evidence: while nothing could be renewed, machines may have ended themselves.
        ends = self._watch.leased_until()
        next_s = lease_s / RENEWALS
        known = [until + next_s for until in ends.values() if until > now]
        is_asked = any(not machine.id for machine in record.live)
        if is_asked or (self._observed.is_told and any(m.id in self._observed.nodes for m in record.live)):
            known.append(now + lease_s + next_s)
        if known and any(machine.id not in ends for machine in record.rented):
            known.append(record.leased_until or 0.0)  # its lease may still be one of before
        return replace(record, leased_until=max(known)) if known else record

    def probe(self, record: ClusterRecord, now: float) -> None:
        """Ask machines for a sign of life, which renews their leases when that is due."""
        stages, lease_s = self._observed.stages, self.lease_s
        watched = {m.id for m in record.rented if stages.get(m.id) in (Stage.READY, Stage.JOINED)}
        late = {name for name, access in list(self._observed.accesses.items()) if access.was_silent}
        self._watch.only(watched, lease_s, late)
        lost = self._watch.lost_since()
        for machine in self._watch.due(now):
            access, node = self._observed.accesses.get(machine), self._observed.node(machine)
            if access is not None and node is not None:
                # Those that do not answer take long: they have threads of their own.
                kind = "search" if machine in lost else "probe"
                self._tasks.start(f"{kind} {machine}", partial(self._watch.probe, access, node, lease_s))

    def keep(self, record: ClusterRecord, keep_s: float, until: float) -> ClusterRecord | None:
        """Have machines live on without us; None if one of them is leaving.

        Args:
            record: of the cluster.
            keep_s: for so long.
            until: Unix seconds.

        Raises:
            TrainmasterError: a machine cannot be reached.
            OSError: the record or the network cannot be used.
        """
        for machine in record.rented:
            node = self._observed.node(machine.id)
            if node is None or machine.is_leaving:
                return None
            self._watch.renew(machine.id, node, keep_s)
        self._tell_provider(record, keep_s)
        kept = replace(record, state=ClusterState.KEPT, keep_s=keep_s, kept_until=until)
        return replace(kept, leased_until=until + TICK_S)

    def _tell_provider(self, record: ClusterRecord, keep_s: float) -> None:
        """Have it write down that machines are kept, and end those that are abandoned.

        If it does not answer, the machines' own switches hold: those that are kept live on, the others end.
        """
        given_up = [m.id for m in record.machines if m.is_over and m.id and m.ended_at is None]
        try:
            self._provider.renew(record.id, keep_s)
            if given_up:
                self._provider.release(record.id, given_up)
        except (TrainmasterError, OSError) as error:
            self._tell(f"{record.id}: {record.provider} could not be told that it is kept: {words(error)}")
