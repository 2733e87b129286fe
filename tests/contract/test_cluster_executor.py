import os
import signal
from pathlib import Path

import pytest

from trainmaster.executors.base import Executor
from trainmaster.testing.executor_contract import ExecutorContract, alive, until


def supervisor_pid(node) -> int:
    return int((Path(node.home) / "supervisor" / "lock").read_text())


#: What differs between engines is in `test_cluster_gangs.py` and `test_cluster_nodes.py`, with both.
@pytest.mark.parametrize(
    "engine",
    [pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.crossings]), "ssh"],
    indirect=True,
    scope="session",
)
class TestNodesExecutor(ExecutorContract):
    @pytest.fixture
    def connect(self, connect, cluster):
        self.cluster = cluster
        return connect

    def lose_supervisor(self, executor: Executor) -> None:
        """And what places gangs, where the queue is: a thread of ours."""
        self.cluster._conductor.end()
        pid = supervisor_pid(self.cluster.nodes[0])
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid), "it is dead")
