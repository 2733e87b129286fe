"""CIFAR-10 with TensorFlow's parameter server, asynchronously or (`--sync`) in step; the images are in HDFS.

What a user of the paper's service writes: `TF_CONFIG` says what each process is. Every worker fetches its
share of the files by WebHDFS (or out of a directory) before it serves, the chief the images of the test. The
chief writes checkpoints, event files for TensorBoard, and the model at the end.
"""

import argparse
import hashlib
import json
import os
import signal
import sys
import time
import urllib.request
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported
os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")

import numpy as np
import tensorflow as tf

RECORD_BYTES = 1 + 3 * 32 * 32
TEST_FILE = "test_batch.bin"
PATIENCE_S = 120.0

stop_asked = False


def ask_to_stop(signum, frame):
    global stop_asked
    stop_asked = True


def report(**values):
    with Path(os.environ["TRAINMASTER_METRICS"]).open("a") as file:
        file.write(json.dumps({"at": time.time(), **values}) + "\n")


class Images:
    """The files of CIFAR-10, in HDFS or in a directory."""

    def __init__(self):
        self.web = os.environ.get("TRAINMASTER_DATA_IMAGES_WEBHDFS", "").replace("webhdfs://", "", 1)
        self.directory = Path(os.environ["TRAINMASTER_DATA_IMAGES"])

    def names(self):
        """Of all files."""
        if not self.web:
            return sorted(path.name for path in self.directory.glob("*.bin"))
        found = json.loads(self._get("", "LISTSTATUS"))["FileStatuses"]["FileStatus"]
        return sorted(each["pathSuffix"] for each in found)

    def read(self, name, length=-1):
        """A file, or its beginning."""
        if not self.web:
            with (self.directory / name).open("rb") as file:
                return file.read(length)
        return self._get(f"/{name}", "OPEN" + (f"&length={length}" if length >= 0 else ""))

    def _get(self, path, operation):
        host, _, root = self.web.partition("/")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                url = f"http://{host}/webhdfs/v1/{root}{path}?op={operation}"
                with urllib.request.urlopen(url, timeout=60) as answer:
                    return answer.read()
            except OSError:  # a DataNode that has gone a moment ago: another one has a copy
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)

    @property
    def shard(self):
        """Where workers have their share: the same path on each of their machines."""
        return f"/var/tmp/cifar-{hashlib.sha256(str(self.directory).encode()).hexdigest()[:12]}.bin"

    def fetch_share(self, index, workers):
        """Every worker has other files, as long as there are enough."""
        began = time.time()
        names = [name for name in self.names() if name != TEST_FILE]
        mine = names[index::workers] or [names[index % len(names)]]
        draft = Path(f"{self.shard}.{os.getpid()}")
        with draft.open("wb") as file:
            for name in mine:
                file.write(self.read(name))
        size = draft.stat().st_size
        draft.replace(self.shard)
        report(share_bytes=size, share_s=time.time() - began)
        print(f"worker {index} has {', '.join(mine)}: {size} bytes", flush=True)


def network():
    """Two convolutions and two dense layers, 0.14 million weights: it is about the way, not the accuracy."""
    layers = tf.keras.layers
    stack = [layers.Input((32, 32, 3)), layers.Rescaling(1 / 64, offset=-2)]
    for width in (16, 32):
        stack += [layers.Conv2D(width, 3, padding="same", activation="relu"), layers.MaxPooling2D()]
    return tf.keras.Sequential(
        [*stack, layers.Flatten(), layers.Dense(64, activation="relu"), layers.Dense(10)]
    )


def batches(shard, size):
    """Of a worker's share, in an order of its own."""

    def parse(record):
        numbers = tf.io.decode_raw(record, tf.uint8)
        image = tf.transpose(tf.reshape(numbers[1:], (3, 32, 32)), (1, 2, 0))
        return tf.cast(image, tf.float32), tf.cast(numbers[0], tf.int32)

    records = tf.data.FixedLengthRecordDataset([shard], RECORD_BYTES)
    return records.shuffle(2000).repeat().map(parse).batch(size).prefetch(2)


def serve(resolver, images):
    """What parameter servers and workers do, until they are stopped."""
    cluster = resolver.cluster_spec()
    workers = len(cluster.as_dict()["worker"])
    if resolver.task_type == "worker":
        images.fetch_share(resolver.task_id, workers)
    # With few cores TensorFlow makes few threads, and steps of several workers wait for each other forever.
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=workers + 2
    )
    server = tf.distribute.Server(
        cluster, job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc", config=config
    )
    print(f"{resolver.task_type} {resolver.task_id} serves", flush=True)
    server.join()


