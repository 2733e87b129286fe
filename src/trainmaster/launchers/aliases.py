"""`alias_variables`: what members are told, under the names that other tools have for it. Pure.

Only what ``aliases`` of an experiment asks for: libraries that find variables of Slurm behave otherwise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from trainmaster.dataclass import dataclass
from trainmaster.launchers.base import Gang, Member

#: Scripts cut digits off its end to make a port of them.
_JOB_IDS: Final = 90_000_000


@dataclass(frozen=True, slots=True)
class AliasFacts:
    """What they say beside the gang.

    Attributes:
        run: its id. name: of the experiment. task: its number. attempt: 1-based.
        per_node: workers of each node, as the recipe has it: on one machine it stands for all nodes.
        cpus: slots of a node.
        array: the task's value of ``SLURM_ARRAY_TASK_ID``; empty if it has no such parameter.
        tasks: how many tasks the experiment has.
        directory: where members begin, with the code.
    """

    run: str
    name: str
    task: int
    attempt: int
    per_node: int
    cpus: int
    array: str
    tasks: int
    directory: str


def alias_variables(tools: Iterable[str], gang: Gang, member: Member, facts: AliasFacts) -> dict[str, str]:
    r"""The variables of other tools.

    Nodes are those of the recipe: members that are meant for two are so on one machine, too.

    >>> pair = Gang((Member("worker", 0, "10.0.0.1", gpus=2), Member("worker", 1, "10.0.0.2", gpus=2)))
    >>> facts = AliasFacts("r-1", "main", 0, 1, per_node=1, cpus=4, array="", tasks=1, directory="/c")
    >>> env = alias_variables(["skypilot"], pair, pair.members[1], facts)
    >>> env["SKYPILOT_NODE_RANK"], env["SKYPILOT_NODE_IPS"], env["SKYPILOT_NUM_GPUS_PER_NODE"]
    ('1', '10.0.0.1\n10.0.0.2', '2')
    """
    each = max(1, facts.per_node)
    hosts = [first.host for first in gang.members[::each]]
    node = gang.rank(member) // each
    here = gang.members[node * each : (node + 1) * each]
    made: dict[str, str] = {}
    for tool in tools:
        makes = {"slurm": _slurm, "skypilot": _skypilot, "dstack": _dstack}[tool]
        made |= makes(gang, member, facts, hosts, node, here)
    return made


def _slurm(
    gang: Gang, member: Member, facts: AliasFacts, hosts: list[str], node: int, here: tuple[Member, ...]
) -> dict[str, str]:
    job = _job_id(f"{facts.run}/{facts.name}/{facts.task}")
    local, gpus = gang.rank(member) - gang.rank(here[0]), sum(each.gpus for each in here)
    nodes, all_tasks, nodelist = str(len(hosts)), str(gang.world_size), ",".join(hosts)
    each = max(1, facts.per_node)
    made = {
        "SLURM_JOB_ID": job, "SLURM_JOBID": job, "SLURM_JOB_NAME": facts.name, "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": all_tasks, "SLURM_NPROCS": all_tasks, "SLURM_NTASKS_PER_NODE": str(each),
        "SLURM_TASKS_PER_NODE": f"{each}(x{nodes})" if len(hosts) > 1 else str(each),
        "SLURM_PROCID": str(gang.rank(member)), "SLURM_LOCALID": str(local), "SLURM_NODEID": str(node),
        "SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURMD_NODENAME": member.host,
        "SLURM_JOB_NODELIST": nodelist, "SLURM_NODELIST": nodelist, "SLURM_LAUNCH_NODE_IPADDR": hosts[0],
        "SLURM_CPUS_PER_TASK": str(max(1, facts.cpus // each)), "SLURM_CPUS_ON_NODE": str(facts.cpus),
        "SLURM_JOB_CPUS_PER_NODE": str(facts.cpus), "SLURM_RESTART_COUNT": str(facts.attempt - 1),
        "SLURM_SUBMIT_DIR": facts.directory,
    }  # fmt: skip
    if gpus:
        made |= {"SLURM_GPUS_ON_NODE": str(gpus), "SLURM_GPUS_PER_NODE": str(gpus)}
        made["SLURM_GPUS"] = str(gpus * len(hosts))
    if facts.array or facts.tasks > 1:
        made |= {
            "SLURM_ARRAY_TASK_ID": facts.array or str(facts.task),
            "SLURM_ARRAY_JOB_ID": _job_id(f"{facts.run}/{facts.name}"),
            "SLURM_ARRAY_TASK_COUNT": str(facts.tasks),
        }
    return made


def _skypilot(
    gang: Gang, member: Member, facts: AliasFacts, hosts: list[str], node: int, here: tuple[Member, ...]
) -> dict[str, str]:
    del gang, member
    return {
        "SKYPILOT_NODE_RANK": str(node),
        "SKYPILOT_NODE_IPS": "\n".join(hosts),
        "SKYPILOT_NUM_NODES": str(len(hosts)),
        "SKYPILOT_NUM_GPUS_PER_NODE": str(sum(each.gpus for each in here)),
        "SKYPILOT_TASK_ID": f"{facts.run}-{facts.name}-{facts.task}",
        "SKYPILOT_JOB_ID": _job_id(f"{facts.run}/{facts.name}/{facts.task}"),
        "SKYPILOT_CLUSTER_NAME": facts.run,
    }


def _dstack(
    gang: Gang, member: Member, facts: AliasFacts, hosts: list[str], node: int, here: tuple[Member, ...]
) -> dict[str, str]:
    del member
    return {
        "DSTACK_NODE_RANK": str(node),
        "DSTACK_NODES_NUM": str(len(hosts)),
        "DSTACK_NODES_IPS": "\n".join(hosts),
        "DSTACK_MASTER_NODE_IP": hosts[0],
        "DSTACK_GPUS_PER_NODE": str(sum(each.gpus for each in here)),
        "DSTACK_GPUS_NUM": str(sum(each.gpus for each in gang.members)),
        "DSTACK_RUN_NAME": facts.run,
        "DSTACK_RUN_ID": facts.run,
        "DSTACK_JOB_ID": f"{facts.run}-{facts.name}-{facts.task}",
    }


def _job_id(text: str) -> str:
    return str(10_000_000 + int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]) % _JOB_IDS)
