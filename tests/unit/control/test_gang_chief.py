"""`chief: worker`: the chief is one of the workers, with its machine and its GPUs."""

from __future__ import annotations

import json

import pytest

from trainmaster.advisor.market.workload import Workload
from trainmaster.cluster.renting.requirements import Needs
from trainmaster.control.task.gangs import gang_of, gpus_of, helpers_of, member_names
from trainmaster.launchers import get_launcher
from trainmaster.spec import Recipe
from trainmaster.spec.errors import RecipeError

RECIPE = """\
name: jorge
experiments:
  train:
    steps: 60000
    hardware: {gpus: 1}
    distributed:
      {strategy: ps-async, workers: 2, chief: worker, hardware: {ps: {instance: t2.small, gpus: 0}}}
    command: python train.py
"""


def test_one_server_and_two_workers_are_three_processes_on_three_machines():
    experiment = Recipe.from_text(RECIPE).experiments["train"]
    assert member_names(experiment) == (("worker", 0), ("worker", 1), ("ps", 0))
    needs = Needs.of(experiment, 0)
    assert (needs.workers, needs.servers, needs.helpers) == (2, 1, 0)
    workload = Workload.of(experiment, 0)
    assert (workload.servers, workload.chief) == (1, 0)
    assert [gpus_of(experiment, role) for role in ("worker", "ps")] == [1, 0]


def test_tensorflow_is_told_that_the_first_worker_is_the_chief():
    experiment = Recipe.from_text(RECIPE).experiments["train"]
    launcher = get_launcher(experiment.launcher)
    ports = {f"{role}-{index}": (2000 + at,) for at, (role, index) in enumerate(member_names(experiment))}
    gang = gang_of(experiment, "10.0.0.1", ports)
    told = [json.loads(launcher.environment(gang, member)["TF_CONFIG"]) for member in gang.members]
    assert told[0]["cluster"] == {
        "chief": ["10.0.0.1:2000"],
        "worker": ["10.0.0.1:2001"],
        "ps": ["10.0.0.1:2002"],
    }
    assert [(each["task"]["type"], each["task"]["index"]) for each in told] == [
        ("chief", 0),
        ("worker", 0),
        ("ps", 0),
    ]
    assert helpers_of(experiment, launcher) == {"ps-0"}


@pytest.mark.parametrize(
    ("written", "instead", "said"),
    [
        ("chief: worker", "chief: ps", "did you mean|write worker"),
        ("strategy: ps-async", "strategy: allreduce", "worker 0 is the chief already"),
        ("{ps: {", "{chief: {cpus: 2}, ps: {", "the chief is a worker"),
        ("command:", "framework: mxnet\n    command:", "framework mxnet has no chief"),
        ("command:", "roles: {chief: ansible/x}\n    command:", "no member of this experiment is a chief"),
    ],
)
def test_what_has_no_such_chief_is_refused(written, instead, said):
    with pytest.raises(RecipeError, match=said):
        Recipe.from_text(RECIPE.replace(written, instead))
