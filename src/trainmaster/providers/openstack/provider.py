"""`OpenstackProvider`: machines are servers of Nova; what is written on them says whose they are.

Nova has no token that makes a call repeatable: what is asked for is written down before, looked for by what
is written on servers, and what there is too many is deleted, the youngest first.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from trainmaster.providers.answer_cache import cached_answer
from trainmaster.providers.base import (
    CLOCKS_DIFFER_S,
    NoCapacityError,
    Node,
    NodeRequest,
    NodeState,
    ProviderPlace,
    planned,
)
from trainmaster.providers.catalogue import Catalogue
from trainmaster.providers.cluster_ledger import AskedMachines, KnownCluster, KnownMachine
from trainmaster.providers.dead_man_switch import deadman_script
from trainmaster.providers.examining import Finding, clock_finding, found_by, unseen_drivers
from trainmaster.providers.ledger_provider import LedgerProvider, ListedMachine, check_requests
from trainmaster.providers.openstack import answers
from trainmaster.providers.openstack.answers import CLUSTER, HOME, TOKEN, UNTIL, Flavor, Server
from trainmaster.providers.openstack.client import OpenstackClient, RefusedError
from trainmaster.providers.openstack.driver_login import TEAM_LOGIN, driver_login, sent_settings
from trainmaster.providers.openstack.login import OpenstackLogin, login_at
from trainmaster.providers.openstack.project import OpenstackProject, base_name, looks, owner_of, prefix
from trainmaster.providers.openstack.settings import OPENSTACK, OpenstackSettings
from trainmaster.providers.sent_settings import DRIVES_VARIABLE
from trainmaster.spec.clocks import steady_s
from trainmaster.spec.errors import ProviderError, UsageError
from trainmaster.transport.http_calls import Send, gone_is_fine

__all__ = ["TEAM_LOGIN", "catalogue_of", "driver_login", "openstack_provider", "sent_settings"]

T = TypeVar("T")
#: How often servers whose answer was lost are looked for before they are believed not to be there.
_LOOKS: Final = 10
#: And whether they can be had, and whether they are gone.
_PATIENT_LOOKS: Final = 50
_GIB: Final = 2**30
_HINT: Final = "Look with `openstack server list` what there is, delete what is unused, and remove the file."
#: Flavors are asked for again after so long, seconds.
_FLAVORS_OLD_S: Final = 600.0
#: And it is tried again whether machines can delete themselves.
_TRIED_OLD_S: Final = 86400.0


def openstack_provider(place: ProviderPlace) -> OpenstackProvider:
    """The provider of a home, as its ``openstack.yaml`` says.

    Raises:
        UsageError: there are no settings or no login, or a mistake in them.
    """
    return OpenstackProvider(*login_at(place.root, place.environ), place)


def catalogue_of(
    root: Path, environ: Mapping[str, str], today: date, prices: Callable[[], Catalogue]
) -> Catalogue:
    """The flavors of the project, at the site's own prices; they are asked for again after ten minutes."""
    del prices
    settings, login = login_at(root, environ)
    file = root / "providers" / OPENSTACK.provider / "flavors.json"
    flavors = cached_answer(
        file,
        list[Flavor],
        f"{login.name} {login.url} {login.region} {settings.flavors}",
        _FLAVORS_OLD_S,
        lambda: OpenstackProject(OpenstackClient(login), settings).flavors(),
    )
    return Catalogue(str(settings.file), tuple(answers.offers_of(flavors, settings, today)), by_hand=True)


