"""Frameworks over rented machines: the recipes are those that run on one machine, unchanged."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")

from renter import Renter

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

#: TensorFlow's import takes seconds of CPU: hosts of four vCPUs have a core.
RECIPE = """
name: steps
experiments:
  train:
    framework: {framework}
    distributed: {{strategy: allreduce, workers: 2}}
    hardware: {{instance: m4.xlarge}}
    env: {{TF_CPP_MIN_LOG_LEVEL: 2}}
    command: python train.py
"""
MIRRORED = """
import tensorflow as tf

options = tf.distribute.experimental.CommunicationOptions(
    implementation=tf.distribute.experimental.CommunicationImplementation.RING
)
strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
rank = strategy.cluster_resolver.task_id
with strategy.scope():
    weight = tf.Variable(1.0)


@tf.function
def step():
    def replica():
        together = tf.distribute.get_replica_context().all_reduce("sum", 0.5 * weight * (1.0 + rank))
        weight.assign_sub(0.25 * together)

    strategy.run(replica)


for _ in range(3):
    step()
print("replicas", strategy.num_replicas_in_sync, "weight", float(weight.numpy()))
"""
ALL_REDUCED = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
loss = (model(torch.full((1, 4), 1.0 + dist.get_rank())) ** 2).mean()
loss.backward()
print("replicas", dist.get_world_size(), "weight", model.module.weight.grad.sum().item())
"""


@pytest.mark.parametrize(
    ("framework", "script"),
    [
        pytest.param("tensorflow", MIRRORED, marks=pytest.mark.tensorflow),
        pytest.param("pytorch", ALL_REDUCED, marks=pytest.mark.torch),
    ],
)
def test_workers_on_two_machines_agree(renter: Renter, framework: str, script: str) -> None:
    pytest.importorskip("torch" if framework == "pytorch" else framework)
    (renter.work / "train.py").write_text(script)
    found = renter.run(renter.recipe(RECIPE.format(framework=framework))).end()
    assert found["reason"] == "SUCCEEDED"
    said = re.findall(r"replicas 2 weight (\S+)", renter.call("logs", found["run"]).stdout)
    assert len(said) == 2
    assert said[0] == said[1] != "1.0"
