"""Runs on a real Kubernetes of two nodes, and all that may happen to them there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("websockets", reason="websockets is not installed")
pytest.importorskip("asyncssh", reason="asyncssh is not installed")

from kubernetes_places import KubernetesAccount, account_of, check_clean, real_kubernetes, renter_of
from place_runs import Crossing, cross, gang, until, until_step
from renter import Renter

from trainmaster.testing.helm_chart import rendered, values_of
from trainmaster.testing.private_kubernetes import NAMESPACE, PrivateKubernetes

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.places,
]
RBAC = "apis/rbac.authorization.k8s.io/v1"


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[PrivateKubernetes]:
    """One for all tests."""
    yield from real_kubernetes(2)


@pytest.fixture
def account(kubernetes: PrivateKubernetes, tmp_path: Path) -> KubernetesAccount:
    """A new user of it."""
    return account_of(kubernetes, tmp_path)


@pytest.fixture
def user(account: KubernetesAccount, tmp_path: Path) -> Iterator[Renter]:
    """They run recipes there."""
    yield from renter_of(account, tmp_path)


def test_a_gang_of_two_that_is_looked_into(user: Renter, account: KubernetesAccount) -> None:
    """By shells, files, ports and what its first processes have said; nothing of it stays."""
    going = user.run(gang(user, 2, 4000), provider="kubernetes")
    run = going.run
    until_step(user, run)
    assert user.call("ssh", run, "worker-1", "--", "hostname").stdout.startswith("tm-")
    assert user.call("exec", run, "worker-0", "--", "sh", "-c", "exit 3", code=3).returncode == 3
    source = user.work / "sent"
    source.write_bytes(os.urandom(2_000_000))
    user.call("cp", str(source), f"{run}/worker-1:/tmp/sent")
    user.call("cp", f"{run}/worker-1:/tmp/sent", str(user.work / "back"))
    assert (user.work / "back").read_bytes() == source.read_bytes()
    going.interrupt()
    going.end(code=None)
    check_clean(account)


def claim(kubernetes: PrivateKubernetes, name: str, place: Path) -> None:
    """A volume of Kubernetes' own, which a directory of this machine stands for, and a claim on it."""
    size = {"storage": "20Gi"}
    about = {"capacity": size, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": str(place)}}
    kubernetes.api.call("POST", "/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": about})
    if name == "claimed":
        wish = {"accessModes": ["ReadWriteOnce"], "volumeName": name, "resources": {"requests": size}}
        kubernetes.api.call("POST", "persistentvolumeclaims", {"metadata": {"name": name}, "spec": wish})


def test_a_claim_is_mounted(user: Renter, account: KubernetesAccount) -> None:
    """A volume of Kubernetes' own."""
    settings = account.home / "kubernetes.yaml"
    (place := user.work.parent / "claimed").mkdir(mode=0o777)
    claim(account.kubernetes, "claimed", place)
    settings.write_text(settings.read_text().replace('"/usr:ro"', '"/usr:ro", /claimed: claimed'))
    command = "echo by $TRAINMASTER_INDEX > /claimed/$TRAINMASTER_INDEX; cat /claimed/*"
    cross(user, "kubernetes", Crossing(command, "by 1", "node"))
    check_clean(account)


def test_a_pod_that_is_preempted_saves_and_comes_again(user: Renter, account: KubernetesAccount) -> None:
    """By one of a higher priority for which there is no other room."""
    api, settings = account.kubernetes.api, account.home / "kubernetes.yaml"
    settings.write_text(settings.read_text() + "  most: {cpus: 1.2, memory: 300MB}\n")
    urgent = {"metadata": {"name": "urgent"}, "value": 1000, "preemptionPolicy": "PreemptLowerPriority"}
    api.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", urgent)
    going = user.run(gang(user, 2, 300, "most"), provider="kubernetes")
    run = going.run
    until_step(user, run)
    amounts = {"cpu": "1200m", "memory": "10Mi"}
    container = {
        "name": "c",
        "image": "work:lab",
        "command": ["/nothing"],
        "resources": {"requests": amounts},
    }
    spec = {"priorityClassName": "urgent", "containers": [container], "restartPolicy": "Never"}
    api.call("POST", "pods", {"metadata": {"name": "urgent"}, "spec": {**spec, "priority": 1000}})
    going.until_said("is taken back", 120)
    until(lambda: api.call("GET", "pods/urgent")["spec"].get("nodeName"), 120)
    api.call("DELETE", "pods/urgent", query={"gracePeriodSeconds": "0"})
    assert going.end()["state"] == "DONE"
    assert max(step for _, step in user.starts(run)) > 0
    check_clean(account)


def test_a_server_by_the_helm_chart(kubernetes: PrivateKubernetes, tmp_path: Path) -> None:
    """The real API server takes all of it, the server is ready, and it may do what runs need and no more."""
    root = Path(__file__).parents[3]
    places = dict.fromkeys(["/usr", sys.base_prefix, sys.prefix, str(root / "src")])
    (data := tmp_path / "data").mkdir(mode=0o777)
    chart = root / "deploy" / "helm" / "trainmaster"
    values = values_of(
        chart,
        image="work:lab",
        pullPolicy="Never",
        command=[f"{sys.prefix}/bin/python", "-m", "trainmaster"],
        securityContext={"runAsUser": 0, "runAsGroup": 0, "fsGroup": 0},
        resources={"requests": {"cpu": "100m", "memory": "100Mi"}, "limits": {"memory": "1Gi"}},
        extraVolumes=[{"name": f"p{at}", "hostPath": {"path": place}} for at, place in enumerate(places)],
        extraVolumeMounts=[
            {"name": f"p{at}", "mountPath": place, "readOnly": True} for at, place in enumerate(places)
        ],
    )
    api, name = kubernetes.api, "tm-server"
    claim(kubernetes, "of-a-server", data)
    groups = {"Deployment": "apis/apps/v1", "Role": RBAC, "RoleBinding": RBAC}
    for each in rendered(chart, values, name, NAMESPACE):
        place = f"/{groups.get(each['kind'], 'api/v1')}/namespaces/{NAMESPACE}/{each['kind'].lower()}s"
        api.call("POST", place, each)
    deployment = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{name}"

    def seen() -> str:
        pods = [each for each in api.all("pods") if each["metadata"]["name"].startswith(name)]
        return "\n".join(
            [str(each["status"]) + api.text(f"pods/{each['metadata']['name']}/log") for each in pods]
        )

    until(lambda: (api.call("GET", deployment).get("status") or {}).get("readyReplicas"), 240, seen)
    assert (data / "home" / "trainmaster.db").exists()

    def may(verb: str, resource: str) -> bool:
        attributes = {"namespace": NAMESPACE, "verb": verb, "resource": resource}
        spec = {"user": f"system:serviceaccount:{NAMESPACE}:{name}", "resourceAttributes": attributes}
        answer = api.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
        return bool(answer["status"]["allowed"])

    assert may("create", "pods")
    assert not may("get", "secrets")
    assert not may("create", "deployments")
    api.call("DELETE", deployment, {"propagationPolicy": "Foreground"})
    until(lambda: not kubernetes.left(), 120, kubernetes.left)
