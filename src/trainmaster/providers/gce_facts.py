"""Google's predefined machine types; its price list has cores and memory, which are summed up here.

From https://cloud.google.com/compute/docs/machine-resource: a type is a number of cores and of GiB, and its
price is theirs. Google's GPUs are not in the price list that we read, so there are no machines with any.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_STANDARD_N2: Final = (2, 4, 8, 16, 32, 48, 64, 80)
#: Family (as in the list), kind, GiB per core, numbers of cores.
_KINDS: Final = (
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

#: Highest egress bandwidth, Gbit/s: that of the first number of cores which is not smaller. None is promised
#: to be sustained.
_EGRESS: Final = {
    "n1": ((1, 2.0), (7, 10.0), (15, 16.0), (1024, 32.0)),
    "n2": ((7, 10.0), (15, 16.0), (1024, 32.0)),
    "n2d": ((7, 10.0), (15, 16.0), (1024, 32.0)),
    "e2": ((3, 4.0), (7, 8.0), (1024, 16.0)),
    "c2": ((7, 10.0), (15, 16.0), (1024, 32.0)),
}


@dataclass(frozen=True, slots=True)
class GceType:
    """A predefined machine type: ``family`` in the list, its cores, memory and highest egress bandwidth."""

    name: str
    family: str
    vcpus: int
    memory_gib: float
    nic_burst_gbps: float


def gce_types() -> Iterator[GceType]:
    """All of them."""
    for family, kind, gib_per_core, sizes in _KINDS:
        for cores in sizes:
            egress = next(gbps for most, gbps in _EGRESS[family] if cores <= most)
            yield GceType(f"{family}-{kind}-{cores}", family, cores, round(cores * gib_per_core, 4), egress)
