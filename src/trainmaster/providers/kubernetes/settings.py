"""`KubernetesSettings`: which pods of a Kubernetes may be asked for: ``kubernetes.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from trainmaster.providers.offer import Offer, site_offer
from trainmaster.providers.own_settings import SettingsKind, read_own_settings
from trainmaster.spec.errors import UsageError
from trainmaster.spec.node import Wording, YamlNode
from trainmaster.spec.reading import (
    Key,
    Noun,
    Problems,
    Reader,
    boolean,
    duration,
    integer,
    list_of,
    mapping_of,
    noun,
    number,
    pattern,
    size,
    text,
)
from trainmaster.spec.reading import Path as KeyPath

KIND: Final = SettingsKind(
    "kubernetes",
    "kubernetes.yaml",
    "TRAINMASTER_KUBERNETES",
    Wording("settings of Kubernetes", "settings of Kubernetes", "a mapping with the keys image, machines"),
    "namespace: research\n"
    "image: pytorch/pytorch:2.7.1-cuda12.8-cudnn9-runtime\n"
    "machines:\n"
    "  gpu: {cpus: 8, memory: 64GB, gpus: 1, gpu: A100}",
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


class KubernetesMachine(Noun):
    """A kind of pod that is asked for.

    Attributes:
        cpus, memory_bytes, gpus: that it gets, and no more.
        gpu: model of the GPUs, for quotes and recipes. gpu_resource: what they are asked for as.
        resources: others that it gets, such as ``rdma/hca``.
        node_selector: labels that its node must have.
        tolerations: taints that its node may have, ``KEY``, ``KEY=VALUE`` or either with ``:EFFECT``.
        priority_class: of its pods; that of the settings without.
        image: the same.
        usd_per_hour: what an hour of it costs; 0 if nothing.
    """

    cpus: Annotated[float, Key("cpus", number(0.01), required="write `cpus`: cores of a pod")]
    memory_bytes: Annotated[int, Key("memory", size, required="write `memory`: of a pod, such as 64GB")]
    gpus: Annotated[int, Key("gpus", integer(0))] = 0
    gpu: Annotated[str, Key("gpu", text("write a model such as A100"))] = ""
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
    usd_per_hour: Annotated[float, Key("usd_per_hour", number(0.0))] = 0.0


class KubernetesSettings(Noun):
    """The whole file.

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
        python: in pods, for our runtime; empty to look for one.
        wait_s: pods that have no node after so long are given up together.
        grace_s: so long may a pod save when it has to go.
        machines: that may be asked for, by names of one's own.
        file: where they are from.
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
    python: Annotated[str, Key("python", text("write the path of a Python of the image"))] = ""
    wait_s: Annotated[float, Key("wait", duration(may_be_zero=True))] = 300.0
    grace_s: Annotated[float, Key("grace", duration())] = 60.0
    machines: Annotated[
        dict[str, KubernetesMachine],
        Key(
            "machines",
            mapping_of(
                noun(KubernetesMachine),
                "write the machines by names of your own",
                name=r"[A-Za-z][A-Za-z0-9_.-]*",
                what="names of machines begin with a letter, then letters, digits, '.', '-' and '_'",
            ),
            required="write `machines`: what may be asked for",
        ),
    ]
    file: Path = Path(KIND.name)

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: KeyPath, problems: Problems) -> None:
        """Refuse a file that names no machines."""
        if values.get("machines") == {}:
            problems.add(node, path, "machines: it names none")

    def machine(self, name: str) -> KubernetesMachine:
        """The machine of a name.

        Raises:
            UsageError: there is none.
        """
        if name not in self.machines:
            raise UsageError(
                f"{self.file} has no machine {name!r}",
                f"It has {', '.join(self.machines)}: add it, or name another.",
            )
        return self.machines[name]


def read_settings(root: Path, environ: Mapping[str, str]) -> KubernetesSettings:
    """The settings of a home.

    Raises:
        RecipeError: with all mistakes that were found.
        UsageError: there are none.
    """
    file = KIND.file(root, environ)
    return read_own_settings(KubernetesSettings, KIND, file).model_copy(update={"file": file.absolute()})


def kubernetes_offers(settings: KubernetesSettings, today: date) -> list[Offer]:
    """What may be asked for, at the site's own price, or for nothing."""
    source = str(settings.file)
    return [
        site_offer(
            KIND.provider, name, each.cpus, each.memory_bytes, today, source,
            zone=settings.namespace, gpu=each.gpu if each.gpus else "", gpus=each.gpus,
            usd_per_hour=each.usd_per_hour,
        )
        for name, each in settings.machines.items()
    ]  # fmt: skip
