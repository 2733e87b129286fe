"""What pods mean, and what is asked of Kubernetes for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainmaster.providers.base import NodeRequest, NodeState
from trainmaster.providers.kubernetes.answers import pod_of_answer, words_of
from trainmaster.providers.kubernetes.kueue import QueueGroup
from trainmaster.providers.kubernetes.manifests import needs_of, pod_names, pod_of
from trainmaster.providers.kubernetes.settings import KUBERNETES, KubernetesSettings
from trainmaster.spec.errors import RecipeError, UsageError
from trainmaster.spec.states import Overuse

NOW = 1_800_000_000.0
RUNNING = {"phase": "Running", "containerStatuses": [{"name": "node", "state": {"running": {}}}]}


def state(status: dict[str, Any], gone_at: str = "") -> tuple[NodeState, str]:
    about = {"name": "p"} | ({"deletionTimestamp": gone_at} if gone_at else {})
    pod = pod_of_answer({"metadata": about, "spec": {}, "status": status}, NOW)
    return pod.state, pod.reason


def waiting(reason: str, since: str = "2027-01-15T07:59:00Z") -> dict[str, Any]:
    told = {"name": "node", "state": {"waiting": {"reason": reason, "message": "of it"}}}
    return {"phase": "Pending", "startTime": since, "containerStatuses": [told]}


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    told = {"name": "node", "state": {"terminated": {"exitCode": code, "reason": reason}}}
    return {"phase": "Failed", "containerStatuses": [told]}


EVICTED = {
    "phase": "Failed",
    "reason": "Evicted",
    "message": "Pod ephemeral local storage usage exceeds the total limit of containers 1G. ",
}
UNSCHEDULED = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes: 3 Insufficient cpu"}
LATER = " no new claims to deallocate, preemption: 0/3 nodes are available: 3 Preemption is not helpful."
LATER_UNSCHEDULED = UNSCHEDULED | {"message": f"0/3 nodes: 3 Insufficient cpu.{LATER}"}
DISRUPTED = {"type": "DisruptionTarget", "message": "preempted by a more important one"}


@pytest.mark.parametrize(
    ("status", "gone_at", "expected", "words"),
    [
        (RUNNING, "", NodeState.READY, ""),
        ({"phase": "Pending", "conditions": [UNSCHEDULED]}, "", NodeState.STARTING, "Insufficient cpu"),
        ({"phase": "Pending", "conditions": [LATER_UNSCHEDULED]}, "", NodeState.STARTING, "cpu."),
        (waiting("ContainerCreating"), "", NodeState.STARTING, "ContainerCreating"),
        (waiting("ImagePullBackOff"), "", NodeState.STARTING, "ImagePullBackOff: of it"),
        (waiting("ImagePullBackOff", "2027-01-15T07:00:00Z"), "", NodeState.GONE, "cannot start"),
        (waiting("InvalidImageName"), "", NodeState.GONE, "InvalidImageName"),
        (RUNNING | {"conditions": [DISRUPTED]}, "2027-01-15T08:00:30Z", NodeState.LEAVING, "preempted by"),
        (RUNNING, "2027-01-15T07:59:50Z", NodeState.LEAVING, ""),
        (RUNNING, "2027-01-15T07:58:00Z", NodeState.GONE, ""),
        (ended(137), "2027-01-15T07:58:00Z", NodeState.GONE, ""),
        (ended(137, "OOMKilled"), "2027-01-15T07:58:00Z", NodeState.GONE, "memory did not suffice"),
        ({"phase": "Failed", "reason": "Evicted", "message": "low"}, "", NodeState.GONE, "Evicted: low"),
        (EVICTED, "", NodeState.GONE, "of containers 1G; `disk` in the recipe's `hardware` asks for more"),
        (ended(42), "", NodeState.GONE, "not renewed"),
        (ended(137, "OOMKilled"), "", NodeState.GONE, "memory did not suffice"),
        (ended(7), "", NodeState.GONE, "ended with 7"),
    ],
)  # fmt: skip
def test_states(status: dict[str, Any], gone_at: str, expected: NodeState, words: str) -> None:
    """Of a pod, and why; not what a scheduler says of preemption, which is of no use to those who wait."""
    found, reason = state(status, gone_at)
    assert found is expected
    assert words in reason
    assert "reemption" not in reason
    assert bool(words) is bool(reason)


PRESSED = "The node was low on resource: {}. Threshold quantity: 1, available: 0. "
LARGER = PRESSED + "Container node was using 9Gi, request is 1Gi, has larger consumption of {}. "


def evicted(message: str) -> dict[str, Any]:
    return EVICTED | {"message": message}


@pytest.mark.parametrize(
    ("status", "overused"),
    [
        (EVICTED, Overuse.DISK),
        (evicted('Container node exceeded its local ephemeral storage limit "1G". '), Overuse.DISK),
        (evicted('Usage of EmptyDir volume "home" exceeds the limit "1Gi". '), Overuse.DISK),
        (evicted(LARGER.format("ephemeral-storage", "ephemeral-storage")), Overuse.DISK),
        (evicted(LARGER.format("memory", "memory")), Overuse.MEMORY),
        (ended(137, "OOMKilled"), Overuse.MEMORY),
        (evicted(PRESSED.format("memory")), None),
        (EVICTED | {"reason": "Preempting"}, None),
        (ended(137), None),
        (RUNNING, None),
    ],
)
def test_what_a_pod_was_ended_for_is_its_own_use_where_that_is_said(
    status: dict[str, Any], overused: Overuse | None
) -> None:
    """A node that lacks something ends pods that have done nothing wrong, too."""
    pod = pod_of_answer({"metadata": {"name": "p"}, "spec": {}, "status": status}, NOW)
    assert pod.overused is overused
    assert ("`disk`" in pod.reason) is (overused is Overuse.DISK)


def test_what_was_put_beside_it_holds_a_pod() -> None:
    """After some seconds, in which Kubernetes ends pods that have nothing beside them."""
    for second, is_held in (("20", True), ("50", False)):
        over = ended(42)
        over["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = f"2027-01-15T07:59:{second}Z"
        for phase in ("Running", "Failed"):
            told = {"metadata": {"name": "p"}, "status": over | {"phase": phase}}
            assert pod_of_answer(told, NOW).is_held is (is_held and phase == "Running")


def test_events_say_who_preempted_it() -> None:
    """If we may see them."""
    assert words_of([{"reason": "Pulled"}, {"reason": "Preempted", "message": "by a/b"}]) == "by a/b"
    assert words_of([{"reason": "Pulled"}]) == ""


FILE = """
image: here
pull_secrets: [registry]
queue: gpus
shm: 2GiB
run_as: 1000
host_network: true
priority_class: low
volumes: {/data: images, /models: "/mnt/models:ro"}
machines:
  gpu:
    cpus: 1.5
    memory: 1GiB
    gpus: 2
    gpu_resource: nvidia.com/mig-1g.10gb
    resources: {rdma/hca: "1"}
    node_selector: {pool: fast}
    tolerations: [nvidia.com/gpu, "team=ai:NoSchedule"]
