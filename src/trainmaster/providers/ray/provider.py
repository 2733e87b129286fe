"""`RayProvider`: machines are bundles of placement groups of a Ray that others run.

Ray places and counts them, all of a group or none; nothing is scheduled here. A cluster has a keeper, an
actor in the home's own namespace, and all that is ours in Ray ends with it: see
`transport/ray/programs/proxy_program.py`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from trainmaster.providers.base import (
    CLOCKS_DIFFER_S,
    NoCapacityError,
    Node,
    NodeRequest,
    NodeState,
    ProviderPlace,
    groups_of,
    planned,
    root_on_nodes,
)
from trainmaster.providers.cluster_ledger import AskedMachines, KnownCluster, KnownMachine
from trainmaster.providers.examining import Finding, clock_finding, scratch_finding, unseen_drivers
from trainmaster.providers.host_probe import MOST_PROBED, probe_findings, probe_script
from trainmaster.providers.ledger_provider import LedgerProvider, ListedMachine, check_requests
from trainmaster.providers.own_settings import shown_variable
from trainmaster.providers.ray.reaching import way_of
from trainmaster.providers.ray.settings import RAY, RaySettings
from trainmaster.providers.sent_settings import SentSettings, path_mark, with_values
from trainmaster.providers.site_settings import KEPT_VARIABLES
from trainmaster.providers.team_login import site_login
from trainmaster.spec.clocks import steady_s
from trainmaster.spec.errors import UsageError
from trainmaster.spec.private_files import short_digest
from trainmaster.spec.units import counted
from trainmaster.transport.base import Result
from trainmaster.transport.checked_connection import team_may_reach
from trainmaster.transport.ray.bundles import namespace_of
from trainmaster.transport.ray.proxy import GoneError, RayProxy, proxy_of

_LOST: Final = (
    "Ray does not know it any more: its head was started again, which ends all that runs in a Ray, or its "
    "keeper was ended"
)


def ray_provider(place: ProviderPlace) -> RayProvider:
    """The provider of a home, as its ``ray.yaml`` says.

    Raises:
        UsageError: there are no settings, or a mistake in them.
    """
    settings = RAY.read(place.root, place.environ)
    return RayProvider(settings, place, proxy_of(settings, place.root, team_may_reach(place.environ)))


catalogue_of: Final = RAY.catalogue


def sent_settings(place: ProviderPlace) -> SentSettings:
    """See `SentSettings`: a node is in that Ray, and has its Python; no way there is sent, and no login.

    Raises:
        UsageError: there are no settings, or a mistake in them.
    """
    settings = RAY.read(place.root, place.environ)
    text = with_values(
        settings.file.read_text(),
        without=("login", "key", "via", "variables"),
        address=path_mark("TRAINMASTER_RAY_ADDRESS"),  # `node_process.py` says both
        python=path_mark("TRAINMASTER_RAY_PYTHON"),
    )
    words = f"nothing that opens Ray at {settings.address}: the machine is a node of it"
    shown = {shown_variable(RAY.provider): str(settings.file)}
    return SentSettings({"TRAINMASTER_RAY": text}, shown, (words,), is_wide=False)


#: See `LoginKind`. Without a login the server would speak with Ray: its client reads pickles, which may run
#: anything. What leads to a machine names the settings' real file, so it is not shown as another one.
TEAM_LOGIN: Final = site_login(RAY)


class RayProvider(LedgerProvider):
    """See `LedgerProvider`. Threads may share it.

    Args:
        settings: of the site.
        place: of the home.
        proxy: speaks with Ray.
        clock: gives Unix seconds; never set back.

    Attributes:
        name: ``ray``.
    """

    name = RAY.provider

    def __init__(
        self,
        settings: RaySettings,
        place: ProviderPlace,
        proxy: RayProxy,
        *,
        clock: Callable[[], float] = steady_s,
    ) -> None:
        super().__init__(place, "Nothing is lost with the file: actors end themselves. Remove it.", clock)
        self._settings, self._proxy = settings, proxy
        self._place, self._root = place, root_on_nodes(place.identity)
        self._home = re.sub(r"[^A-Za-z0-9]", "", place.identity)[:12]
        self._unfit: dict[str, Sequence[str]] = {}

    def check_up(self) -> None:
        """Refuse a Ray that does not answer, or is of another version."""
        self._proxy.go_alone()
        self._proxy.ask("versions")

    # --- before anything is asked for ----------------------------------------------------------------------

    def preflight(self, requests: Sequence[NodeRequest]) -> list[str]:
        """See `Provider`: what could never fit; a note if it does not fit now."""
        check_requests(self.name, requests)
        there = self._proxy.ask("facts")
        parts = [self._part(request, there) for request in requests]
        if words := self._misfit(parts, there):
            raise UsageError(
                f"Ray at {self._settings.address} can never have {words}",
                "Ask for fewer or smaller machines; with `grows: true` in "
                f"{self._settings.file} nodes are waited for that come when they are asked for.",
            )
        free, notes = self._proxy.ask("free"), []
        for name in sorted({name for part in parts for name in part["kind"]["resources"]}):
            wanted = sum(part["kind"]["resources"].get(name, 0.0) * part["count"] for part in parts)
            if wanted > free.get(name, 0.0):
                notes.append(
                    f"others use Ray at {self._settings.address}: {_amount(name, free.get(name, 0.0))} of "
                    f"{name} are free, {_amount(name, wanted)} are asked for; it is waited for"
                )
        return notes

    def examine(self, builds: Mapping[str, str]) -> list[Finding]:
        """See `Examined`: also what a process on each of the first nodes sees."""
        version, python = self._proxy.ask("versions")
        nodes, free = self._proxy.ask("facts"), self._proxy.ask("free")
        found = [Finding("login", f"Ray {version} (Python {python}) at {self._settings.address} answers")]
        for name in ("CPU", "GPU", "memory"):
            if limit := sum(float(each["has"].get(name, 0.0)) for each in nodes):
                words = f"{_amount(name, free.get(name, 0.0))} of {_amount(name, limit)} {name} are free"
                found.append(Finding("room", f"{counted(len(nodes), 'node')}: {words}"))
        addresses = sorted({str(each["address"]) for each in nodes})[:MOST_PROBED]
        script = probe_script(dict(zip(addresses, addresses, strict=True)), builds)
        seen = self._proxy.ask("looks", addresses, script, self._settings.scratch)
        found += look_findings(seen, seen["now"] - self._clock(), self._settings.scratch, builds)
        return found if any(each.what == "driver" for each in found) else found + unseen_drivers(builds)

    def queue_wait_s(self, requests: Sequence[NodeRequest]) -> float | None:
        """See `Queue`: none if there is room now; else nothing says how long others go on.

        Raises:
            NoCapacityError: what others use.
        """
        if notes := self.preflight(requests):
            raise NoCapacityError(notes[0], "Wait until others have ended.", [self._settings.address])
        return 0.0

    def dry_run(self, cluster: str, requests: Sequence[NodeRequest]) -> list[dict[str, Any]]:
        """See `Provider`: the placement groups."""
        return [
            planned(self.name, "placement_group", self._group([self._part(each) for each in group]))
            for group in groups_of(requests)
        ]

    def _group(self, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        kinds = [part["kind"] for part in parts for _ in range(part["count"])]
        return {
            "strategy": "STRICT_SPREAD",
            "bundles": [kind["resources"] for kind in kinds],
            "labels": [kind["labels"] for kind in kinds],
        }

    def _part(self, request: NodeRequest, there: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """What the keeper is asked for. A model of GPUs is, where Ray knows of any such."""
        machine = self._settings.machine(request.instance_type)
        asked, model = machine.asked, f"accelerator_type:{machine.gpu}"
        if machine.gpu and any(model in node["has"] for node in there):
            asked[model] = 0.001
        return {
            "token": request.token,
            "role": request.role,
            "count": request.count,
            "kind": {"resources": asked, "labels": dict(machine.labels)},
            "scratch": self._settings.scratch,
            "lease_s": request.lease_s,
        }

    def _misfit(self, parts: Sequence[Mapping[str, Any]], there: Sequence[Mapping[str, Any]]) -> str:
        """What could not be placed though no others used it; empty if all could be."""
        if self._settings.grows:
            return ""
        able = [
            [
                number
                for number, node in enumerate(there)
                if all(node["has"].get(name, 0.0) >= asked for name, asked in kind["resources"].items())
                and all(node["labels"].get(name) == value for name, value in kind["labels"].items())
            ]
            for kind in (part["kind"] for part in parts)
        ]
        used = set[int]()
        for part, fits in sorted(zip(parts, able, strict=True), key=lambda each: len(each[1])):
            left = [number for number in fits if number not in used]
            if len(left) < part["count"]:
                asked = [f"{name}={_amount(name, each)}" for name, each in part["kind"]["resources"].items()]
                shown = " ".join(
                    asked + [f"{name}={value}" for name, value in part["kind"]["labels"].items()]
                )
                return f"{part['count']} x {shown}: {len(left)} of its {len(there)} nodes could, one each"
            used.update(left[: part["count"]])
        return ""

    # --- asking for it -------------------------------------------------------------------------------------

    def _make(self, known: KnownCluster, request: NodeRequest, group: Sequence[NodeRequest]) -> None:
        """See `LedgerProvider`. It does not wait for room: machines that wait are STARTING."""
        unfit, there = self._unfit.get(known.cluster, ()), self._proxy.ask("facts")
        parts = [self._part(each, there) for each in group]
        held = [machine.private_address for _, _, machine in known.left] if unfit else []
        if words := self._misfit(parts, [each for each in there if each["address"] not in (*unfit, *held)]):
            left_out = f"; {', '.join(unfit)} did not suit" if unfit else ""
            raise NoCapacityError(
                f"Ray at {self._settings.address} has no room for {words}{left_out}",
                "Some of its nodes may be away; `trainmaster doctor --provider ray` looks at them.",
                [self._settings.address],
            )
        until, lease_s = self._clock() + request.lease_s, request.lease_s
        keeper = self._keeper(known.cluster)
        known = known.with_requests(*map(AskedMachines.of, group))
        self._memory.put(known)
        self._proxy.ask("keep", keeper, self._namespace, KEPT_VARIABLES, self._root, lease_s)
        seen = self._proxy.call(self._namespace, keeper, "take", parts, until, lease_s)
        self._memory.put(self._updated(known, seen["seats"]))

    # --- looking -------------------------------------------------------------------------------------------

    def _look(self, known: KnownCluster) -> tuple[KnownCluster, dict[str, ListedMachine]]:
        """See `LedgerProvider`. Without its keeper a cluster is gone; silence of Ray means nothing."""
        try:
            said = self._proxy.call(self._namespace, self._keeper(known.cluster), "look")
            seats, self._unfit[known.cluster] = said["seats"], said.get("unfit", ())
        except GoneError:
            seats, self._unfit[known.cluster] = [], ()
        known = self._updated(known, seats)
        seen = {seat["id"]: self._seen(seat) for seat in seats}
        lost = [id for _, id, _ in known.left if id not in seen]
        return known.with_ended(lost, self._clock(), _LOST), seen

    def _updated(self, known: KnownCluster, seats: Sequence[Mapping[str, Any]]) -> KnownCluster:
        now = self._clock()
        for said in seats:
            if (asked := known.asked.get(said["token"])) is None:
                continue
            machine = asked.machines.get(said["id"], KnownMachine())
            if said["started_s"] is not None and not machine.started_at:
                about, started_at = said["about"], now - said["started_s"]
                private = str(about.get("address", ""))
                machine = replace(machine, started_at=started_at, private_address=private, about=about)
            if said["ended_s"] is not None:
                machine = machine.ended(now - said["ended_s"], said["reason"])
            known = known.with_requests(replace(asked, is_made=True).with_machines({said["id"]: machine}))
        return known

    def _seen(self, said: Mapping[str, Any]) -> ListedMachine:
        state, leaves_s = NodeState(said["state"]), said["leaves_s"]
        if state is NodeState.STARTING:
            placed = said.get("placed")
            words = "Ray has room for it, and begins it" if placed else "it waits for room in Ray"
            return ListedMachine(state, words, is_queued=not placed)
        if state is NodeState.READY and leaves_s is not None:
            return ListedMachine(NodeState.LEAVING, "Ray takes its node back", self._clock() + leaves_s)
        return ListedMachine(state)

    def _reached(self, node: Node, known: KnownCluster, asked: AskedMachines, machine: KnownMachine) -> Node:
        """See `LedgerProvider`."""
        kind, switch = self._settings.machines.get(asked.machine), f"{self._settings.scratch}/{node.id}"
        return replace(
            node,
            address=node.id,
            user=str(machine.about.get("user", "ray")),
            gpus=kind.gpus if kind else 0,
            way=way_of(self._settings, self._place),
            switch=switch,
            python=str(machine.about.get("python", "")),
            directory=f"{switch}/runtime",
        )

    # --- its lease -----------------------------------------------------------------------------------------

    def renew(self, cluster: str, lease_s: float) -> None:
        """See `Provider`. Machines' own switches are renewed by their actors; this is for what reaps."""
        self._proxy.share()  # this process goes on
        if self._memory.of(cluster).asked:
            self._tell(self._keeper(cluster), "renew", self._clock() + lease_s, lease_s)

    def _give_back(self, known: KnownCluster, asked: AskedMachines, ids: Collection[str]) -> None:
        """See `LedgerProvider`."""
        self._tell(self._keeper(known.cluster), "give", list(ids))

    def _end(self, known: KnownCluster) -> None:
        """See `LedgerProvider`."""
        if known.asked:
            self._tell(self._keeper(known.cluster), "end")

    def reap(self, known: Sequence[str]) -> list[str]:
        """See `Provider`. A keeper says until when its cluster is wanted."""
        kept, ended = {self._keeper(cluster) for cluster in known}, list[str]()
        names = self._proxy.ask("names", self._namespace)
        for name in names:
            if "." in name.rpartition("-")[2] or name in kept:
                continue  # a machine's actor, or what is known
            try:
                seen = self._proxy.call(self._namespace, name, "look")
            except GoneError:
                continue
            if seen["until"] < self._clock() - CLOCKS_DIFFER_S:
                ended += [seat["id"] for seat in seen["seats"] if seat["state"] != "GONE"]
                self._tell(name, "end")
        return ended

    # --- private -------------------------------------------------------------------------------------------

    @property
    def _namespace(self) -> str:
        return namespace_of(self._home)

    def _keeper(self, cluster: str) -> str:
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", cluster)
        return f"{self._home}-{plain}-{short_digest(cluster)[:6]}"

    def _tell(self, keeper: str, do: str, *args: object) -> None:
        with contextlib.suppress(GoneError):
            self._proxy.call(self._namespace, keeper, do, *args)


