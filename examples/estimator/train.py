"""MNIST by an Estimator of TensorFlow 1.15: parameter servers, and workers of which one is the chief.

Python 3.6. What each process is TF_CONFIG says: `tf.estimator.train_and_evaluate` reads it. Where the model
goes while it trains is `--model-dir`: a place in HDFS will do (`--model-dir "$TRAINMASTER_OUTPUT_HDFS"`).
"""

import argparse
import gzip
import json
import os
from pathlib import Path

import numpy
import tensorflow as tf


def parsed():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=os.environ.get("TRAINMASTER_DATA_MNIST", "mnist"))
    parser.add_argument("--model-dir", default=os.environ.get("TRAINMASTER_CHECKPOINT_DIR", "checkpoint"))
    parser.add_argument("--output", default=os.environ.get("TRAINMASTER_OUTPUT_DIR", "output"))
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=100)
    return parser.parse_args()


def images(directory, part):
    with gzip.open(str(Path(directory, part + "-images-idx3-ubyte.gz"))) as file:
        pixels = numpy.frombuffer(file.read(), numpy.uint8, offset=16)
    with gzip.open(str(Path(directory, part + "-labels-idx1-ubyte.gz"))) as file:
        labels = numpy.frombuffer(file.read(), numpy.uint8, offset=8)
    return pixels.reshape(-1, 28, 28, 1).astype("float32") / 255, labels.astype("int32")


def model_fn(features, labels, mode):
    hidden = tf.layers.conv2d(features["x"], 32, 5, padding="same", activation=tf.nn.relu)
    hidden = tf.layers.max_pooling2d(hidden, 2, 2)
    hidden = tf.layers.conv2d(hidden, 64, 5, padding="same", activation=tf.nn.relu)
    hidden = tf.layers.max_pooling2d(hidden, 2, 2)
    hidden = tf.layers.dense(tf.layers.flatten(hidden), 256, activation=tf.nn.relu)
    logits = tf.layers.dense(hidden, 10)
    classes = tf.argmax(logits, axis=1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"class": classes})
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == tf.estimator.ModeKeys.EVAL:
        accuracy = tf.metrics.accuracy(labels, classes)
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})
    right = tf.reduce_mean(tf.cast(tf.equal(tf.cast(classes, tf.int32), labels), tf.float32))
    step = tf.train.get_global_step()
    train = tf.train.AdamOptimizer(1e-3).minimize(loss, step)
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, train_op=train, training_hooks=[Reports(step, loss, right)]
    )


class Reports(tf.train.SessionRunHook):
    """What a step has shown, as a line of JSON in the file that TRAINMASTER_METRICS names."""

    def __init__(self, step, loss, accuracy):
        self.wanted = {"step": step, "loss": loss, "accuracy": accuracy}

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self.wanted)

    def after_run(self, run_context, run_values):
        found = {name: value.item() for name, value in run_values.results.items()}
        if found["step"] % 10 == 0 and "TRAINMASTER_METRICS" in os.environ:
            with Path(os.environ["TRAINMASTER_METRICS"]).open("a") as file:
                file.write(json.dumps(found) + "\n")


def main():
    options = parsed()
    tf.logging.set_verbosity(tf.logging.INFO)
    x, y = images(options.data, "train")
    test_x, test_y = images(options.data, "t10k")
    source = tf.estimator.inputs.numpy_input_fn(
        {"x": x}, y, batch_size=options.batch, num_epochs=None, shuffle=True
    )
    test = tf.estimator.inputs.numpy_input_fn({"x": test_x}, test_y, batch_size=500, shuffle=False)
    estimator = tf.estimator.Estimator(
        model_fn, config=tf.estimator.RunConfig(model_dir=options.model_dir, save_checkpoints_steps=500)
    )
    tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(source, max_steps=options.steps),
        tf.estimator.EvalSpec(test, steps=None),
    )
    if json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("type", "chief") == "chief":
        features = {"x": tf.placeholder(tf.float32, [None, 28, 28, 1])}
        receiver = tf.estimator.export.build_raw_serving_input_receiver_fn(features)
        estimator.export_saved_model(options.output, receiver)


if __name__ == "__main__":
    main()
