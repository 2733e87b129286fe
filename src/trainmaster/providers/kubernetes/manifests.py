"""What Kubernetes is told: the pod that a machine is. Pure.

A pod's first process is its dead-man switch: it ends, and with it all that is in the pod, when its lease is
not renewed. That takes no right of any kind.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from trainmaster.providers.base import BOOT_S, CLOCKS_DIFFER_S, NodeRequest
from trainmaster.providers.dead_man_switch import LEASE_FUNCTIONS
from trainmaster.providers.kubernetes import kueue
from trainmaster.providers.kubernetes.kueue import QueueGroup
from trainmaster.providers.kubernetes.settings import KubernetesMachine, KubernetesSettings
from trainmaster.spec.private_files import short_digest
from trainmaster.transport.kubernetes.exec_process import CONTAINER

HOME: Final = "trainmaster/home"
CLUSTER: Final = "trainmaster/cluster"
#: Annotations, as labels have room for little: for which cluster, which request, until when (Unix seconds).
OF: Final = "trainmaster/of"
TOKEN: Final = "trainmaster/token"  # noqa: S105 - the name of it
UNTIL: Final = "trainmaster/until"
#: Of the lease, and of what else must be there before anything is installed.
DIRECTORY: Final = "/run/trainmaster"
RUNTIME: Final = "/var/tmp/trainmaster-runtime"  # noqa: S108 - in a pod of its own
#: What has to go ends when nothing but its switch has run there for so many looks, of two seconds each.
_IDLE: Final = 5
#: A pod whose node does not answer is believed lost by Kubernetes after so long, seconds.
_UNREACHED_S: Final = 60
_PLAIN: Final = re.compile(r"[^a-z0-9]+")
_SWITCH: Final = """\
umask 022
dir=/run/trainmaster
cd "$dir" || exit 41
# The run that has waited for a node for it may be over, or have lost its driver. The annotation is as it was
# before the image was fetched.
if [ "${TM_UNTIL:-0}" -gt 0 ] && [ "$(date +%s)" -gt $((TM_UNTIL + @LATE@)) ]; then exit 44; fi 2>/dev/null
@FUNCTIONS@
trap ': > leaving' TERM # it may save for as long as it has
trap : HUP INT
begin_lease @LEASE@; echo $$ > deadman.pid
alone() {
  for each in /proc/[0-9]*/stat; do
    read -r line < "$each" || continue
    case $line in "$$ "*|*") Z "*) ;; *) return 1 ;; esac
  done 2>/dev/null
}
idle=0
while lease_holds; do
  # The run has given it back, and a kubelet from 1.22 on makes the time that it has no shorter.
  if [ -f leaving ] && alone; then idle=$((idle + 1)); else idle=0; fi
  [ "$idle" -lt @IDLE@ ] || exit 143 # as one that SIGTERM ends
