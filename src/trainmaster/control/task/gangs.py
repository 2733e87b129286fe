"""What a recipe says of a task's gang, in the terms of the executor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trainmaster.launchers import Gang, Launcher, Member
from trainmaster.spec import Checkpoint, Experiment, Hardware, Recipe
from trainmaster.spec.facts import RunFacts

if TYPE_CHECKING:
    from trainmaster.executors.base import Capacity

#: A gang whose size may change has at most so many workers, and servers, where the recipe sets no limit.
MOST_CHOSEN = 256

#: Slots and GPUs of a node.
NodeSize = tuple[int, int]


def member_names(experiment: Experiment) -> tuple[tuple[str, int], ...]:
    """Role and index of every member in rank order; those that decide success come first."""
    roles = sorted(experiment.members(), key=lambda role: not role.essential)
    return tuple((role.name, index) for role in roles for index in range(role.count))


def sized(experiment: Experiment, facts: RunFacts, attempt: int) -> Experiment:
    """An experiment as one of its attempts has it: the size of its gang may have been changed before it.

    Args:
        experiment: of the recipe.
        facts: what was found out of the run.
        attempt: its number.
    """
    if not experiment.adapt or experiment.distributed is None:
        return experiment
    found = facts.sizes(experiment.name)
    if (newest := max((n for n in found if n <= attempt), default=None)) is None:
        return experiment
    return resized(experiment, found[newest].workers, found[newest].servers)


def may_resize(experiment: Experiment) -> bool:
    """Whether a run may change the size of its gang: the recipe leaves it open, and there is one task."""
    shape = experiment.distributed
    is_open = shape is not None and bool(shape.span or shape.chooses_servers)
    return experiment.adapt and is_open and len(experiment.tasks(0)) == 1


def resized(experiment: Experiment, workers: int, servers: int) -> Experiment:
    """A gang with so many workers and parameter servers in place of those that it has."""
    assert experiment.distributed is not None
    return experiment.model_copy(update={"distributed": experiment.distributed.sized(workers, servers)})


def sized_recipe(recipe: Recipe, facts: RunFacts, attempts: Mapping[str, int]) -> Recipe:
    """A recipe with the sizes of gangs that the present attempts of its experiments have."""
    found = {name: sized(it, facts, attempts.get(name, 0)) for name, it in recipe.experiments.items()}
    return recipe.model_copy(update={"experiments": found})


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
    gang = gang_of(_largest(experiment), "", {})
    return frozenset(each.name for each in gang.members if not launcher.is_essential(gang, each))


def _largest(experiment: Experiment) -> Experiment:
    """With as many members as it may ever have."""
    shape = experiment.distributed
    if shape is None or not may_resize(experiment):
        return experiment
    workers = shape.reopened.worker_bounds[1] or MOST_CHOSEN
    return resized(experiment, workers, workers if shape.chooses_servers else shape.parameter_servers)


def dispensable_of(experiment: Experiment, launcher: Launcher) -> frozenset[str]:
    """Names of the members without which the others go on; see `Launcher.is_dispensable`."""
    gang = gang_of(experiment, "", {})
    return frozenset(each.name for each in gang.members if launcher.is_dispensable(gang, each))


def slots_of(experiment: Experiment) -> int:
    """Slots that one task takes: what ``hardware.cpus`` says of a machine is its members' together."""
    return len(member_names(experiment)) * slots_per_member(experiment)


def slots_here(experiment: Experiment, slots: int) -> int:
    """Slots that all tasks of an experiment take of this machine at most.

    As many tasks run at the same time as ``workers`` machines would take if each held one task, or one node's
    share of a gang.

    Args:
        experiment: of the recipe.
        slots: of this machine.
    """
    need = slots_of(experiment)
    if experiment.workers is not None:
        slots = min(slots, need * (experiment.workers // _gang_nodes(experiment)))
    return max(slots, need)


def slots_on_nodes(experiment: Experiment, nodes: Sequence[NodeSize]) -> int:
    """Slots that all tasks of an experiment take of nodes at most: ``workers`` says of how many.

    Args:
        experiment: of the recipe.
        nodes: slots and GPUs of each node.
    """
    return max(sum(slots for slots, _ in _largest_nodes(experiment, nodes)), slots_of(experiment))


def tasks_here(experiment: Experiment, capacity: Capacity) -> int:
    """How many tasks of an experiment run on this machine at the same time, at most.

    One at least, as one that wants more gets what is there.

    Args:
        experiment: of the recipe.
        capacity: what the run may use of this machine.
    """
    slots = min(slots_here(experiment, capacity.slots), capacity.team_slots or capacity.slots)
    most, gpus = slots // slots_of(experiment), len(capacity.gpus)
    need = sum(gpus_of(experiment, role, is_here=True) for role, _ in member_names(experiment))
    return max(1, min(most, gpus // need) if need and gpus else most)


def tasks_on_nodes(experiment: Experiment, nodes: Sequence[NodeSize]) -> int:
    """How many tasks of an experiment run on nodes at the same time, at most.

    One at least, as one that wants more gets what is there.

    Args:
        experiment: of the recipe.
        nodes: slots and GPUs of each node; where a place does not say its GPUs, 0.
    """
    nodes, workers = _largest_nodes(experiment, nodes), _worker_count(experiment)
    share = min(max(1, workers_per_node(experiment)), workers)
    need, need_gpus = share * slots_per_member(experiment), share * gpus_of(experiment, "worker")
    shares = sum(
        min(slots // need, gpus // need_gpus if need_gpus and gpus else slots) for slots, gpus in nodes
    )
    by_slots = sum(slots for slots, _ in nodes) // slots_of(experiment)
    return max(1, min(shares * share // workers, by_slots))


def _largest_nodes(experiment: Experiment, nodes: Sequence[NodeSize]) -> Sequence[NodeSize]:
    return nodes if experiment.workers is None else sorted(nodes)[-experiment.workers :]


def _worker_count(experiment: Experiment) -> int:
    return next(role.count for role in experiment.members() if role.name == "worker")


def _gang_nodes(experiment: Experiment) -> int:
    """Machines that the workers of one task fill."""
    return math.ceil(_worker_count(experiment) / max(1, workers_per_node(experiment)))


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
