"""What Kubernetes says: how far a pod is, and why. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.providers.base import NodeState
from trainmaster.providers.examining import Finding, driver_finding, unseen_drivers
from trainmaster.providers.kubernetes import kueue
from trainmaster.providers.kubernetes.kueue import CountedPod
from trainmaster.providers.kubernetes.manifests import ENDS, HOME, OF, TOKEN, UNTIL, amount_of
from trainmaster.spec.states import Overuse
from trainmaster.transport.kubernetes.exec_process import CONTAINER

#: A node that answers has ended a pod by so long after it should have.
_GONE_S: Final = 30.0
#: An image that cannot be had is asked for again for so long.
_IMAGE_S: Final = 120.0
_NEVER: Final = ("InvalidImageName", "CreateContainerConfigError", "ErrImageNeverPull")
_NOT_YET: Final = ("ErrImagePull", "ImagePullBackOff", "CreateContainerError", "RunContainerError")
#: Conditions of events that say why a pod goes.
_WHY: Final = ("Preempted", "Evicted", "TaintManagerEviction", "NodeNotReady", "Preempting")

#: What a scheduler says from 1.24 on behind why a pod has no node.
_PREEMPTION: Final = re.compile(r" (no new claims to deallocate, )?preemption: .*")


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, as Kubernetes tells it; times by its clock, Unix seconds, 0 if there is none.

    Attributes:
        name: of it. cluster, token: that it is for. until: to which it is wanted.
        state, reason: how far it is; no reason if it was deleted, and nothing says why.
        address: of it. node: that it is on.
        is_placed: it has a node.
        created_at, started_at: when. leaves_at: when it is ended by force. ended_at: when it has ended.
        is_leaving: somebody has deleted it, and it ends.
        is_held: ours has ended, and what was put beside it has not.
        is_lost: its node should have ended it, and does not say so.
        overused: see `Node`.
        counted: as Kueue counts it.
    """

    name: str
    cluster: str
    token: str
    until: float
    state: NodeState
    reason: str
    address: str = ""
    node: str = ""
    is_placed: bool = False
    created_at: float = 0.0
    started_at: float = 0.0
    leaves_at: float = 0.0
    ended_at: float = 0.0
    is_leaving: bool = False
    is_held: bool = False
    is_lost: bool = False
    overused: Overuse | None = None
    counted: CountedPod | None = None


def pod_of_answer(told: Mapping[str, Any], now: float) -> Pod:
    """A pod of an answer.

    Args:
        told: as Kubernetes has it.
        now: Unix seconds, by its clock.
    """
    about, spec, status = told["metadata"], told.get("spec") or {}, told.get("status") or {}
    notes = about.get("annotations") or {}
    leaves_at = time_of(about.get("deletionTimestamp"))
    counted = kueue.counted(told)
    state, reason = kueue.state_of(counted, told, *_state(status, leaves_at, now))
    ended = time_of((_container(status).get("terminated") or {}).get("finishedAt"))
    return Pod(
        name=str(about["name"]),
        cluster=str(notes.get(OF, "")),
        token=str(notes.get(TOKEN, "")),
        until=amount_of(str(notes.get(UNTIL, "0"))),
        state=state,
        reason=reason,
        address=str(status.get("podIP") or ""),
        node=str(spec.get("nodeName") or ""),
        is_placed=bool(spec.get("nodeName")),
        created_at=time_of(about.get("creationTimestamp")),
        started_at=time_of(status.get("startTime")),
        leaves_at=leaves_at,
        ended_at=ended or (leaves_at if state is NodeState.GONE else 0.0),
        is_leaving=bool(leaves_at),
        is_held=status.get("phase") == "Running" and 0 < ended < now - _GONE_S,
        is_lost=status.get("phase") == "Running" and 0 < leaves_at < now - _GONE_S,
        overused=_overused(status) if state is NodeState.GONE else None,
        counted=counted,
    )


