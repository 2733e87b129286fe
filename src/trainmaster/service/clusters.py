"""`clusters_of_home`, `end_clusters`: what is rented now, and the end of what no run uses.

`leave_hosts`: what a run has left on hosts of the user's own is ended; rented machines take it along.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from trainmaster.cluster.record import ClusterRecord, ClusterState, DamagedClusterError, readable
from trainmaster.control.task.layout import Home
from trainmaster.db import Database
from trainmaster.db.leases import is_alive
from trainmaster.providers.base import Node, Provider, ProviderGoneError, ProviderPlace
from trainmaster.providers.capabilities import get_transport
from trainmaster.providers.plugins import get_provider
from trainmaster.service.open_home import OpenHome
from trainmaster.spec.errors import NotFoundError, TrainmasterError, UsageError, one_line
from trainmaster.spec.states import State
from trainmaster.spec.units import counted, dollars

_AT_ONCE: Final = 16
_TIMEOUT_S: Final = 300.0


def leave_hosts(
    home: Home, place: ProviderPlace, record: ClusterRecord, run: str, nodes: Sequence[Node]
) -> list[str]:
    """End a run's engine, members and mounts on hosts, and remove its directories; may be repeated.

    Args:
        home: of the run.
        place: that leads there.
        record: the cluster, of hosts.
        run: its id.
        nodes: of the cluster, as their provider lists them; of those that are gone the claim ran out.

    Returns:
        What did not work, in words; those hosts keep it.
    """
    from trainmaster.cluster.node_files.files import end_mounts_command
    from trainmaster.cluster.node_provisioner import NodeProvisioner
    from trainmaster.providers.hosts_over_ssh import target_of

    with (
        contextlib.closing(get_transport(record.provider, place)) as transport,
        contextlib.closing(NodeProvisioner(home, run, transport, Path(), 0.0)) as provisioner,
    ):
        directory = f"{provisioner.root}/runs/{run}"
        command = f"{end_mounts_command(directory)}; exec rm -rf -- {shlex.quote(directory)}"

        def tidy(node: Node) -> str:
            try:
                provisioner.connections.use(
                    target_of(node), lambda it: it.check(command, timeout_s=_TIMEOUT_S)
                )
            except TrainmasterError as error:
                return f"{node.id} keeps what {run} left there: {one_line(error)}"
            return ""

        provisioner.take_back(record, None, (), {node.id: node for node in nodes})
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return [words for words in pool.map(tidy, nodes) if words]


#: How a cluster is, as it is told.
KEPT: Final = "kept"
USED: Final = "used"
LEFT: Final = "left"
DAMAGED: Final = "damaged"

Tell = Callable[[str], None]


def clusters_of_home(database: Database, home: Home, now: float) -> list[dict[str, Any]]:
    """Clusters that have machines, the newest first, as ``--json`` prints them.

    Those of a home, and of runs that it could go on with: their machines cost, whatever has rented them.

    Args:
        database: the database.
        home: whose.
        now: Unix seconds.
    """
    found = []
    for row in database.living_clusters(None, home.identity(), moves=True):
        how = _how(row, now, database.clock_s())
        try:
            record = ClusterRecord.of_row(row)
        except DamagedClusterError as error:
            found.append(_shown_damaged(row, _how_damaged(row, database.clock_s()), one_line(error)))
            continue
        if how and record.machines:
            found.append(_shown(record, row, how, now))
    return found


def end_clusters(
    database: Database,
    home: Home,
    environ: Mapping[str, str],
    wanted: Sequence[str] | None,
    tell: Tell,
    access_to: Callable[[str], ProviderPlace] | None = None,
) -> list[dict[str, Any]]:
    """Give back machines that no run uses; those clusters as they were.

    Args:
        database: the database.
        home: whose.
        environ: of the caller: credentials.
        wanted: ids; None for all of the home that no run uses.
        tell: shows lines to the user.
        access_to: what leads to machines of a run that another home has rented; None: those are not ended.

    Raises:
        NotFoundError: there is no such cluster, or no key of its machines is here.
        UsageError: a run uses it, or its provider cannot be used.
        ProviderError: the provider cannot be reached; what is warm ends itself in any case.
    """
    own = ProviderPlace(home.root, home.identity(), dict(environ))
    moves = wanted is not None and access_to is not None
    rows = {row["id"]: row for row in database.living_clusters(None, own.identity, moves=moves)}
    now = time.time()
    lease_now = database.clock_s()
    records = {record.id: record for record in readable(rows.values(), tell)}
    how = {
        name: _how(row, now, lease_now) if name in records else _how_damaged(row, lease_now)
        for name, row in rows.items()
    }
    if wanted is None:
        chosen = [name for name in rows if how[name] in (KEPT, LEFT, DAMAGED)]
    else:
        chosen = list(dict.fromkeys(wanted))
        for name in chosen:
            if not how.get(name):
                raise NotFoundError(
                    f"no cluster {name!r} has machines", "`trainmaster clusters` lists those that do."
                )
            if how[name] == USED:
                run = rows[name]["run_id"]
                raise UsageError(f"{name} is used by {run}", f"`trainmaster cancel {run}` ends both.")
    ended = []
    failed: TrainmasterError | None = None
    for name in chosen:
        try:
            place, row = own, rows[name]
            if access_to is not None and row["home_id"] != own.identity:
                place = access_to(row["run_id"])
            place = OpenHome(home, database).of_team(row["team"]).with_login(row["provider"], place)
            if name not in records:
                ended.append(_end_damaged(database, place, row))
                tell(f"{name}: given back, whatever it had; what it has cost is unknown")
                continue
            is_ended = _end(database, home, place, records[name], row, tell)
        except TrainmasterError as error:  # the others are to be given back all the same
            tell(f"{name}: {one_line(error)}")
            failed = failed or error
            continue
        if is_ended:
            keys = place.home_root / "clusters" / name
            shutil.rmtree(keys, ignore_errors=True)  # of no use to anybody
            shown = _shown(records[name], row, how[name], now)
            ended.append(shown)
            since = f", {dollars(shown['idle_usd'])} since {shown['run']}" if shown["idle_usd"] else ""
            tell(f"{name}: {_machines(records[name])} given back{since}")
        else:
            tell(f"{name}: a run uses it again")
    if failed is not None:
        raise failed
    return ended


def _end(
    database: Database,
    home: Home,
    place: ProviderPlace,
    record: ClusterRecord,
    row: Mapping[Any, Any],
    tell: Tell,
) -> bool:
    provider: Provider | None
    try:
        provider = get_provider(record.provider, place)
    except ProviderGoneError:  # and its machines with it
        provider = None
    # Written first: no run takes it over from now on, and what comes after a crash gives it back.
    ending = replace(record, state=ClusterState.ENDING, kept_until=None)
    if not database.end_unused_cluster(ending.as_row(), time.time()):
        return False
    nodes: list[Node] = []
    try:
        if provider is not None:
            if all(not machine.rental.is_rented for machine in record.machines):
                for words in leave_hosts(home, place, record, row["run_id"], provider.nodes(record.id)):
                    tell(words)
            provider.release(record.id)
            nodes = provider.nodes(record.id)
    except ProviderGoneError:  # nothing of it is left
        pass
    ended_at = {node.id: node.ended_at for node in nodes}
    now = time.time()
    machines = [
        replace(m, is_over=True, ended_at=ended_at.get(m.id) or now if m.started_at else None)
        for m in record.machines
        if m.ended_at is None
    ]
    over = replace(ending.changed(machines), state=ClusterState.ENDED)
    database.end_unused_cluster(over.as_row(), now, over.idle_usd(now, row["run_ended_at"]))
    return True


def _end_damaged(database: Database, place: ProviderPlace, row: Mapping[Any, Any]) -> dict[str, Any]:
    """By its name alone, which its machines are tagged with."""
    with suppress(ProviderGoneError):  # and its machines with it
        get_provider(row["provider"], place).release(row["id"])
    database.end_damaged_cluster(row["id"], row["data"], time.time())
    return _shown_damaged(row, DAMAGED, "")


def _how_damaged(row: Mapping[Any, Any], lease_now: float) -> str:
    """The driver of its run knows it, and writes it again; no other process can."""
    return USED if is_alive(row["lease_owner"], row["lease_expires_at"], lease_now) else DAMAGED


def _how(row: Mapping[Any, Any], now: float, lease_now: float) -> str:
    """Whether a run uses it, it is kept warm, or was left behind; empty if nothing of it is there."""
    if row["state"] == ClusterState.KEPT:
        return KEPT if (row["kept_until"] or 0.0) > now else ""
    if row["state"] in (ClusterState.PLANNED, ClusterState.ENDED):
        return ""
    if row["run_state"] != State.DONE or is_alive(row["lease_owner"], row["lease_expires_at"], lease_now):
        return USED
    return LEFT


def _shown(record: ClusterRecord, row: Mapping[Any, Any], how: str, now: float) -> dict[str, Any]:
    return {
        "id": record.id,
        "provider": record.provider,
        "state": how,
        "run": row["run_id"],
        "machines": [
            {
                "id": machine.id,
                "name": record.name_of(machine.seat),
                "seat": machine.seat,
                "type": machine.rental.instance_type or "host",
                "zone": machine.zone,
                "spot": machine.rental.spot,
            }
            for machine in record.rented
        ],
        "usd_per_hour": record.usd_per_hour(),
        # Its machines count so long by themselves: they end then also if this clock was set back since.
        "kept_until": None if record.kept_until is None else min(record.kept_until, now + record.keep_s),
        "idle_usd": record.idle_usd(now, row["run_ended_at"] if how == LEFT else None),
    }


def _shown_damaged(row: Mapping[Any, Any], how: str, problem: str) -> dict[str, Any]:
    return {
        "id": row["id"],
        "provider": row["provider"],
        "state": how,
        "run": row["run_id"],
        "machines": [],
        "usd_per_hour": None,
        "kept_until": None,
        "idle_usd": None,
        "problem": problem,
    }


def _machines(record: ClusterRecord) -> str:
    return counted(len(record.rented), "machine")
