"""JAX, MPI, Ray and Spark: unchanged scripts find their peers, and train on real digits."""

from __future__ import annotations

import re
import shutil

import pytest
from learning import check_it_learned, needs, put_digits

PAIR = {"strategy": "allreduce", "workers": 2}

JAX = """
    import jax

    jax.distributed.initialize()  # no argument: what it needs is in the environment
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    rank, world = jax.process_index(), jax.process_count()
    print("process", rank, "of", world, "devices", jax.device_count())
    data, target = np.load("digits.npz").values()
    each = len(target) // world
    mine = slice(rank * each, (rank + 1) * each)
    rows = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    images = jax.make_array_from_process_local_data(rows, data[mine].astype("float32") / 16)
    labels = jax.make_array_from_process_local_data(rows, target[mine].astype("int32"))

    @jax.jit
    def step(weights, images, labels):
        def loss_of(weights):
            scores = jax.nn.log_softmax(images @ weights)
            return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1))
        loss, gradient = jax.value_and_grad(loss_of)(weights)
        return weights - 0.5 * gradient, loss

    weights = jnp.zeros((64, 10))
    for number in range(60):
        weights, loss = step(weights, images, labels)
        print(f"step {number} loss {float(loss):.4f}")
"""

MPI = """
    import os

    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    data, target = np.load("digits.npz").values()
    images = data[world.rank :: world.size] / 16
    wanted = np.eye(10)[target[world.rank :: world.size]]
    weights = np.zeros((64, 10))
    for number in range(60):
        scores = np.exp(images @ weights)
        scores /= scores.sum(axis=1, keepdims=True)
        part = np.append(images.T @ (scores - wanted) / len(images), -np.log((scores * wanted).sum(1)).mean())
        whole = np.empty_like(part)
        world.Allreduce(part, whole)
        weights -= 0.5 * whole[:-1].reshape(64, 10) / world.size
        if world.rank == 0:
            print(f"step {number} loss {whole[-1] / world.size:.4f}", flush=True)
    places = world.gather((world.rank, os.environ["TRAINMASTER_INDEX"]))
    if world.rank == 0:
        print("ranks", places)
    world.Barrier()
"""

MPI_EXITS = """
    import os
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    if MPI.COMM_WORLD.rank == 1:
        os._exit(7)
    MPI.COMM_WORLD.Barrier()
"""

SPARK = """
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("digits").getOrCreate()
{job}
    print("on", spark.sparkContext.master)
    print("hosts", spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1)  # less the driver
    spark.stop()
"""
SPARK_JOBS = {
    "sum": """
    print("sum", spark.sparkContext.parallelize(range(1000), 4).map(lambda number: number * 2).sum())
""",
    "mllib": """
    import numpy as np
    from pyspark.ml.classification import LogisticRegression
    from pyspark.ml.linalg import Vectors

    images, labels = np.load("digits.npz").values()
    rows = [(float(label), Vectors.dense(image)) for label, image in zip(labels, images / 16)]
    data = spark.createDataFrame(rows, ["label", "features"]).repartition(2).cache()
    model = LogisticRegression(maxIter=10).fit(data)
    for loss in model.summary.objectiveHistory:
        print(f"loss {loss:.4f}")
    print("accuracy", model.summary.accuracy)
""",
}

RAY = """
    import os
    import ray

    ray.init()  # no argument: RAY_ADDRESS is in the environment

    @ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
    class Part:
        def member(self):
            return os.environ["TRAINMASTER_INDEX"]

    parts = [Part.remote() for _ in range(2)]
    members = sorted(ray.get([part.member.remote() for part in parts]))
    print("nodes", len(ray.nodes()), "members", members)
"""


@pytest.mark.jax
def test_jax(tm):
    needs("jax")
    put_digits(tm.work)
    tm.write("train.py", JAX)
    run = tm.run(tm.task("python train.py", framework="jax", distributed=PAIR))["run"]
    for rank in range(2):
        log = tm.logs(run, "--member", f"worker-{rank}")
        assert f"process {rank} of 2 devices 2" in log
        check_it_learned(log)
    tm.until_quiet()


