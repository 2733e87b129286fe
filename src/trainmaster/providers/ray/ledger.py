"""`RayLedger`: what a home knows of the machines of its clusters, also of those that Ray has forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainmaster.providers.cluster_ledger import ClusterLedger


@dataclass(frozen=True, slots=True)
class AskedSeats:
    """What was asked for. token, role, machine, labels: as in `NodeRequest`."""

    token: str
    role: str
    machine: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KnownSeat:
    """A machine.

    Attributes:
        id: name of its actor. token: of its request.
        about: what the actor says of itself.
        started_at: Unix seconds; 0 if it never was there.
        ended_at: the same of its end; 0 if it has not ended.
        reason: why it has ended.
    """

    id: str
    token: str
    about: Mapping[str, str | int] = field(default_factory=dict)
    started_at: float = 0.0
    ended_at: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ClusterSeats:
    """Of one cluster. requests: by token. seats: by id."""

    cluster: str
    requests: Mapping[str, AskedSeats] = field(default_factory=dict)
    seats: Mapping[str, KnownSeat] = field(default_factory=dict)


class RayLedger(ClusterLedger[ClusterSeats]):
    """See `ClusterLedger`."""

    kind = ClusterSeats
    hint = "Nothing is lost with the file: actors end themselves. Remove it."
