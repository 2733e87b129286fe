"""`misfit`: why a partition will never start a request, though Slurm would queue it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trainmaster.providers.ledger_provider import check_requests
from trainmaster.providers.slurm.answers import NodeKind, Partition, names_of
from trainmaster.providers.slurm.scripts import Part
from trainmaster.providers.slurm.settings import SLURM
from trainmaster.spec.errors import UsageError
from trainmaster.spec.units import counted, format_duration


def refuse_misfit(part: Part, partitions: Mapping[str, Partition], excluded: Collection[str] = ()) -> None:
    """Refuse what would wait for ever.

    Args:
        part: a request.
        partitions: what there is.
        excluded: names of nodes that it must not be on.

    Raises:
        UsageError: what is too much, what there is, and what to write instead.
    """
    machine, request = part.machine, part.request
    check_requests(SLURM.provider, [request])
    name = machine.partition or next((each.name for each in partitions.values() if each.is_default), "")
    partition = partitions.get(name)
    if partition is None:
        raise UsageError(
            f"machine {request.instance_type}: Slurm has no partition {name!r}"
            if name
            else f"machine {request.instance_type} names no partition, and Slurm has no default one",
            f"It has {names_of(sorted(partitions))}. `partition` in slurm.yaml names one.",
        )
    if partition.limit_s is not None and machine.time_limit_s > partition.limit_s:
        raise UsageError(
            f"machine {request.instance_type}: time_limit {format_duration(machine.time_limit_s)} is "
            f"more than partition {name} allows",
            f"Write at most {format_duration(partition.limit_s)}: the next job goes on at the checkpoint.",
        )
    kinds = [kind.without(excluded) for kind in partition.nodes]
    there = [kind for kind in kinds if kind.is_there and kind.count] or kinds
    suited = [kind for kind in there if lacks(part, kind) == ""]
    if not suited:
        reasons = dict.fromkeys(lacks(part, kind) for kind in there)
        raise UsageError(
            f"machine {request.instance_type}: no node of partition {name} has "
            f"{' or '.join(reasons) or 'it'}",
            f"The most that one has: {_most(there)}.",
        )
    if (count := sum(kind.count for kind in suited)) < request.count:
        beside = f", beside the {len(excluded)} that the run has," if excluded else ""
        raise UsageError(
            f"{counted(request.count, f'{request.role} node')}: partition {name} has {count}{beside} "
            f"that could be machine {request.instance_type}; Slurm would let it wait for ever",
            "Ask for fewer nodes, or for less of each.",
        )


def lacks(part: Part, kind: NodeKind) -> str:
    """What a node has not; empty if it has all."""
    machine = part.machine
    if machine.cpus > kind.cpus:
        return counted(machine.cpus, "CPU")
    if machine.memory_bytes >> 20 > kind.memory_mb:
        return f"{machine.memory_bytes / 1e9:.4g} GB of memory"
    if machine.gpus > kind.gpus:
        return counted(machine.gpus, "GPU")
    if machine.constraint and not _may_have(machine.constraint, kind.features):
        return f"the feature {machine.constraint}"
    return ""


def _may_have(constraint: str, features: Collection[str]) -> bool:
    """Whether a node may have what is asked for; Slurm's further expressions are left to Slurm.

    >>> asked = ("a100&nvlink", "a100&ib", "ib|a100", "ib|h100", "[x*2]")
    >>> [_may_have(each, ["a100", "nvlink"]) for each in asked]
    [True, False, True, False, True]
    """
    for sign, suffices in (("&", all), ("|", any)):
        words = constraint.split(sign)
        if all(word.replace("_", "").replace("-", "").isalnum() for word in words):
            return suffices(word in features for word in words)
    return True


def _most(kinds: list[NodeKind]) -> str:
    if not kinds:
        return "nothing"
    cpus, memory_mb, gpus = (max(getattr(kind, of) for kind in kinds) for of in ("cpus", "memory_mb", "gpus"))
    features = sorted({f for kind in kinds for f in kind.features} - {"(null)"})
    said = [counted(cpus, "CPU"), f"{memory_mb / 953.7:.4g} GB"]
    said += [counted(gpus, "GPU")] * bool(gpus) + [f"features {', '.join(features)}"] * bool(features)
    return ", ".join(said)
