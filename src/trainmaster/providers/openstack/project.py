"""`OpenstackProject`: what belongs to a cluster besides its servers, and what settings name, in one project.

A key pair and a security group per cluster, and an address of each machine; all are called after the home and
the cluster, so that they are found again, and go with it.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

from trainmaster.providers.openstack.answers import Flavor, Server, flavor_of, group_gaps
from trainmaster.providers.openstack.client import OpenstackClient, RefusedError
from trainmaster.providers.openstack.self_deletion import SelfDeletion
from trainmaster.providers.openstack.settings import OpenstackSettings
from trainmaster.spec.errors import ProviderError, UsageError
from trainmaster.spec.private_files import short_digest
from trainmaster.transport.http_calls import gone_is_fine

#: Before what says until when a group is wanted.
_UNTIL: Final = "trainmaster until "
#: Ports of a machine that is deleted hold its group for a minute at most.
_GROUP_LOOKS: Final = 30


def prefix(home: str) -> str:
    """What everything of a home is called first."""
    return f"tm-{short_digest(home)[:8]}-"


def base_name(home: str, cluster: str) -> str:
    """What everything of a cluster is called first."""
    return f"{prefix(home)}{short_digest(cluster)}"


def looks(most: int, sleep: Callable[[float], None]) -> Iterator[None]:
    """As often, with pauses between that are short at first: 10 take 4 s, 50 two minutes."""
    for look in range(most):
        if look:
            sleep(min(0.1 * 1.3**look, 3.0))
        yield


def owner_of(name: str) -> tuple[str, str]:
    """The base name and the server that something is called after.

    >>> owner_of("tm-1-2 s driver"), owner_of("tm-1-2 s"), owner_of("tm-1-trial-3")
    (('tm-1-2', 's'), ('tm-1-2', 's'), ('tm-1-trial-3', ''))
    """
    of, server, *_ = [*name.split(" "), ""]
    return of, server


class OpenstackProject:
    """Threads may share it.

    Args:
        client: of the project.
        settings: of the user.
        sleep: waits, seconds.
    """

    def __init__(
        self,
        client: OpenstackClient,
        settings: OpenstackSettings,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.client, self._settings, self._sleep = client, settings, sleep
        self.self_deletion = SelfDeletion(client)
        self._known: dict[tuple[str, str], str] = {}
        self._flavors: dict[str, Flavor] = {}

    # --- what there is -------------------------------------------------------------------------------------

    def flavors(self) -> list[Flavor]:
        """All that this login may ask for."""
        own = self._settings.flavors
        told = self.client.all("/flavors/detail", "flavors")
        self._flavors = {str(each["name"]): flavor_of(each, own.get(str(each["name"]))) for each in told}
        return list(self._flavors.values())

    def flavor(self, name: str) -> Flavor:
        """The flavor of a name.

        Raises:
            UsageError: there is none.
        """
        if name not in self._flavors:
            self.flavors()
        if name not in self._flavors:
            raise UsageError(
                f"OpenStack has no flavor {name!r}",
                f"It has {', '.join(sorted(self._flavors))}: name one, as `hardware: {{instance: ...}}`.",
            )
        return self._flavors[name]

    def image(self, flavor: Flavor) -> str:
        """Id of the image that machines of a flavor boot."""
        wanted = (flavor.gpus and self._settings.gpu_image) or self._settings.image
        return self._id_of("image", wanted, lambda: self._images(wanted))

    def _images(self, wanted: str) -> list[dict[str, Any]]:
        found = self.client.listed("image", "/images", name=wanted)
        if not found:
            with contextlib.suppress(RefusedError, UsageError):
                found = [self.client.get("image", f"/images/{wanted}")]
        return [each for each in found if each.get("status", "active") == "active"]

    def network(self) -> str:
        """Id of the network that machines are in."""
        wanted = self._settings.network
        return self._id_of(
            "network", wanted, lambda: [n for n in self._networks() if wanted or not n.get("router:external")]
        )

    def floating_network(self) -> str:
        """Id of the network whose addresses machines get; empty if they get none."""
        wanted = self._settings.floating
        return self._id_of("floating", wanted, self._networks) if wanted else ""

    def check_own_group(self) -> str:
        """What the user's own security group does not let in; empty if nothing, or if there is none.

        Raises:
            UsageError: OpenStack has no such group.
        """
        if not (wanted := self._settings.security_group):
            return ""
        found = self._named("security_group", wanted, self._groups(), sys.maxsize)
        gaps = min(map(group_gaps, found), key=len)  # an administrator sees others', too
        return f"security group {wanted} does not let in {' or '.join(gaps)}" if gaps else ""

    def _networks(self) -> list[dict[str, Any]]:
        return self.client.listed("network", "/networks")

    def _id_of(self, kind: str, wanted: str, look: Callable[[], list[dict[str, Any]]]) -> str:
        """Of what the settings name, remembered."""
        if (kind, wanted) not in self._known:
            self._known[kind, wanted] = str(self._named(kind, wanted, look())[0]["id"])
        return self._known[kind, wanted]

    def _named(
        self, kind: str, wanted: str, there: Sequence[dict[str, Any]], most: int = 1
    ) -> list[dict[str, Any]]:
        """What has the name or the id that the settings say; all if they say none.

        Raises:
            UsageError: there is none, or there are too many.
        """
        found = [each for each in there if not wanted or wanted in (each.get("id"), each.get("name"))]
        if not 0 < len(found) <= most:
            names = ", ".join(sorted({str(each.get("name")) for each in there})) or "none"
            which = f"{len(found) or 'no'} {kind.replace('_', ' ')}{'s' * (len(found) > 1)}"
            raise UsageError(
                f"OpenStack has {which}{wanted and f' {wanted!r}'}",
                f"There is {names}. Write a name, or an id, as `{kind}` into {self._settings.file}.",
            )
        return found

    # --- what is made for a cluster ------------------------------------------------------------------------

    def prepared(
        self,
        base: str,
        public: str,
        until: str,
        group: str,
        make: Callable[[str, str, dict[str, Any]], dict[str, Any]],
    ) -> str:
        """The group of a cluster, made before its first machines if it is not there, as its key pair.

        Args:
            base: see `base_name`.
            public: half of its key.
            until: Unix seconds until which it is wanted.
            group: that there is; empty for none.
            make: asks a service, by a path, for what a body says.
        """
        if not self._settings.security_group:
            if not group:
                body = {"name": base, "description": f"{_UNTIL}{until}"}
                made = make("network", "/security-groups", {"security_group": body})
                group = str(made["security_group"]["id"])
            for rule in self._rules(group):
                make("network", "/security-group-rules", {"security_group_rule": rule})
        make("compute", "/os-keypairs", {"keypair": {"name": base, "public_key": public}})
        return group

    def _rules(self, group: str) -> list[dict[str, Any]]:
        inward = {"security_group_id": group, "direction": "ingress", "ethertype": "IPv4"}
        ssh = {"protocol": "tcp", "port_range_min": 22, "port_range_max": 22}
        return [
            {**inward, **ssh, "remote_ip_prefix": self._settings.ssh_from},
            {**inward, "remote_group_id": group},
        ]

    def group(self, base: str) -> str:
        """The group of a cluster that has machines; empty if it is gone."""
        own = self._settings.security_group
        return own or next((str(each["id"]) for each in self._groups(name=base)), "")

    def make(self, service: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Make something; empty if it was there."""
        try:
            return self.client.call("POST", service, path, body)
        except RefusedError as refused:
            if refused.status != 409 or refused.is_quota:
                raise
        return {}

    def _groups(self, **query: str) -> list[dict[str, Any]]:
        return self.client.listed("network", "/security-groups", **query)

    def groups_over(self, home: str, before: float) -> list[str]:
        """What clusters of a home are called of which a group is left, and that are wanted no more."""
        if self._settings.security_group:
            return []
        told = {str(each["name"]): str(each.get("description")) for each in self._groups()}
        untils = {name: words.removeprefix(_UNTIL) for name, words in told.items()}
        mine = ((name, until) for name, until in untils.items() if name.startswith(prefix(home)))
        return [name for name, until in mine if until.isdecimal() and float(until) < before]

    def address(self, base: str, server: Server) -> str:
        """The floating address of a machine that has none yet."""
        network, told = self.floating_network(), f"{base} {server.id}"
        if there := self.client.listed("network", "/floatingips", description=told):
            return str(there[0]["floating_ip_address"])
        if not (ports := self.client.listed("network", "/ports", device_id=server.id)):
            return ""
        body = {"floating_network_id": network, "port_id": ports[0]["id"], "description": told}
        made = self.client.call("POST", "network", "/floatingips", {"floatingip": body})
        return str(made["floatingip"]["floating_ip_address"])

    def give_back(self, base: str, servers: Collection[str] | None = None) -> None:
        """Floating addresses and credentials of some machines, or of all of a cluster."""

        def is_its(words: str) -> bool:
            of, server = owner_of(words)
            return of == base and (servers is None or server in servers)

        self.self_deletion.remove(is_its)
        if not self._settings.floating:
            return
        there = self.client.listed("network", "/floatingips")
        mine = (each["id"] for each in there if is_its(str(each.get("description") or "")))
        self.delete("network", *(f"/floatingips/{id}" for id in mine))

    def tidy(self, base: str) -> None:
        """Remove what was made for a cluster; its machines are gone.

        Raises:
            ProviderError: something still holds it.
        """
        self.give_back(base)
        self.delete("compute", f"/os-keypairs/{base}")
        if self._settings.security_group:
            return
        for group in self._groups(name=base):
            for _ in looks(_GROUP_LOOKS, self._sleep):
                try:
                    self.delete("network", f"/security-groups/{group['id']}")
                    break
                except RefusedError as refused:
                    if refused.status != 409:
                        raise
            else:
                raise ProviderError(f"OpenStack: security group {base} is still in use", "It is asked again.")

    def delete(self, service: str, *paths: str) -> None:
        """Remove some things; what is gone already is fine."""
        for path in paths:
            with gone_is_fine():
                self.client.call("DELETE", service, path)
