"""Handwritten digits with TensorFlow's parameter server, asynchronously or (`--sync`) in step.

Every process of the cluster runs this same script: `TF_CONFIG`, which Trainmaster sets, tells it
whether it is the chief, the parameter server or a worker. Without `TF_CONFIG` it starts a small
cluster on this machine by itself (`python train.py`).
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported
os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

try:
    from trainmaster import report
except ImportError:  # the same in four lines, for a Python that does not have it

    def report(**values):
        if "TRAINMASTER_METRICS" in os.environ:
            with Path(os.environ["TRAINMASTER_METRICS"]).open("a") as file:
                file.write(json.dumps(values) + "\n")


TRAIN = 1437  # images to learn from; the other 360 are for the test
STEPS_PER_ROUND = 50  # between two looks at the loss

stop_asked = False


def ask_to_stop(signum, frame):
    global stop_asked
    stop_asked = True


def load():
    """8x8 grey values in 0..1, in the same random order everywhere."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order, :, :, None] / 16).astype("float32")
    labels = digits.target[order].astype("int32")
    return images[:TRAIN], labels[:TRAIN], images[TRAIN:], labels[TRAIN:]


def network():
    """LeNet, cut down to 8x8 pixels."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


def serve(resolver):
    """What parameter servers and workers do: whatever the chief asks, until they are stopped."""
    cluster = resolver.cluster_spec()
    # With few cores TensorFlow makes few threads, and steps of several workers wait for each other forever.
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=len(cluster.as_dict()["worker"]) + 2
    )
    server = tf.distribute.Server(
        cluster, job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc", config=config
    )
    print(f"{resolver.task_type} {resolver.task_id} serves", flush=True)
    server.join()


def own_cluster():
    """By hand: a chief (this process), a parameter server and two workers, on ports of this machine."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
    chief, ps, *workers = [f"127.0.0.1:{one.getsockname()[1]}" for one in held]
    for one in held:
        one.close()
    cluster = {"chief": [chief], "ps": [ps], "worker": workers}

    def config(role, index):
        return json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})

    helpers = [("ps", 0), *(("worker", index) for index in range(len(workers)))]
    os.environ["TF_CONFIG"] = config("chief", 0)
    return [
        subprocess.Popen([sys.executable, *sys.argv], env=os.environ | {"TF_CONFIG": config(*helper)})
        for helper in helpers
    ]


def train(resolver, args):
    directory = os.environ.get("TRAINMASTER_CHECKPOINT_DIR")  # without one, no checkpoints
    output = Path(os.environ.get("TRAINMASTER_OUTPUT_DIR", "output"))
    images, labels, test_images, test_labels = load()

    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = network()
        optimizer = tf.keras.optimizers.SGD(args.lr, momentum=0.9)
        optimizer.build(model.trainable_variables)
        done = tf.Variable(0, dtype=tf.int64, trainable=False)  # steps, counted on the parameter server
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def batches():
        """Each worker draws from all images, in an order of its own."""
        data = tf.data.Dataset.from_tensor_slices((images, labels))
        return data.shuffle(TRAIN).repeat().batch(args.batch).prefetch(2)

    def asynchronous(count):
        """So many steps of single workers; their mean loss."""
        losses = [coordinator.schedule(step, args=(iterator,)) for _ in range(count)]
        coordinator.join()
        return float(np.mean([one.fetch() for one in losses]))

    def synchronous(count):
        """So many steps of all workers: they compute from the same weights, then these change once."""
        losses = []
        for _ in range(count):
            parts = [coordinator.schedule(gradients_of, args=(iterator,)) for _ in range(workers)]
            coordinator.join()
            fetched = [part.fetch() for part in parts]
            together = zip(*(gradients for _, gradients in fetched), strict=True)
            coordinator.schedule(apply, args=([np.mean(same, axis=0) for same in together],))
            coordinator.join()
            losses += [loss for loss, _ in fetched]
        return float(np.mean(losses))

    @tf.function
    def gradients_of(iterator):
        """One worker's part of a synchronous step."""

        def replica(batch, target):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(loss_of(target, model(batch, training=True)))
            return loss, tape.gradient(loss, model.trainable_variables)

        return strategy.run(replica, args=next(iterator))

    @tf.function
    def apply(gradients):
        """The other part, which one worker does for all."""

        def replica(gradients):
            here = [tf.identity(gradient) for gradient in gradients]  # on this worker's device
            optimizer.apply_gradients(zip(here, model.trainable_variables, strict=True))

        strategy.run(replica, args=(gradients,))
        done.assign_add(1)

    @tf.function
    def step(iterator):
        """One worker's: read the weights, compute, send the gradients. Nobody waits for anybody."""

        def replica(batch, target):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(loss_of(target, model(batch, training=True)))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        loss = strategy.run(replica, args=next(iterator))
        done.assign_add(1)
        return loss

    iterator = iter(coordinator.create_per_worker_dataset(batches))
    saver = None
    if directory:
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, done=done)
        saver = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=1)
        # Else each parameter server writes its part on its own disk, where nobody finds it.
        here = tf.train.CheckpointOptions(experimental_io_device="/job:chief")
        if saver.latest_checkpoint and checkpoint.restore(saver.latest_checkpoint, options=here):
            print(f"going on at step {int(done)}", flush=True)
    signal.signal(signal.SIGTERM, ask_to_stop)  # not earlier: there was nothing to save

    def accuracy():
        return float(np.mean(np.argmax(model(test_images), axis=1) == test_labels))

    workers = len(resolver.cluster_spec().as_dict()["worker"])
    examples_per_step = args.batch * workers if args.sync else args.batch
    at, began = int(done), time.monotonic()
    saved_at = began
    while at < args.steps and not stop_asked:
        count = min(STEPS_PER_ROUND, args.steps - at)
        loss = synchronous(count) if args.sync else asynchronous(count)
        at = int(done)
        seconds = round(time.monotonic() - began, 3)
        report(step=at, loss=loss, examples=at * examples_per_step, seconds=seconds)
        print(f"step {at:4d}  loss {loss:.4f}", flush=True)
        if saver and time.monotonic() - saved_at > args.checkpoint_seconds:
            saver.save(at, options=here)
            saved_at = time.monotonic()
    if saver:
        saver.save(at, options=here)
    if stop_asked:
        return 128 + signal.SIGTERM

    output.mkdir(parents=True, exist_ok=True)
    alone = network()  # the same weights in variables of this process: loads anywhere
    alone.set_weights([variable.numpy() for variable in model.weights])
    alone.save(output / "model.keras")
    results = {"accuracy": accuracy(), "steps": at, "examples": at * examples_per_step}
    report(step=at, examples=results["examples"], accuracy=results["accuracy"])
    (output / "metrics.json").write_text(json.dumps(results) + "\n")
    print(f"accuracy {results['accuracy']:.4f} on {len(test_labels)} images not trained on", flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--steps", type=int, default=1200, help="of one worker each; of all together if --sync"
    )
    parser.add_argument("--batch", type=int, default=32, help="images per worker and step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--sync", action="store_true", help="all workers change the weights together")
    parser.add_argument("--checkpoint-seconds", type=float, default=5.0)
    args = parser.parse_args()

    helpers = [] if "TF_CONFIG" in os.environ else own_cluster()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("ps", "worker"):
        serve(resolver)
    try:
        code = train(resolver, args)
    finally:
        for helper in helpers:
            helper.kill()
    sys.stdout.flush()
    os._exit(code)  # the coordinator's threads would wait for workers that have gone


if __name__ == "__main__":
    main()
