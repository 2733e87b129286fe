"""Machine types of Azure and Google, which their price lists do not describe; checked by hand.

Azure's sizes are from https://learn.microsoft.com/azure/virtual-machines/sizes; what is not here is unknown.
Google's are its predefined types (https://cloud.google.com/compute/docs/machine-resource): a number of cores
and of GiB, whose prices add up to theirs. Its GPUs are not in the list that we read, so no type has any.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trainmaster.providers.csv_rows import GIB


@dataclass(frozen=True, slots=True)
class MachineType:
    """What a cloud rents by one name. Attributes as those of `Offer`."""

    instance_type: str
    vcpus: float
    memory_bytes: int
    accelerator: str = ""
    accelerators: float = 0.0
    accelerator_memory_bytes: int | None = None
    nic_gbps: float | None = None
    nic_burst_gbps: float | None = None
    cpu_credits: str = ""
    arch: str = "x86_64"
    cpu_baseline_share: float | None = None


def _azure(
    name: str,
    vcpus: int,
    memory_gib: int,
    gpu: str = "",
    gpus: int = 0,
    gpu_memory_gib: int | None = None,
    nic_gbps: float | None = None,
) -> MachineType:
    """A size; `nic_gbps` is the published expected bandwidth."""
    gpu_bytes = None if gpu_memory_gib is None else gpu_memory_gib * GIB
    return MachineType(name, float(vcpus), memory_gib * GIB, gpu, float(gpus), gpu_bytes, nic_gbps, nic_gbps)


#: Expected bandwidth of the Dsv3 and Esv3 sizes, Gbit/s by vCPUs.
_V3_GBPS = {2: 1.0, 4: 2.0, 8: 4.0, 16: 8.0, 32: 16.0, 48: 24.0, 64: 30.0}


def _azure_general() -> list[MachineType]:
    small = (2, 4, 8, 16, 32, 48)
    sizes = [_azure(f"Standard_D{n}s_v3", n, 4 * n, nic_gbps=_V3_GBPS[n]) for n in (*small, 64)]
    sizes += [_azure(f"Standard_D{n}s_v4", n, 4 * n) for n in (*small, 64)]
    sizes += [_azure(f"Standard_D{n}as_v4", n, 4 * n) for n in (*small, 64, 96)]
    sizes += [_azure(f"Standard_E{n}s_v3", n, 8 * n, nic_gbps=_V3_GBPS[n]) for n in small]
    sizes += [_azure(f"Standard_E{n}s_v4", n, 8 * n) for n in small]
    sizes += [_azure(f"Standard_F{n}s_v2", n, 2 * n) for n in (*small, 64, 72)]
    return sizes


def _azure_with_gpus() -> list[MachineType]:
    return [
        _azure("Standard_NC6s_v2", 6, 112, "P100", 1, 16),
        _azure("Standard_NC12s_v2", 12, 224, "P100", 2, 16),
        _azure("Standard_NC24s_v2", 24, 448, "P100", 4, 16),
        _azure("Standard_NC6s_v3", 6, 112, "V100", 1, 16),
        _azure("Standard_NC12s_v3", 12, 224, "V100", 2, 16),
        _azure("Standard_NC24s_v3", 24, 448, "V100", 4, 16),
        _azure("Standard_NC24rs_v3", 24, 448, "V100", 4, 16),
        _azure("Standard_NC4as_T4_v3", 4, 28, "T4", 1, 16),
        _azure("Standard_NC8as_T4_v3", 8, 56, "T4", 1, 16),
        _azure("Standard_NC16as_T4_v3", 16, 110, "T4", 1, 16),
        _azure("Standard_NC64as_T4_v3", 64, 440, "T4", 4, 16),
        _azure("Standard_ND6s", 6, 112, "P40", 1, 24),
        _azure("Standard_ND12s", 12, 224, "P40", 2, 24),
        _azure("Standard_ND24s", 24, 448, "P40", 4, 24),
        _azure("Standard_ND40rs_v2", 40, 672, "V100-32GB", 8, 32),
    ]


#: Azure's, by the name in Libcloud's price list: lower case, without underscores.
AZURE_SIZES: Final = {
    size.instance_type.replace("_", "").lower(): size for size in (*_azure_general(), *_azure_with_gpus())
}

_STANDARD_N2: Final = (2, 4, 8, 16, 32, 48, 64, 80)
#: Of Google: family (as in the list), kind, GiB per core, numbers of cores.
_GOOGLE_KINDS: Final = (
    ("n1", "standard", 3.75, (1, 2, 4, 8, 16, 32, 64, 96)),
    ("n1", "highmem", 6.5, (2, 4, 8, 16, 32, 64, 96)),
    ("n1", "highcpu", 0.9, (2, 4, 8, 16, 32, 64, 96)),
    ("n2", "standard", 4.0, _STANDARD_N2),
    ("n2", "highmem", 8.0, _STANDARD_N2),
    ("n2", "highcpu", 1.0, _STANDARD_N2),
    ("n2d", "standard", 4.0, (*_STANDARD_N2, 96, 128, 224)),
    ("e2", "standard", 4.0, (2, 4, 8, 16)),
    ("e2", "highmem", 8.0, (2, 4, 8, 16)),
    ("e2", "highcpu", 1.0, (2, 4, 8, 16)),
    ("c2", "standard", 4.0, (4, 8, 16, 30, 60)),
)

#: Of Google: highest egress bandwidth, Gbit/s: that of the first number of cores which is not smaller. None
#: is promised to be sustained.
_EGRESS: Final = {
    "n1": ((1, 2.0), (7, 10.0), (15, 16.0), (1024, 32.0)),
    "n2": ((7, 10.0), (15, 16.0), (1024, 32.0)),
    "n2d": ((7, 10.0), (15, 16.0), (1024, 32.0)),
    "e2": ((3, 4.0), (7, 8.0), (1024, 16.0)),
    "c2": ((7, 10.0), (15, 16.0), (1024, 32.0)),
}


def google_types() -> Iterator[MachineType]:
    """All of Google's."""
    for family, kind, gib_per_core, sizes in _GOOGLE_KINDS:
        for cores in sizes:
            egress = next(gbps for most, gbps in _EGRESS[family] if cores <= most)
            memory_bytes = round(round(cores * gib_per_core, 4) * GIB)
            yield MachineType(f"{family}-{kind}-{cores}", float(cores), memory_bytes, nic_burst_gbps=egress)
