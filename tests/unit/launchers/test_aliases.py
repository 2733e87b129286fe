"""What other tools call what members are told."""

from __future__ import annotations

import pytest

from trainmaster.launchers import Gang, Member
from trainmaster.launchers.aliases import AliasFacts, alias_variables


def gang(hosts: list[str]) -> Gang:
    members = tuple(Member("worker", number, host, (29500,), 1) for number, host in enumerate(hosts))
    return Gang(members, 2)


def facts(**what: object) -> AliasFacts:
    given = {
        "run": "r-1",
        "name": "main",
        "task": 3,
        "attempt": 2,
        "per_node": 2,
        "cpus": 8,
        "array": "",
        "tasks": 1,
        "directory": "/runs/r-1/code",
    }
    return AliasFacts(**{**given, **what})  # type: ignore[arg-type]


@pytest.mark.parametrize("hosts", [["a", "a", "b", "b"], ["127.0.0.1"] * 4])
def test_nodes_are_those_of_the_recipe_wherever_members_are(hosts: list[str]) -> None:
    found = [
        alias_variables(["slurm", "skypilot", "dstack"], gang(hosts), each, facts())
        for each in gang(hosts).members
    ]
    assert [env["SLURM_PROCID"] for env in found] == ["0", "1", "2", "3"]
    assert [env["SLURM_LOCALID"] for env in found] == ["0", "1", "0", "1"]
    for name in ("SLURM_NODEID", "SKYPILOT_NODE_RANK", "DSTACK_NODE_RANK"):
        assert [env[name] for env in found] == ["0", "0", "1", "1"]
    last = found[-1]
    assert (last["SLURM_NTASKS"], last["SLURM_NNODES"], last["SLURM_GPUS_ON_NODE"]) == ("4", "2", "2")
    assert (last["SKYPILOT_NUM_GPUS_PER_NODE"], last["DSTACK_GPUS_NUM"]) == ("2", "4")
    assert last["SLURM_JOB_NODELIST"] == f"{hosts[0]},{hosts[2]}"
    assert last["SKYPILOT_NODE_IPS"] == last["DSTACK_NODES_IPS"] == f"{hosts[0]}\n{hosts[2]}"
    assert last["SLURM_SUBMIT_DIR"] == "/runs/r-1/code"
    assert (last["DSTACK_MASTER_NODE_IP"], last["SLURM_CPUS_PER_TASK"]) == (hosts[0], "4")


def test_a_job_has_the_same_number_for_all_members_and_attempts() -> None:
    four = gang(["a"] * 4)
    first = alias_variables(["slurm"], four, four.members[0], facts(attempt=1))
    again = alias_variables(["slurm"], four, four.members[3], facts(attempt=2))
    assert first["SLURM_JOB_ID"] == again["SLURM_JOB_ID"]
    assert first["SLURM_JOB_ID"].isdecimal()
    assert (first["SLURM_RESTART_COUNT"], again["SLURM_RESTART_COUNT"]) == ("0", "1")


def test_an_array_is_the_parameter_of_its_name_or_the_number_of_the_task() -> None:
    alone = Gang((Member("worker", 0, "a"),))
    told = {
        array: alias_variables(["slurm"], alone, alone.chief, facts(array=array, tasks=tasks, per_node=1))
        for array, tasks in (("40", 5), ("", 5), ("none", 1))
    }
    assert told["40"]["SLURM_ARRAY_TASK_ID"] == "40"
    assert told[""]["SLURM_ARRAY_TASK_ID"] == "3"
    assert "SLURM_ARRAY_TASK_ID" not in alias_variables(["slurm"], alone, alone.chief, facts(per_node=1))
    assert "SLURM_GPUS_ON_NODE" not in told["40"]