"""


def settings(tmp_path: Path, text: str = FILE) -> KubernetesSettings:
    (tmp_path / "kubernetes.yaml").write_text(text)
    return KUBERNETES.read(tmp_path, {})


def test_a_pod_has_all_that_the_settings_say(tmp_path: Path) -> None:
    """And of those beside it how many there are, for Kueue."""
    worker = NodeRequest("worker", 2, "gpu", token="w", disk_bytes=10)
    worker = replace(worker, beside=(NodeRequest("ps", 1, "gpu", token="p"),))
    name, group = pod_names("home", "run-train", worker)[0], QueueGroup("tm-1", 3)
    told = pod_of(settings(tmp_path), "home", "run-train", worker, name, "5", group)
    spec, about = told["spec"], told["metadata"]
    (container,) = spec["containers"]
    amounts = {
        "cpu": "1500m", "memory": "1073741824", "ephemeral-storage": "10", "nvidia.com/mig-1g.10gb": "2",
        "rdma/hca": "1",
    }  # fmt: skip
    assert container["resources"] == {"requests": amounts, "limits": amounts}
    assert spec["nodeSelector"] == {"pool": "fast"}
    assert {"key": "team", "value": "ai", "effect": "NoSchedule"} in spec["tolerations"]
    assert spec["hostNetwork"]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["priorityClassName"] == "low"
    assert spec["automountServiceAccountToken"] is False
    assert "TM_UNTIL + 900)" in container["command"][2]  # it is as it was before the image was fetched
    assert container["securityContext"]["runAsUser"] == 1000
    mounts = {each["mountPath"]: each.get("readOnly", False) for each in container["volumeMounts"]}
    assert mounts == {"/data": False, "/models": True, "/dev/shm": False, "/run/trainmaster": False}
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(2 << 30)}} in spec["volumes"]
    assert about["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert about["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "3"
    assert needs_of(settings(tmp_path), [worker])["requests.cpu"] == 3.0


def test_names_are_short_and_nobody_elses(tmp_path: Path) -> None:
    """As Kubernetes takes them."""
    long = NodeRequest("worker", 3, "gpu", token="t")
    names = pod_names("home", "a-very_long.Name-of-a-run-with-an-experiment-that-has-one-too", long)
    assert all(len(name) <= 63 and name == name.lower() for name in names)
    assert len({*names, *pod_names("other", "a", long), *pod_names("home", "a", long)}) == 9


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("image: x\n", "machines"),
        ("machines: {a: {cpus: 1, memory: 1GB}}\n", "image"),
        ("image: x\nmachines: {}\n", "no machines"),
        ("image: x\nmachines: {a: {cpus: 1, memory: 1GB, tolerations: [a b]}}\n", "KEY=VALUE"),
        ("image: x\nvolumes: {data: y}\nmachines: {a: {cpus: 1, memory: 1GB}}\n", "absolute"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, text: str, words: str) -> None:
    """With what to write."""
    with pytest.raises(RecipeError, match=words):
        settings(tmp_path, text)
    with pytest.raises(UsageError, match="no machine 'b'"):
        settings(tmp_path).machine("b")
