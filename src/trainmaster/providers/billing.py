"""`Billing`: how a provider rounds time, what it bills beside machines, and for data that leaves it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from trainmaster.dataclass import dataclass, field

#: Of the shortest month, in which a disk costs most per hour.
_HOURS_PER_MONTH: Final = 28 * 24.0
_GIB: Final = 2**30

#: EC2: USD per GiB and month of gp3 disks with the IOPS and throughput that all have, by region; billed by
#: seconds, a minute at least. Written down in 2025-11 and not checked: where they are from is not known.
#: They cannot be set; https://aws.amazon.com/ebs/pricing/ has those that hold.
_EC2_DISK_USD_PER_GIB_MONTH: Final = {
    "af-south-1": 0.1047,
    "ap-east-1": 0.1056,
    "ap-northeast-1": 0.096,
    "ap-northeast-2": 0.0912,
    "ap-northeast-3": 0.096,
    "ap-south-1": 0.0912,
    "ap-southeast-1": 0.096,
    "ap-southeast-2": 0.096,
    "ca-central-1": 0.088,
    "eu-central-1": 0.0952,
    "eu-north-1": 0.0836,
    "eu-south-1": 0.0924,
    "eu-west-1": 0.088,
    "eu-west-2": 0.0928,
    "eu-west-3": 0.0928,
    "me-south-1": 0.0968,
    "sa-east-1": 0.152,
    "us-east-1": 0.08,
    "us-east-2": 0.08,
    "us-west-1": 0.096,
    "us-west-2": 0.08,
}
#: Of a public IPv4 address in use, in every region, since 2024-02-01; billed by seconds, a minute at least.
#: From https://aws.amazon.com/vpc/pricing/, as of 2025-11.
_EC2_ADDRESS_USD_PER_HOUR: Final = 0.005


@dataclass(frozen=True, slots=True)
class Billing:
    """How a provider bills; without arguments one of which nothing is known.

    Attributes:
        quantum_s, minimum_s: machines are billed by multiples of the one, and for the other at least. Whole
            minutes where nothing is known, so that no promise is too low.
        disk_usd_per_gib_month: of root disks, by region; the dearest one counts for others. Empty: not known.
        address_usd_per_hour: of a public address.
        is_whole: nothing is billed beside machines, but for what is here.
        snapshot_usd_per_gib_month: of an image whose disk is full; None: not known.
        egress_usd_per_gb: dollars per 10^9 bytes that leave it to the internet, of the first tier; 0: not
            known. The first 100 GB a month are free on AWS and Azure; quotes do not count on that.
    """

    quantum_s: float = 60.0
    minimum_s: float = 60.0
    disk_usd_per_gib_month: Mapping[str, float] = field(default_factory=dict)
    address_usd_per_hour: float = 0.0
    is_whole: bool = False
    egress_usd_per_gb: float = 0.0
    snapshot_usd_per_gib_month: float | None = None

    def extras_usd_per_hour(self, region: str, disk_bytes: int, *, public_address: bool) -> float:
        """What a machine's disk and address cost, as far as the rates are known."""
        dearest = max(self.disk_usd_per_gib_month.values(), default=0.0)
        gib = math.ceil(disk_bytes / _GIB)
        disk = gib * self.disk_usd_per_gib_month.get(region, dearest) / _HOURS_PER_MONTH
        return disk + self.address_usd_per_hour * public_address


#: AWS and Google bill seconds after the first minute, Azure bills seconds (Linux machines). Egress as
#: published in 2025 for regions in the USA and Europe.
AWS: Final = Billing(1.0, 60.0, _EC2_DISK_USD_PER_GIB_MONTH, _EC2_ADDRESS_USD_PER_HOUR, True, 0.09, 0.05)
GOOGLE: Final = Billing(1.0, 60.0, egress_usd_per_gb=0.12)
AZURE: Final = Billing(1.0, 0.0, egress_usd_per_gb=0.087)
#: Of those of which nothing is known.
UNKNOWN: Final = Billing()
#: Of machines of one's own, and of the lab's.
NOTHING_BESIDE: Final = Billing(is_whole=True, snapshot_usd_per_gib_month=0.0)
