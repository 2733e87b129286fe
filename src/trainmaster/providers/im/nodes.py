"""What Infrastructure Manager says of machines, as `Node` s. Pure."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from trainmaster.providers.base import Node, NodeRequest, NodeState
from trainmaster.providers.im.ledger import ImRequest
from trainmaster.providers.im.radl import ImMachine

_STATES: Final = {
    "pending": NodeState.STARTING,
    "running": NodeState.READY,
    "configured": NodeState.READY,
    # IM was not asked to configure anything: the machine runs, and SSH says whether it is any good.
    "unconfigured": NodeState.READY,
    # The cloud could not be asked: whether the machine answers is for others to find out.
    "unknown": NodeState.READY,
    "stopped": NodeState.GONE,
    "off": NodeState.GONE,
    "failed": NodeState.GONE,
    "deleting": NodeState.GONE,
}
#: States of machines that are over: their switch, or a person, has ended them.
ENDED: Final = frozenset({"stopped", "off", "failed"})
_REASONS: Final = {
    "stopped": "it was switched off: its lease was over, or somebody did it",
    "off": "it is not there any more in its cloud: it was taken away behind Infrastructure Manager's back",
    "failed": "Infrastructure Manager could not make it",
    "deleting": "it was given back",
    "": "it is not there any more: somebody has removed it",
}


def system_name(request: NodeRequest) -> str:
    """What machines of a request are called in a document: the same for the same token."""
    token = request.token or request.role
    return f"tm-{request.role}-{hashlib.sha256(token.encode()).hexdigest()[:12]}"


def node_id(infrastructure: str, number: str) -> str:
    """What a machine is called here."""
    return f"{infrastructure}-{number}"


def number_in(infrastructure: str, node: str) -> str:
    """Its number; empty if it is in another infrastructure.

    >>> number_in("ab-1", node_id("ab-1", "7")), number_in("ab-2", node_id("ab-1", "7"))
    ('7', '')
    """
    before, _, number = node.rpartition("-")
    return number if before == infrastructure else ""


def node_of(
    cluster: str, name: str, state: str, asked: ImRequest, told: ImMachine, *, user: str, key: Path | None
) -> Node:
    """One machine.

    Args:
        cluster: that it is for.
        name: its id.
        state: as IM says; empty if it is not there any more.
        asked: what it was made for.
        told: what IM says of it.
        user: to log in as, where IM does not say.
        key: file with its private key.
    """
    found = _STATES.get(state, NodeState.STARTING) if state else NodeState.GONE
    if found is NodeState.READY and not told.address:
        found = NodeState.STARTING
    gone = found is NodeState.GONE
    return Node(
        id=name,
        cluster=cluster,
        role=asked.role,
        state=found,
        address="" if gone else told.address,
        private_address="" if gone else told.private_address,
        user=told.user or user,
        key=key,
        instance_type=told.instance_type or asked.instance_type,
        zone=told.zone or asked.place,
        started_at=asked.at,
        labels=asked.labels,
        reason=_REASONS.get(state, "") if gone else "",
    )