class OpenstackProvider(LedgerProvider):
    """See `LedgerProvider`. Threads may share it.

    Args:
        settings: of the user.
        login: who asks.
        place: of the home.
        send: carries requests; None for HTTP.
        sleep: between looks.
        clock: gives Unix seconds; never set back.

    Attributes:
        name: ``openstack``.
    """

    name = OPENSTACK.provider

    def __init__(
        self,
        settings: OpenstackSettings,
        login: OpenstackLogin,
        place: ProviderPlace,
        *,
        send: Send | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = steady_s,
    ) -> None:
        super().__init__(place, _HINT, clock)
        self._settings, self._login, self._sleep = settings, login, sleep
        self._drives = place.environ.get(DRIVES_VARIABLE, "")
        self._client = OpenstackClient(login, send, sleep)
        self._project = OpenstackProject(self._client, settings, sleep)
        self._self_deletion = self._project.self_deletion

    def check_up(self) -> None:
        """Refuse what does not answer, or does not take the login."""
        self._client.get("compute", "/limits")

    # --- before anything is asked for ----------------------------------------------------------------------

    def preflight(self, requests: Sequence[NodeRequest]) -> list[str]:
        """See `Provider`: roles, flavors, images, networks and quotas."""
        self._check_rights()
        self._unless_known(self._self_deletion.check)
        wanted = []
        check_requests(self.name, requests)
        for request in requests:
            flavor = self._project.flavor(request.instance_type)
            self._project.image(flavor)
            wanted.append((request, flavor))
        self._project.network()
        self._project.floating_network()
        answers.check_limits(self._limits(), wanted)
        return list(filter(None, [self._project.check_own_group()]))

    def _limits(self) -> dict[str, Any]:
        """What the project may have, and what it uses of that."""
        limits = self._client.get("compute", "/limits").get("limits", {})
        return dict(limits.get("absolute", {}))

    def _check_rights(self) -> None:
        if (roles := self._client.roles()) and set(roles) <= {"reader"}:
            raise UsageError(
                f"OpenStack: {self._login.name} may only look (its role is `reader`)",
                "Ask for the role `member` in the project.",
            )

    def examine(self, builds: Mapping[str, str]) -> list[Finding]:
        """See `Examined`. A security group of ours lets the machines of a cluster reach each other."""

        def check_group() -> None:
            if gaps := self._project.check_own_group():
                raise UsageError(gaps, "Add these rules to it, or leave out `security_group`.")

        limits, roles = self._limits(), self._client.roles()
        of_networks = (self._project.network, self._project.floating_network, check_group)
        networks = (found_by(look, "network", "") for look in of_networks)
        words = "delete themselves, each by a credential of its own"
        end = found_by(self._self_deletion.check, "lost machines", words)
        clear = f"Its secret goes to {self._login.url} in clear: write an https address, if there is one."
        return [
            Finding("login", f"OpenStack takes {self._login.name}", advice=clear * self._login.is_in_clear),
            found_by(self._check_rights, "rights", f"roles: {', '.join(roles) or 'not told'}"),
            *answers.limit_findings(limits, self._login.name),
            *(each for each in networks if not each.ok),
            replace(end, ok=end.ok or self._settings.ends_only_from_here),  # what was known is no fault
            clock_finding(self._client.clock.ahead_s, "OpenStack"),
            *unseen_drivers(builds),
        ]

    def _unless_known(self, ask: Callable[[], T]) -> T | None:
        """What is found; None if machines cannot delete themselves, which the user has said is known.

        Args:
            ask: raises if they cannot.

        Raises:
            UsageError: it is not known; says what would happen, and what to do.
            ProviderError: OpenStack does not say now.
        """
        self._client.roles()  # a login that is not taken is another matter
        try:
            return ask()
        except (RefusedError, UsageError) as error:
            if self._settings.ends_only_from_here:
                return None
            if isinstance(error, RefusedError):
                raise
            raise UsageError(
                f"machines of this OpenStack cannot delete themselves: {Exception.__str__(error)}. If this "
                "computer dies, they switch off when their lease is over, but stay in your quota until the "
                "next run of this home deletes them",
                f"{error.hint}. Or, if that will do, write `ends_only_from_here: true` into "
                f"{self._settings.file}.",
            ) from None

    def _try_out(self) -> None:
        """See that machines can delete themselves, once a day."""
        self._self_deletion.check()
        who = f"{self._login.url} {self._client.said['user']['id']}"
        file = self._memory.directory / "self-deletion.json"
        ask = partial(self._self_deletion.try_out, prefix(self._home))
        cached_answer(file, type(None), who, _TRIED_OLD_S, ask)

    def self_deletion_script(self, node: Node) -> str:
        """See `BringsSelfDeletion`."""

        def ask() -> str:
            self._try_out()
            name = f"{base_name(self._home, node.cluster)} {node.id}"
            return self._self_deletion.program(name, node.id)

        return self._unless_known(ask) or ""

    def dry_run(self, cluster: str, requests: Sequence[NodeRequest]) -> list[dict[str, Any]]:
        """See `Provider`."""
        base, until = base_name(self._home, cluster), "${lease.Until}"
        shown = list[dict[str, Any]]()

        def show(service: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
            shown.append(planned(service, f"POST {path}", body))
            return {"security_group": {"id": "${group.Id}"}}

        own = self._settings.security_group
        group = self._project.prepared(base, "ssh-ed25519 ${key.Public}", until, own, show)
        for request in requests:
            flavor = Flavor("${flavor.Id}", request.instance_type, 0, 0, 2**60)
            body = self._body(cluster, request, flavor, "${image.Id}", "${network.Id}", group, until)
            show("compute", "/servers", body)
        return shown

    def _body(
        self,
        cluster: str,
        request: NodeRequest,
        flavor: Flavor,
        image: str,
        network: str,
        group: str,
        until: str,
    ) -> dict[str, Any]:
        """What asks for machines: all of them or none."""
        base = base_name(self._home, cluster)
        script = deadman_script(request.lease_s, self._settings.user)
        server: dict[str, Any] = {
            "name": f"{base}-{request.role}",
            "flavorRef": flavor.id,
            "imageRef": image,
            "networks": [{"uuid": network}],
            "security_groups": [{"name": group}],
            "key_name": base,
            "user_data": base64.b64encode(script.encode()).decode(),
            "min_count": request.count,
            "max_count": request.count,
            "availability_zone": request.zone or self._settings.zone,
            "metadata": {HOME: self._home, CLUSTER: cluster, TOKEN: request.token, UNTIL: until},
        }
        if self._settings.volume or not flavor.disk_bytes or request.disk_bytes > flavor.disk_bytes:
            disk = request.disk_bytes or max(self._settings.disk_bytes, flavor.disk_bytes % 2**60)
            volume = {
                "boot_index": 0,
                "uuid": image,
                "source_type": "image",
                "destination_type": "volume",
                "volume_size": -(-disk // _GIB),
                "volume_type": self._settings.volume_type,
                "delete_on_termination": True,
            }
            server |= {"imageRef": "", "block_device_mapping_v2": [_written(volume)]}
        return {"server": _written(server)}

    # --- asking for it -------------------------------------------------------------------------------------

    def _make(self, known: KnownCluster, request: NodeRequest, group: Sequence[NodeRequest]) -> None:
        """See `LedgerProvider`. It waits until Nova has decided whether they can be had."""
        self._unless_known(self._try_out)
        cluster = known.cluster
        most = _LOOKS if request.token in known.asked else 1
        there = self._of_request(cluster, request, most, lambda each: True)
        missing = request.count - len(there)
        known = known.with_requests(known.asked.get(request.token, AskedMachines.of(request)))
        if missing > 0:
            self._memory.put(known)
            try:
                self._send(known, replace(request, count=missing))
            except NoCapacityError:
                self._memory.put(known.without(request.token))
                raise
        there = self._of_request(cluster, request, _PATIENT_LOOKS, lambda each: each.is_placed)
        failed = [each.fault or "it does not say why" for each in there if each.status == "ERROR"]
        if failed:
            self._delete(there)
            self._memory.put(known.without(request.token))
            raise self._none(request, failed[0])
        if len(there) < request.count or not all(each.is_placed for each in there):
            raise ProviderError(
                "OpenStack has not decided yet whether there are machines", "It is asked again."
            )
        # What there is too many is deleted when it is looked, which is at once.
        machines = {each.id: KnownMachine(started_at=self._clock()) for each in there[: request.count]}
        made = replace(known.asked[request.token], is_made=True, machines=machines)
        self._memory.put(known.with_requests(made))

    def _send(self, known: KnownCluster, request: NodeRequest) -> None:
        """Ask for machines."""
        flavor = self._project.flavor(request.instance_type)
        image, network = self._project.image(flavor), self._project.network()
        until = str(round(self._clock() + request.lease_s))
        base = base_name(self._home, known.cluster)
        group, public = self._project.group(base), self._memory.public_key()
        try:
            if not (group and known.left):  # else what was prepared may be gone
                group = self._project.prepared(base, public, until, group, self._project.make)
            body = self._body(known.cluster, request, flavor, image, network, group, until)
            self._client.call("POST", "compute", "/servers", body)
        except RefusedError as refused:
            if refused.is_quota:
                raise self._none(request, refused.words) from None
            raise

    def _none(self, request: NodeRequest, words: str) -> NoCapacityError:
        where = request.zone or self._settings.zone or self._login.region or self._login.name
        return NoCapacityError(
            f"OpenStack gives no {request.count} x {request.instance_type} now: {words}",
            "It may later, or another flavor.",
            [where],
        )

    def _of_request(
        self, cluster: str, request: NodeRequest, most: int, is_told: Callable[[Server], bool]
    ) -> list[Server]:
        """Servers that were asked for with a token, the oldest first.

        It is looked so often at most, until all are there and told, or one has failed.
        """
        for _ in looks(most, self._sleep):
            mine = [each for each in self._servers(cluster) if each.metadata.get(TOKEN) == request.token]
            found = sorted((each for each in mine if each.is_there), key=lambda each: (each.created, each.id))
            if any(each.status == "ERROR" for each in found):
                break
            if len(found) >= request.count and all(map(is_told, found)):
                break
        return found

    # --- looking -------------------------------------------------------------------------------------------

    def _servers(self, cluster: str = "") -> list[Server]:
        """Every server of this home, or of one of its clusters, that Nova lists."""
        found = self._named(base_name(self._home, cluster) if cluster else prefix(self._home))
        return [each for each in found if not cluster or each.cluster == cluster]

    def _named(self, name: str) -> list[Server]:
        """Every server of this home whose name has this in it."""
        told = self._client.all("/servers/detail", "servers", name=name)
        return [each for each in map(answers.server_of, told) if each.metadata.get(HOME) == self._home]

    def _look(self, known: KnownCluster) -> tuple[KnownCluster, dict[str, ListedMachine]]:
        """See `LedgerProvider`. What has failed or is off is deleted: it would hold the quota."""
        base, listed = base_name(self._home, known.cluster), self._servers(known.cluster)
        by_id, seen = {each.id: each for each in listed}, dict[str, ListedMachine]()
        for asked, id, machine in known.left:
            # A list lacks what is in a cell that does not answer now.
            seen[id], machine = self._seen(base, machine, by_id.get(id) or self._server(id))
            if machine.ended_at:
                self._project.give_back(base, [id])
            known = known.with_machine(asked.token, id, machine)
        taken = {id for _, id, _ in known.machines}
        answered = {asked.token for asked in known.asked.values() if asked.is_made}
        surplus = (each for each in listed if each.id not in taken and each.metadata.get(TOKEN) in answered)
        self._delete(surplus)
        return known, seen

    def _server(self, id: str) -> Server | None:
        """One machine; None if there is no such."""
        with gone_is_fine():
            return answers.server_of(self._client.get("compute", f"/servers/{id}")["server"])
        return None

    def _seen(
        self, base: str, known: KnownMachine, server: Server | None
    ) -> tuple[ListedMachine, KnownMachine]:
        """How far a machine is, and what is known of it from now on."""
        state, reason = (NodeState.GONE, "somebody has deleted it") if server is None else server.state
        if server is None or state is NodeState.GONE:
            self._delete([] if server is None else [server])
            return ListedMachine(state), known.ended(self._clock(), reason)
        address = server.fixed
        if self._settings.floating:
            address = server.floating or known.address
            if not address and state is NodeState.READY:
                try:
                    address = self._project.address(base, server)
                except RefusedError as refused:
                    reason = f"it gets no floating address: {refused.words}"
        known = replace(
            known, address=address, private_address=server.fixed, where=server.zone or known.where
        )
        return ListedMachine(state if address else NodeState.STARTING, reason), known

    def _reached(self, node: Node, known: KnownCluster, asked: AskedMachines, machine: KnownMachine) -> Node:
        """See `LedgerProvider`."""
        if self._drives:  # one of the same network, which the group lets in
            node = replace(node, address=node.private_address)
        return replace(node, user=self._settings.user, key=self._memory.private_key)

    def console(self, cluster: str, id: str) -> str:
        """See `Provider`."""
        body = {"os-getConsoleOutput": {"length": 500}}
        with suppress(RefusedError, UsageError):  # it is gone, or was never there
            told = self._client.call("POST", "compute", f"/servers/{id}/action", body)
            return str(told.get("output") or "")
        return ""

    # --- its lease -----------------------------------------------------------------------------------------

    def renew(self, cluster: str, lease_s: float) -> None:
        """See `Provider`. The machines' own switch is renewed over SSH; this is for what reaps."""
        body = {"metadata": {UNTIL: str(round(self._clock() + lease_s))}}
        for _, id, _ in self._memory.of(cluster).left:
            with gone_is_fine(409):  # or about to be
                self._client.call("POST", "compute", f"/servers/{id}/metadata", body)

    def _give_back(self, known: KnownCluster, asked: AskedMachines, ids: Collection[str]) -> None:
        """See `LedgerProvider`."""
        self._project.delete("compute", *(f"/servers/{id}" for id in ids))
        self._project.give_back(base_name(self._home, known.cluster), list(ids))

    def _end(self, known: KnownCluster) -> None:
        """See `LedgerProvider`."""
        servers = self._servers(known.cluster)
        self._delete(sorted(servers, key=lambda each: each.id == self._drives))  # the one we are on is last
        self._until_gone(servers)
        self._project.tidy(base_name(self._home, known.cluster))

    def _delete(self, servers: Iterable[Server]) -> None:
        self._project.delete("compute", *(f"/servers/{each.id}" for each in servers if each.is_there))

    def _until_gone(self, servers: Sequence[Server]) -> None:
        """Wait until deleted servers are gone: what is theirs cannot be removed before.

        Raises:
            ProviderError: Nova does not come to the end with it.
        """
        left = {each.id for each in servers}
        for _ in looks(_PATIENT_LOOKS, self._sleep):
            if not left or not (left := left & {each.id for each in self._servers()}):
                return
        raise ProviderError(f"OpenStack has not deleted {', '.join(sorted(left))} yet", "It is asked again.")

    def reap(self, known: Sequence[str]) -> list[str]:
        """See `Provider`. What is written on servers says whose they are, and until when they are wanted."""
        before = self._clock() - CLOCKS_DIFFER_S
        there = self._servers()
        bases = {base_name(self._home, each.cluster) for each in there if each.until < before}
        bases |= set(self._project.groups_over(self._home, before))
        bases -= {base_name(self._home, cluster) for cluster in known}
        ended = [id for base in sorted(bases) for id in self._lapsed(base, before)]
        ids = {each.id for each in there}

        def is_lost(name: str) -> bool:
            """Whether a credential is of a server of ours that is not there any more."""
            of, server = owner_of(name)
            mine = of.startswith(prefix(self._home)) and server and server not in ids
            return bool(mine) and self._server(server) is None

        self._self_deletion.remove(is_lost)
        return ended

    def _lapsed(self, base: str, before: float) -> list[str]:
        """End what is wanted no more of a cluster. It is looked again: its run may go on by now.

        What is known of it is kept until it is given back: so the run that goes on knows what has ended.
        """
        with self._memory.alone_by(base.removeprefix(prefix(self._home))):
            there = self._named(base)
            over = {each.id: each for each in there if each.until < before}
            self._delete(over.values())
            for cluster in {each.cluster for each in over.values()}:
                if (known := self._memory.of(cluster)).asked:
                    why = "its lease was over, and it was deleted"
                    self._memory.put(known.with_ended(over, self._clock(), why))
            if len(over) == len(there):
                self._until_gone(there)
                self._project.tidy(base)
        return [each.id for each in over.values() if each.is_there]


def _written(body: Mapping[str, Any]) -> dict[str, Any]:
    """What of a body says something."""
    return {key: value for key, value in body.items() if value != ""}
