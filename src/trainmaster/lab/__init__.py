"""A cloud on one machine, for tests and experiments: EC2's API whose instances are real hosts.

`up` starts a daemon (`daemon`) with moto's EC2 API (`hooks`), in which `Cloud` makes a `Host` of every
instance: namespaces, an overlay on a shared read-only `Image` and `Runtime`, limits by control groups, sshd.
Hosts are connected by a bridge in a namespace of its own (`Region`), where the `metadata` service is too;
`Traffic` filters, delays and loses what they say to each other. `down` leaves nothing behind.

Nothing but the command line's verb ``lab`` knows this package: everybody else meets the lab as a cloud.
"""

from __future__ import annotations

from trainmaster.lab.client import LabClient
from trainmaster.lab.errors import LabError
from trainmaster.lab.instance_types import TYPES, HostLimits, InstanceType, SizeScale
from trainmaster.lab.lifecycle import LabOptions, boot, down, up
from trainmaster.lab.place import LabPlace
from trainmaster.lab.requirements import why_not

__all__ = [
    "TYPES",
    "HostLimits",
    "InstanceType",
    "LabClient",
    "LabError",
    "LabOptions",
    "LabPlace",
    "SizeScale",
    "boot",
    "down",
    "up",
    "why_not",
]
