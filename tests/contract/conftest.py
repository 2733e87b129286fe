"""A cluster of each engine for all tests that need one; starting Ray takes some seconds."""

import shutil
import tempfile
from pathlib import Path

import pytest
from engine_bench import Bench

from trainmaster.executors.base import Capacity, Phase
from trainmaster.executors.gangs.engine import ClusterNode
from trainmaster.executors.gangs.executor import NodesExecutor
from trainmaster.executors.ray.cluster import RayCluster
from trainmaster.executors.ssh.cluster import SshCluster
from trainmaster.testing.executor_contract import until
from trainmaster.testing.ray_here import HERE
from trainmaster.testing.reopening import ReopeningExecutor

CLUSTERS = {"ray": RayCluster, "ssh": SshCluster}


@pytest.fixture(scope="session", params=[pytest.param("ray", marks=pytest.mark.ray), "ssh"])
def engine(request):
    """Tests of gangs run with each; those of Ray's own parts ask for ``ray_cluster``."""
    return request.param


@pytest.fixture(scope="session")
def place():
    """A short directory (Ray's sockets) that holds all: ``HOME``, nodes, homes, records."""
    place = Path(tempfile.mkdtemp(prefix="tm-", dir="/tmp"))
    (place / "user").mkdir()
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="session")
def make_node(place):
    """Describes the node of a number; all are on this machine."""

    def node(number, engine="ray", **options):
        return ClusterNode(
            **{
                "key": f"n{number}",
                "address": f"127.0.0.{number + 2}",
                "slots": 4,
                "directory": f"{place}/{engine[0]}{number}",
                "home": f"{place}/{engine}-{number}",
                "labels": {"market": "spot" if number else "ondemand"},
                **options,
            }
        )

    return node


@pytest.fixture(scope="session")
def cluster(engine, place, make_node):
    """A cluster of one node with 4 slots."""
    if engine == "ray":
        pytest.importorskip("ray", reason="Ray is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(place / "user"))
        patch.setenv("RAY_ADDRESS", "10.255.255.1:1")  # the user's own Ray must not be met
        patch.setenv("RAY_SECRET_OF_THE_USER", "ray-secret")
        made = CLUSTERS[engine](place / f"record-{engine}", [make_node(0, engine)], *HERE)
        try:
            made = CLUSTERS[engine].start(place / f"record-{engine}", [make_node(0, engine)], *HERE)
            yield made
        finally:
            made.stop()


@pytest.fixture(scope="session")
def three(cluster, engine, make_node):
    """The cluster has three nodes from the first test on that needs them: starting one is dear."""
    cluster.add([make_node(1, engine), make_node(2, engine)])
    return cluster


@pytest.fixture
def bench(three, connect, tmp_path):
    """A connected executor that has reached all three."""
    bench = Bench(connect, tmp_path)

    def complete():
        bench.executor.changes(0.05)
        nodes = bench.executor.nodes()
        return len(nodes) == 3 and all(node.unreachable_since is None for node in nodes)

    until(complete, "three nodes are reached")
    return bench


@pytest.fixture
def connect(cluster):
    """Makes unconnected executors; ends and forgets all that was submitted through them."""
    attempts = {}
    made = []
    runs = ["none"]

    class Recording(ReopeningExecutor):
        def open(self, run, *arguments, **options):
            runs.append(run)
            super().open(run, *arguments, **options)

        def submit(self, gangs):
            attempts.update(dict.fromkeys(gang.attempt for gang in gangs))
            super().submit(gangs)

    def connect(**options):
        made.append(Recording(cluster, **options))
        return made[-1]

    yield connect
    for executor in made:
        executor.close()
    janitor = NodesExecutor(cluster)
    try:
        janitor.open(
            runs[-1], Capacity(1), {}
        )  # of another run it would start all that speaks with Ray again
        for attempt in attempts:
            janitor.stop(attempt, 0.0)

        def ended():
            janitor.changes(0.05)
            phases = {status.phase for status in janitor.observe(list(attempts))}
            return phases <= {Phase.EXITED, Phase.UNKNOWN}

        until(ended, "nothing runs any more")
        janitor.forget(list(attempts))
        assert all(status.phase is Phase.UNKNOWN for status in janitor.observe(list(attempts)))
    finally:
        janitor.close()
