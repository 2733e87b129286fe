"""Machines over SSH: connections, host keys, and what makes a host a node that a supervisor can start on.

Nothing here imports asyncssh before something is connected; it comes with ``trainmaster[hosts]``.
"""

from __future__ import annotations

from trainmaster.remote._calls import Result
from trainmaster.remote.bootstrap import Bootstrap, BootstrapSettings
from trainmaster.remote.cluster_keys import ClusterKeys, KeyPair, make_key_pair
from trainmaster.remote.connection import Connection, Ssh, SshSettings
from trainmaster.remote.errors import (
    CommandError,
    HostKeyError,
    LoginRefusedError,
    RemoteTimeoutError,
    UnreachableError,
)
from trainmaster.remote.facts import HostFacts
from trainmaster.remote.files import upload
from trainmaster.remote.host_keys import HostKeys
from trainmaster.remote.host_result import HostResult, Outcome, Phase, PhaseReport, usable
from trainmaster.remote.hosts_provider import hosts_provider
from trainmaster.remote.kit import GPU_ROOTS, ROOTS, Kit, Layer, code_layer, make_kit, make_kits
from trainmaster.remote.kit_memory import remembered_kits
from trainmaster.remote.removal import remove_runtime
from trainmaster.remote.shell import SshShell
from trainmaster.remote.target import Target, target_of

__all__ = [
    "GPU_ROOTS",
    "ROOTS",
    "Bootstrap",
    "BootstrapSettings",
    "ClusterKeys",
    "CommandError",
    "Connection",
    "HostFacts",
    "HostKeyError",
    "HostKeys",
    "HostResult",
    "KeyPair",
    "Kit",
    "Layer",
    "LoginRefusedError",
    "Outcome",
    "Phase",
    "PhaseReport",
    "RemoteTimeoutError",
    "Result",
    "Ssh",
    "SshSettings",
    "SshShell",
    "Target",
    "UnreachableError",
    "code_layer",
    "hosts_provider",
    "make_key_pair",
    "make_kit",
    "make_kits",
    "remembered_kits",
    "remove_runtime",
    "target_of",
    "upload",
    "usable",
]
