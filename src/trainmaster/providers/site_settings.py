"""`SiteSettings`: where a site is that schedules by itself, and which of its machines may be asked for.

Slurm, Ray and Kubernetes have such a file each, with machines by names of the user's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Final, Generic, TypeVar

from trainmaster.providers.catalogue import Catalogue
from trainmaster.providers.offer import site_offer
from trainmaster.providers.own_settings import SettingsKind, login_place
from trainmaster.spec.errors import UsageError
from trainmaster.spec.node import YamlNode
from trainmaster.spec.reading import (
    Key,
    Noun,
    Problems,
    integer,
    mapping_of,
    noun,
    number,
    pattern,
    size,
    text,
)
from trainmaster.spec.reading import Path as KeyPath

#: Variables of a site's shell that tasks have, too: none of Slurm's own, by which Open MPI would take over.
KEPT_VARIABLES: Final = (
    "PATH LD_LIBRARY_PATH LIBRARY_PATH CPATH MANPATH MODULEPATH LOADEDMODULES _LMFILES_ CUDA_HOME "
    "CUDA_PATH CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ZE_AFFINITY_MASK TMPDIR "
    "APPTAINER_CACHEDIR APPTAINER_CONFIGDIR APPTAINER_TMPDIR APPTAINER_UNSQUASH SINGULARITY_CACHEDIR "
    "SINGULARITY_TMPDIR ENROOT_CACHE_PATH ENROOT_CONFIG_PATH ENROOT_DATA_PATH ENROOT_RUNTIME_PATH "
    "ENROOT_TEMP_PATH"
)


class SiteMachine(Noun):
    """A kind of machine, or of a part of one, that is asked for.

    Attributes:
        cpus, memory_bytes, gpus: that are asked for.
        gpu: model of the GPUs, for quotes and recipes.
        usd_per_hour: what an hour of it costs; 0 if nothing.
    """

    cpus: float
    memory_bytes: Annotated[int, Key("memory", size, required="write `memory`: of one, such as 64GB")]
    gpus: Annotated[int, Key("gpus", integer(0))] = 0
    gpu: Annotated[str, Key("gpu", text("write a model such as A100"))] = ""
    usd_per_hour: Annotated[float, Key("usd_per_hour", number(0.0))] = 0.0

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: KeyPath, problems: Problems) -> None:
        """Refuse a model of no GPUs."""
        if values.get("gpu") and not values.get("gpus"):
            problems.add(node, path, "it has no gpus; write `gpus`: how many of them are asked for")


M = TypeVar("M", bound=SiteMachine)


class SiteSettings(Noun, Generic[M]):
    """The whole file.

    Attributes:
        python: on the machines, for our runtime; empty to look for one.
        machines: that may be asked for, by names of one's own.
        file: where they are from.
    """

    python: Annotated[str, Key("python", text("write the path of a Python"))] = ""
    machines: dict[str, M]
    file: Path = Path()

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: KeyPath, problems: Problems) -> None:
        """Refuse a file that names no machines."""
        if values.get("machines") == {}:
            problems.add(node, path, "it names no machines; write one, at least")

    def machine(self, name: str) -> M:
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

    def zone_of(self, machine: M) -> str:
        """Where offers say that a machine is."""
        del machine
        return ""


class LoginSettings(SiteSettings[M], Generic[M]):
    """Of a site that is reached through a machine that one logs in to.

    Attributes:
        login: ``user@host:port``; empty if it is reached from this machine.
        key: private key file for it; empty for the user's agent and usual keys.
        scratch: directory of each machine for what is ours; removed at the end.
    """

    login: Annotated[str, Key("login", login_place("write user@host, or user@host:port"))] = ""
    key: Annotated[str, Key("key", text("write the path of a private key"))] = ""
    scratch: Annotated[str, Key("scratch", pattern(r"/[^\s'\"$`\\]*", "write an absolute path"))] = "/tmp"  # noqa: S108 - with 0700

    @property
    def key_file(self) -> Path | None:
        """The private key for the login."""
        if not self.key:
            return None
        key = Path(self.key).expanduser()
        here = self.file.parent / key
        # Another server's home of a run leads to the settings by a link.
        return here if here.exists() else self.file.resolve().parent / key


def machines_key(machine: type[SiteMachine]) -> Key:
    """The key `machines` of a site."""
    machines = mapping_of(
        noun(machine),
        "write the machines by names of your own",
        name=r"[A-Za-z][A-Za-z0-9_.-]*",
        what="names of machines begin with a letter, then letters, digits, '.', '-' and '_'",
    )
    return Key("machines", machines, required="write `machines`: what may be asked for")


S = TypeVar("S", bound=SiteSettings[Any])


class SiteKind(SettingsKind[S], Generic[S]):
    """A kind of site: its settings, and what it offers."""

    def catalogue(
        self, root: Path, environ: Mapping[str, str], today: date, prices: Callable[[], Catalogue]
    ) -> Catalogue:
        """The machines of a home's settings, at the site's own prices; no others are needed."""
        del prices
        return self.offered(self.read(root, environ), today)

    def offered(self, settings: S, today: date) -> Catalogue:
        """The machines of settings."""
        offers = [
            site_offer(
                self.provider, name, each.cpus, each.memory_bytes, today, str(settings.file),
                zone=settings.zone_of(each), gpu=each.gpu, gpus=each.gpus, usd_per_hour=each.usd_per_hour,
            )
            for name, each in settings.machines.items()
        ]  # fmt: skip
        return Catalogue(str(settings.file), tuple(offers), by_hand=True)
