"""`KubernetesSettings`: which pods of a Kubernetes may be asked for: ``kubernetes.yaml``."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from trainmaster.providers.site_settings import SiteKind, SiteMachine, SiteSettings, machines_key
from trainmaster.spec.reading import (
    Key,
    Reader,
    boolean,
    duration,
    integer,
    list_of,
    mapping_of,
    number,
    pattern,
    size,
    text,
)

_EXAMPLE: Final = (
    "namespace: research\n"
    "image: pytorch/pytorch:2.7.1-cuda12.8-cudnn9-runtime\n"
    "machines:\n"
    "  gpu: {cpus: 8, memory: 64GB, gpus: 1, gpu: A100}"
)
_NAME: Final = pattern(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", "write a name as `kubectl get` shows it")
_WORD: Final = r"[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?"
_MOUNT: Final = pattern(
    r"(/[^:]*|[a-z0-9][a-z0-9.-]*)(:ro)?", "write a claim's name, or a path of the node; :ro after it"
)


def _words(what: str) -> Reader[dict[str, str]]:
    return mapping_of(
        text(f"write a {what}"), f"write {what}s by their names", name=_WORD, what="these are names"
    )


class KubernetesMachine(SiteMachine):
    """See `SiteMachine`: a kind of pod, which gets that and no more.

    Attributes:
        gpu_resource: what GPUs are asked for as.
        resources: others that it gets, such as ``rdma/hca``.
        node_selector: labels that its node must have.
        tolerations: taints that its node may have, ``KEY``, ``KEY=VALUE`` or either with ``:EFFECT``.
        priority_class: of its pods; that of the settings without.
        image: the same.
    """

    cpus: Annotated[float, Key("cpus", number(0.01), required="write `cpus`: cores of a pod")]
    gpu_resource: Annotated[
        str, Key("gpu_resource", pattern(_WORD, "write a resource such as nvidia.com/mig-1g.10gb"))
    ] = "nvidia.com/gpu"
    resources: Annotated[dict[str, str], Key("resources", _words("resource"))] = Field(default={})
    node_selector: Annotated[dict[str, str], Key("node_selector", _words("label"))] = Field(default={})
    tolerations: Annotated[
        tuple[str, ...],
        Key(
            "tolerations",
            list_of(pattern(rf"{_WORD}(=[^:\s]*)?(:[A-Za-z]+)?", "write KEY=VALUE:EFFECT"), "write a list"),
        ),
    ] = ()
    priority_class: Annotated[str, Key("priority_class", _NAME)] = ""
    image: Annotated[str, Key("image", text("write the name of an image"))] = ""


class KubernetesSettings(SiteSettings[KubernetesMachine]):
    """See `SiteSettings`.

    Attributes:
        context: of the files of ``kubectl``; empty for the current one, or the pod that this is.
        namespace: empty for that of the context.
        image: of pods; it has a shell, and Python for the tasks.
        pull_secrets: names of secrets with which it is fetched.
        service_account: of pods; they get no token of any without.
        priority_class: of pods. queue: of Kueue, which admits all of a cluster or none.
        shm_bytes: of ``/dev/shm``; 0: as much as the memory.
        volumes: by where they are mounted: the name of a claim, or a path of the node.
        host_network: pods have the network of their nodes.
        run_as: number of the user of pods, which may do nothing else then; None for that of the image.
        wait_s: pods that have no node after so long are given up together.
        grace_s: so long may a pod save when it has to go.
    """

    context: Annotated[str, Key("context", text("write the name of a context"))] = ""
    namespace: Annotated[str, Key("namespace", _NAME)] = ""
    image: Annotated[str, Key("image", text("write the name of an image"), required="write `image`: of pods")]
    pull_secrets: Annotated[tuple[str, ...], Key("pull_secrets", list_of(_NAME, "write a list"))] = ()
    service_account: Annotated[str, Key("service_account", _NAME)] = ""
    priority_class: Annotated[str, Key("priority_class", _NAME)] = ""
    queue: Annotated[str, Key("queue", _NAME)] = ""
    shm_bytes: Annotated[int, Key("shm", size)] = 0
    volumes: Annotated[
        dict[str, str],
        Key(
            "volumes",
            mapping_of(_MOUNT, "write what is mounted by its path", name=r"/\S+", what="paths are absolute"),
        ),
    ] = Field(default={})
    host_network: Annotated[bool, Key("host_network", boolean)] = False
    run_as: Annotated[int | None, Key("run_as", integer(1))] = None
    wait_s: Annotated[float, Key("wait", duration(may_be_zero=True))] = 300.0
    grace_s: Annotated[float, Key("grace", duration())] = 60.0
    machines: Annotated[dict[str, KubernetesMachine], machines_key(KubernetesMachine)]

    def zone_of(self, machine: KubernetesMachine) -> str:
        """See `SiteSettings`."""
        del machine
        return self.namespace


KUBERNETES: Final = SiteKind("kubernetes", "Kubernetes", "image, machines", _EXAMPLE, KubernetesSettings)
