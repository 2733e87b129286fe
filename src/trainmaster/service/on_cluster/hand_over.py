"""`HandingOver`: the driver of a run moves from its home to the first machine that it has rented.

The machine is made ready while the home drives. Then the home stops, writes that the run is away, and sends
it. What creates the claim on the store drives: the machine when it begins, or the home when nothing is heard
of it. So wherever either of them is killed, one of them goes on, and never both.
"""

from __future__ import annotations

import base64
import json
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from trainmaster.db import run_transfer
from trainmaster.providers.capabilities import OfferSource, capabilities_of
from trainmaster.service.driving.encryption import SealingKey
from trainmaster.service.on_cluster.assignment import Assignment, key_of, resealed
from trainmaster.service.on_cluster.credentials import ROLE_VARIABLE, driver_environment, policy_of
from trainmaster.service.on_cluster.driver_store import DriverStore
from trainmaster.service.on_cluster.keeper import DRIVING, FAILED
from trainmaster.spec.errors import ProviderError, PublishError, TrainmasterError, UsageError, one_line
from trainmaster.spec.states import State

if TYPE_CHECKING:
    from trainmaster.cluster.cluster_executor import ClusterExecutor
    from trainmaster.cluster.node_access import NodeAccess
    from trainmaster.cluster.renting.plan import ClusterPlan
    from trainmaster.control.controller import Watcher
    from trainmaster.db import Lease
    from trainmaster.service.driving.driving import OnStart, Session
    from trainmaster.service.service import Service
    from trainmaster.spec import Recipe

#: What a driver needs, beside what every node has.
_PACKAGES: Final = ("trainmaster[hosts,ray]", "ray", "sqlalchemy", "alembic", "typer", "rich")
_ALSO: Final = {"boto3": "boto3", "optuna": "optuna", "cmaes": "cmaes", "blake3": "blake3"}
_IMPORTS: Final = ("psutil", "obstore", "sqlalchemy", "asyncssh", "trainmaster.spec.errors")
#: The machine has to start Python twice, and to ask the store and the provider.
_BEGIN_S: Final = 120.0
_LOOK_S: Final = 0.1


