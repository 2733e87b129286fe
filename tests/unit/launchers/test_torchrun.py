"""Log lines as PyTorch 2.13 wrote them on this kind of machine."""

import pytest

from trainmaster.launchers import Gang, Member, TorchrunLauncher

# What `torchrun --nproc-per-node 2` of PyTorch 2.13 gives to its processes, less the agent's own files.
TORCHRUN_2_13 = {
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "OMP_NUM_THREADS": "1",
    "RANK": "1",
    "ROLE_NAME": "default",
    "ROLE_RANK": "1",
    "ROLE_WORLD_SIZE": "2",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "WORLD_SIZE": "2",
}


def test_as_torchrun_sets_it():
    gang = Gang(tuple(Member("worker", i, "127.0.0.1", (29500 + i,)) for i in range(2)))
    launcher, second = TorchrunLauncher(), gang.members[1]
    ours = {**launcher.defaults(gang, second), **launcher.environment(gang, second)}
    assert {key: ours.get(key) for key in TORCHRUN_2_13} == TORCHRUN_2_13
    assert (ours["MASTER_ADDR"], ours["MASTER_PORT"]) == ("127.0.0.1", "29500")


def test_it_says_that_there_is_no_agent():
    # rank 0 of a script started inside another torchrun would otherwise wait for that one's store
    gang = Gang((Member("worker", 0, "127.0.0.1", (29500,)),))
    assert TorchrunLauncher().environment(gang, gang.chief)["TORCHELASTIC_USE_AGENT_STORE"] == "False"


@pytest.mark.parametrize(
    ("log", "advice"),
    [
        ("ModuleNotFoundError: No module named 'torch'\n", "setup: pip install torch"),
        ("RuntimeError: Distributed package doesn't have NCCL built in", "is_nccl_available"),
        (
            "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
            "torch.cuda.is_available",
        ),
        (
            "[rank0]: RuntimeError: Expected to have finished reduction in the prior iteration before "
            "starting a new one. This error indicates that your module has parameters that were not used",
            "find_unused_parameters=True",
        ),
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
            "address. port: 45002, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in "
            "use",
            "MASTER_PORT",
        ),
        (
            "torch.distributed.DistStoreError: Timed out after 4 seconds waiting for clients. 1/2 clients "
            "joined.",
            "Not all members joined",
        ),
        (
            "torch.distributed.DistNetworkError: The client socket has timed out after 3000ms while trying "
            "to connect to (127.0.0.1, 45003).",
            "worker-0 failed before",
        ),
        (
            "[rank0]: RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "
            "Connection closed by peer [127.0.0.1]:45799. This is typically caused by a remote worker "
            "crashing.",
            "ended first",
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting "
            "15000ms for recv operation to complete",
            "stopped answering",
        ),
        (
            "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'",
            "`hardware: {gpus: 1}`",
        ),
        (
            "AssertionError: Torch not compiled with CUDA enabled",
            "`hardware: {gpus: 1}`",
        ),
        (
            "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
            "`hardware: {gpus: 1}`",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total",
            "lower `batch`",
        ),
    ],
)
def test_known_failures_get_their_fix(log, advice):
    assert advice in TorchrunLauncher().explain(f"epoch 3\n{log}\n")


def test_a_broken_download_is_not_taken_for_a_lost_peer():
    assert TorchrunLauncher().explain("ConnectionResetError: [Errno 104] Connection reset by peer") == ""


def test_the_cause_comes_before_its_consequence():
    log = "gloo/transport/tcp/pair.cc: Connection closed by peer\nNo module named 'torch'"
    assert "setup" in TorchrunLauncher().explain(log)
