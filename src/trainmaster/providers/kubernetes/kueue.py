"""Kueue, which admits pods in queues of its own: what it is told, and how it counts pods. Pure.

How its controller of plain pods works (kubernetes-sigs/kueue, pkg/controller/jobs/pod, November 2026):

- A group is admitted when all of its pods are there. Until then they are gated: no node is found for them.
- One that failed, or was deleted before it had a node, keeps its part of the quota for a replacement: another
  pod of the same group and role. What is one too many is deleted, the newest first.
- A group is over when all have succeeded or, where one says that it is not replaced, when all have ended.
- Until then a finalizer keeps what was deleted. A pod without a group goes once it is deleted.
- A group that ran, and lacks pods of those that it says it has, is evicted after half an hour (since 0.19).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from trainmaster.providers.base import NodeRequest, NodeState
from trainmaster.providers.cluster_ledger import AskedMachines, KnownCluster
from trainmaster.spec.private_files import short_digest

_PREFIX: Final = "kueue.x-k8s.io/"
QUEUE: Final = f"{_PREFIX}queue-name"
GROUP: Final = f"{_PREFIX}pod-group-name"
TOTAL: Final = f"{_PREFIX}pod-group-total-count"
ROLE: Final = f"{_PREFIX}role-hash"
NOT_REPLACED: Final = f"{_PREFIX}retriable-in-group"
GATE: Final = f"{_PREFIX}admission"
FINALIZER: Final = f"{_PREFIX}managed"
#: What lets a deleted pod go, for those who may not wait for the others of its group.
LET_GO: Final = {"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}}
#: Where its queues are listed; it has had these versions.
QUEUES: Final = tuple(
    f"/apis/kueue.x-k8s.io/{version}/namespaces/NAMESPACE/localqueues" for version in ("v1beta2", "v1beta1")
)


class QueueGroup(NamedTuple):
    """Pods that are admitted together. role: as Kueue calls the machine of a pod that is replaced."""

    name: str
    pods: int
    role: str = ""

    @property
    def about(self) -> dict[str, str]:
        """What is kept of it with a request."""
        return {"group": self.name, "pods": str(self.pods)} | ({"role": self.role} if self.role else {})


class CountedPod(NamedTuple):
    """A pod as Kueue counts it.

    Attributes:
        group, role: that it is of; empty if it has none.
        is_active: it runs, has succeeded, or may still run.
        is_running: it was not deleted.
        is_kept: it has been deleted, and is not let go.
        is_waiting: for Kueue.
        is_over: its group was over before it came: it is never admitted.
        total: of its group, as it says.
        workload: as Kueue calls what is admitted with it.
    """

    group: str
    role: str
    is_active: bool
    is_running: bool
    is_kept: bool
    is_waiting: bool
    is_over: bool
    total: int
    workload: str


def counted(told: Mapping[str, Any]) -> CountedPod:
    """A pod of an answer."""
    about, spec = told["metadata"], told.get("spec") or {}
    phase = (told.get("status") or {}).get("phase")
    is_leaving, has_finalizer = bool(about.get("deletionTimestamp")), FINALIZER in about.get("finalizers", ())
    group = str((about.get("labels") or {}).get(GROUP, ""))
    is_over = bool(group) and is_gated(told) and not has_finalizer
    return CountedPod(
        group,
        role=str((about.get("annotations") or {}).get(ROLE, "")),
        is_active=phase != "Failed" and not (is_leaving and not spec.get("nodeName")),
        is_running=phase == "Running" and not is_leaving,
        is_kept=is_leaving and has_finalizer,
        is_waiting=is_gated(told) and not is_leaving and not is_over,
        is_over=is_over,
        total=int((about.get("annotations") or {}).get(TOTAL, 1)),
        workload=group or _workload_of(str(about["name"]), str(about.get("uid", ""))),
    )


def _workload_of(name: str, uid: str) -> str:
    """What Kueue makes of a pod without a group, by its `GetWorkloadNameForOwnerWithGVK`."""
    digest = hashlib.sha1(f"Pod\n\n{name}\n{uid}".encode(), usedforsecurity=False).hexdigest()
    return f"pod-{name}-{digest[:5]}"


def last_words(events: Sequence[Mapping[str, Any]]) -> str:
    """Why what waits is not admitted, of what happened to it; empty if nothing says so.

    >>> said = [{"type": "Warning", "eventTime": at, "message": f"said at {at}"} for at in ("02:00", "01:00")]
    >>> last_words(said)
    'said at 02:00'
    """
    found = [each for each in events if each.get("type") == "Warning"]
    return " ".join(str(max(found, key=_time_of).get("message") or "").split()) if found else ""


def _time_of(event: Mapping[str, Any]) -> str:
    last = (event.get("series") or {}).get("lastObservedTime")
    return str(last or event.get("lastTimestamp") or event.get("eventTime") or "")


def is_gated(told: Mapping[str, Any]) -> bool:
    """Whether a pod waits for Kueue."""
    gates = (told.get("spec") or {}).get("schedulingGates") or ()
    return any(each.get("name") == GATE for each in gates)


def group_of(
    home: str, known: KnownCluster, requests: Sequence[NodeRequest], pods: Mapping[str, CountedPod]
) -> QueueGroup | None:
    """The group of pods that are had together; None for a single one, which needs none.

    What replaces lost pods is of their group: it has the quota of these, and does not queue again.

    Args:
        home: whose they are.
        known: of the cluster.
        requests: had together.
        pods: of the cluster, by their names.
    """
    wanted = Counter[str]()
    for each in requests:
        wanted[each.instance_type] += each.count
    group = QueueGroup(_name(home, known.cluster, requests[0].token), wanted.total())
    if already := known.asked.get(requests[0].token):
        return _of_about(already.about)
    return _with_room(home, known, wanted, pods) or (group if group.pods > 1 else None)


def overtaken(home: str, known: KnownCluster, pods: Mapping[str, CountedPod]) -> list[AskedMachines]:
    """Requests that wait, though others of their cluster have ended since, and left quota to them."""
    found = []
    for asked in known.asked.values():
        there = [pods[each] for each in asked.left if each in pods]
        wanted = Counter({asked.machine: len(asked.machines)})
        is_first = asked.group[:1] == (asked.token,) and len(asked.group) == 1
        if (
            is_first
            and there
            and all(each.is_waiting for each in there)
            and _with_room(home, known, wanted, pods, asked.about.get("group", ""))
        ):
            found.append(asked)
    return found


def shrunk(pods: Mapping[str, CountedPod]) -> dict[str, dict[str, Any]]:
    """Changes to pods of a group of which a part was given back: Kueue would end the rest after a while."""
    found = {}
    for name in {each.group for each in pods.values()} - {""}:
        there = {key: each for key, each in pods.items() if each.group == name and each.is_active}
        if all(each.is_running for each in there.values()):
            change = {"metadata": {"annotations": {TOTAL: str(len(there))}}}
            found.update({key: change for key, each in there.items() if each.total > len(there)})
    return found


def _with_room(
    home: str, known: KnownCluster, wanted: Counter[str], pods: Mapping[str, CountedPod], other_than: str = ""
) -> QueueGroup | None:
    """A group that lacks such pods, and has others that run, or wait."""
    alive = {each.group for each in pods.values() if each.is_running or each.is_waiting}
    for name in sorted(alive - {"", other_than}):
        free, roles, size = Counter[str](), dict[str, str](), 0
        for asked in known.asked.values():
            if asked.about.get("group") != name:
                continue
            is_first = asked.is_made and name == _name(home, known.cluster, asked.group[0])
            size += is_first * len(asked.machines)
            there = [pods[each] for each in asked.machines if each in pods]
            free[asked.machine] += is_first * len(asked.machines) - sum(each.is_active for each in there)
            roles.update((asked.machine, each.role) for each in there if each.role)
        if size and len(wanted) == 1 and wanted <= free:
            return QueueGroup(name, size, roles.get(min(wanted), ""))
    return None


def _of_about(about: Mapping[str, str]) -> QueueGroup | None:
    """What was kept of a group with a request."""
    return QueueGroup(about["group"], int(about["pods"]), about.get("role", "")) if "group" in about else None


def labels(queue: str, group: QueueGroup | None) -> tuple[dict[str, str], dict[str, str]]:
    """Labels and annotations of a pod."""
    if group is None:
        return {QUEUE: queue}, {}
    annotations = {TOTAL: str(group.pods), NOT_REPLACED: "false"} | ({ROLE: group.role} if group.role else {})
    return {QUEUE: queue, GROUP: group.name}, annotations


def state_of(pod: CountedPod, told: Mapping[str, Any], state: NodeState, words: str) -> tuple[NodeState, str]:
    """How far a pod is, and why, with what Kueue has to do with it."""
    if pod.is_over:
        return NodeState.GONE, "its group in Kueue was over before it came"
    if state is NodeState.STARTING and is_gated(told):
        queue = (told["metadata"].get("labels") or {}).get(QUEUE, "")
        return state, f"it waits in queue {queue} of Kueue"
    return state, words


def _name(home: str, cluster: str, token: str) -> str:
    return f"tm-{short_digest(f'{home} {cluster} {token}')}"
