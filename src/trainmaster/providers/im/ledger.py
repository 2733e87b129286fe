"""`ImLedger`: what a home has asked Infrastructure Manager for, written down before it is asked.

IM knows no token of ours: a request is known by the name that its machines have in the document, and an
infrastructure by the mark in its description. This is where both, and what only we know of them, are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trainmaster.dataclass import dataclass, field
from trainmaster.providers.cluster_ledger import ClusterLedger
from trainmaster.spec.private_files import short_digest, write_private


@dataclass(frozen=True, slots=True)
class ImRequest:
    """A request that was, or is about to be, sent.

    Attributes:
        token, role, labels: of the request.
        count: how many machines.
        infrastructure: that they are in; empty if that is not known yet.
        place: the cloud, and the zone if one was named.
        instance_type: as planned.
        at: Unix seconds at which it was sent.
        machines: numbers of the machines in the infrastructure, once all are there.
    """

    token: str
    role: str
    count: int
    labels: Mapping[str, str]
    place: str
    instance_type: str
    at: float
    infrastructure: str = ""
    machines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImCluster:
    """Of one cluster.

    Attributes:
        cluster: its id.
        infrastructure: that machines are added to; empty if there is none, or the answer is not known.
        is_asked: one was asked for: if it is not known, it is to be looked for.
        asked: by the name that machines have in the document.
    """

    cluster: str
    infrastructure: str = ""
    is_asked: bool = False
    asked: Mapping[str, ImRequest] = field(default_factory=dict)

    @property
    def infrastructures(self) -> list[str]:
        """Every one that it has had, as far as is known."""
        found = [self.infrastructure, *(each.infrastructure for each in self.asked.values())]
        return [each for each in dict.fromkeys(found) if each]

    @property
    def with_machines(self) -> list[str]:
        """Those of which the first machines are made."""
        made = {each.infrastructure for each in self.asked.values() if each.machines}
        return [each for each in self.infrastructures if each in made]

    @property
    def taken(self) -> set[str]:
        """Numbers in its infrastructure of the machines that somebody uses."""
        mine = [each for each in self.asked.values() if each.infrastructure == self.infrastructure]
        return {number for each in mine for number in each.machines}


class ImLedger(ClusterLedger[ImCluster]):
    """See `ClusterLedger`."""

    kind = ImCluster
    hint = "Look in IM which infrastructures there are, destroy those that are unused, and remove the file."

    def forget(self, cluster: str) -> None:
        """The cluster is given back."""
        super().forget(cluster)
        for path in self.directory.glob(f"key-{short_digest(cluster)}-*"):
            path.unlink(missing_ok=True)

    def machine_key(self, cluster: str, machine: str, content: str) -> Path:
        """File with the private key of a machine."""
        path = self.directory / f"key-{short_digest(cluster)}-{short_digest(machine)}"
        body = content.strip() + "\n"
        if not path.exists() or path.read_text() != body:
            write_private(path, body.encode())
            self.saved()
        return path
