"""What a recipe says of a task's gang, in the terms of the executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainmaster.launchers import Gang, Launcher, Member
from trainmaster.spec import Checkpoint, Experiment, Hardware


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
    members = tuple(
        Member(
            role,
            index,
            addresses.get(f"{role}-{index}", host),
            ports.get(f"{role}-{index}", ()),
            gpus_of(experiment, role, is_here=not addresses),
        )
        for role, index in member_names(experiment)
    )
    per_node = experiment.distributed.per_node if experiment.distributed else None
    chief = experiment.distributed.chief if experiment.distributed else None
    return Gang(members, per_node or 1, chief_is_worker=chief is not None)


def gpus_of(experiment: Experiment, role: str, *, is_here: bool = False) -> int:
    """GPUs of each member of a role: those of a machine are shared out among the workers there.

    Parameter servers and chiefs compute nothing: they get GPUs only where the recipe gives them some. On this
    machine a model of GPUs is only a wish.
    """
    own = experiment.distributed.hardware.get(role) if experiment.distributed else None
    if experiment.distributed is not None and role != "worker":
        hardware, share = own or Hardware(), 1
    else:
        hardware = next(each.hardware for each in experiment.members() if each.name == role)
        share = workers_per_node(experiment) if role == "worker" else 1
    return ((hardware.gpus or 0) if is_here else hardware.gpu_count) // max(1, share)


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
    """Slots that one task takes: what ``hardware.cpus`` says of a machine is its members' together."""
    return len(member_names(experiment)) * slots_per_member(experiment)


def spread_on_nodes(experiment: Experiment, nodes: Sequence[int], slots: int) -> int:
    """Slots that all tasks of an experiment take of nodes at most: ``workers`` says of how many.

    Args:
        experiment: of the recipe.
        nodes: slots of each node.
        slots: of all of them.
    """
    if experiment.workers is None:
        return max(slots, slots_of(experiment))
    return max(sum(sorted(nodes)[-experiment.workers :]) or slots, slots_of(experiment))


def slots_per_machine(experiment: Experiment) -> int:
    """Slots that ``hardware`` asks of each machine."""
    return max(1, int(experiment.hardware.cpus or 1))


def slots_per_member(experiment: Experiment) -> int:
    """Slots that one member takes: its share of those of a machine."""
    return max(1, slots_per_machine(experiment) // max(1, workers_per_node(experiment)))


def checkpoints_of(experiment: Experiment) -> Checkpoint:
    """How often checkpoints are taken; the defaults where the recipe says nothing."""
    return experiment.checkpoint or Checkpoint()


def kept_after(experiment: Experiment) -> int:
    """How many checkpoints stay once there is a model; later tasks of a search may begin from one."""
    return max(checkpoints_of(experiment).keep_after, 1 if experiment.search else 0)
