"""Steps per second with one parameter server: asynchronous or in step, for 1 to all of the workers.

A plain TensorFlow 2 script; `TF_CONFIG` says what each process is. Parameter servers and workers serve, the
chief has one thread per worker, which runs that worker's steps: read the weights from the parameter server,
compute, add to them. That is between the machines what `ParameterServerStrategy` does; it is written out
because that one always uses all workers, and the points of a figure that are measured in turn, on the same
machines and within seconds of each other, can be compared even if the machine is busy.

Without `TF_CONFIG` one process does both: a plain node, without servers.

Reports one line per point: kind (async or sync), workers, batch, slow, steps, and when it began and ended.
Parameter servers report what went through their network card and how long they computed, with the time.
"""

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported
os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")

import numpy as np
import tensorflow as tf

WATCH_EVERY_S = 0.2
WARM_STEPS = 2


def report(**values):
    with Path(os.environ["TRAINMASTER_METRICS"]).open("a") as file:
        file.write(json.dumps(values) + "\n")


def watch():
    """Bytes through eth0 and seconds of CPU of this process, with the time, again and again."""
    while True:
        line = next(row for row in Path("/proc/net/dev").read_text().splitlines() if "eth0:" in row)
        numbers = line.split(":")[1].split()
        report(at=time.time(), received=int(numbers[0]), sent=int(numbers[8]), cpu_s=time.process_time())
        time.sleep(WATCH_EVERY_S)


def serve(resolver):
    """What parameter servers and workers do, until they are stopped."""
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    if resolver.task_type == "ps":
        threading.Thread(target=watch, daemon=True).start()
    print(f"{resolver.task_type} {resolver.task_id} serves", flush=True)
    server.join()


def shapes_of(args):
    """The weights: two convolutions, each with pooling, and two dense layers."""
    flat = 8 * 8 * args.channels
    return [
        (5, 5, 3, 16), (16,), (5, 5, 16, args.channels), (args.channels,),
        (flat, args.dense), (args.dense,), (args.dense, 10), (10,),
    ]  # fmt: skip


def loss_of(weights, images, labels):
    """Cross entropy of the network on a batch."""
    one, bias_one, two, bias_two, dense, bias_dense, last, bias_last = weights
    for kernel, bias in ((one, bias_one), (two, bias_two)):
        images = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(images, kernel, 1, "SAME") + bias), 2, 2, "SAME")
    found = tf.nn.relu(tf.matmul(tf.reshape(images, (-1, dense.shape[0])), dense) + bias_dense)
    logits = tf.matmul(found, last) + bias_last
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


