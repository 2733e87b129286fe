"""What needs a GPU: `make gpu` runs these on a machine that has one. Each takes a minute or two at most."""

from __future__ import annotations

import shutil
import subprocess

import pytest


def why_not() -> str:
    """What is missing here; empty if nothing is."""
    if (
        shutil.which("nvidia-smi") is None
        or subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode
    ):
        return "no NVIDIA GPU here"
    torch = pytest.importorskip("torch", reason="torch is not installed")
    return "" if torch.cuda.is_available() else "PyTorch is installed without CUDA"


@pytest.fixture(autouse=True, scope="module")
def _gpu() -> None:
    if reason := why_not():
        pytest.skip(reason)


pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
ONE = {"gpus": 1}
NCCL = """
    import os, torch, torch.distributed as dist
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    x = torch.ones(1 << 20, device="cuda")
    for step in range(20):
        dist.all_reduce(x)
    torch.cuda.synchronize()
    print("backend", dist.get_backend(), "sum", int(x.sum().item()))
    dist.destroy_process_group()
"""
#: Trains on one GPU for a while, by the book; WRAP makes the model a parallel one.
TRAIN = """
    import json, os, pathlib, time, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    layers = [torch.nn.Linear(4096, 4096) for _ in range(8)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(4096, 10)).cuda()
    model = WRAP(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    x, y = torch.randn(1024, 4096, device="cuda"), torch.randint(10, (1024,), device="cuda")
    for step in range(1, STEPS + 1):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
            file.write(json.dumps({"step": step, "loss": loss.item()}) + "\\n")
    pathlib.Path(os.environ["TRAINMASTER_OUTPUT_DIR"], "loss").write_text(str(loss.item()))
    dist.destroy_process_group()
"""
WRAPS = {"ddp": "DistributedDataParallel", "fsdp": "(lambda m: (fully_shard(m), m)[1])"}
HUNGRY = """
    import torch
    kept = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(4096)]
"""


def gang(tm, script: str, **keys):
    tm.write("train.py", script)
    distributed = {"strategy": "allreduce", "workers": 1}
    return tm.task("python train.py", distributed=distributed, hardware=ONE, **keys)


def trains(wrap: str, steps: int) -> str:
    return TRAIN.replace("WRAP", WRAPS[wrap]).replace("STEPS", str(steps))


def test_a_gang_talks_by_nccl(tm):
    found = tm.run(gang(tm, NCCL), timeout_s=240)
    assert f"backend nccl sum {1 << 20}" in tm.logs(found["run"])


@pytest.mark.parametrize("wrap", WRAPS)
def test_parallel_models_learn_on_one_gpu_and_it_is_observed(tm, wrap):
    found = tm.run(gang(tm, trains(wrap, 400)), timeout_s=240)
    (model,) = found["models"]
    assert model["metrics"]["loss"] < 2.0, "it learns its one batch by heart, from 2.3 on"
    usage = found["experiments"]["main"]["usage"]
    assert usage["gpu_utilisation"] > 0
    assert usage["gpu_memory_bytes"] > 8 * 4096 * 4096 * 4, "the weights at least"


def test_who_wants_more_memory_than_the_gpu_has_is_told_so(tm):
    result = tm.call("run", gang(tm, HUNGRY), "--json", code=1, timeout_s=240)
    found = tm.summary(result)
    assert found["experiments"]["main"]["reason"] == "OOM"
    assert "CUDA out of memory" in result.err


def test_a_quote_of_a_gpu_job_is_kept(tm):
    recipe = gang(tm, trains("ddp", 3000), batch={"global": 1024}, steps=3000)
    quote = tm.call("quote", recipe, "--json", timeout_s=280).json
    assert quote["cluster"]["worker"]["count"] == 1
    found = tm.run(recipe, "--yes", timeout_s=280)
    assert found["quote"]["kept"] is True, found
