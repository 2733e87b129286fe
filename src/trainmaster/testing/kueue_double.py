"""`KueueDouble`: a `KubernetesDouble` with a Kueue that has one queue, for plain pods.

It does what the source of Kueue says (see `providers/kubernetes/kueue.py`). `tests/contract/test_kueue.py`
passed on a real one, too: Kueue 0.19.2 on Kubernetes 1.36.2 (2026-11-30).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainmaster.providers.kubernetes.kueue import counted
from trainmaster.testing.kubernetes_double import KubernetesDouble
from trainmaster.testing.kubernetes_pod import DoublePod, DoubleRefusal, written_time

QUEUE: Final = "gpus"
_KUEUE: Final = "kueue.x-k8s.io/"
_FINALIZER: Final = f"{_KUEUE}managed"
_GATE: Final = {"name": f"{_KUEUE}admission"}


@dataclass
class _Workload:
    """Pods that are admitted together.

    Attributes:
        roles: how many pods each has, and what one of them needs.
        ready_at: when all of them last ran.
        evicted: why it has to go.
    """

    roles: Mapping[str, int]
    cpus: float
    is_admitted: bool = False
    is_finished: bool = False
    ready_at: float = 0.0
    evicted: str = ""


class KueueDouble(KubernetesDouble):
    """A Kubernetes with Kueue.

    Args:
        cpus: of each node.
        nodes: how many.
        quota_cpus: of the queue.

    Attributes:
        quota_cpus: as given; it may be changed.
        workloads: by the name of the group, or of the pod that has none.
        is_on: whether there is one. is_away: its webhook does not answer, without which no pod is changed.
        recovery_s: so long a group that ran may lack some of its pods.
    """

    def __init__(self, cpus: float = 16.0, nodes: int = 1, quota_cpus: float = 16.0) -> None:
        super().__init__(cpus, nodes)
        self.quota_cpus = quota_cpus
        self.workloads: dict[str, _Workload] = {}
        self.is_on, self.is_away = True, False
        self.recovery_s = 1800.0

    def used_cpus(self) -> float:
        """Of the quota."""
        with self._lock:
            return sum(
                each.cpus for each in self.workloads.values() if each.is_admitted and not each.is_finished
            )

    def preempt(self, name: str) -> None:
        """Somebody more important wants the quota of a group."""
        with self._lock:
            self.workloads[name].evicted = (
                "Preempted to accommodate a workload (UID: 7c15484b, JobUID: 37c16cf9) due to "
                "prioritization in the ClusterQueue; preemptor path: /all; preemptee path: /all"
            )

    # --- private -------------------------------------------------------------------------------------------

    def _create(self, space: str, told: dict[str, Any], *, is_dry: bool) -> dict[str, Any]:
        about, spec = told["metadata"], told["spec"]
        if self.is_on and f"{_KUEUE}queue-name" in (about.get("labels") or {}):
            spec["schedulingGates"] = [_GATE]
            about["finalizers"] = [_FINALIZER]
            shape = [
                spec["containers"][0]["resources"]["requests"],
                spec.get("nodeSelector"),
                spec["tolerations"],
            ]
            role = hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:8]
            about.setdefault("annotations", {}).setdefault(f"{_KUEUE}role-hash", role)
        return super()._create(space, told, is_dry=is_dry)

    def _answer(self, method: str, space: str, rest: list[str], query: Mapping[str, str], body: Any) -> Any:  # noqa: ANN401 - JSON
        if self.is_away and method in ("POST", "PATCH"):
            words = 'Internal error occurred: failed calling webhook "vpod.kb.io": connection refused'
            raise DoubleRefusal(500, "InternalError", words)
        if (method, rest) == ("GET", ["localqueues"]):
            status = {"pendingWorkloads": sum(not each.is_admitted for each in self.workloads.values())}
            return {
                "kind": "LocalQueueList",
                "metadata": {},
                "items": [{"metadata": {"name": QUEUE}, "status": status}],
            }
        return super()._answer(method, space, rest, query, body)

    def _control(self) -> None:
        if self.is_away:
            return
        groups: dict[str, list[DoublePod]] = {}
        for pod in self._pods.values():
            about = pod.told["metadata"]
            labels = about.get("labels") or {}
            if f"{_KUEUE}queue-name" in labels and self.is_on:
                groups.setdefault(labels.get(f"{_KUEUE}pod-group-name") or about["name"], []).append(pod)
        for name in [each for each in self.workloads if each not in groups]:
            del self.workloads[name]
        for name, pods in groups.items():
            self._look_after(name, pods)

    def _look_after(self, name: str, pods: list[DoublePod]) -> None:
        is_group = f"{_KUEUE}pod-group-name" in pods[0].told["metadata"]["labels"]
        notes = [pod.told["metadata"]["annotations"] for pod in pods]
        total = int(notes[0][f"{_KUEUE}pod-group-total-count"]) if is_group else 1
        active = [pod for pod in pods if _is_active(pod)]
        inactive = [pod for pod in pods if not _is_active(pod)]
        if not is_group and "deletionTimestamp" in pods[0].told["metadata"]:
            self.workloads.pop(name, None)
            return _let_go(pods)
        workload = self.workloads.get(name)
        if workload is None:
            _let_go(inactive)
            if len(active) < total:
                return None
            roles = Counter(map(_role, active))
            workload = _Workload(roles, sum(pod.needs.get("cpu", 0) for pod in active))
            self.workloads[name] = workload
        succeeded = sum(pod.told["status"]["phase"] == "Succeeded" for pod in pods)
        are_over = all(pod.is_over for pod in pods)
        is_final = not is_group or any(each.get(f"{_KUEUE}retriable-in-group") == "false" for each in notes)
        if workload.is_finished or succeeded == total or (are_over and is_final):
            workload.is_finished = True
            return _let_go(pods)
        absent = 0
        for role, count in workload.roles.items():
            there = [pod for pod in active if _role(pod) == role]
            there.sort(key=lambda pod: (bool(pod.told["spec"].get("schedulingGates")), pod.number))
            for pod in there[count:]:
                _let_go([pod])
                self._delete(*_place(pod), None)
            failed = [pod for pod in inactive if _role(pod) == role]
            _let_go(failed[: max(0, min(len(failed), len(failed) + len(there) - count))])
            absent += max(0, count - len(there))
        if any(_role(pod) not in workload.roles for pod in active):  # all that runs ends with it
            for pod in pods:
                _let_go([pod])
                self._delete(*_place(pod), None)
            del self.workloads[name]
            return None
        if len(pods) >= total and all(pod.told["status"]["phase"] == "Running" for pod in pods):
            workload.ready_at = time.monotonic()
        elif workload.is_admitted and 0 < workload.ready_at < time.monotonic() - self.recovery_s:
            workload.evicted = workload.evicted or f"Exceeded the PodsReady timeout research/{name}"
        if workload.evicted:
            self._evict(workload, pods)
        elif workload.is_admitted:
            for pod in pods:
                pod.told["spec"]["schedulingGates"] = []
        elif not absent:
            self._admit(workload, pods[0])
        return None

    def _admit(self, workload: _Workload, pod: DoublePod) -> None:
        """Give it quota, or say why it has none."""
        name, role = counted(pod.told).workload, min(workload.roles)
        lacking = self.used_cpus() + workload.cpus - self.quota_cpus
        workload.is_admitted = lacking <= 0
        self._events = [each for each in self._events if each["involvedObject"]["name"] != name]
        if workload.is_admitted:
            return
        words = f"couldn't assign flavors to pod set {role}: insufficient unused quota for cpu in flavor any"
        message = f"{words}, {round(lacking * 1000)}m more needed"
        event = {
            "type": "Warning",
            "reason": "Pending",
            "message": message,
            "eventTime": written_time(time.time()),
        }
        self._events.append({**event, "involvedObject": {"kind": "Workload", "name": name}})

    def _evict(self, workload: _Workload, pods: list[DoublePod]) -> None:
        for pod in pods:
            if (
                not pod.is_over
                and "deletionTimestamp" not in pod.told["metadata"]
                and pod.process is not None
            ):
                pod.told["status"]["conditions"] = [
                    {
                        "type": "TerminationTarget",
                        "status": "True",
                        "reason": "WorkloadEvictedByPreemption",
                        "message": workload.evicted,
                    }
                ]
                self._delete(*_place(pod), None)
        if all(pod.is_over or pod.process is None for pod in pods):
            workload.is_admitted, workload.evicted = False, ""


def _role(pod: DoublePod) -> str:
    return str(pod.told["metadata"]["annotations"][f"{_KUEUE}role-hash"])


def _place(pod: DoublePod) -> tuple[str, str]:
    return pod.told["metadata"]["namespace"], pod.told["metadata"]["name"]


def _is_active(pod: DoublePod) -> bool:
    is_leaving = "deletionTimestamp" in pod.told["metadata"]
    return pod.told["status"]["phase"] != "Failed" and not (is_leaving and not pod.node)


def _let_go(pods: list[DoublePod]) -> None:
    for pod in pods:
        pod.told["metadata"]["finalizers"] = []