def time_of(written: object) -> float:
    """Unix seconds; 0 for none.

    >>> time_of("1970-01-01T00:01:00Z"), time_of(None)
    (60.0, 0.0)
    """
    try:
        return datetime.fromisoformat(str(written).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0


def words_of(events: Sequence[Mapping[str, Any]]) -> str:
    """Why a pod goes, of what happened to it; empty if nothing says so."""
    found = [each for each in events if each.get("reason") in _WHY]
    return " ".join(str(found[-1].get("message") or found[-1]["reason"]).split()) if found else ""


def used_of(quota: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What a quota limits, what is used of that, and the limit, as they are written."""
    status = quota.get("status") or {}
    used = status.get("used") or {}
    return [(what, str(used.get(what, "0")), str(hard)) for what, hard in (status.get("hard") or {}).items()]


def short_quotas(quotas: Sequence[Mapping[str, Any]], needed: Mapping[str, float]) -> list[tuple[str, bool]]:
    """What quotas do not allow, in words, and whether they never will.

    >>> quota = {"metadata": {"name": "q"}, "status": {"hard": {"pods": "4"}, "used": {"pods": "3"}}}
    >>> short_quotas([quota], {"pods": 2.0}), short_quotas([quota], {"pods": 1.0})
    ([('quota q allows 4 of pods, 3 are used, and 2 are needed', False)], [])
    """
    found = []
    for quota in quotas:
        spec = quota.get("spec") or {}
        if spec.get("scopes") or spec.get("scopeSelector"):
            continue  # the server knows which pods these are for
        name = (quota.get("metadata") or {}).get("name")
        for what, used, hard in used_of(quota):
            limit, want = amount_of(hard), needed.get(what, 0.0)
            if want and want > limit - amount_of(used):
                words = f"quota {name} allows {hard} of {what}, {used} are used, and {want:g} are needed"
                found.append((words, want > limit))
    return found


def queue_findings(queues: Sequence[Mapping[str, Any]] | None, queue: str, whose: str) -> list[Finding]:
    """Whether there is the queue of the settings, and how many wait in it.

    >>> queues = [{"metadata": {"name": "gpus"}, "status": {"pendingWorkloads": 2}}]
    >>> [each.found for name in ("gpus", "gpu") for each in queue_findings(queues, name, "n")]
    ['n: 2 wait in queue gpus of Kueue', 'n: Kueue has no queue gpu; it has gpus']
    """
    if queues is None:
        return [Finding("queue", f"{whose}: the queues of Kueue may not be listed with these rights")]
    found = {str(each["metadata"]["name"]): each.get("status") or {} for each in queues}
    if queue in found:
        waiting = int(found[queue].get("pendingWorkloads") or 0)
        closed = [
            f", which admits none: {each.get('message')}"
            for each in found[queue].get("conditions") or ()
            if (each.get("type"), each.get("status")) == ("Active", "False")
        ]
        return [Finding("queue", "".join([f"{whose}: {waiting} wait in queue {queue} of Kueue", *closed]))]
    words = f"{whose}: Kueue has no queue {queue}; it has {', '.join(sorted(found)) or 'none'}"
    return [Finding("queue", words, ok=False, advice="Name one of these as `queue`.")]


def network_findings(policies: Sequence[Mapping[str, Any]] | None, whose: str) -> list[Finding]:
    """Whether policies may keep the pods of a cluster apart: those that choose all pods, and let few in.

    >>> deny = {"metadata": {"name": "deny"}, "spec": {"podSelector": {}}}
    >>> [(each.found, each.ok) for each in network_findings([deny], "n")]
    [('n: network policy deny may keep pods apart', False)]
    """
    if policies is None:
        return [
            Finding("network", f"{whose}: its policies may not be seen; without any, pods reach each other")
        ]
    names = [
        str(each["metadata"]["name"])
        for each in policies
        if not any((each.get("spec", {}).get("podSelector") or {}).values())
        and not any(_lets_all_in(rule) for rule in each.get("spec", {}).get("ingress") or ())
        and "Ingress" in (each.get("spec", {}).get("policyTypes") or ("Ingress",))
    ]
    if not names:
        return [Finding("network", f"{whose}: no policy keeps pods apart")]
    advice = f"Let pods with the label {HOME} reach each other: see docs/kubernetes.md."
    words = f"{whose}: network policy {', '.join(names)} may keep pods apart"
    return [Finding("network", words, ok=False, advice=advice)]


def _lets_all_in(rule: Mapping[str, Any]) -> bool:
    """Whether pods of the namespace are let in on every port."""
    return not rule.get("ports") and (
        not rule.get("from")
        or any(
            "podSelector" in each and not any((each["podSelector"] or {}).values()) for each in rule["from"]
        )
    )


def node_findings(nodes: Sequence[Mapping[str, Any]] | None, builds: Mapping[str, str]) -> list[Finding]:
    """What nodes have, and their drivers, where NVIDIA's feature discovery has written them on the nodes."""
    if nodes is None:
        words = "nodes may not be listed with these rights, which runs do not need"
        return [Finding("nodes", words), *unseen_drivers(builds)]
    free = [each for each in nodes if not (each.get("spec") or {}).get("unschedulable")]
    has = [(each.get("status") or {}).get("allocatable") or {} for each in free]
    gpus = sum(amount_of(str(each.get("nvidia.com/gpu", "0"))) for each in has)
    advice = "" if free else "None can be had: ask the administrator."
    words = f"{len(free)} of {len(nodes)} take pods, with {gpus:g} nvidia.com/gpu in all"
    found = [Finding("nodes", words, bool(free), advice)]
    drivers = {driver: str(each["metadata"]["name"]) for each in free if (driver := _driver(each))}
    found += [driver_finding(name, driver, builds) for driver, name in drivers.items()]
    return found + ([] if drivers else unseen_drivers(builds))


def _driver(node: Mapping[str, Any]) -> str:
    labels = (node.get("metadata") or {}).get("labels") or {}
    parts = [labels.get(f"nvidia.com/cuda.driver.{part}", "") for part in ("major", "minor", "rev")]
    return str(labels.get("nvidia.com/cuda.driver-version.full") or ".".join(filter(None, parts)))


def _container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """State of our container."""
    for each in status.get("containerStatuses") or ():
        if each.get("name") == CONTAINER:
            state: Mapping[str, Any] = each.get("state") or {}
            return state
    return {}


def _state(status: Mapping[str, Any], leaves_at: float, now: float) -> tuple[NodeState, str]:
    phase, container = status.get("phase"), _container(status)
    conditions = {str(each.get("type")): each for each in status.get("conditions") or ()}
    said = " ".join(str(status.get("message") or "").split())
    # Kueue's condition, if it has one: it says who has taken the quota.
    ending = conditions.get("TerminationTarget") or conditions.get("DisruptionTarget") or {}
    why = str(ending.get("message") or said)
    if phase in ("Succeeded", "Failed") or "terminated" in container:
        ended = container.get("terminated") or {}
        words = _end(str(status.get("reason") or ""), said, ended, _overused(status))
        return NodeState.GONE, words or (why if leaves_at else f"its pod has ended with {_code(ended)}")
    if leaves_at:
        is_gone = phase == "Pending" or now > leaves_at + _GONE_S
        return NodeState.GONE if is_gone else NodeState.LEAVING, why
    if phase == "Running" and "running" in container:
        return NodeState.READY, ""
    waiting = container.get("waiting") or {}
    what, words = str(waiting.get("reason") or ""), " ".join(str(waiting.get("message") or "").split())
    if what in _NEVER or (what in _NOT_YET and now - time_of(status.get("startTime")) > _IMAGE_S):
        return NodeState.GONE, f"its container cannot start: {what}: {words}"
    if what in _NOT_YET:
        return NodeState.STARTING, f"{what}: {words}"
    placed = conditions.get("PodScheduled") or {}
    if placed.get("status") == "False":
        words = " ".join(str(placed.get("message") or placed.get("reason") or "").split())
        return NodeState.STARTING, f"it has no node yet: {_PREEMPTION.sub('', words)}"
    return NodeState.STARTING, what


def _overused(status: Mapping[str, Any]) -> Overuse | None:
    """What our container used too much of. A node that lacks it ends pods that use more than they asked for.

    >>> _overused({"reason": "Evicted", "message": "The node was low on resource: memory. Container main was \
using 3Gi, request is 1Gi, has larger consumption of memory. "})
    <Overuse.MEMORY: 'memory'>
    >>> _overused({"reason": "Evicted", "message": "The node was low on resource: memory. "})
    """
    if (_container(status).get("terminated") or {}).get("reason") == "OOMKilled":
        return Overuse.MEMORY
    if status.get("reason") != "Evicted":
        return None
    said = str(status.get("message") or "").lower()
    if "larger consumption of memory" in said:
        return Overuse.MEMORY
    is_own = "exceed" in said and ("ephemeral" in said or "emptydir" in said)
    return Overuse.DISK if is_own or "larger consumption of ephemeral-storage" in said else None


def _end(reason: str, said: str, ended: Mapping[str, Any], overused: Overuse | None) -> str:
    """Why a pod has ended; empty where its code says nothing, as that of one that was deleted."""
    if reason:  # Evicted, Preempting, NodeLost, DeadlineExceeded, OutOfcpu
        if overused is Overuse.DISK:
            said = f"{said.rstrip('. ')}; `disk` in the recipe's `hardware` asks for more"
        return f"{reason}: {said}" if said else reason
    if ended.get("reason") == "OOMKilled":
        return "its memory did not suffice (OOMKilled)"
    return ENDS.get(_code(ended), "")


def _code(ended: Mapping[str, Any]) -> int:
    return int(ended.get("exitCode") or 0)
