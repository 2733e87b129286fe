"""Azure's sizes: cores, memory, GPUs and network, which its price list does not have; checked by hand.

From https://learn.microsoft.com/azure/virtual-machines/sizes. What is not here is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class AzureSize:
    """One size of machine.

    Attributes:
        name: as Azure spells it. vcpus: of it. memory_gib: of it.
        gpu: model, '' without. gpus: how many. gpu_memory_gib: of one.
        nic_gbps: the published expected bandwidth; None if unknown.
    """

    name: str
    vcpus: int
    memory_gib: float
    gpu: str = ""
    gpus: int = 0
    gpu_memory_gib: int | None = None
    nic_gbps: float | None = None


#: Expected bandwidth of the Dsv3 and Esv3 sizes, Gbit/s by vCPUs.
_V3_GBPS = {2: 1.0, 4: 2.0, 8: 4.0, 16: 8.0, 32: 16.0, 48: 24.0, 64: 30.0}


def _general() -> list[AzureSize]:
    small = (2, 4, 8, 16, 32, 48)
    sizes = [AzureSize(f"Standard_D{n}s_v3", n, 4 * n, nic_gbps=_V3_GBPS[n]) for n in (*small, 64)]
    sizes += [AzureSize(f"Standard_D{n}s_v4", n, 4 * n) for n in (*small, 64)]
    sizes += [AzureSize(f"Standard_D{n}as_v4", n, 4 * n) for n in (*small, 64, 96)]
    sizes += [AzureSize(f"Standard_E{n}s_v3", n, 8 * n, nic_gbps=_V3_GBPS[n]) for n in small]
    sizes += [AzureSize(f"Standard_E{n}s_v4", n, 8 * n) for n in small]
    sizes += [AzureSize(f"Standard_F{n}s_v2", n, 2 * n) for n in (*small, 64, 72)]
    return sizes


def _with_gpus() -> list[AzureSize]:
    return [
        AzureSize("Standard_NC6s_v2", 6, 112, "P100", 1, 16),
        AzureSize("Standard_NC12s_v2", 12, 224, "P100", 2, 16),
        AzureSize("Standard_NC24s_v2", 24, 448, "P100", 4, 16),
        AzureSize("Standard_NC6s_v3", 6, 112, "V100", 1, 16),
        AzureSize("Standard_NC12s_v3", 12, 224, "V100", 2, 16),
        AzureSize("Standard_NC24s_v3", 24, 448, "V100", 4, 16),
        AzureSize("Standard_NC24rs_v3", 24, 448, "V100", 4, 16),
        AzureSize("Standard_NC4as_T4_v3", 4, 28, "T4", 1, 16),
        AzureSize("Standard_NC8as_T4_v3", 8, 56, "T4", 1, 16),
        AzureSize("Standard_NC16as_T4_v3", 16, 110, "T4", 1, 16),
        AzureSize("Standard_NC64as_T4_v3", 64, 440, "T4", 4, 16),
        AzureSize("Standard_ND6s", 6, 112, "P40", 1, 24),
        AzureSize("Standard_ND12s", 12, 224, "P40", 2, 24),
        AzureSize("Standard_ND24s", 24, 448, "P40", 4, 24),
        AzureSize("Standard_ND40rs_v2", 40, 672, "V100-32GB", 8, 32),
    ]


#: By the name in Libcloud's price list: lower case, without underscores.
SIZES: Final = {size.name.replace("_", "").lower(): size for size in (*_general(), *_with_gpus())}