class Training:
    """Weights on the parameter server, a step for each worker."""

    def __init__(self, args, workers, is_alone):
        self.args, self.workers, self.told = args, workers, 0
        self.server, self.worker = "/job:ps/replica:0/task:0", "/job:worker/replica:0/task:{}"
        if is_alone:
            self.server = self.worker = "/cpu:0"
        generator = np.random.default_rng(0)
        with tf.device(self.server):
            self.weights = [self._variable(generator, shape) for shape in shapes_of(args)]
            self.sums = [tf.Variable(tf.zeros(shape)) for shape in shapes_of(args)]
        data = np.load(args.data)
        self.data = []
        for number in range(workers):
            with tf.device(self.worker.format(number)):  # each has the images in its own memory
                self.data.append((tf.identity(data["images"]), tf.identity(data["labels"].astype("int32"))))
        self.count = len(data["labels"])
        self.functions = {}

    @staticmethod
    def _variable(generator, shape):
        if len(shape) == 1:
            return tf.Variable(tf.zeros(shape))
        deviation = (2 / np.prod(shape[:-1])) ** 0.5
        return tf.Variable((generator.normal(size=shape) * deviation).astype("float32"))

    def step(self, kind, number, batch):
        """One step of one worker; of `sync` the half before the barrier."""
        if (kind, number, batch) not in self.functions:
            self.functions[kind, number, batch] = self._made(kind, number, batch)
        return self.functions[kind, number, batch]()

    def _made(self, kind, number, batch):
        images, labels = self.data[number]

        @tf.function(autograph=False)
        def step():
            weights = [tf.identity(one) for one in self.weights]  # over the network, once
            which = tf.random.uniform((batch,), 0, self.count, tf.int32)
            chosen = (tf.cast(tf.gather(images, which), tf.float32) - 120.0) / 64.0
            with tf.GradientTape() as tape:
                tape.watch(weights)
                loss = loss_of(weights, chosen, tf.gather(labels, which))
            gradients = tape.gradient(loss, weights)
            where = self.weights if kind == "async" else self.sums
            scale = -self.args.lr if kind == "async" else 1.0
            moves = [scale * gradient for gradient in gradients]  # here, on the worker
            with tf.device(self.server):
                for one, move in zip(where, moves, strict=True):
                    one.assign_add(move)
            return loss

        def run():
            with tf.device(self.worker.format(number)):
                return float(step())

        return run

    def apply(self, workers):
        """The other half of a synchronous step: the mean of the gradients, once."""
        if ("apply", workers) not in self.functions:

            @tf.function(autograph=False)
            def apply():
                for one, total in zip(self.weights, self.sums, strict=True):
                    one.assign_sub(total * (self.args.lr / workers))
                    total.assign(tf.zeros_like(total))

            self.functions["apply", workers] = apply
        with tf.device(self.server):
            self.functions["apply", workers]()

    def run(self, kind, workers, batch, slow, seconds):
        """So long; steps of single workers (sync: of all together), and when they began and ended.

        A step of the last worker takes `slow` times as long as it would: it sleeps for the rest.
        """
        done, losses = [0] * workers, [0.0] * workers
        began = time.time()
        over = threading.Event()

        def together():
            """All have added their gradients: move the weights. Whether it is over, they learn together."""
            self.apply(workers)
            if time.time() >= began + seconds:
                over.set()

        barrier = threading.Barrier(workers, action=together)
        failures = []

        def work(number):
            try:
                while not over.is_set():
                    at = time.time()
                    losses[number] = self.step(kind, number, batch)
                    if number == workers - 1:
                        time.sleep((slow - 1) * (time.time() - at))
                    done[number] += 1
                    if self.args.each and number == 0:
                        self.told += 1
                        report(step=self.told, loss=losses[0])
                    if kind == "sync":
                        barrier.wait()
                    elif time.time() >= began + seconds:
                        return
            except threading.BrokenBarrierError:
                pass
            except Exception as error:  # noqa: BLE001 - raised again by the chief
                failures.append(error)
                barrier.abort()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        ended = time.time()
        steps = sum(done) if kind == "async" else done[0]
        return {
            "kind": kind, "workers": workers, "batch": batch, "slow": slow, "steps": steps,
            "began": began, "ended": ended, "loss": float(np.mean(losses)), "each": json.dumps(done),
        }  # fmt: skip


def train(resolver, args):
    cluster = resolver.cluster_spec().as_dict()
    if cluster:
        tf.config.experimental_connect_to_cluster(resolver, job_name="chief", protocol="grpc")
    workers = len(cluster.get("worker", [""]))
    training = Training(args, workers, is_alone=not cluster)
    weights = int(sum(np.prod(shape) for shape in shapes_of(args)))
    points = [
        (kind, count, batch, 1.0) for batch in args.batches for kind in args.kinds for count in args.workers
    ]
    if args.slow > 1:
        points += [
            (kind, max(args.workers), batch, args.slow) for batch in args.batches for kind in args.kinds
        ]
    print(f"{weights} weights; {len(points)} points", flush=True)
    for count in args.workers if "sync" in args.kinds else ():
        training.apply(count)
    for kind, _, batch in dict.fromkeys((kind, 0, batch) for kind, _, batch, _ in points):
        began = time.time()
        threads = [
            threading.Thread(
                target=lambda n=n, k=kind, b=batch: [training.step(k, n, b) for _ in range(WARM_STEPS)]
            )
            for n in range(workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(f"{kind} {batch}: warm after {time.time() - began:.1f} s", flush=True)
    for number in range(args.rounds):
        # Every second round backwards: what drifts then drifts for both ends of a figure.
        for point in points if number % 2 == 0 else points[::-1]:
            found = training.run(*point, args.seconds)
            report(**({} if args.each else {"step": number}), weights=weights, **found)
            rate = found["steps"] / (found["ended"] - found["began"])
            print(f"{point}: {rate:.2f} steps/s, loss {found['loss']:.3f}", flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="cifar.npz")
    parser.add_argument("--kinds", nargs="+", default=["async"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1])
    parser.add_argument("--batches", nargs="+", type=int, default=[64], help="images per worker and step")
    parser.add_argument(
        "--slow", type=float, default=1.0, help="points with all workers again, the last so slow"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of one point")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--each", action="store_true", help="report each step of the first worker, too")
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--dense", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.002)
    args = parser.parse_args()

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("ps", "worker"):
        serve(resolver)
    code = train(resolver, args)
    sys.stdout.flush()
    os._exit(code)  # TensorFlow's threads would wait for workers that have gone


if __name__ == "__main__":
    main()