done
[ "$missing" = 0 ] || exit 43
echo "this pod ends itself: its lease was not renewed"
exit 42
"""
#: Exit codes of that, and what they mean.
ENDS: Final = {
    41: "its directory /run/trainmaster cannot be used",
    42: "its lease was not renewed",
    43: "its lease was removed",
    44: "when it began, no run wanted it any more",
}


def home_label(home: str) -> str:
    """Whose a pod is, as a label."""
    return short_digest(home)


def pod_names(home: str, cluster: str, request: NodeRequest) -> list[str]:
    """The pods of a request: the same ones each time, and no other's.

    >>> pod_names("h", "Steps_1-train", NodeRequest("worker", 2, token="t"))
    ['tm-steps-1-train-worker-0-eb395013', 'tm-steps-1-train-worker-1-eb395013']
    """
    plain = _PLAIN.sub("-", cluster.lower()).strip("-")[:30].strip("-")
    role = _PLAIN.sub("-", request.role.lower()).strip("-")[:12]
    digest = hashlib.sha256(f"{home}\n{cluster}\n{request.token}".encode()).hexdigest()[:8]
    return [f"tm-{plain}-{role}-{number}-{digest}" for number in range(request.count)]


def pod_of(
    settings: KubernetesSettings,
    home: str,
    cluster: str,
    request: NodeRequest,
    name: str,
    until: str,
    group: QueueGroup | None = None,
) -> dict[str, Any]:
    """The manifest of one pod.

    Args:
        settings: of the user.
        home: whose it is.
        cluster: for which it is.
        request: that it answers.
        name: as `pod_names` has it.
        until: Unix seconds until which it is wanted.
        group: that it is of, where pods are queued.

    Raises:
        UsageError: the settings have no such machine.
    """
    machine = settings.machine(request.instance_type)
    labels = {
        "app.kubernetes.io/managed-by": "trainmaster",
        HOME: home_label(home),
        CLUSTER: short_digest(cluster),
        "sidecar.istio.io/inject": "false",  # what is put beside it would go on when it ends itself
    }
    annotations = {OF: cluster, TOKEN: request.token, UNTIL: until, "linkerd.io/inject": "disabled"}
    if settings.queue:  # all of them or none is its business
        for own, more in zip((labels, annotations), kueue.labels(settings.queue, group), strict=True):
            own |= more
    volumes = [_volume(number, where, what) for number, (where, what) in enumerate(settings.volumes.items())]
    shm: dict[str, Any] = {"medium": "Memory"}
    if settings.shm_bytes:
        shm["sizeLimit"] = str(settings.shm_bytes)
    volumes += [
        ({"name": "shm", "emptyDir": shm}, {"name": "shm", "mountPath": "/dev/shm"}),  # noqa: S108 - of a pod
        ({"name": "lease", "emptyDir": {}}, {"name": "lease", "mountPath": DIRECTORY}),
    ]
    amounts = _amounts(machine, request.disk_bytes)
    # Kubernetes takes `$$` for a `$`.
    switch = _SWITCH.replace("@LEASE@", str(round(request.lease_s))).replace("@FUNCTIONS@", LEASE_FUNCTIONS)
    switch = switch.replace("@LATE@", str(round(CLOCKS_DIFFER_S + BOOT_S)))
    switch = switch.replace("@IDLE@", str(_IDLE)).replace("$", "$$")
    until_now = {"fieldRef": {"fieldPath": f"metadata.annotations['{UNTIL}']"}}
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": machine.image or settings.image,
        "command": ["/bin/sh", "-c", switch],
        "args": ["trainmaster-deadman"],
        "env": [{"name": "TM_UNTIL", "valueFrom": until_now}],
        "resources": {"requests": amounts, "limits": amounts},
        "volumeMounts": [mount for _, mount in volumes],
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": round(settings.grace_s),
        "automountServiceAccountToken": bool(settings.service_account),
        "enableServiceLinks": False,
        "containers": [container],
        "volumes": [volume for volume, _ in volumes],
        "tolerations": [*map(_toleration, machine.tolerations), *_unreached()],
    }
    if settings.run_as is not None:
        container["securityContext"] = {
            "runAsNonRoot": True,
            "runAsUser": settings.run_as,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        spec["securityContext"] = {"fsGroup": settings.run_as}
        container["env"].append({"name": "HOME", "value": "/var/tmp"})  # noqa: S108 - of a pod
    if settings.pull_secrets:
        spec["imagePullSecrets"] = [{"name": each} for each in settings.pull_secrets]
    if settings.host_network:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    given = {
        "serviceAccountName": settings.service_account,
        "priorityClassName": machine.priority_class or settings.priority_class,
        "nodeSelector": dict(machine.node_selector),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": spec | {key: value for key, value in given.items() if value},
    }


def needs_of(settings: KubernetesSettings, requests: Iterable[NodeRequest]) -> dict[str, float]:
    """What all requests come to, by the names that quotas have for it."""
    needed: dict[str, float] = {}
    for request in requests:
        amounts = _amounts(settings.machine(request.instance_type), request.disk_bytes)
        named = {f"{kind}.{key}": value for key, value in amounts.items() for kind in ("requests", "limits")}
        for key, value in {**named, **amounts, "pods": "1", "count/pods": "1"}.items():
            needed[key] = needed.get(key, 0.0) + request.count * amount_of(value)
    return needed


_UNITS: Final = {
    "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    **{f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)},
}  # fmt: skip


def amount_of(written: str) -> float:
    """A quantity as Kubernetes writes it.

    >>> amount_of("500m"), amount_of("2Gi"), amount_of("1e3"), amount_of("4")
    (0.5, 2147483648.0, 1000.0, 4.0)
    """
    found = re.fullmatch(r"([0-9.]+(?:[eE][-+]?[0-9]+)?)(m|[kMGTPE]|[KMGTPE]i|)", written.strip())
    return float(found[1]) * _UNITS[found[2]] if found else 0.0


def _amounts(machine: KubernetesMachine, disk_bytes: int) -> dict[str, str]:
    amounts = {"cpu": f"{round(machine.cpus * 1000)}m", "memory": str(machine.memory_bytes)}
    if disk_bytes:
        amounts["ephemeral-storage"] = str(disk_bytes)
    if machine.gpus:
        amounts[machine.gpu_resource] = str(machine.gpus)
    return amounts | machine.resources


def _volume(number: int, where: str, what: str) -> tuple[dict[str, Any], dict[str, Any]]:
    name, _, mode = what.partition(":")
    source: Mapping[str, Any] = {"persistentVolumeClaim": {"claimName": name}}
    if name.startswith("/"):
        source = {"hostPath": {"path": name}}
    volume = {"name": f"volume-{number}", **source}
    return volume, {"name": volume["name"], "mountPath": where, "readOnly": mode == "ro"}


def _toleration(written: str) -> dict[str, Any]:
    """As Kubernetes has it.

    >>> _toleration("nvidia.com/gpu"), _toleration("kind=gpu:NoSchedule")
    ({'key': 'nvidia.com/gpu', 'operator': 'Exists'}, {'key': 'kind', 'value': 'gpu', 'effect': 'NoSchedule'})
    """
    rest, _, effect = written.partition(":")
    key, has_value, value = rest.partition("=")
    found: dict[str, Any] = {"key": key} | ({"value": value} if has_value else {"operator": "Exists"})
    return found | ({"effect": effect} if effect else {})


def _unreached() -> list[dict[str, Any]]:
    return [
        {
            "key": f"node.kubernetes.io/{what}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": _UNREACHED_S,
        }
        for what in ("not-ready", "unreachable")
    ]
