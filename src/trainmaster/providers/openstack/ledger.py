"""`OpenstackLedger`: what a home has asked an OpenStack for, written down before it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trainmaster.providers.cluster_ledger import ClusterLedger


@dataclass(frozen=True, slots=True)
class KnownServer:
    """A machine that a request was answered with.

    Attributes:
        address, private_address, zone: as they were when it had any.
        started_at: Unix seconds.
        ended_at: the same of its end; 0 if it has not ended.
        reason: why it has ended.
    """

    address: str = ""
    private_address: str = ""
    zone: str = ""
    started_at: float = 0.0
    ended_at: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AskedServers:
    """A request that was, or is about to be, sent.

    Attributes:
        token, role, count, flavor, labels: of the request.
        servers: by their ids, once all are there; empty as long as no answer is known.
    """

    token: str
    role: str
    count: int
    flavor: str
    labels: Mapping[str, str] = field(default_factory=dict)
    servers: Mapping[str, KnownServer] = field(default_factory=dict)

    def with_server(self, id: str, server: KnownServer) -> AskedServers:
        """With another state of one."""
        return replace(self, servers={**self.servers, id: server})


@dataclass(frozen=True, slots=True)
class ClusterServers:
    """Of one cluster. asked: by the token of the request."""

    cluster: str
    asked: Mapping[str, AskedServers] = field(default_factory=dict)

    def with_request(self, request: AskedServers) -> ClusterServers:
        """With another request, or another state of one."""
        return ClusterServers(self.cluster, {**self.asked, request.token: request})

    def without(self, token: str) -> ClusterServers:
        """As if it had not been asked for."""
        return ClusterServers(self.cluster, {key: each for key, each in self.asked.items() if key != token})


class OpenstackLedger(ClusterLedger[ClusterServers]):
    """See `ClusterLedger`."""

    kind = ClusterServers
    hint = "Look with `openstack server list` what there is, delete what is unused, and remove the file."
