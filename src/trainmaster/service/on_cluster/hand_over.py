"""`HandingOver`: the driver of a run moves from its home to the first machine that it has rented.

While the home drives, the machine gets what a driver needs and starts one. That does all that takes time and
does not need the lease. Then the home stops, writes that the run is away, and sends what was added to its
record. What creates the claim on the store drives: the machine when it begins, or the home when nothing is
heard of it. So wherever either of them is killed, one of them goes on, and never both.

`DriverLink`: the line to a driver that is made ready on a machine, see `on_cluster/driver_watchdog.py`.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shlex
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from trainmaster.cluster.renting.plan import ClusterPlan
from trainmaster.cluster.renting.plan_clusters import engine_of
from trainmaster.control.attempt.data_sources import parts_of, withdraw_volumes
from trainmaster.control.checks.preflight import why_bound_by_data
from trainmaster.db import Lease, Note, run_transfer
from trainmaster.objects.plugins import package_of
from trainmaster.providers.base import ProviderPlace
from trainmaster.providers.capabilities import OfferSource, capabilities_of, get_transport
from trainmaster.providers.sent_settings import driver_login, remove_login
from trainmaster.service.driving.encryption import SealingKey
from trainmaster.service.on_cluster.assignment import Assignment, Record, key_of, resealed
from trainmaster.service.on_cluster.away import back
from trainmaster.service.on_cluster.credentials import ROLE_VARIABLE, driver_environment, policy_of, sent_by
from trainmaster.service.on_cluster.driver_store import DriverStore
from trainmaster.service.on_cluster.driver_watchdog import DRIVING, FAILED, READY, part
from trainmaster.service.quotes.history import device_of
from trainmaster.service.runs.stored_recipe import stored_recipe
from trainmaster.spec import Recipe
from trainmaster.spec.errors import ProviderError, TrainmasterError, UsageError, one_line
from trainmaster.spec.recipe_parts import named_places
from trainmaster.spec.states import State
from trainmaster.transport.base import Transport

if TYPE_CHECKING:
    from trainmaster.cluster.bootstrap.runtime_package import RuntimePackage
    from trainmaster.cluster.cluster_executor import ClusterExecutor
    from trainmaster.cluster.node_access import NodeAccess
    from trainmaster.control.loop.surroundings import Watcher
    from trainmaster.service.driving.driving import OnStart
    from trainmaster.service.driving.execution_backend import Session
    from trainmaster.service.service import Service

#: A machine that is busy with the run may take minutes; meanwhile the run is driven here.
_READY_S: Final = 900.0
#: It writes the run down, and asks the store; meanwhile the run is undriven.
_BEGIN_S: Final = 60.0


class DriverLink:
    """One call of a watchdog; close it. A driver that was not told to begin by then ends.

    Args:
        node: the machine.
        transport: connects; closed with this.
        command: for its shell: the watchdog.
    """

    def __init__(self, node: NodeAccess, transport: Transport, command: str) -> None:
        self._node = node
        self._transport = transport
        self._command = command
        self._socket: socket.socket | None = None
        self._stream: BinaryIO | None = None

    def get_ready(self, assignment: bytes) -> None:
        """Have a driver made ready.

        Raises:
            TrainmasterError: why that is not possible.
        """
        self._socket = self._transport.connect(self._node.target).stream(self._command)
        self._stream = self._socket.makefile("rb")
        if why := self._ask(assignment, READY, _READY_S):
            raise ProviderError(why)

    def begin(self, record: bytes) -> str:
        """Have it begin to drive; why it does not, as far as that was heard, empty if it does."""
        return self._ask(record, DRIVING, _BEGIN_S)

    def is_open(self) -> bool:
        """Whether the driver still waits: it says nothing now, and hangs up when it ends."""
        if self._socket is None or self._socket.fileno() < 0:
            return False
        news = select.poll()
        news.register(self._socket, select.POLLIN)
        return not news.poll(0)

    def close(self) -> None:
        """Hang up."""
        for each in (self._stream, self._socket, self._transport):
            if each is not None:
                with suppress(OSError, ValueError):
                    each.close()

    def _ask(self, data: bytes, answer: bytes, limit_s: float) -> str:
        if self._stream is None or self._socket is None:
            return "the connection was closed"
        try:
            self._socket.settimeout(limit_s)
            self._socket.sendall(part(data))
            said = self._stream.readline()
        except (OSError, ValueError) as error:  # closed by another thread
            return str(error) or f"it said nothing for {limit_s:.0f} s"
        if said.startswith(answer):
            return ""
        return said.removeprefix(FAILED).decode(errors="replace").strip() or "the connection was lost"


#: What a driver needs, beside what every node has, and what the recipe's data need.
_PACKAGES: Final = ("trainmaster[hosts]", "sqlalchemy", "alembic", "typer", "rich")
_ALSO: Final = ("boto3", "optuna", "cmaes")
_IMPORTS: Final = ("psutil", "obstore", "sqlalchemy", "asyncssh", "trainmaster.spec.errors")
_LOOK_S: Final = 0.1


def check_moves(
    recipe: Recipe, store_url: str, plans: Sequence[ClusterPlan] | None = None, *, is_shared: bool = False
) -> None:
    """Refuse what cannot be driven by a machine of its own.

    Args:
        recipe: of the run.
        store_url: of its models.
        plans: of its clusters; None: they are not known yet.
        is_shared: other servers may go on with it, which are not sent what its provider needs.

    Raises:
        UsageError: with the reason.
    """
    why = why_not(recipe, store_url, plans)
    if not why and is_shared and not capabilities_of(recipe.provider).moves:
        why = f"provider: {recipe.provider}: no other server of this database could go on with it"
    if why:
        raise UsageError(
            f"--on-cluster: {why}", "Nothing was started. Leave out --on-cluster, or change that."
        )


def why_not(recipe: Recipe, store_url: str, plans: Sequence[ClusterPlan] | None) -> str:
    """Why a run cannot be driven by a machine of its own; empty if it can, as far as that is known.

    Args:
        recipe: of the run.
        store_url: of its models.
        plans: of its clusters; None: they are not known yet.
    """
    if len(named := named_places(recipe)) > 1:  # what is sent, and whether it is asked first, goes by it
        return f"provider: {', '.join(named)}: there may be one only: name it with --provider"
    capabilities = capabilities_of(recipe.provider)
    if not capabilities.rents:
        return f"provider: {recipe.provider} rents no machine that it could move to"
    if not capabilities.moves and (why := _why_unsent(recipe.provider)):
        return f"provider: {recipe.provider}: {why}"
    if store_url.startswith(("file://", "memory://")):
        return (
            f"the object store {store_url} is on this machine: neither side could read what the other writes."
            " TRAINMASTER_STORE names another (s3://, gs://, az://)"
        )
    if recipe.bake:
        return "bake: an image is made of its first machine when nothing works there any more"
    if recipe.sinks is not None:
        return "sinks: what tasks report is sent there by this home"
    for name, experiment in recipe.experiments.items():
        if experiment.promote or (experiment.require is not None and experiment.require.better_than):
            return (
                f"experiments.{name}: names of models (promote, better_than) are in the database of this home"
            )
        if experiment.roles is not None:
            return f"experiments.{name}.roles: Ansible is on this machine only"
        if experiment.serve is not None:
            return f"experiments.{name}.serve: a service is asked through this home"
    if why := why_bound_by_data(recipe):
        return why
    if plans is None:
        return ""
    if all(rental.spot for plan in plans for rental in plan.roles[0].rentals):
        return "hardware: all its machines may be taken back (spot: true), and its driver with them"
    regions = {rental.region for plan in plans for role in plan.roles for rental in role.rentals}
    if len(regions) > 1:
        return (
            f"its machines may be in several regions ({', '.join(sorted(regions))}): one reaches only its own"
        )
    return ""


def _why_unsent(provider: str) -> str:
    """Why a machine cannot use a place as this home does; empty if it can."""
    try:
        sent = sent_by(provider, os.environ)
    except UsageError as error:
        return one_line(error)
    return "" if sent is not None else "its machines are asked for and ended by this home only"


def packages_for(
    recipe: Recipe, engines: Collection[str], store_url: str, of_place: Sequence[str] = ()
) -> tuple[str, ...]:
    """What the machine that drives a run is sent, as pip takes it: for all its experiments and attempts.

    Args:
        recipe: of the run.
        engines: of its clusters.
        store_url: of its models.
        of_place: what its provider needs.
    """
    from trainmaster.cluster.node_provisioner import node_packages

    sources = [source for each in recipe.experiments.values() for source in each.data.values()]
    of_data = [part.package for source in sources for part in parts_of(source)]
    also = [name for name in _ALSO if find_spec(name) is not None]
    of_store = package_of(store_url)
    found = (
        *_PACKAGES,
        *node_packages(engines),
        *also,
        *sorted(of_data),
        *([of_store] if of_store else []),
        *of_place,
    )
    return tuple(dict.fromkeys(found))


def drive_away(
    service: Service,
    session: Session,
    environ: Mapping[str, str],
    watcher: Watcher | None,
    on_start: OnStart | None,
    tell: Callable[[str], None],
) -> None:
    """Drive a run until its first machine can; then have that do so.

    Args:
        service: of the home.
        session: of the run.
        environ: of the caller: settings and credentials.
        watcher: as of `Driving`.
        on_start: as of `Driving`.
        tell: shows lines to the user.
    """
    from trainmaster.service.driving.driving import Driving

    handing = HandingOver(service, session.run, environ, tell)
    note = Note(f"{socket.gethostname()} drives it, until its first machine can")
    service.database.commit(session.lease, [note], time.time())
    try:
        Driving(service, session, environ, watcher, on_start, hand_over=handing).run()
        row = service.database.run_row(session.run)
        if row["state"] == State.DONE or not handing.is_due() or handing.perform(session.lease):
            return
    finally:
        handing.close()
    lease = service.database.acquire(session.run)
    if lease is not None:  # else another process of this home has taken it
        Driving(service, replace(session, lease=lease), environ, watcher, on_start).run()


class _Ready(NamedTuple):
    """A driver that can begin.

    Attributes:
        cluster: that its machine belongs to.
        machine: as its provider calls it.
        claim: its number on the store.
        begun: how far the record goes that it has.
        link: to it.
    """

    cluster: str
    machine: str
    claim: int
    begun: tuple[int, int]
    link: DriverLink


class HandingOver:
    """See `trainmaster.service.driving.execution_backend.HandOver`.

    Args:
        service: of the home.
        run: its id.
        environ: of the caller: settings and credentials.
        tell: shows lines to the user.
    """

    def __init__(
        self, service: Service, run: str, environ: Mapping[str, str], tell: Callable[[str], None]
    ) -> None:
        self._service = service
        self._run = run
        self._environ = environ
        self._tell = tell
        self._over = threading.Event()
        self._ready: _Ready | None = None
        self._chosen: _Ready | None = None
        self._link: DriverLink | None = None
        self._unused: dict[str, Callable[[], None]] = {}  # what removes logins that no driver uses
        self._making = threading.Lock()  # of a login

    def watch(self, executor: ClusterExecutor) -> None:
        """Make the first machine of the run ready as soon as there is one, in the background."""
        preparing = threading.Thread(
            target=self._prepare, args=(executor,), name="driver's machine", daemon=True
        )
        preparing.start()

    def is_due(self) -> bool:
        """Whether a driver on the machine is ready, and waits."""
        ready = self._ready
        if self._chosen is None and ready is not None and ready.link.is_open():
            self._chosen = ready
        return self._chosen is not None

    def close(self) -> None:
        """Wait for no machine any more; a driver that was not told to begin ends."""
        self._over.set()
        if self._link is not None:
            self._link.close()
        with self._making:  # what is just being made goes, too
            for machine in list(self._unused):
                if remove := self._unused.pop(machine, None):
                    remove()

    def perform(self, lease: Lease) -> bool:
        """Have the machine drive the run; the controller here has left it.

        Args:
            lease: of the run, ours.

        Returns:
            False if it does not: the run is this home's again, and undriven.

        Raises:
            LeaseLostError: somebody else drives the run.
            PublishError: the store does not say what drives; `resume` asks it again.
        """
        assert self._chosen is not None
        ready, run = self._chosen, self._run
        row = self._service.database.run_row(run)
        store = DriverStore(row["store_url"], run, ready.claim)
        at = self._service.database.clock_s()
        away = {"claim": ready.claim, "news": 0, "machine": ready.machine, "cluster": ready.cluster, "at": at}
        run_transfer.go_away(self._service.database, lease, away)
        remove = self._unused.pop(ready.machine, None)  # from here on it may drive with that
        # Not before: what people have wanted until then is in it, and what they want later goes to the store.
        why = ready.link.begin(self._record(ready.begun).packed())
        if not why or not store.take(f"home {self._service.home.identity()}"):
            withdraw_volumes(self._service.home_of(run).data_directory(run))  # that machine mounts its own
            return True
        if remove is not None:
            self._unused[ready.machine] = remove
        said = f"{ready.machine} cannot drive the run: {why}"
        run_transfer.come_back(self._service.database, run, json.dumps(away), f"{back()}: {said}")
        self._tell(f"note: {said}; it is driven here")
        return False

    # --- private ------------------------------------------------------------------------------------

    def _prepare(self, executor: ClusterExecutor) -> None:
        """Have a driver ready on the first machine; if that is lost, on the one that is first then."""
        from trainmaster.cluster.bootstrap.runtime_package import cached_runtime_packages
        from trainmaster.executors.gangs.recorded_cluster import cluster_kind

        try:
            row = self._service.database.run_row(self._run)
            recipe = stored_recipe(row)
            sent = sent_by(recipe.provider, self._environ)
            plans = [record.plan for record in executor.records()]
            most = max((plan.nodes for plan in plans), default=1)
            later = {engine_of(recipe, place, most) for place in named_places(recipe)}
            engines = sorted({plan.engine for plan in plans} | later)
            packages = cached_runtime_packages(
                self._service.home.cache / "runtimes",
                packages_for(recipe, engines, row["store_url"], sent.packages if sent else ()),
                _IMPORTS,
                [folder for engine in engines for folder in cluster_kind(engine).unused],
                drives=True,
            )
        except TrainmasterError as error:
            self._tell(f"note: no machine can drive the run: {one_line(error)}; it is driven here")
            return
        tried: set[str] = set()
        while True:
            while (found := executor.first_machine()) is None or found[1].id in tried:
                if self._over.wait(_LOOK_S):
                    return
            cluster, node = found
            tried.add(node.id)
            executor.next_driver = node.id
            why = "the connection to its driver was lost"
            try:
                self._ready = self._made_ready(cluster, node, packages)
            except TrainmasterError as error:
                why = one_line(error)
            if self._over.is_set():  # what was made since `close` is not needed any more
                self.close()
                return
            while self._ready is not None and self._ready.link.is_open():
                if self._over.wait(_LOOK_S):
                    return
            if self._chosen is not None or self._over.is_set():
                return
            executor.next_driver = ""
            self._tell(f"note: {node.id} cannot drive the run: {why}; it is driven here")

    def _made_ready(
        self, cluster: str, node: NodeAccess, packages: tuple[RuntimePackage, RuntimePackage]
    ) -> _Ready:
        """Have a driver made ready on a machine.

        Raises:
            TrainmasterError: why that is not possible.
        """
        from trainmaster.cluster.bootstrap.bootstrap import Bootstrap

        result = Bootstrap(node.transport, packages, self._service.home.cache / "runtimes").one(node.target)
        if not result.ok or result.plan is None:
            raise ProviderError(result.reason)
        row = self._service.database.run_row(self._run)
        store = DriverStore.free(row["store_url"], self._run)
        assignment = self._assignment(cluster, node.id, store)
        # What goes with the machine: a node of Slurm stays, but for the directory of its job.
        place = f"{node.target.directory or node.root}/driver/{self._run}-{store.claim}"
        command = [result.plan.python, "-P", "-m", "trainmaster.service.on_cluster.driver_watchdog", place]
        transport = get_transport(row["provider"], self._service.access_to(self._run, self._environ))
        self._link = DriverLink(node, transport, f"exec {shlex.join(command)}")
        self._link.get_ready(assignment.packed())
        return _Ready(cluster, node.id, store.claim, assignment.record.begun, self._link)

    def _record(self, begun: tuple[int, int]) -> Record:
        """What the run has grown by since then, sealed for the machine."""
        database, run = self._service.database, self._run
        last_event, _ = run_transfer.newest(database, run)  # events stay here
        news, last = [], begun[1]
        while True:
            some = run_transfer.news_of(database, run, last_event, last)
            if some.is_empty:
                break
            news.append(some)
            last = some.last_piece
        key = SealingKey.of(self._service.home.root, self._environ)
        rows = resealed(run_transfer.rows_of(database, run), key, key_of(key, run))
        return Record(rows, news, (0, last))

    def _assignment(self, cluster: str, machine: str, store: DriverStore) -> Assignment:
        run, record = self._run, self._record((0, 0))
        provider = str(record.rows.run["provider"])
        key = SealingKey.of(self._service.home.root, self._environ)
        policy = self._policy(record.rows, store.store_url)
        files = dict(sent.files) if (sent := sent_by(provider, self._environ)) else {}
        place = ProviderPlace(self._service.home.root, record.rows.run["home_id"], self._environ)
        if login := driver_login(provider, place):
            with self._making:
                if self._over.is_set():  # it would stay there
                    raise ProviderError(
                        f"{run} needs no driver on a machine any more", "Nothing is to be done."
                    )
                self._unused[machine] = partial(remove_login, provider, place, cluster, machine)
                files |= login.make(cluster, machine)
        return Assignment(
            run=run,
            claim=store.claim,
            machine=machine,
            store_url=store.store_url,
            own_cluster=cluster,
            record=record,
            key=base64.b64encode(key_of(key, run).key).decode(),
            environ=driver_environment(self._environ, provider, store.store_url, policy),
            lab=self._lab(provider),
            files=files,
            device=device_of(self._service.home),
        )

    def _policy(self, rows: run_transfer.RunRows, store_url: str) -> str:
        if ROLE_VARIABLE not in self._environ or not capabilities_of(rows.run["provider"]).moves:
            return ""
        roles = [role for row in rows.clusters for role in json.loads(row["data"])["plan"]["roles"]]
        ways = [way for role in roles for way in (*role["rentals"], *role.get("larger", ()))]
        types = [str(way["instance_type"]) for way in ways]
        recipe = self._service.replicas.recipe(self._service.database.run_row(self._run))
        return policy_of(self._environ, self._service.home.identity(), self._run, types, recipe, store_url)

    def _lab(self, provider: str) -> dict[str, Any] | None:
        if capabilities_of(provider).offers is not OfferSource.LAB:
            return None
        facts: dict[str, Any] = json.loads((self._service.home.root / "lab" / "lab.json").read_text())
        return {**facts, "endpoint_url": facts["inside_endpoint_url"]}
