"""What a recipe says of a task's gang, in the terms of the executor."""

from __future__ import annotations

from trainmaster.launchers import Gang, Launcher, Member
from trainmaster.spec import Checkpoint, Experiment


def member_names(experiment: Experiment) -> tuple[tuple[str, int], ...]:
    """Role and index of every member in rank order; those that decide success come first."""
    roles = sorted(experiment.members(), key=lambda role: not role.essential)
    return tuple((role.name, index) for role in roles for index in range(role.count))


def gang_of(experiment: Experiment, host: str, ports: dict[str, tuple[int, ...]]) -> Gang:
    """The gang with all its members on one machine.

    Args:
        experiment: of the recipe.
        host: address under which the members reach each other.
        ports: held per member name.
    """
    members = tuple(
        Member(role, index, host, ports.get(f"{role}-{index}", ()), experiment.hardware.gpus or 0)
        for role, index in member_names(experiment)
    )
    per_node = experiment.distributed.per_node if experiment.distributed else None
    return Gang(members, per_node or 1)


def helpers_of(experiment: Experiment, launcher: Launcher) -> frozenset[str]:
    """Names of the members that nobody waits for: the launcher knows who ends by itself."""
    gang = gang_of(experiment, "", {})
    return frozenset(each.name for each in gang.members if not launcher.is_essential(gang, each))


def slots_of(experiment: Experiment) -> int:
    """Slots that one task takes: its members, each as many as ``hardware.cpus`` says."""
    return len(member_names(experiment)) * slots_per_member(experiment)


def slots_per_member(experiment: Experiment) -> int:
    """Slots that one member takes."""
    return max(1, int(experiment.hardware.cpus or 1))


def checkpoints_of(experiment: Experiment) -> Checkpoint:
    """How often checkpoints are taken; the defaults where the recipe says nothing."""
    return experiment.checkpoint or Checkpoint()
