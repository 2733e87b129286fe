"""What goes wrong between an attempt and its nodes."""

from __future__ import annotations

from trainmaster.spec.errors import TrainmasterError


class NodeGoneError(TrainmasterError):
    """A member's node is gone, and with it what the member wrote."""


class RelayError(TrainmasterError):
    """Its nodes cannot use the store: files go through this machine."""
