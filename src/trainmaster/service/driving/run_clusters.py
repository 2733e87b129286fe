"""`RunClusters`: the rented side of one run, put together: provider, connections, clusters, files."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.cluster.baking import Baking
from trainmaster.cluster.cluster_executor import ClusterExecutor
from trainmaster.cluster.cluster_loop import ClusterLoop
from trainmaster.cluster.decision import WaitLimits
from trainmaster.cluster.member_places import MemberPlaces
from trainmaster.cluster.node_provisioner import NodeProvisioner
from trainmaster.cluster.record import ClusterRecord, ClusterState, fits, readable, resumed, taken_over
from trainmaster.control.attempt.system_log import system_log_command
from trainmaster.control.decide.budget import USUAL_LEASE_S
from trainmaster.control.task.layout import Home, seconds_of
from trainmaster.dataclass import dataclass
from trainmaster.db import queries
from trainmaster.db.leases import is_alive
from trainmaster.providers.base import BringsSelfDeletion, Provider, ProviderPlace, root_on_nodes
from trainmaster.providers.capabilities import capabilities_of, get_transport
from trainmaster.providers.plugins import get_provider
from trainmaster.service.renting.kept_clusters import KeptCluster
from trainmaster.spec.errors import NotFoundError, TrainmasterError, UsageError, one_line
from trainmaster.spec.private_files import write_private
from trainmaster.spec.states import State
from trainmaster.spec.topics import TAKEN_BACK
from trainmaster.spec.units import counted

if TYPE_CHECKING:
    from trainmaster.cluster.bootstrap.host_result import PhaseReport
    from trainmaster.cluster.node_files.remote_site import RemoteSite
    from trainmaster.cluster.observed import Formation
    from trainmaster.db import Database, Lease
    from trainmaster.executors.base import OneClusterExecutor
    from trainmaster.transport.base import Transport

#: How long a run waits at its end for machines to be gone.
GIVING_BACK_S: Final = 300.0
#: In a cluster's directory: the database that its run is in.
_DATABASE: Final = "database"
#: A run that was undriven for so long keeps nothing on machines that others use, too.
_LEFT_ALONE_S: Final = 86_400.0
#: A run on warm machines begins before it is asked what else is rented.
_REAP_LATER_S: Final = 4.0
_REAPED_S: Final = 5.0

log = logging.getLogger(__name__)

Tell = Callable[[str], None]


def machines_patience(environ: Mapping[str, str], wait_s: float | None = None) -> WaitLimits:
    """How long a run waits for machines that do not answer, and for capacity; ``wait_s``: in all.

    ``TRAINMASTER_NODE_PATIENCE`` and ``TRAINMASTER_CAPACITY_PATIENCE`` name other times.

    Raises:
        UsageError: one of them is no time.
    """
    usual = WaitLimits()
    return WaitLimits(
        seconds_of(environ, "TRAINMASTER_NODE_PATIENCE", usual.lost_s),
        seconds_of(environ, "TRAINMASTER_CAPACITY_PATIENCE", usual.cool_down_s),
        usual.machines_s if wait_s is None else wait_s,
    )


def node_lease_s(environ: Mapping[str, str]) -> float:
    """How long machines live when their lease is not renewed: ``TRAINMASTER_NODE_LEASE``, or as usual.

    Raises:
        UsageError: it is no time.
    """
    return seconds_of(environ, "TRAINMASTER_NODE_LEASE", USUAL_LEASE_S)


@dataclass(frozen=True, slots=True)
class _ProviderAccess:
    """How a run rents, reaches and prepares machines of one provider; what it reads of a login stays."""

    place: ProviderPlace
    provider: Provider
    transport: Transport
    provisioner: NodeProvisioner

    def close(self) -> None:
        self.provisioner.close()
        self.transport.close()
        self.provider.close()


class RunClusters:
    """What a run has rented, or is about to.

    It puts loops, executor and site of clusters together, and so gets all that these need.

    Args:
        database: keeps the clusters' rows.
        home: of the run.
        lease: of the run.
        code: the run's snapshot.
        providers: names, of all places that it is in; the first comes first where tasks spread over several.
        environ: of the caller: settings.
        place_of: leads to a provider, by its name.
        tell: shows lines to the user.
        per_hour_usd: what all machines may cost per hour.
        saved: called when something was written that is needed to go on, before it is relied on.
        baking: what it puts on them, and whether images are made of them.
        own_cluster: the one that this process runs on; it knows of no other runs of its home then, and so
            gives back no machines that seem orphaned.
        wait_s: how long to wait for machines; None: as long as it takes.
        elsewhere_s: how long to wait before another place is asked, where there is one.
        was_asked: none of these would do.
        contents_of: hashes of what a run has brought to machines that it has kept warm.

    Attributes:
        clusters: the executor of all its clusters.
        site: brings files to nodes and back.
        lease_s: how long machines live when their lease is not renewed.
        taken: ids of clusters that it has taken over warm.

    Raises:
        UsageError: the provider cannot be used from here.
    """

    def __init__(
        self,
        database: Database,
        home: Home,
        lease: Lease,
        code: Path,
        providers: Sequence[str],
        environ: Mapping[str, str],
        place_of: Callable[[str], ProviderPlace],
        tell: Tell,
        per_hour_usd: float | None = None,
        saved: Callable[[], None] = lambda: None,
        own_cluster: str = "",
        wait_s: float | None = None,
        baking: Baking | None = None,
        elsewhere_s: float = math.inf,
        was_asked: bool = False,
        contents_of: Callable[[KeptCluster], Iterable[str]] = lambda _: (),
    ) -> None:
        from trainmaster.cluster.node_files.remote_site import RemoteSite

        self._database = database
        self._home = home
        self._lease = lease
        self._tell = tell
        self._saved = saved
        self._own_cluster = own_cluster
        self._baking = baking or Baking()
        identity = home.identity()
        self.lease_s = node_lease_s(environ)
        self._renters = {
            name: self._renter(name, code, replace(place_of(name), saved=saved)) for name in providers
        }
        patience = replace(machines_patience(environ, wait_s), elsewhere_s=elsewhere_s, was_asked=was_asked)
        self._earlier_usd = (0.0, 0.0)
        loops: dict[str, list[ClusterLoop]] = {}
        self._contents_of = contents_of
        self.taken: set[str] = set()
        self._unmarked: set[str] = set()
        for record in self._records():
            content = self._baking.wanted(record.plan)
            renter = self._renters[record.provider]
            renter.provisioner.sends_for(record.plan.engine)
            loop = ClusterLoop(
                record, renter.provider, renter.provisioner, self._write, patience, content=content
            )
            if record.id in self.taken:
                loop.recall()
            for name in record.plan.experiments:
                loops.setdefault(name, []).append(loop)
                loops[name].sort(key=lambda each: providers.index(each.record.provider))
        if not loops:
            raise UsageError(f"{lease.run} has no plan of its machines", "Start it with `trainmaster run`.")
        places = MemberPlaces(self._directory_of)
        self.executor = ClusterExecutor(
            loops,
            self._open,
            self._write_cost,
            places,
            earlier_usd=self._earlier_usd,
            per_hour_usd=math.inf if per_hour_usd is None else per_hour_usd,
            undriven_until=queries.noted_at(database, lease.run, TAKEN_BACK),
        )
        self.executor.own_cluster = own_cluster
        self.executor.holds = self._baking.makes
        self.site: RemoteSite = RemoteSite(
            home,
            lease.run,
            nodes_of=self.executor.nodes_of,
            all_nodes=self.executor.all_nodes,
            node_sizes=self.executor.node_sizes,
            root=root_on_nodes(identity),
            patience_s=patience.lost_s,
            tell=self._tell,
            is_over=self._is_over,
            is_coming=self.executor.is_coming,
            system_log=self._system_log,
            console=self._console,
        )
        self.executor.on_lost = self.site.lost
        self._reaping: threading.Timer | None = None
        if own_cluster:
            return
        # The provider need not be asked for anything yet; and machines that are there must be looked after at
        # once, though their provider may not answer, or refuse credentials that have expired.
        if self.taken or any(record.rented for record in self.executor.records()):
            self._reaping = threading.Timer(_REAP_LATER_S, self._reap_later, [identity])
            self._reaping.daemon = True
            self._reaping.start()
            return
        try:
            self._reap(identity)
        except BaseException:
            self.close()
            raise

    def finish(self, *, succeeded: bool, hurried: Callable[[], bool] = lambda: False) -> None:
        """Give everything back, or keep it warm, and write the bill down.

        Args:
            succeeded: the run did.
            hurried: whether the user does not want to wait until all is gone.
        """

        def bake(loop: ClusterLoop) -> None:
            if self._baking.makes and loop.record.id != self._own_cluster:
                renter = self._renters[loop.record.provider]
                self._baking.bake(loop, renter.provider, renter.provisioner, self._tell, hurried)

        self.executor.finish(
            self._tell, keep=succeeded, patience_s=GIVING_BACK_S, hurried=hurried, before_end=bake
        )

    def close(self) -> None:
        """Hang up; what is rented lives on as long as its lease does."""
        if self._reaping is not None:
            self._reaping.cancel()
            if self._reaping is not threading.current_thread():
                self._reaping.join(_REAPED_S)
        records = self.executor.records()
        is_ended = all(record.state is ClusterState.ENDED for record in records)
        self.executor.close()
        self.site.close(
            stays=not is_ended or any(not each.rental.is_rented for one in records for each in one.machines)
        )
        for renter in self._renters.values():
            renter.close()

    # --- private -----------------------------------------------------------------------------------

    def _renter(self, name: str, code: Path, place: ProviderPlace) -> _ProviderAccess:
        can, transport = capabilities_of(name), get_transport(name, place)
        provider = get_provider(name, place)
        provisioner = NodeProvisioner(
            self._home,
            self._lease.run,
            transport,
            code,
            self.lease_s,
            self._report,
            has_switch=can.ends_itself,
            switch_at_boot=can.switch_at_boot,
            self_deletion=provider.self_deletion_script if isinstance(provider, BringsSelfDeletion) else None,
            saved=self._saved,
        )
        return _ProviderAccess(place, provider, transport, provisioner)

    def _records(self) -> Sequence[ClusterRecord]:
        """The run's clusters; those that are planned take over warm ones that fit."""
        now = time.time()
        records = [ClusterRecord.of_row(row) for row in self._database.clusters_of(self._lease.run)]
        found = []
        for record in resumed(record for record in records if record.provider in self._renters):
            warm = self._warm(record, now) if record.state is ClusterState.PLANNED else None
            found.append(warm or record)
        ids = {record.id for record in found}
        earlier = [record for record in records if record.id not in ids]
        self._earlier_usd = (
            sum(record.spent_usd(now) for record in earlier),
            sum(record.most_usd(now, now) for record in earlier),
        )
        return found

    def _warm(self, planned: ClusterRecord, now: float) -> ClusterRecord | None:
        """A warm cluster that is what was planned, taken over."""
        rows = self._database.living_clusters(planned.provider, planned.home_id)
        for kept in readable(rows, self._tell):
            if kept.state is not ClusterState.KEPT or not fits(kept, planned.plan):
                continue
            run = next(row["run_id"] for row in rows if row["id"] == kept.id)
            taken = taken_over(kept, planned, now, self._contents_of(KeptCluster(kept, run)))
            if not self._database.take_kept_cluster(self._lease, taken.as_row(), now, kept.idle_usd(now)):
                continue  # somebody else was quicker, or it is too late
            self._tell(f"{planned.plan.name}: {kept.id} is still warm and used again")
            self.taken.add(taken.id)
            return taken
        return None

    def _is_over(self, run: str) -> bool:
        """Whether a run has ended, or was undriven for so long that it is abandoned."""
        try:
            row = self._database.run_row(run)
        except NotFoundError:  # another database's: unknown
            return False
        owner, expires_at, now = row["lease_owner"], row["lease_expires_at"], self._database.clock_s()
        is_left = not is_alive(owner, expires_at, now) and now - (expires_at or now) > _LEFT_ALONE_S
        return row["state"] == State.DONE or is_left

    def _system_log(self, attempt: str) -> str:
        can = capabilities_of(self.executor.loop_of(attempt).record.provider)
        return system_log_command(is_rented=can.rents, has_own_kernel=can.has_own_kernel)

    def _console(self, attempt: str, machine: str) -> str:
        record = self.executor.loop_of(attempt).record
        if not capabilities_of(record.provider).console:
            return ""
        return self._renters[record.provider].provider.console(record.id, machine)

    def _reap(self, identity: str) -> None:
        """Give back machines of this home that belong to no run that goes on."""
        for name, renter in self._renters.items():
            self._reap_at(name, renter, identity)

    def _reap_at(self, name: str, renter: _ProviderAccess, identity: str) -> None:
        rows = self._database.living_clusters(name, identity)
        lease_now, others = self._database.clock_s(), self._of_other_databases()
        # One that is over may be about to keep its machines.
        used = [
            row["id"]
            for row in rows
            if row["run_id"] == self._lease.run
            or is_alive(row["lease_owner"], row["lease_expires_at"], lease_now)
            or (row["state"] == ClusterState.KEPT and (row["kept_until"] or 0) > time.time())
        ]
        used += [record.id for record in self.executor.records()]
        known = used + [row["id"] for row in rows if row["run_state"] != State.DONE]
        for record in readable((row for row in rows if row["id"] not in known), self._tell):
            renter.provisioner.forget(record, ())  # its keys are of no use to anybody
        # Machines whose run has no driver are off when their lease is over: `resume` could not use them.
        spared = known if capabilities_of(name).leaves_nothing else used
        try:
            if lost := renter.provider.reap([*spared, *others]):
                many, are = counted(len(lost), "machine"), "is" if len(lost) == 1 else "are"
                self._tell(f"note: {many} without a run {are} given back: {', '.join(lost)}")
        except UsageError:
            raise
        except TrainmasterError as error:  # they end themselves in any case
            self._tell(f"note: {one_line(error)}")

    def _reap_later(self, identity: str) -> None:
        try:
            self._reap(identity)
        except TrainmasterError as error:
            self._tell(f"note: {one_line(error)}")
        except Exception:  # the run goes on, and lost machines end themselves
            log.exception("cannot look for machines without a run")

    def _open(self, loop: ClusterLoop, formation: Formation) -> OneClusterExecutor:
        from trainmaster.executors.gangs.executor import NodesExecutor

        return NodesExecutor(formation.cluster, place=self.site.here, is_gone=loop.is_gone)

    def _of_other_databases(self) -> list[str]:
        """Clusters that runs of this home in another database have rented: they are not ours to end."""
        mine = self._database_url()
        found = []
        for mark in sorted((self._home.root / "clusters").glob(f"*/{_DATABASE}")):
            try:
                if mark.read_text() not in ("", mine):
                    found.append(mark.parent.name)
            except FileNotFoundError:  # removed meanwhile
                continue
            except (OSError, ValueError) as error:
                found.append(mark.parent.name)
                self._tell(f"note: {mark} cannot be read ({error}): its machines are left alone")
        return found

    def _database_url(self) -> str:
        return self._database.engine.url.render_as_string(hide_password=True)

    def _mark(self, record: ClusterRecord) -> None:
        """Say beside the cluster's keys which database knows it."""
        directory = self._home.root / "clusters" / record.id
        if record.state is not ClusterState.ACTIVE or (directory / _DATABASE).exists():
            return
        try:
            write_private(directory / _DATABASE, self._database_url().encode())
        except OSError as error:  # a full disk
            if record.id not in self._unmarked:
                self._unmarked.add(record.id)
                self._tell(
                    f"note: {directory / _DATABASE} cannot be written ({error}): to runs of this home in "
                    "another database, machines whose lease was not renewed seem to be lost"
                )

    def _write(self, record: ClusterRecord) -> None:
        self._mark(record)
        self._database.put_cluster(self._lease, record.as_row(), time.time())
        if self._own_cluster:
            self._saved()

    def _write_cost(self, cost_usd: float) -> None:
        self._database.put_cost(self._lease, cost_usd, self._database.clock_s())

    def _directory_of(self, attempt: str) -> Path:
        run, experiment, task, number = attempt.split("/")
        return self._home.attempt(run, experiment, int(task), int(number)).directory

    def _report(self, report: PhaseReport) -> None:
        if report.outcome.value == "failed":
            self._tell(f"{report.host}: {report.phase} failed: {report.detail}")