def check_moves(recipe: Recipe, store_url: str, plans: Sequence[ClusterPlan] | None = None) -> None:
    """Refuse what cannot be driven by a machine of its own.

    Args:
        recipe: of the run.
        store_url: of its models.
        plans: of its clusters; None: they are not known yet.

    Raises:
        UsageError: with the reason.
    """
    if why := why_not(recipe, store_url, plans):
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
    capabilities = capabilities_of(recipe.provider)
    if not capabilities.rents:
        return f"provider: {recipe.provider} rents no machine that it could move to"
    if not capabilities.moves:
        return f"provider: {recipe.provider} keeps what must be known of its machines in this home only"
    if store_url.startswith(("file://", "memory://")):
        return (
            f"the object store {store_url} is on this machine: neither side could read what the other writes"
        )
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
        watcher: as of `Service.drive`.
        on_start: likewise.
        tell: shows lines to the user.
    """
    handing = HandingOver(service, session.run, environ, tell)
    try:
        service.drive(session, environ, watcher, on_start, hand_over=handing)
    finally:
        handing.close()
    row = service.database.run_row(session.run)
    if row["state"] == State.DONE or not handing.is_due() or handing.perform(session.lease):
        return
    lease = service.database.acquire(session.run, time.time())
    if lease is not None:  # else another process of this home has taken it
        service.drive(replace(session, lease=lease), environ, watcher, on_start)


class HandingOver:
    """See `trainmaster.service.driving.driving.HandOver`.

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
        self._ready: tuple[str, NodeAccess, str] | None = None

    def watch(self, executor: ClusterExecutor) -> None:
        """Make the first machine of the run ready as soon as there is one, in the background."""
        preparing = threading.Thread(
            target=self._prepare, args=(executor,), name="driver's machine", daemon=True
        )
        preparing.start()

    def is_due(self) -> bool:
        """Whether the machine is ready."""
        return self._ready is not None

    def close(self) -> None:
        """Wait for no machine any more."""
        self._over.set()

    def perform(self, lease: Lease) -> bool:
        """Have the machine drive the run; the controller here has left it.

        Args:
            lease: of the run, ours.

        Returns:
            False if it does not: the run is this home's again, and nobody drives it.

        Raises:
            LeaseLostError: somebody else drives the run.
            PublishError: the store does not say what drives; `resume` asks it again.
        """
        assert self._ready is not None
        cluster, node, python = self._ready
        row = self._service.database.run_row(self._run)
        store = DriverStore.free(row["store_url"], self._run)
        try:
            assignment = self._assignment(lease, cluster, node, store)
        except (UsageError, PublishError) as error:  # its keys cannot be had
            self._tell(f"note: {node.id} cannot drive the run: {one_line(error)}; it is driven here")
            return False
        at = self._service.database.clock_s()
        away = {"claim": store.claim, "news": 0, "machine": node.id, "cluster": cluster, "at": at}
        run_transfer.go_away(self._service.database, lease, away)
        said = self._send(node, python, assignment)
        if said.startswith(DRIVING.decode()) or not store.take(f"home {self._service.home.identity()}"):
            return True
        run_transfer.come_back(self._service.database, self._run, json.dumps(away))
        self._tell(f"note: {node.id} cannot drive the run: {said}; it is driven here")
        return False

    # --- private ------------------------------------------------------------------------------------

    def _prepare(self, executor: ClusterExecutor) -> None:
        """Put there what a driver needs; with a machine on which that fails the run is driven here."""
        from trainmaster.cluster.bootstrap.bootstrap import Bootstrap
        from trainmaster.cluster.bootstrap.runtime_package_cache import cached_runtime_packages

        cache = self._service.home.cache / "runtimes"
        try:
            also = [name for name, module in _ALSO.items() if find_spec(module) is not None]
            packages = cached_runtime_packages(cache, (*_PACKAGES, *also), _IMPORTS, drives=True)
            while (found := executor.first_machine()) is None:
                if self._over.wait(_LOOK_S):
                    return
            cluster, node = found
            result = Bootstrap(node.ssh, packages, cache).one(node.target)
        except TrainmasterError as error:
            self._tell(f"note: no machine can drive the run: {one_line(error)}; it is driven here")
            return
        if not result.ok or result.plan is None:
            self._tell(f"note: {node.id} cannot drive the run: {result.reason}; it is driven here")
            return
        self._ready = cluster, node, result.plan.python

    def _assignment(self, lease: Lease, cluster: str, node: NodeAccess, store: DriverStore) -> Assignment:
        database, run = self._service.database, self._run
        last_event, _ = run_transfer.newest(database, run)  # events stay here
        news, last = [], 0
        while True:
            some = run_transfer.news_of(database, run, last_event, last)
            if some.is_empty:
                break
            news.append(some)
            last = some.last_piece
        rows = run_transfer.rows_of(database, run)
        key = SealingKey.of(self._service.home.root, self._environ)
        return Assignment(
            run=run,
            claim=store.claim,
            who=f"{node.id} {lease.token}",
            store_url=store.store_url,
            own_cluster=cluster,
            rows=resealed(rows, key, key_of(key, run)),
            news=news,
            begun=(0, last),
            key=base64.b64encode(key_of(key, run).key).decode(),
            environ=driver_environment(
                self._environ, str(rows.run["provider"]), store.store_url, self._policy(rows, store.store_url)
            ),
            lab=self._lab(str(rows.run["provider"])),
        )

    def _policy(self, rows: run_transfer.RunRows, store_url: str) -> str:
        if ROLE_VARIABLE not in self._environ:
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
        if "inside_endpoint_url" not in facts:
            raise ProviderError(
                "the lab is of an earlier version: its hosts cannot ask its API",
                "`trainmaster lab down`, then `trainmaster lab up`.",
            )
        return {**facts, "endpoint_url": facts["inside_endpoint_url"]}

    def _send(self, node: NodeAccess, python: str, assignment: Assignment) -> str:
        """What the machine says to it."""
        command = [
            python, "-P", "-m", "trainmaster.service.on_cluster.keeper",
            f"{node.root}/driver/{self._run}-{assignment.claim}",
        ]  # fmt: skip
        from trainmaster.transport import HostKeys, Ssh

        # Those of the controller that has left are closed.
        ssh = Ssh(HostKeys(self._service.home_of(self._run).root / "known_hosts"))
        try:
            with ssh.connection(node.target) as connection:
                result = connection.run(
                    "exec " + shlex.join(command), data=assignment.packed(), timeout_s=_BEGIN_S
                )
        except (TrainmasterError, OSError) as error:
            return one_line(error) if isinstance(error, TrainmasterError) else str(error)
        finally:
            ssh.close()
        return result.out.strip().removeprefix(FAILED.decode()) or result.last_words
