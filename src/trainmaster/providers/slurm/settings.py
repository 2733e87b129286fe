"""`SlurmSettings`: where a Slurm is, and which of its machines may be asked for: ``slurm.yaml``."""

from __future__ import annotations

from typing import Annotated, Any, Final

from trainmaster.providers.site_settings import LoginSettings, SiteKind, SiteMachine, machines_key
from trainmaster.spec.node import YamlNode
from trainmaster.spec.reading import (
    Key,
    Problems,
    choice,
    duration,
    integer,
    list_of,
    number,
    pattern,
    shell_script,
)
from trainmaster.spec.reading import Path as KeyPath

_EXAMPLE: Final = (
    "login: ada@login.example.org\n"
    "machines:\n"
    "  gpu: {partition: gpu, cpus: 16, memory: 64GB, gpus: 1, account: physics, time_limit: 12h}"
)
#: They become words of `sbatch`'s command line.
_WORD: Final = r"[^\s'\"\\`$;#]+"
_NAME: Final = pattern(_WORD, "write one word, as `sbatch` takes it")
_MIN_LIMIT_S: Final = 300.0


class SlurmMachine(SiteMachine):
    """See `SiteMachine`: a kind of node, or of a part of one.

    Attributes:
        partition: that has it; empty for Slurm's default.
        gres: asked for as it is, in the place of ``gpu:N``. gpus_per_node: the same by that option.
        account, qos, constraint, reservation: as `sbatch` has them.
        time_limit_s: of an allocation; 0 for that of the partition.
        options: of `sbatch`, as they are.
    """

    partition: Annotated[str, Key("partition", _NAME)] = ""
    cpus: Annotated[int, Key("cpus", integer(1), required="write `cpus`: cores of a node")]
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

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: KeyPath, problems: Problems) -> None:
        """Refuse GPUs that are asked for twice, and a limit that leaves no time to save."""
        if values.get("gres") and values.get("gpus_per_node"):
            problems.add(node, path, "gres and gpus_per_node both ask for GPUs; write one of them")
        named = any(map(values.get, ("gpu", "gres", "gpus_per_node")))
        super().check({**values, "gpu": named}, node, path, problems)
        if 0 < values.get("time_limit_s", 0.0) < _MIN_LIMIT_S:
            problems.add(node, path, "time_limit: less than 5m leaves no time to start and to save")


class SlurmSettings(LoginSettings[SlurmMachine]):
    """See `LoginSettings`: where its login leads to, Slurm's commands are.

    Attributes:
        path: on the login node, where Slurm's commands are, if logins do not find them.
        way: how nodes are reached: ``direct``: they can be connected to, from the login node if there is one;
            ``srun``: by a step of the allocation.
        before: lines for the shell of an allocation, such as `module load`; tasks have what they set.
        notice_s: so long before its time limit an allocation is left.
        usd_per_unit: what an hour of one unit of Slurm's billing costs; 0 if nothing.
    """

    path: Annotated[str, Key("path", pattern(r"/[^\s'\"$`\\]*", "write an absolute path"))] = ""
    way: Annotated[str, Key("way", choice("direct", "srun"))] = "direct"
    before: Annotated[str, Key("before", shell_script)] = ""
    notice_s: Annotated[float, Key("notice", duration())] = 180.0
    usd_per_unit: Annotated[float, Key("usd_per_unit", number(0.0))] = 0.0
    machines: Annotated[dict[str, SlurmMachine], machines_key(SlurmMachine)]

    def zone_of(self, machine: SlurmMachine) -> str:
        """See `SiteSettings`."""
        return machine.partition

    @property
    def user(self) -> str:
        """To log in as; empty for this user."""
        return self.login.rpartition("@")[0]


SLURM: Final = SiteKind("slurm", "Slurm", "login, machines", _EXAMPLE, SlurmSettings)
