import json
import os
import socket
import subprocess
import sys

import pytest

from trainmaster.launchers import (
    Gang,
    JaxLauncher,
    Launcher,
    Member,
    MpiLauncher,
    MxnetLauncher,
    PlainLauncher,
    RayLauncher,
    SparkLauncher,
    TensorFlowLauncher,
    TorchrunLauncher,
)
from trainmaster.testing.launcher_contract import LauncherContract


class TestPlain(LauncherContract):
    @pytest.fixture
    def launcher(self) -> Launcher:
        return PlainLauncher()


class TestTorchrun(LauncherContract):
    rank_variable = "RANK"
    world_size_variable = "WORLD_SIZE"
    differs = frozenset({"RANK", "ROLE_RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "LOCAL_WORLD_SIZE"})

    @pytest.fixture
    def launcher(self) -> Launcher:
        return TorchrunLauncher()


class TestTensorFlowMirrored(LauncherContract):
    differs = frozenset({"TF_CONFIG"})

    @pytest.fixture
    def launcher(self) -> Launcher:
        return TensorFlowLauncher()


class TestTensorFlowParameterServer(TestTensorFlowMirrored):
    def roles(self, world_size: int) -> list[str]:
        return ["chief", "ps", *["worker"] * 8][:world_size]


class TestJax(LauncherContract):
    rank_variable = "JAX_PROCESS_ID"
    world_size_variable = "JAX_NUM_PROCESSES"
    differs = frozenset({"JAX_PROCESS_ID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"})

    @pytest.fixture
    def launcher(self) -> Launcher:
        return JaxLauncher()


class TestMpi(LauncherContract):
    @pytest.fixture
    def launcher(self) -> Launcher:
        return MpiLauncher()


class TestMxnet(LauncherContract):
    differs = frozenset({"DMLC_ROLE", "DMLC_NODE_HOST"})

    def roles(self, world_size: int) -> list[str]:
        servers = world_size // 3
        return ["worker"] * (world_size - servers) + ["ps"] * servers

    @pytest.fixture
    def launcher(self) -> Launcher:
        return MxnetLauncher()


class TestRay(LauncherContract):
    differs = frozenset(
        {
            "TRAINMASTER_RAY_HOST",
            "TRAINMASTER_RAY_MEMBERS_HERE",
            "RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION",
        }
    )

    @pytest.fixture
    def launcher(self) -> Launcher:
        return RayLauncher()


class TestSpark(LauncherContract):
    differs = frozenset(
        {"SPARK_WORKER_PORT", "SPARK_WORKER_WEBUI_PORT", "SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"}
    )

    @pytest.fixture
    def launcher(self) -> Launcher:
        return SparkLauncher()


ALL_REDUCE = """
import datetime, json, os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
print(json.dumps([dist.get_rank(), dist.get_world_size(), value.item(), os.environ["LOCAL_RANK"]]))
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # a thread of gloo may abort a process that shuts Python down in order
"""


@pytest.mark.torch
def test_an_unchanged_pytorch_script_meets_its_peers():
    pytest.importorskip("torch")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    launcher = TorchrunLauncher()
    gang = Gang((Member("worker", 0, "127.0.0.1", (port,)), Member("worker", 1, "127.0.0.1", (port + 1,))))
    # A caller inside another torchrun: what it has set must not win.
    inherited = os.environ | {"TORCHELASTIC_USE_AGENT_STORE": "True", "RANK": "7", "WORLD_SIZE": "9"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ALL_REDUCE],
            env={**launcher.defaults(gang, member), **inherited, **launcher.environment(gang, member)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for member in gang.members
    ]
    try:
        outputs = [process.communicate(timeout=90) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert [json.loads(out) for out, _ in outputs] == [[0, 2, 3.0, "0"], [1, 2, 3.0, "1"]]
