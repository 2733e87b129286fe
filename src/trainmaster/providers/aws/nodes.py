"""What EC2 says of machines, as `Node` s. Pure."""

from __future__ import annotations

import calendar
import contextlib
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from trainmaster.providers.aws.requests import (
    HOST_KEY_TAG,
    LABEL_TAG,
    LEASE_FORMAT,
    LEASE_S_TAG,
    LEASE_TAG,
    ROLE_TAG,
)
from trainmaster.providers.base import Node, NodeState

#: Between Amazon's notice and the end of a spot machine.
NOTICE_S: Final = 120.0
_STATES: Final = {
    "pending": NodeState.STARTING,
    "running": NodeState.READY,
    # From here on it costs nothing but its disk. Only a person at the console stops a machine of ours:
    # `release` gives it back all the same.
    "stopping": NodeState.GONE,
    "stopped": NodeState.GONE,
    "shutting-down": NodeState.GONE,
    "terminated": NodeState.GONE,
}
#: States in which there is nothing left to give back.
ENDED: Final = frozenset({"shutting-down", "terminated"})
_REASONS: Final = {
    "Server.SpotInstanceTermination": "Amazon took the spot machine back",
    "Server.SpotInstanceShutdown": "Amazon took the spot machine back",
    "Server.InsufficientInstanceCapacity": "there was no capacity to start it",
    "Client.InstanceInitiatedShutdown": "it switched itself off: its lease was over, or a program did it",
    "Client.UserInitiatedShutdown": "it was given back",
    "Client.VolumeLimitExceeded": "the account's quota of disks is used up",
    "Client.InternalError": "it could not start: its disk may be encrypted with a key that you may not use",
    "Client.InvalidSnapshot.NotFound": "its image's snapshot is not there",
    "Server.InternalError": "Amazon's machine failed",
}
#: Of machines whose tag is gone.
_UNSAID_LEASE_S: Final = 900.0
_WHEN: Final = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")
_MARKED: Final = frozenset({"marked-for-termination", "marked-for-stop", "marked-for-hibernation"})


def instances_of(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The machines in an answer of DescribeInstances or RunInstances."""
    if "Instances" in answer:
        return list(answer["Instances"])
    return [one for reservation in answer.get("Reservations", []) for one in reservation.get("Instances", [])]


def tags_of(thing: Mapping[str, Any]) -> dict[str, str]:
    """Its tags."""
    return {tag["Key"]: tag["Value"] for tag in thing.get("Tags", [])}


def state_of(instance: Mapping[str, Any]) -> str:
    """EC2's own name of its state."""
    return str(instance.get("State", {}).get("Name", ""))


def cores_of(instance: Mapping[str, Any]) -> int:
    """Its hardware threads; 0 if EC2 does not say."""
    cores = instance.get("CpuOptions") or {}
    return int(cores.get("CoreCount") or 0) * int(cores.get("ThreadsPerCore") or 1)


def leased_until(instance: Mapping[str, Any]) -> float:
    """Unix seconds by EC2's clock until which it is leased; it ends itself after that.

    What was said when it was rented, and when its lease was renewed last; the machine's own lease, which is
    renewed over SSH, may be longer, never much shorter.
    """
    tags, launched = tags_of(instance), instance.get("LaunchTime")
    first_s, until = _UNSAID_LEASE_S, 0.0
    with contextlib.suppress(KeyError, ValueError):  # a tag that somebody has changed by hand
        first_s = float(tags[LEASE_S_TAG])
    with contextlib.suppress(KeyError, ValueError):
        until = datetime.strptime(tags[LEASE_TAG], LEASE_FORMAT).replace(tzinfo=UTC).timestamp()
    return max(until, launched.timestamp() + first_s if isinstance(launched, datetime) else 0.0)


def node_of(
    instance: Mapping[str, Any],
    *,
    cluster: str,
    user: str,
    key: Path,
    leaves_at: float | None = None,
    ahead_s: float = 0.0,
    inside_vpc: str = "",
) -> Node:
    """One machine; its times are by our clock.

    Args:
        instance: as EC2 describes it.
        cluster: for which it was asked.
        user: to log in as.
        key: private key file.
        leaves_at: Unix seconds by EC2's clock, if its end is announced.
        ahead_s: how far EC2's clock is ahead of ours.
        inside_vpc: the network that we are in ourselves, if it is one of EC2's.
    """
    tags = tags_of(instance)
    state = _STATES.get(state_of(instance), NodeState.STARTING)
    if leaves_at is not None and state is not NodeState.GONE:
        state = NodeState.LEAVING
    private = str(instance.get("PrivateIpAddress") or "")
    is_near = bool(inside_vpc) and instance.get("VpcId") == inside_vpc
    address = private if is_near else str(instance.get("PublicIpAddress") or private)
    launched = instance.get("LaunchTime")
    gone = state is NodeState.GONE
    ended = ended_at(str(instance.get("StateTransitionReason") or "")) if gone else None
    return Node(
        id=str(instance["InstanceId"]),
        cluster=cluster,  # what it says itself may be another team's
        role=tags.get(ROLE_TAG, ""),
        state=state,
        address="" if gone else address,
        private_address="" if gone else private,
        user=user,
        key=key,
        instance_type=str(instance.get("InstanceType", "")),
        zone=str((instance.get("Placement") or {}).get("AvailabilityZone", "")),
        spot=instance.get("InstanceLifecycle") == "spot",
        started_at=launched.timestamp() - ahead_s if isinstance(launched, datetime) else 0.0,
        leaves_at=leaves_at - ahead_s if leaves_at is not None and state is NodeState.LEAVING else None,
        slots=cores_of(instance),
        labels={
            name.removeprefix(LABEL_TAG): value for name, value in tags.items() if name.startswith(LABEL_TAG)
        },
        reason=_reason(instance) if gone else "",
        ended_at=None if ended is None else ended - ahead_s,
        host_key=tags.get(HOST_KEY_TAG, ""),
    )


def ended_at(transition_reason: str) -> float | None:
    """When it ended, Unix seconds, if EC2 says so.

    >>> ended_at("User initiated (2026-01-02 03:04:05 GMT)")
    1767323045.0
    """
    found = _WHEN.search(transition_reason)
    return float(calendar.timegm(time.strptime(found[1], "%Y-%m-%d %H:%M:%S"))) if found else None


def _reason(instance: Mapping[str, Any]) -> str:
    told = instance.get("StateReason") or {}
    code, message = str(told.get("Code") or ""), str(told.get("Message") or "")
    if state_of(instance) in ("stopping", "stopped"):
        return "it was stopped"
    known = _REASONS.get(code) or message or code or str(instance.get("StateTransitionReason") or "")
    return known or "it is ending, EC2 does not say why"


def notices_of(answer: Mapping[str, Any]) -> dict[str, float]:
    """Id -> Unix seconds by EC2's clock at which Amazon takes it back, from DescribeSpotInstanceRequests."""
    found: dict[str, float] = {}
    for request in answer.get("SpotInstanceRequests", []):
        status = request.get("Status") or {}
        told = status.get("UpdateTime")
        if status.get("Code") in _MARKED and request.get("InstanceId") and isinstance(told, datetime):
            found[str(request["InstanceId"])] = told.timestamp() + NOTICE_S
    return found