def look_findings(
    seen: Mapping[str, Any], ahead_s: float, scratch: str, builds: Mapping[str, str]
) -> list[Finding]:
    """What processes on nodes have seen.

    Args:
        seen: what `RayProxyServer.looks` says.
        ahead_s: how far the clock of what speaks with Ray is ahead of ours.
        scratch: where ours is to lie.
        builds: versions of CUDA by what was built for them.
    """
    found = list[Finding]()
    any_may = any(not node["error"] and node["about"]["writes"] for node in seen["nodes"].values())
    for name, node in seen["nodes"].items():
        if node["error"]:
            words = f"Ray starts nothing there: {node['error']}"
            found.append(Finding(name, words, ok=False, advice="See the log of its raylet; `ray status`."))
            continue
        peers = [each for each, other in seen["nodes"].items() if not other["error"]]
        user, may = node["about"]["user"], node["about"]["writes"]
        rights = scratch_finding(name, user, may, scratch, "ray.yaml")
        what = "rights" if may or not any_may else "node"  # others suffice, maybe
        found += [replace(rights, what=what), clock_finding(node["ahead_s"] + ahead_s, name)]
        found += probe_findings(name, peers, Result(*node["run"]), builds)
    return found


def _amount(name: str, value: float) -> str:
    return f"{value / 1e9:.1f} GB" if name == "memory" else f"{value:g}"
