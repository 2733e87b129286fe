"""CIFAR-10 with TensorFlow's parameter server, asynchronously: a small convolutional network.

Every process of the cluster runs this same script: `TF_CONFIG`, which Trainmaster sets, tells it
whether it is the chief, the parameter server or a worker. TensorFlow reads the binary files itself.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported
os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")

import cifar10
import numpy as np
import tensorflow as tf

try:
    from trainmaster import report
except ImportError:  # the same in four lines, for a Python that does not have it

    def report(**values):
        if "TRAINMASTER_METRICS" in os.environ:
            with Path(os.environ["TRAINMASTER_METRICS"]).open("a") as file:
                file.write(json.dumps(values) + "\n")


STEPS_PER_ROUND = 20  # between two looks at the loss, over all workers
TEST_BATCH = 500

stop_asked = False


def ask_to_stop(signum, frame):
    global stop_asked
    stop_asked = True


def network():
    """Three convolutions and two dense layers, as in TensorFlow's own tutorial; 0.36 million weights."""
    layers = tf.keras.layers
    stack = [layers.Input((32, 32, 3)), layers.Rescaling(1 / 64, offset=-2)]
    for width in (32, 64, 128):
        stack += [layers.Conv2D(width, 3, padding="same", activation="relu"), layers.MaxPooling2D()]
    return tf.keras.Sequential(
        [*stack, layers.Flatten(), layers.Dense(128, activation="relu"), layers.Dense(10)]
    )


def read_records(directory, batch):
    """Batches without end, each worker in an order of its own."""
    files = [str(Path(directory) / name) for name in cifar10.TRAIN_FILES]

    def parse(record):
        numbers = tf.io.decode_raw(record, tf.uint8)
        image = tf.transpose(tf.reshape(numbers[1:], cifar10.SHAPE), (1, 2, 0))
        image = tf.image.random_flip_left_right(tf.pad(image, ((4, 4), (4, 4), (0, 0))))
        return tf.cast(tf.image.random_crop(image, (32, 32, 3)), tf.float32), tf.cast(numbers[0], tf.int32)

    records = tf.data.FixedLengthRecordDataset(files, cifar10.RECORD_BYTES)
    return records.shuffle(10_000).repeat().map(parse).batch(batch).prefetch(2)


def serve(resolver):
    """What parameter servers and workers do: whatever the chief asks, until they are stopped."""
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    print(f"{resolver.task_type} {resolver.task_id} serves", flush=True)
    server.join()


def train(resolver, args):
    directory = os.environ.get("TRAINMASTER_CHECKPOINT_DIR")  # without one, no checkpoints
    output = Path(os.environ.get("TRAINMASTER_OUTPUT_DIR", "output"))
    _, _, test_images, test_labels = cifar10.load(args.data)  # looks at every file before anything starts
    test_images = test_images[: args.test_images].transpose(0, 2, 3, 1)
    test_labels = test_labels[: args.test_images]

    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = network()
        optimizer = tf.keras.optimizers.Adam(args.lr)
        optimizer.build(model.trainable_variables)
        done = tf.Variable(0, dtype=tf.int64, trainable=False)  # steps, counted on the parameter server
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

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

    iterator = iter(coordinator.create_per_worker_dataset(lambda: read_records(args.data, args.batch)))
    saver = None
    if directory:
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, done=done)
        saver = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=1)
        if saver.restore_or_initialize():
            print(f"going on at step {int(done)}", flush=True)
    signal.signal(signal.SIGTERM, ask_to_stop)  # not earlier: there was nothing to save

    at, saved_at = int(done), time.monotonic()
    while at < args.steps and not stop_asked:
        count = min(STEPS_PER_ROUND, args.steps - at)
        losses = [coordinator.schedule(step, args=(iterator,)) for _ in range(count)]
        coordinator.join()
        at = int(done)
        loss = float(np.mean([one.fetch() for one in losses]))
        report(step=at, loss=loss, examples=at * args.batch)
        print(f"step {at:5d}  loss {loss:.4f}", flush=True)
        if saver and time.monotonic() - saved_at > args.checkpoint_seconds:
            saver.save(at)
            saved_at = time.monotonic()
    if saver:
        saver.save(at)
    if stop_asked:
        return 128 + signal.SIGTERM

    output.mkdir(parents=True, exist_ok=True)
    alone = network()  # the same weights in variables of this process: loads anywhere
    alone.set_weights([variable.numpy() for variable in model.weights])
    alone.save(output / "model.keras")
    scores = alone.predict(test_images.astype("float32"), batch_size=TEST_BATCH, verbose=0)
    reached = float(np.mean(np.argmax(scores, axis=1) == test_labels))
    results = {"accuracy": reached, "steps": at, "examples": at * args.batch}
    report(step=at, examples=results["examples"], accuracy=reached)
    (output / "metrics.json").write_text(json.dumps(results) + "\n")
    print(f"accuracy {reached:.4f} on {len(test_labels)} images not trained on", flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=os.environ.get("TRAINMASTER_DATA_IMAGES", "data"))
    parser.add_argument("--steps", type=int, default=15640, help="over all workers")
    parser.add_argument("--batch", type=int, default=64, help="images per worker and step")
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--test-images", type=int, default=10_000)
    parser.add_argument("--checkpoint-seconds", type=float, default=10.0)
    args = parser.parse_args()

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("ps", "worker"):
        serve(resolver)
    try:
        code = train(resolver, args)
    except cifar10.FormatError as error:
        print(error, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the coordinator's threads would wait for workers that have gone


if __name__ == "__main__":
    main()
