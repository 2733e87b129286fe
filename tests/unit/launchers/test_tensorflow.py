"""Log lines as TensorFlow 2.21 and Keras 3.15 wrote them on this kind of machine."""

import json
import os
import subprocess

import pytest

from trainmaster.launchers import Gang, Member, TensorFlowLauncher

PS = Gang(
    (
        Member("chief", 0, "h5", (2222,)),
        Member("ps", 0, "h1", (2223,)),
        Member("worker", 0, "h2", (2224,)),
        Member("worker", 1, "h2", (2225,)),
    )
)
MIRRORED = Gang(tuple(Member("worker", index, "h", (2222 + index,)) for index in range(2)))


def test_the_cluster_is_the_same_for_all_and_the_task_is_each_ones_own():
    configs = [json.loads(TensorFlowLauncher().environment(PS, m)["TF_CONFIG"]) for m in PS.members]
    assert {json.dumps(config["cluster"]) for config in configs} == {
        json.dumps({"chief": ["h5:2222"], "ps": ["h1:2223"], "worker": ["h2:2224", "h2:2225"]})
    }
    assert [tuple(config["task"].values()) for config in configs] == [
        ("chief", 0),
        ("ps", 0),
        ("worker", 0),
        ("worker", 1),
    ]


def test_only_those_who_end_by_themselves_are_waited_for():
    launcher = TensorFlowLauncher()
    assert [launcher.is_essential(PS, member) for member in PS.members] == [True, False, False, False]
    assert [launcher.is_dispensable(PS, member) for member in PS.members] == [False, False, True, True]
    assert not any(launcher.is_dispensable(MIRRORED, member) for member in MIRRORED.members)
    assert [launcher.is_essential(MIRRORED, member) for member in MIRRORED.members] == [True, True]


def test_servers_have_a_thread_for_each_worker_however_few_cores_there_are(tmp_path):
    (tmp_path / "nproc").write_text("#!/bin/sh\necho 2\n")
    (tmp_path / "nproc").chmod(0o755)
    shown = 'echo "${TF_NUM_INTEROP_THREADS-unset}"'

    def threads(gang, member, **env):
        script = TensorFlowLauncher().script(gang, member, shown)
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **env}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], env=env, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert [threads(PS, member) for member in PS.members] == ["unset", "4", "4", "4"]
    assert threads(PS, PS.members[1], TF_NUM_INTEROP_THREADS="2") == "2"
    assert threads(MIRRORED, MIRRORED.members[1]) == "unset"


def test_every_member_needs_a_port():
    with pytest.raises(ValueError, match="worker-0 needs a port"):
        TensorFlowLauncher().environment(Gang((Member("worker", 0, "h"),)), Member("worker", 0, "h"))


@pytest.mark.parametrize(
    ("log", "advice"),
    [
        (
            "      shape=(64, 32, 32, 3), dtype=float32)>\n}) with an unsupported type "
            "(<class 'tensorflow.python.distribute.values.PerReplica'>) to a Tensor.",
            "TF_USE_LEGACY_KERAS: 1",
        ),
        ("ImportError: Keras cannot be imported. Check that it is installed.", "pip install tf_keras"),
        ("ModuleNotFoundError: No module named 'tensorflow'", "setup: pip install tensorflow"),
        (
            "tensorflow.python.framework.errors_impl.UnavailableError: failed to connect to all addresses; "
            "last error: UNKNOWN: ipv4:127.0.0.1:2223: Failed to connect to remote host: Connection refused",
            "ended first",
        ),
    ],
)
def test_known_failures_get_their_fix(log, advice):
    assert advice in TensorFlowLauncher().explain(f"step 3\n{log}\n")


def test_what_every_log_on_a_machine_without_gpu_says_is_no_failure():
    log = "cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN"
    assert TensorFlowLauncher().explain(log) == ""
