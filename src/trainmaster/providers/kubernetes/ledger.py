"""`KubernetesLedger`: what a home has asked a Kubernetes for, written down before it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trainmaster.providers.cluster_ledger import ClusterLedger


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A machine.

    Attributes:
        address, node: as they were when it had any.
        started_at: Unix seconds; 0 if it never ran. ended_at: the same of its end; 0 if it has not ended.
        reason: why it has ended, or leaves.
    """

    address: str = ""
    node: str = ""
    started_at: float = 0.0
    ended_at: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AskedPods:
    """A request that was, or is about to be, sent.

    Attributes:
        token, role, machine, labels: of the request.
        group: tokens of those that are had with it, or not at all.
        is_made: all its pods were there once.
        pods: by their names.
    """

    token: str
    role: str
    machine: str
    group: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    is_made: bool = False
    pods: Mapping[str, KnownPod] = field(default_factory=dict)

    def with_pod(self, name: str, pod: KnownPod) -> AskedPods:
        """With another state of one."""
        return replace(self, pods={**self.pods, name: pod})


@dataclass(frozen=True, slots=True)
class ClusterPods:
    """Of one cluster. asked: by the token of the request. place: server and namespace that were asked."""

    cluster: str
    asked: Mapping[str, AskedPods] = field(default_factory=dict)
    place: str = ""

    def with_request(self, request: AskedPods) -> ClusterPods:
        """With another request, or another state of one."""
        return replace(self, asked={**self.asked, request.token: request})

    def without(self, tokens: tuple[str, ...]) -> ClusterPods:
        """As if these had not been asked for."""
        return replace(self, asked={key: each for key, each in self.asked.items() if key not in tokens})


class KubernetesLedger(ClusterLedger[ClusterPods]):
    """See `ClusterLedger`."""

    kind = ClusterPods
    hint = "Look with `kubectl get pods` what there is, delete what is unused, and remove the file."
