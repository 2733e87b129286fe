"""`SlurmLedger`: what a home knows of the jobs of its clusters: names of nodes, what was given back, keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainmaster.providers.cluster_ledger import ClusterLedger


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job, or a component of one, that a request was answered with.

    Attributes:
        id: Slurm's. leader: of a component, the job's own.
        token, role, count, labels, machine, lease_s: of the request.
        nodes: names of its nodes in the order of their seats, from when it ran first; else empty.
        addresses: of them, by name.
        given_back: seats that were.
        batch: the node that its script runs on.
        started_at: Unix seconds; 0 if it never ran.
        ended_at: the same of its end; 0 if it has not ended.
        reason: why it has ended.
    """

    id: str
    token: str
    role: str
    count: int
    machine: str
    labels: Mapping[str, str] = field(default_factory=dict)
    lease_s: float = 900.0
    leader: str = ""
    nodes: tuple[str, ...] = ()
    addresses: Mapping[str, str] = field(default_factory=dict)
    given_back: tuple[int, ...] = ()
    batch: str = ""
    started_at: float = 0.0
    ended_at: float = 0.0
    reason: str = ""

    def seat_id(self, seat: int) -> str:
        """How a machine of it is called: its node is not known while it waits."""
        return f"{self.id}.{seat}"

    @property
    def seats(self) -> list[int]:
        """Those that are not given back."""
        return [seat for seat in range(self.count) if seat not in self.given_back]


@dataclass(frozen=True, slots=True)
class ClusterJobs:
    """Of one cluster. jobs: by the token of their request. host_key: private and public half."""

    cluster: str
    jobs: Mapping[str, KnownJob] = field(default_factory=dict)
    host_key: tuple[str, str] = ("", "")

    def with_job(self, job: KnownJob) -> ClusterJobs:
        """With another job, or another state of one."""
        return ClusterJobs(self.cluster, {**self.jobs, job.token: job}, self.host_key)


class SlurmLedger(ClusterLedger[ClusterJobs]):
    """See `ClusterLedger`."""

    kind = ClusterJobs
    hint = "Look with `squeue --me` what there is, `scancel` what is unused, and remove the file."

    def host_key(self, cluster: str) -> tuple[str, str]:
        """The key that all nodes of a cluster are known by: private and public half. Only inside `alone`."""
        known = self.of(cluster)
        if not known.host_key[0]:
            from trainmaster.transport.key_pairs import make_key_pair

            pair = make_key_pair()
            known = ClusterJobs(cluster, known.jobs, (pair.private, pair.public))
            self.put(known)
        return known.host_key
