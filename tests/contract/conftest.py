"""One Ray cluster for all tests that need one; starting it takes some seconds."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from ray_bench import Bench

from trainmaster.executors.base import Capacity, Phase
from trainmaster.executors.ray.cluster import ClusterNode, RayCluster
from trainmaster.executors.ray.executor import RayExecutor
from trainmaster.testing.executor_contract import until
from trainmaster.testing.ray_here import HERE


@pytest.fixture(scope="session")
def ray_place():
    """A short directory (Ray's sockets) that holds all: ``HOME``, nodes, homes, records."""
    pytest.importorskip("ray", reason="Ray is not installed")
    place = Path(tempfile.mkdtemp(prefix="tm-", dir="/tmp"))
    (place / "user").mkdir()
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="session")
def ray_node(ray_place):
    """Describes the node of a number; all are on this machine."""

    def node(number, **options):
        return ClusterNode(
            **{
                "key": f"n{number}",
                "address": f"127.0.0.{number + 2}",
                "slots": 4,
                "directory": f"{ray_place}/{number}",
                "home": f"{ray_place}/home-{number}",
                "labels": {"market": "spot" if number else "ondemand"},
                **options,
            }
        )

    return node


@pytest.fixture(scope="session")
def ray_cluster(ray_place, ray_node):
    """A cluster of one node with 4 slots."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(ray_place / "user"))
        patch.setenv("RAY_ADDRESS", "10.255.255.1:1")  # the user's own Ray must not be met
        patch.setenv("RAY_SECRET_OF_THE_USER", "ray-secret")
        cluster = RayCluster(ray_place / "record", [ray_node(0)], *HERE)
        try:
            cluster = RayCluster.start(ray_place / "record", [ray_node(0)], *HERE)
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture(scope="session")
def three(ray_cluster, ray_node):
    """The cluster has three nodes from the first test on that needs them: starting one is dear."""
    ray_cluster.add([ray_node(1), ray_node(2)])
    return ray_cluster


@pytest.fixture
def bench(three, connect_ray, tmp_path):
    """A connected executor that has reached all three."""
    bench = Bench(connect_ray, tmp_path)

    def complete():
        bench.executor.changes(0.05)
        nodes = bench.executor.nodes()
        return len(nodes) == 3 and all(node.unreachable_since is None for node in nodes)

    until(complete, "three nodes are reached")
    return bench


@pytest.fixture
def connect_ray(ray_cluster):
    """Makes unconnected executors; ends and forgets all that was submitted through them."""
    attempts = {}
    made = []

    class Recording(RayExecutor):
        def submit(self, gangs):
            attempts.update(dict.fromkeys(gang.attempt for gang in gangs))
            super().submit(gangs)

    def connect(**options):
        made.append(Recording(ray_cluster, **options))
        return made[-1]

    yield connect
    for executor in made:
        executor.close()
    janitor = RayExecutor(ray_cluster)
    try:
        janitor.open("janitor", Capacity(1), {})
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
