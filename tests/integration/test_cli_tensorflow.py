"""TensorFlow through TF_CONFIG: parameter server and mirrored workers, on real digits."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from learning import check_it_learned, losses, needs

EXAMPLE = Path(__file__).parents[2] / "examples" / "tf-ps"

MIRRORED = """
    import os

    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import tensorflow as tf
    from sklearn.datasets import load_digits

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING
        )
    )
    worker = int(os.environ["TRAINMASTER_INDEX"])
    digits = load_digits()
    images = tf.constant(digits.data[worker::2] / 16, tf.float32)
    labels = tf.constant(digits.target[worker::2], tf.int32)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((64,)), tf.keras.layers.Dense(10)])
        optimizer = tf.keras.optimizers.SGD(0.5)
        optimizer.build(model.trainable_variables)

    @tf.function
    def step():
        def replica():
            with tf.GradientTape() as tape:
                scores = model(images, training=True)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores))
                part = loss / strategy.num_replicas_in_sync  # the optimizer adds them up
            gradients = tape.gradient(part, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return loss
        losses = strategy.run(replica)
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)

    print("replicas", strategy.num_replicas_in_sync)
    for number in range(60):
        print(f"step {number} loss {float(step()):.4f}")
    print("weights", float(tf.reduce_sum(model.weights[0] ** 2)))
"""


@pytest.fixture(autouse=True)
def needs_tensorflow():
    needs("tensorflow", "sklearn")


@pytest.mark.tensorflow
def test_parameter_server_example(tm):
    """One worker: a process of TensorFlow takes six seconds of a core to begin."""
    shutil.copytree(EXAMPLE, tm.work, dirs_exist_ok=True, ignore=shutil.ignore_patterns("output"))
    fewer = ("--set", "experiments.train.steps=600", "--set", "experiments.train.distributed.workers=1")
    run = tm.run("recipe.yaml", *fewer, timeout_s=120)["run"]
    check_it_learned(tm.logs(run, "--member", "chief-0"), first=1.0, last=0.6)
    tm.until_quiet()


@pytest.mark.tensorflow
@pytest.mark.crossings  # others of several processes are cancelled and go on
def test_parameter_server_example_is_cancelled_and_goes_on(tm):
    """The chief saves on SIGTERM what the parameter server holds, which must still be there."""
    shutil.copytree(EXAMPLE, tm.work, dirs_exist_ok=True, ignore=shutil.ignore_patterns("output"))
    # One worker: a process of TensorFlow takes six seconds of a core to begin, and all of them begin twice.
    fewer = ("--set", "experiments.train.steps=1200", "--set", "experiments.train.distributed.workers=1")
    call = tm.start("run", "recipe.yaml", *fewer, "--json")
    run = call.run_id()
    tm.until(lambda: call.over or "step  100" in tm.logs(run), "100 steps", patience_s=90)
    assert tm.summary(tm.call("cancel", run, "--json"))["reason"] == "CANCELLED"
    summary = tm.resume(run, timeout_s=120)
    assert summary["reason"] == "SUCCEEDED"
    log = tm.logs(run, "--member", "chief-0")
    restored = re.search(r"going on at step (\d+)", log)
    assert restored, log
    assert int(restored[1]) >= 100
    check_it_learned(log, first=1.0, last=0.4)
    (model,) = summary["models"]
    assert model["metrics"]["step"] == 1200
    assert model["metrics"]["examples"] == 1200 * 32
    assert model["metrics"]["accuracy"] > 0.9
    tm.until_quiet()


@pytest.mark.tensorflow
@pytest.mark.crossings  # TensorFlow finds its peers in the test above, too
def test_mirrored_workers(tm):
    tm.write("train.py", MIRRORED)
    gang = {"strategy": "allreduce", "workers": 2}
    run = tm.run(tm.task("python train.py", framework="tensorflow", distributed=gang), timeout_s=90)["run"]
    first, second = (tm.logs(run, "--member", f"worker-{index}") for index in range(2))
    assert "replicas 2" in first
    assert losses(first) == losses(second)
    assert re.findall("weights.*", first) == re.findall("weights.*", second) != []
    check_it_learned(first)
    tm.until_quiet()