class Training:
    """The model on the parameter server, and a step for workers."""

    def __init__(self, resolver, args, images):
        self.args = args
        self.workers = len(resolver.cluster_spec().as_dict()["worker"])
        self.strategy = tf.distribute.ParameterServerStrategy(resolver)
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
        with self.strategy.scope():
            self.model = network()
            self.optimizer = tf.keras.optimizers.SGD(args.lr, momentum=0.9)
            self.optimizer.build(self.model.trainable_variables)
            self.done = tf.Variable(0, dtype=tf.int64, trainable=False)
            self.sums = [
                tf.Variable(tf.zeros(one.shape), trainable=False) for one in self.model.trainable_variables
            ]
        self.losses = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        shard = images.shard
        self.iterator = iter(self.coordinator.create_per_worker_dataset(lambda: batches(shard, args.batch)))
        self.step, self.add, self.apply = self._functions()

    def _functions(self):
        variables = self.model.trainable_variables

        def gradients(batch, target):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self.losses(target, self.model(batch, training=True)))
            return loss, tape.gradient(loss, variables)

        @tf.function
        def step(iterator):
            """One worker's: read the weights, compute, send the gradients. Nobody waits for anybody."""

            def replica(batch, target):
                loss, found = gradients(batch, target)
                self.optimizer.apply_gradients(zip(found, variables, strict=True))
                return loss

            loss = self.strategy.run(replica, args=next(iterator))
            self.done.assign_add(1)
            return loss

        @tf.function
        def add(iterator):
            """One worker's part of a synchronous step; the sum is on the parameter server."""

            def replica(batch, target):
                loss, found = gradients(batch, target)
                for total, gradient in zip(self.sums, found, strict=True):
                    total.assign_add(gradient)
                return loss

            return self.strategy.run(replica, args=next(iterator))

        @tf.function
        def apply():
            """The other part, once for all."""

            def replica():
                means = [tf.identity(total) / self.workers for total in self.sums]
                self.optimizer.apply_gradients(zip(means, variables, strict=True))
                for total in self.sums:
                    total.assign(tf.zeros_like(total))

            self.strategy.run(replica)
            self.done.assign_add(1)

        return step, add, apply

    def advance(self, count):
        """So many steps; their mean loss."""
        losses = []
        if not self.args.sync:
            losses = [self.coordinator.schedule(self.step, args=(self.iterator,)) for _ in range(count)]
            self.coordinator.join()
        else:
            for _ in range(count):
                losses += [
                    self.coordinator.schedule(self.add, args=(self.iterator,)) for _ in range(self.workers)
                ]
                self.coordinator.join()
                self.coordinator.schedule(self.apply)
                self.coordinator.join()
        return float(np.mean([one.fetch() for one in losses]))


def train(resolver, args, images):
    output = Path(os.environ["TRAINMASTER_OUTPUT_DIR"])
    numbers = np.frombuffer(images.read(TEST_FILE, args.test_images * RECORD_BYTES), np.uint8)
    numbers = numbers.reshape(-1, RECORD_BYTES)
    training = Training(resolver, args, images)
    checkpoint = tf.train.Checkpoint(model=training.model, optimizer=training.optimizer, done=training.done)
    saver = tf.train.CheckpointManager(checkpoint, os.environ["TRAINMASTER_CHECKPOINT_DIR"], max_to_keep=1)
    # Else each parameter server writes its part on its own disk, where nobody finds it.
    here = tf.train.CheckpointOptions(experimental_io_device="/job:chief")
    if saver.latest_checkpoint:
        checkpoint.restore(saver.latest_checkpoint, options=here)
    at = int(training.done)
    print(f"begins at step {at}", flush=True)
    signal.signal(signal.SIGTERM, ask_to_stop)  # not earlier: there was nothing to save
    events = tf.summary.create_file_writer(str(output / "logs"))
    examples = args.batch * (training.workers if args.sync else 1)
    count, saved_at = 1, time.monotonic()  # the first step alone: it is traced
    report(step=at, begins=at)
    while at < args.steps and not stop_asked:
        began = time.time()
        loss = training.advance(min(count, args.steps - at))
        at, took, before = int(training.done), time.time() - began, at
        rate = (at - before) / took
        with events.as_default(step=at):
            tf.summary.scalar("loss", loss)
            tf.summary.scalar("global_step/sec", rate)
        events.flush()
        report(step=at, loss=loss, steps=at - before, seconds=took, examples=(at - before) * examples)
        print(f"step {at:4d}  loss {loss:.4f}  {rate:.2f} steps/s", flush=True)
        count = args.round
        if time.monotonic() - saved_at > args.checkpoint_seconds:
            saver.save(at, options=here)
            saved_at = time.monotonic()
    saver.save(at, options=here)
    if stop_asked:
        return 128 + signal.SIGTERM
    alone = network()  # the same weights in variables of this process: loads anywhere
    alone.set_weights([variable.numpy() for variable in training.model.weights])
    alone.save(output / "model.keras")
    pictures = numbers[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).astype("float32")
    accuracy = float(np.mean(np.argmax(alone(pictures), axis=1) == numbers[:, 0]))
    with events.as_default(step=at):
        tf.summary.scalar("accuracy", accuracy)
    events.close()
    report(step=at, accuracy=accuracy)
    print(f"accuracy {accuracy:.4f} on {len(numbers)} images not trained on", flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sync", action="store_true", help="all workers change the weights together")
    parser.add_argument("--steps", type=int, default=300, help="of one worker each; of all if --sync")
    parser.add_argument("--round", type=int, default=15, help="steps between two looks at the loss")
    parser.add_argument("--batch", type=int, default=64, help="images per worker and step")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--test-images", type=int, default=500)
    parser.add_argument("--checkpoint-seconds", type=float, default=5.0)
    args = parser.parse_args()

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    images = Images()
    if resolver.task_type in ("ps", "worker"):
        serve(resolver, images)
    code = train(resolver, args, images)
    sys.stdout.flush()
    os._exit(code)  # the coordinator's threads would wait for workers that have gone


if __name__ == "__main__":
    main()
