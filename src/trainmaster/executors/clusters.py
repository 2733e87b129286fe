"""The engines by name: what makes a cluster of nodes, and what each node is sent for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmaster.spec.errors import ExecutorError

if TYPE_CHECKING:
    from trainmaster.executors.gangs.recorded_cluster import RecordedCluster

#: What a node must be able to import, beside what all need, by engine.
_NEEDS = {"ray": ("ray/_raylet.so",), "ssh": ()}
_PACKAGES = {"ray": ("ray",), "ssh": ()}


def cluster_kind(engine: str) -> type[RecordedCluster]:
    """The class of an engine's clusters.

    Raises:
        ExecutorError: there is no such engine.
    """
    match engine:
        case "ray":
            from trainmaster.executors.ray.cluster import RayCluster

            return RayCluster
        case "ssh":
            from trainmaster.executors.ssh.cluster import SshCluster

            return SshCluster
    raise ExecutorError(f"there is no engine {engine}", "Update Trainmaster here.")


def packages_of(engine: str) -> tuple[str, ...]:
    """What nodes are sent for an engine, as pip takes it."""
    return _PACKAGES.get(engine, ())


def imports_of(engine: str) -> tuple[str, ...]:
    """What must be there on a node for an engine, as `RuntimePackage` is tried with it."""
    return _NEEDS.get(engine, ())
