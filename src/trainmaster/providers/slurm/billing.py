"""What a site bills for a machine: units, by weights of its partition, whose price the user says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from trainmaster.dataclass import dataclass
from trainmaster.providers.slurm.answers import fields, names_of
from trainmaster.providers.slurm.settings import SlurmMachine, SlurmSettings
from trainmaster.spec.errors import UsageError

#: Weights are asked for again after so long, seconds.
OLD_S: Final = 86_400.0
#: Asks for them.
WEIGHTS: Final = (
    "scontrol -a -o show partition || exit $?\nscontrol show config | grep '^PriorityFlags'\nexit 0\n"
)
_BYTES: Final = {"": 2**20, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}


@dataclass(frozen=True, slots=True)
class BillingWeights:
    """Of a site.

    Attributes:
        partitions: weights by name of the partition, as ``TRESBillingWeights`` has them, by TRES.
        default: name of the partition of jobs that name none.
        flags: ``PriorityFlags``: of a node only the largest TRES may count.
    """

    partitions: Mapping[str, Mapping[str, str]]
    default: str = ""
    flags: str = ""

    def units(self, machine: SlurmMachine) -> float:
        """Units of an hour of a machine; those of its CPUs where its partition has no weights.

        >>> weights = BillingWeights({"gpu": {"CPU": "1.0", "Mem": "0.25G", "GRES/gpu": "2.0"}}, "gpu")
        >>> weights.units(SlurmMachine(cpus=2, memory_bytes=4 * 2**30, gpus=1))
        5.0

        Raises:
            UsageError: Slurm says nothing of its partition.
        """
        name = machine.partition or self.default
        if name not in self.partitions:
            what = f"partition {name!r}" if name else "jobs that name no partition: none is the default"
            raise UsageError(
                f"usd_per_unit: Slurm does not say what it bills for {what}",
                f"It has {names_of(sorted(self.partitions))}. `partition` in slurm.yaml names one, "
                "or `usd_per_hour` of the machine says its price.",
            )
        weights = self.partitions[name] or {"cpu": "1"}
        found = {name.lower(): units_of(name.lower(), weight, machine) for name, weight in weights.items()}
        if "MAX_TRES" not in self.flags:
            return sum(found.values())
        gres = sum(found.pop(name) for name in list(found) if name.startswith("gres/"))
        own = max(found.values(), default=0.0)
        return own + gres if "MAX_TRES_GRES" in self.flags else max(own, gres)


def units_of(tres: str, weight: str, machine: SlurmMachine) -> float:
    """Of one TRES of a machine. What is not known of it here, such as licences, counts nothing."""
    parts = re.fullmatch(r"([\d.]+)([KMGTP]?)", weight.strip(), re.IGNORECASE)
    if parts is None:
        return 0.0
    kind = (machine.gres or machine.gpus_per_node).removeprefix("gpu:").partition(":")[0].lower()
    amount = {
        "cpu": machine.cpus,
        "node": 1,
        "mem": machine.memory_bytes / _BYTES[parts[2].upper()],
        "gres/gpu": machine.gpus,
        f"gres/gpu:{kind}": machine.gpus,
    }.get(tres, 0)
    return float(parts[1]) * amount


def parse_weights(text: str) -> BillingWeights:
    """Of what `WEIGHTS` answers."""
    partitions, default, flags = dict[str, dict[str, str]](), "", ""
    for line in text.splitlines():
        if line.startswith("PartitionName="):
            said = fields(line)
            default = said["PartitionName"] if said.get("Default") == "YES" else default
            written = [each.partition("=") for each in said.get("TRESBillingWeights", "").split(",")]
            partitions[said["PartitionName"]] = {name: weight for name, equals, weight in written if equals}
        elif line.startswith("PriorityFlags"):
            flags = line.partition("=")[2].strip()
    return BillingWeights(partitions, default, flags)


def priced(settings: SlurmSettings, weights: BillingWeights) -> SlurmSettings:
    """Settings with a price of each machine that names none of its own."""
    machines = {
        name: each
        if "usd_per_hour" in each.model_fields_set
        else each.model_copy(update={"usd_per_hour": weights.units(each) * settings.usd_per_unit})
        for name, each in settings.machines.items()
    }
    return settings.model_copy(update={"machines": machines})
