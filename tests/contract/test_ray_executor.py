import os
import signal
from pathlib import Path

import pytest

from trainmaster.executors.base import Executor
from trainmaster.testing.executor_contract import ExecutorContract, alive, until

pytestmark = pytest.mark.ray


def supervisor_pid(node) -> int:
    return int((Path(node.home) / "supervisor" / "lock").read_text())


class TestRayExecutor(ExecutorContract):
    @pytest.fixture
    def connect(self, connect_ray, ray_cluster):
        self.head = ray_cluster.head
        return connect_ray

    def lose_supervisor(self, executor: Executor) -> None:
        """And the gateway, where the queue is."""
        pids = [executor.supervisor_pid, supervisor_pid(self.head)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not any(alive(pid) for pid in pids), "both are dead")