@pytest.fixture
def mpi(tm):
    needs("mpi4py")
    put_digits(tm.work)
    if shutil.which("mpirun") is None:
        pytest.skip("Open MPI is not installed (apt install openmpi-bin)")
    tm.write("train.py", MPI)


@pytest.mark.mpi
def test_mpi(tm, mpi):
    gang = {"strategy": "allreduce", "workers": 3}
    run = tm.run(tm.task("python train.py", framework="mpi", distributed=gang))["run"]
    log = tm.logs(run, "--member", "worker-0")
    check_it_learned(log)
    assert "ranks [(0, '0'), (1, '1'), (2, '2')]" in log
    assert "worker-0" in tm.logs(run, "--member", "worker-2"), "where to look instead"
    tm.until_quiet()


@pytest.mark.mpi
def test_the_exit_code_of_an_mpi_rank_is_told(tm, mpi):
    tm.write("exits.py", MPI_EXITS)
    summary = tm.run(tm.task("python exits.py", framework="mpi", distributed=PAIR), code=1)
    assert summary["reason"] == "USER_ERROR"
    assert "worker-0: exit code 7" in summary["experiments"]["main"]["message"]
    tm.until_quiet()


@pytest.mark.mpi
def test_mpi_is_cancelled_and_every_rank_may_save(tm, mpi):
    recipe = tm.task(
        "trap 'sleep 0.3; echo $TRAINMASTER_INDEX >> $NOTES/saved; exit 0' TERM\n"
        "echo up >> $NOTES/up; sleep 600 & wait",
        framework="mpi",
        distributed=PAIR,
        env={"OMPI_MCA_odls_base_sigkill_timeout": "3"},  # mpirun's 1 s is too short on a busy machine
    )
    call = tm.start("run", recipe)
    tm.until_marks("up", 2)
    assert tm.summary(tm.call("cancel", call.run_id(), "--json"))["reason"] == "CANCELLED"
    assert sorted(tm.marks("saved")) == ["0", "1"]
    tm.until_quiet()


@pytest.mark.spark
@pytest.mark.timeout(400)  # six Java processes
@pytest.mark.parametrize("job", ["sum", pytest.param("mllib", marks=pytest.mark.crossings)])
def test_spark(tm, job):
    needs("pyspark")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed (apt install default-jre-headless)")
    if job == "mllib":
        put_digits(tm.work)
    tm.write("train.py", SPARK.replace("{job}", SPARK_JOBS[job]))
    quick = {
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
    }  # six short-lived JVMs
    recipe = tm.task("python train.py", framework="spark", distributed=PAIR, env=quick)
    run = tm.run(recipe, timeout_s=300)["run"]
    log = tm.logs(run, "--member", "worker-0")
    assert re.search(r"on spark://127.0.0.1:\d+", log)
    assert "hosts 2" in log
    if job == "sum":
        assert "sum 999000" in log
    else:
        check_it_learned(log)
        assert re.search(r"accuracy (1.0|0.9\d*)", log)
    tm.until_quiet()


def test_a_failing_spark_driver_fails_the_task(tm):
    """Its servers are stand-ins: real ones take ten seconds of a core, and end with a driver above."""
    master = 'exec python -m http.server "$SPARK_MASTER_PORT" --bind "$SPARK_MASTER_HOST"'
    servers = f"#!/bin/sh\ncase $1 in *Master) {master} ;; *) exec sleep 600 ;; esac\n"
    tm.write("servers/spark-class", servers, 0o755)
    path = {"PATH": f"{tm.work}/servers:{tm.env['PATH']}"}
    summary = tm.run(tm.task("exit 5", framework="spark", distributed=PAIR, env=path), code=1)
    assert "worker-0: exit code 5" in summary["experiments"]["main"]["message"]
    tm.until_quiet()


@pytest.mark.ray
@pytest.mark.timeout(400)
def test_a_task_has_a_ray_of_its_own(tm):
    needs("ray")
    tm.write("train.py", RAY)
    run = tm.run(tm.task("python train.py", framework="ray", distributed=PAIR), timeout_s=300)["run"]
    log = tm.logs(run, "--member", "worker-0")
    assert "nodes 2 members ['0', '1']" in log
    assert "worker-1 is a node of Ray" in tm.logs(run, "--member", "worker-1")
    tm.until_quiet()
