"""`InstanceType`: what can be rented in the lab; `SizeScale`: how much of this machine that is."""

from __future__ import annotations

import math
import os
from dataclasses import asdict
from typing import Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import UsageError

GIB: Final = 2**30
#: Below this sshd, a shell and Python do not fit together.
MEMORY_FLOOR_BYTES: Final = 512 * 2**20
#: vCPUs that fill the machine at the usual scale: the largest type of the papers' figures, m4.4xlarge.
VCPUS_OF_MACHINE: Final = 16
#: A link slower than this makes ssh itself the bottleneck.
NIC_FLOOR_MBPS: Final = 5.0
#: Share of the on-demand price that spot machines cost in the lab. Amazon's own float around a third.
SPOT_SHARE: Final = 0.3


@dataclass(frozen=True, slots=True)
class InstanceType:
    """An instance type of EC2 with its published size and price.

    Attributes:
        vcpus: virtual CPUs.
        memory_gib: GiB of memory.
        nic_gbps: what the network card sustains, Gbit/s. Of types whose sustained part Amazon does not
            publish it is an estimate from the sizes beside them.
        price_usd_per_hour: on demand, Linux, us-east-1.
        gpu: model of its GPUs, empty without any. Hosts of the lab have none.
        gpus: how many.
        gpu_memory_gib: GiB of one.
    """

    name: str
    vcpus: int
    memory_gib: float
    nic_gbps: float
    price_usd_per_hour: float
    gpu: str = ""
    gpus: int = 0
    gpu_memory_gib: float = 0.0

    @property
    def cpu_baseline(self) -> float:
        """Share of its vCPUs that CPU credits sustain; 1 of types whose processors never slow down."""
        return _BASELINES.get(self.name, 1.0)

    @property
    def spot_price_usd_per_hour(self) -> float:
        """What the lab asks for it as a spot machine."""
        return round(self.price_usd_per_hour * SPOT_SHARE, 6)


_ROWS: Final = (
    ("t2.nano", 1, 0.5, 0.03, 0.0058),
    ("t2.micro", 1, 1, 0.06, 0.0116),
    ("t2.small", 1, 2, 0.12, 0.023),
    ("t2.medium", 2, 4, 0.25, 0.0464),
    ("t2.large", 2, 8, 0.5, 0.0928),
    ("t2.xlarge", 4, 16, 0.75, 0.1856),
    ("t2.2xlarge", 8, 32, 1, 0.3712),
    ("t3.micro", 2, 1, 0.064, 0.0104),
    ("t3.small", 2, 2, 0.128, 0.0208),
    ("t3.medium", 2, 4, 0.256, 0.0416),
    ("t3.large", 2, 8, 0.512, 0.0832),
    ("m4.large", 2, 8, 0.45, 0.1),
    ("m4.xlarge", 4, 16, 0.75, 0.2),
    ("m4.2xlarge", 8, 32, 1, 0.4),
    ("m4.4xlarge", 16, 64, 2, 0.8),
    ("m4.10xlarge", 40, 160, 10, 2.0),
    ("m4.16xlarge", 64, 256, 20, 3.2),
    ("m5.large", 2, 8, 0.75, 0.096),
    ("m5.xlarge", 4, 16, 1.25, 0.192),
    ("m5.2xlarge", 8, 32, 2.5, 0.384),
    ("m5.4xlarge", 16, 64, 5, 0.768),
    ("c4.large", 2, 3.75, 0.5, 0.1),
    ("c4.xlarge", 4, 7.5, 0.75, 0.199),
    ("c4.2xlarge", 8, 15, 1, 0.398),
    ("c4.4xlarge", 16, 30, 2, 0.796),
    ("c4.8xlarge", 36, 60, 10, 1.591),
    ("c5.large", 2, 4, 0.75, 0.085),
    ("c5.xlarge", 4, 8, 1.25, 0.17),
    ("c5.2xlarge", 8, 16, 2.5, 0.34),
    ("c5.4xlarge", 16, 32, 5, 0.68),
    ("p2.xlarge", 4, 61, 1.25, 0.9, "K80", 1, 12),
    ("p2.8xlarge", 32, 488, 10, 7.2, "K80", 8, 12),
    ("p3.2xlarge", 8, 61, 2.5, 3.06, "V100", 1, 16),
    ("p3.8xlarge", 32, 244, 10, 12.24, "V100", 4, 16),
    ("g3s.xlarge", 4, 30.5, 2.5, 0.75, "M60", 1, 8),
    ("g3.4xlarge", 16, 122, 5, 1.14, "M60", 1, 8),
    ("g3.8xlarge", 32, 244, 10, 2.28, "M60", 2, 8),
    ("g4dn.xlarge", 4, 16, 5, 0.526, "T4", 1, 16),
)
TYPES: Final = {row[0]: InstanceType(*row) for row in _ROWS}

