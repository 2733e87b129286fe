import pytest

from trainmaster.launchers import (
    JaxLauncher,
    Launcher,
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
