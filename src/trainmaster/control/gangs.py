"""What a recipe says of a task's gang, in the terms of the executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainmaster.launchers import Gang, Launcher, Member
from trainmaster.spec import Checkpoint, Experiment


def member_names(experiment: Experiment) -> tuple[tuple[str, int], ...]:
    """Role and index of every member in rank order; those that decide success come first."""
    roles = sorted(experiment.members(), key=lambda role: not role.essential)
    return tuple((role.name, index) for role in roles for index in range(role.count))


def gang_of(
    experiment: Experiment,
    host: str,
    ports: Mapping[str, tuple[int, ...]],
    addresses: Mapping[str, str] | None = None,
) -> Gang:
    """The gang with all its members.

    Args:
        experiment: of the recipe.
        host: address under which the members reach each other where all are on one machine.
        ports: held per member name.
        addresses: per member name, where they are on several; None or empty where they are not.
    """
    addresses = addresses or {}
    count_gpus = gpus_on_nodes if addresses else gpus_here
    members = tuple(
        Member(
            role,
            index,
            addresses.get(f"{role}-{index}", host),
            ports.get(f"{role}-{index}", ()),
            count_gpus(experiment, role),
        )
        for role, index in member_names(experiment)
    )
    per_node = experiment.distributed.per_node if experiment.distributed else None
    chief = experiment.distributed.chief if experiment.distributed else None
    return Gang(members, per_node or 1, chief_is_worker=chief is not None)


def gpus_here(experiment: Experiment, _role: str) -> int:
    """GPUs of each member where all are on this machine."""
    return experiment.hardware.gpus or 0


def gpus_on_nodes(experiment: Experiment, role: str) -> int:
    """GPUs of each member of a role: those of a node are shared out among the workers there.

    Parameter servers and chiefs compute nothing: they get GPUs only where the recipe gives them some.
    """
    own = experiment.distributed.hardware.get(role) if experiment.distributed else None
    if experiment.distributed is not None and role != "worker":
        return own.gpu_count if own is not None else 0
    hardware = next(each.hardware for each in experiment.members() if each.name == role)
    share = workers_per_node(experiment) if role == "worker" else 1
    return hardware.gpu_count // max(1, share)


def workers_per_node(experiment: Experiment) -> int:
    """How many workers of a gang each node has; 0 without gangs: as many as there is room for."""
    if experiment.distributed is None:
        return 0
    return experiment.distributed.per_node or experiment.hardware.gpu_count or 1


def node_labels(experiment: Experiment, role: str) -> dict[str, str]:
    """Which nodes members of a role go to, where a role of the recipe has hardware of its own."""
    own = experiment.distributed.hardware if experiment.distributed else {}
    # A member with no node of its own, such as a chief, is placed with a worker.
    return {"role": role if role in own else "worker"} if own else {}


def helpers_of(experiment: Experiment, launcher: Launcher) -> frozenset[str]:
    """Names of the members that are not waited for: the launcher knows which end by themselves."""
    gang = gang_of(experiment, "", {})
    return frozenset(each.name for each in gang.members if not launcher.is_essential(gang, each))


def dispensable_of(experiment: Experiment, launcher: Launcher) -> frozenset[str]:
    """Names of the members without which the others go on; see `Launcher.is_dispensable`."""
    gang = gang_of(experiment, "", {})
    return frozenset(each.name for each in gang.members if launcher.is_dispensable(gang, each))


def slots_of(experiment: Experiment) -> int:
    """Slots that one task takes: its members, each as many as ``hardware.cpus`` says."""
    return len(member_names(experiment)) * slots_per_member(experiment)


def slots_on_nodes(experiment: Experiment) -> int:
    """Slots that one task takes of nodes: what ``hardware.cpus`` says of a node is its members' together."""
    share = max(1, slots_per_member(experiment) // max(1, workers_per_node(experiment)))
    return len(member_names(experiment)) * share


def spread_on_nodes(experiment: Experiment, nodes: Sequence[int], slots: int) -> int:
    """Slots that all tasks of an experiment take of nodes at most: ``workers`` says of how many.

    Args:
        experiment: of the recipe.
        nodes: slots of each node.
        slots: of all of them.
    """
    if experiment.workers is None:
        return max(slots, slots_on_nodes(experiment))
    return max(sum(sorted(nodes)[-experiment.workers :]) or slots, slots_on_nodes(experiment))


def slots_per_member(experiment: Experiment) -> int:
    """Slots that one member takes."""
    return max(1, int(experiment.hardware.cpus or 1))


def checkpoints_of(experiment: Experiment) -> Checkpoint:
    """How often checkpoints are taken; the defaults where the recipe says nothing."""
    return experiment.checkpoint or Checkpoint()
