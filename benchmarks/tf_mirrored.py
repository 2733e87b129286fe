"""What `tf_rate` measures for MultiWorkerMirroredStrategy: a small network on digits, in its own loop."""

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported

import tensorflow as tf
from sklearn.datasets import load_digits

BATCH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    ring = tf.distribute.experimental.CommunicationImplementation.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    worker, workers = strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync
    digits = load_digits()
    mine = tf.data.Dataset.from_tensor_slices(
        (
            (digits.images[worker::workers, :, :, None] / 16).astype("float32"),
            digits.target[worker::workers].astype("int32"),
        )
    )
    batches = iter(mine.shuffle(2000, seed=0).repeat().batch(BATCH).prefetch(2))
    layers = tf.keras.layers
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                layers.Input((8, 8, 1)),
                layers.Conv2D(16, 3, padding="same", activation="relu"),
                layers.MaxPooling2D(),
                layers.Flatten(),
                layers.Dense(64, activation="relu"),
                layers.Dense(10),
            ]
        )
        optimizer = tf.keras.optimizers.SGD(0.05)
        optimizer.build(model.trainable_variables)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        def replica() -> tf.Tensor:
            with tf.GradientTape() as tape:
                scores = model(images, training=True)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
                loss = tf.reduce_mean(losses) / workers
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica), axis=None)

    metrics = Path(os.environ["TRAINMASTER_METRICS"])
    for number in range(1, steps + 1):
        loss = float(step(*next(batches)))
        if number % 50 == 0:
            row = {"step": number, "loss": loss, "seconds": time.monotonic()}
            with metrics.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