#: T3 machines cost more, and are not slower, when their credits are used up.
_BASELINES: Final = {
    "t2.nano": 0.05,
    "t2.micro": 0.1,
    "t2.small": 0.2,
    "t2.medium": 0.2,
    "t2.large": 0.3,
    "t2.xlarge": 0.225,
    "t2.2xlarge": 0.17,
}


@dataclass(frozen=True, slots=True)
class HostLimits:
    """What one host may use of this machine.

    Attributes:
        cpu_cores: seconds of CPU per second, over all its processes.
        cpus: how many CPUs it sees.
        memory_bytes: more than this ends the process that wants it.
        nic_mbps: Mbit/s, each way.
    """

    cpu_cores: float
    cpus: int
    memory_bytes: int
    nic_mbps: float


@dataclass(frozen=True, slots=True)
class SizeScale:
    """The lab's sizes as shares of the published ones.

    One factor scales CPU, memory and network alike, so that the balance between computing and communicating
    stays that of the cloud. Each may also be given by itself.

    Attributes:
        cpu: cores of this machine per vCPU.
        memory: bytes per published byte, and never less than `MEMORY_FLOOR_BYTES` per host.
        network: Mbit/s per published Mbit/s.
    """

    cpu: float
    memory: float
    network: float

    @classmethod
    def of_machine(
        cls,
        factor: float | None = None,
        *,
        cpu: float | None = None,
        memory: float | None = None,
        network: float | None = None,
        cores: int | None = None,
    ) -> SizeScale:
        """The scale at which `VCPUS_OF_MACHINE` vCPUs fill this machine, unless told otherwise.

        Raises:
            UsageError: a factor is not a positive number.

        >>> SizeScale.of_machine(cores=2)
        SizeScale(cpu=0.125, memory=0.125, network=0.125)
        >>> SizeScale.of_machine(0.25, cpu=0.5)
        SizeScale(cpu=0.5, memory=0.25, network=0.25)
        """
        for name, value in (
            ("--scale", factor),
            ("--cpu-scale", cpu),
            ("--memory-scale", memory),
            ("--network-scale", network),
        ):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UsageError(f"{name}: {value:g} is no scale", "Write a number above 0, such as 0.125.")
        usual = min(1.0, (cores or os.cpu_count() or 1) / VCPUS_OF_MACHINE)
        whole = usual if factor is None else factor
        return cls(*(whole if value is None else value for value in (cpu, memory, network)))

    def limits(self, kind: InstanceType, cores: int | None = None) -> HostLimits:
        """How much of this machine a host of this type gets.

        >>> SizeScale(0.125, 0.125, 0.125).limits(TYPES["m4.xlarge"], cores=2)
        HostLimits(cpu_cores=0.5, cpus=1, memory_bytes=2147483648, nic_mbps=93.75)
        """
        there = cores or os.cpu_count() or 1
        cpu_cores = min(float(there), kind.vcpus * self.cpu)
        return HostLimits(
            cpu_cores=cpu_cores,
            cpus=max(1, min(there, math.ceil(cpu_cores))),
            memory_bytes=max(MEMORY_FLOOR_BYTES, int(kind.memory_gib * GIB * self.memory)),
            nic_mbps=max(NIC_FLOOR_MBPS, kind.nic_gbps * 1000 * self.network),
        )

    def as_dict(self) -> dict[str, Any]:
        """For files and the command line."""
        return asdict(self)


def find_type(name: str) -> InstanceType:
    """The type of this name.

    Raises:
        UsageError: the lab has none.
    """
    if name in TYPES:
        return TYPES[name]
    import difflib

    near = difflib.get_close_matches(name, TYPES, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"The lab has {', '.join(TYPES)}."
    raise UsageError(f"the lab has no instance type {name!r}", hint)
