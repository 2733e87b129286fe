import os
import signal
from pathlib import Path

import pytest

from trainmaster.executors.base import Executor
from trainmaster.testing.executor_contract import ExecutorContract, alive, until


def supervisor_pid(node) -> int:
    return int((Path(node.home) / "supervisor" / "lock").read_text())


class TestNodesExecutor(ExecutorContract):
    @pytest.fixture
    def connect(self, connect, cluster):
        self.cluster = cluster
        return connect

    def lose_supervisor(self, executor: Executor) -> None:
        """And the gateway, where the queue is; it may be a thread of ours."""
        pids = {executor.supervisor_pid, supervisor_pid(self.cluster.nodes[0])} - {os.getpid()}
        if self.cluster.head is None:
            self.cluster._gateway.end()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not any(alive(pid) for pid in pids), "both are dead")
