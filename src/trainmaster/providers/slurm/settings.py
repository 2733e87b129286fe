"""`SlurmSettings`: where a Slurm is, and which of its machines may be asked for: ``slurm.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Final

from trainmaster.providers.offer import Offer, site_offer
from trainmaster.providers.own_settings import SettingsKind, read_own_settings
from trainmaster.spec.errors import UsageError
from trainmaster.spec.node import Wording, YamlNode
from trainmaster.spec.reading import (
    Key,
    Noun,
    Problems,
    choice,
    duration,
    integer,
    list_of,
    mapping_of,
    noun,
    number,
    pattern,
    shell_script,
    size,
    text,
)
from trainmaster.spec.reading import Path as KeyPath

KIND: Final = SettingsKind(
    "slurm",
    "slurm.yaml",
    "TRAINMASTER_SLURM",
    Wording("settings of Slurm", "settings of Slurm", "a mapping with the keys login, machines"),
    "login: ada@login.example.org\n"
    "machines:\n"
    "  gpu: {partition: gpu, cpus: 16, memory: 64GB, gpus: 1, account: physics, time_limit: 12h}",
)
#: They become words of `sbatch`'s command line.
_WORD: Final = r"[^\s'\"\\`$;#]+"
_NAME: Final = pattern(_WORD, "write one word, as `sbatch` takes it")
_MIN_LIMIT_S: Final = 300.0


class SlurmMachine(Noun):
    """A kind of node, or of a part of one, that is asked for.

    Attributes:
        partition: that has it; empty for Slurm's default.
        cpus, memory_bytes, gpus: of a node, that are asked for.
        gpu: model of the GPUs, for quotes and recipes.
        gres: asked for as it is, in the place of ``gpu:N``. gpus_per_node: the same by that option.
        account, qos, constraint, reservation: as `sbatch` has them.
        time_limit_s: of an allocation; 0 for that of the partition.
        options: of `sbatch`, as they are.
        usd_per_hour: what an hour of it costs; 0 if nothing.
    """

    partition: Annotated[str, Key("partition", _NAME)] = ""
    cpus: Annotated[int, Key("cpus", integer(1), required="write `cpus`: cores of a node")]
    memory_bytes: Annotated[int, Key("memory", size, required="write `memory`: of a node, such as 64GB")]
    gpus: Annotated[int, Key("gpus", integer(0))] = 0
    gpu: Annotated[str, Key("gpu", text("write a model such as A100"))] = ""
    gres: Annotated[str, Key("gres", _NAME)] = ""
    gpus_per_node: Annotated[str, Key("gpus_per_node", _NAME)] = ""
    account: Annotated[str, Key("account", _NAME)] = ""
    qos: Annotated[str, Key("qos", _NAME)] = ""
    constraint: Annotated[str, Key("constraint", _NAME)] = ""
    reservation: Annotated[str, Key("reservation", _NAME)] = ""
    time_limit_s: Annotated[float, Key("time_limit", duration())] = 0.0
    options: Annotated[
        tuple[str, ...],
        Key("options", list_of(pattern(rf"-{_WORD}", "write options such as --exclusive"), "write a list")),
    ] = ()
    usd_per_hour: Annotated[float, Key("usd_per_hour", number(0.0))] = 0.0

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: KeyPath, problems: Problems) -> None:
        """Refuse GPUs that are asked for twice, and a limit that leaves no time to save."""
        if values.get("gres") and values.get("gpus_per_node"):
            problems.add(node, path, "gres and gpus_per_node both ask for GPUs; write one of them")
        if (values.get("gres") or values.get("gpus_per_node") or values.get("gpu")) and not values.get(
            "gpus"
        ):
            problems.add(node, path, "it has no gpus; write `gpus`: how many of a node are asked for")
        if 0 < values.get("time_limit_s", 0.0) < _MIN_LIMIT_S:
            problems.add(node, path, "time_limit: less than 5m leaves no time to start and to save")


class SlurmSettings(Noun):
    """The whole file.

    Attributes:
        login: ``user@host:port`` of the login node; empty if Slurm's commands are on this machine.
        key: private key file for it; empty for the user's agent and usual keys.
        path: on the login node, where Slurm's commands are, if logins do not find them.
        way: how nodes are reached: ``direct``: they can be connected to, from the login node if there is one;
            ``srun``: by a step of the allocation.
        scratch: directory of each node for what is ours; removed with the allocation.
        python: on the nodes, for our runtime; empty to look for one.
        before: lines for the shell of an allocation, such as `module load`; nodes have its variables.
        notice_s: so long before its time limit an allocation is left.
        machines: that may be asked for, by names of one's own.
        file: where they are from.
    """

    login: Annotated[
        str, Key("login", pattern(r"([^\s@]+@)?[^\s@:]+(:\d+)?", "write user@host, or user@host:port"))
    ] = ""
    key: Annotated[str, Key("key", text("write the path of a private key"))] = ""
    path: Annotated[str, Key("path", pattern(r"/[^\s'\"$`\\]*", "write an absolute path"))] = ""
    way: Annotated[str, Key("way", choice("direct", "srun"))] = "direct"
    scratch: Annotated[str, Key("scratch", pattern(r"/[^\s'\"$`\\]*", "write an absolute path"))] = "/tmp"  # noqa: S108 - with 0700
    python: Annotated[str, Key("python", text("write the path of a Python of the nodes"))] = ""
    before: Annotated[str, Key("before", shell_script)] = ""
    notice_s: Annotated[float, Key("notice", duration())] = 180.0
    machines: Annotated[
        dict[str, SlurmMachine],
        Key(
            "machines",
            mapping_of(
                noun(SlurmMachine),
                "write the machines by names of your own",
                name=r"[A-Za-z][A-Za-z0-9_.-]*",
                what="names of machines begin with a letter, then letters, digits, '.', '-' and '_'",
            ),
            required="write `machines`: what may be asked for",
        ),
    ]
    file: Path = Path(KIND.name)

    def machine(self, name: str) -> SlurmMachine:
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

    @property
    def user(self) -> str:
        """To log in as; empty for this user."""
        return self.login.rpartition("@")[0]

    @property
    def key_file(self) -> Path | None:
        """The private key for the login node."""
        return self.file.parent / Path(self.key).expanduser() if self.key else None


def read_settings(root: Path, environ: Mapping[str, str]) -> SlurmSettings:
    """The settings of a home.

    Raises:
        RecipeError: with all mistakes that were found.
        UsageError: there are none, or no machines.
    """
    file = KIND.file(root, environ)
    found = read_own_settings(SlurmSettings, KIND, file)
    if not found.machines:
        raise UsageError(f"{file} names no machines", f"Such as:\n{KIND.example}")
    return found.model_copy(update={"file": file.absolute()})


def slurm_offers(settings: SlurmSettings, today: date) -> list[Offer]:
    """What may be asked for, at the site's own price, or for nothing."""
    source = str(settings.file)
    return [
        site_offer(
            KIND.provider, name, each.cpus, each.memory_bytes, today, source,
            zone=each.partition, gpu=each.gpu if each.gpus else "", gpus=each.gpus,
            usd_per_hour=each.usd_per_hour,
        )
        for name, each in settings.machines.items()
    ]  # fmt: skip
