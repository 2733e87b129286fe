"""PyTorch beyond plain DDP: Accelerate without its launcher, FSDP with sharded checkpoints."""

from __future__ import annotations

import pytest
from learning import check_it_learned, losses, needs

GANG = {"strategy": "allreduce", "workers": 2, "per_node": 2}

# The scripts leave by os._exit: a thread of gloo may abort a process that shuts Python down in order.
ACCELERATE = """
    import os, sys, torch
    from accelerate import Accelerator
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    digits = load_digits()
    data = torch.utils.data.TensorDataset(
        torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    )
    model = torch.nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    batches = torch.utils.data.DataLoader(data, batch_size=128, shuffle=True)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    print("process", accelerator.process_index, "of", accelerator.num_processes)
    for epoch in range(8):
        for images, labels in batches:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            mean = accelerator.reduce(loss.detach(), "mean").item()
            print(f"epoch {epoch} loss {mean:.4f}")
    accelerator.end_training()
    sys.stdout.flush()
    os._exit(0)
"""

# A checkpoint is whole when it has its `.metadata`, which the library writes last.
FSDP = """
    import os
    import shutil
    import signal
    import sys
    from datetime import timedelta
    from pathlib import Path

    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from sklearn.datasets import load_digits
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    folder = Path(os.environ["TRAINMASTER_CHECKPOINT_DIR"])

    def state(step):
        weights, optimizer_state = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": optimizer_state, "step": torch.tensor(step)}

    first = 0
    if whole := sorted(folder.glob("*/.metadata")):
        restored = state(0)
        dcp.load(restored, checkpoint_id=whole[-1].parent)
        set_state_dict(
            model, optimizer, model_state_dict=restored["model"], optim_state_dict=restored["optimizer"]
        )
        first = int(restored["step"])
        print("going on at step", first)

    digits = load_digits()
    images = torch.tensor(digits.data[rank::world], dtype=torch.float32) / 16
    labels = torch.tensor(digits.target[rank::world])
    for step in range(first + 1, 61):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")
        if step % 10 == 0:
            dcp.save(state(step), checkpoint_id=folder / f"{step:04d}")
        if step == 45 and first == 0 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        shutil.copytree(folder / "0060", Path(os.environ["TRAINMASTER_OUTPUT_DIR"]) / "sharded")
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.fixture(autouse=True)
def needs_torch():
    needs("torch", "sklearn")


@pytest.mark.torch
@pytest.mark.crossings  # it asks the same variables as plain DDP, which `test_cli_gangs.py` has
def test_accelerate_without_its_launcher(tm):
    needs("accelerate", "sklearn")
    tm.write("train.py", ACCELERATE)
    run = tm.run(tm.task("python train.py", distributed=GANG))["run"]
    first, second = (tm.logs(run, "--member", f"worker-{rank}") for rank in range(2))
    assert "process 0 of 2" in first
    assert "process 1 of 2" in second
    assert losses(first) == losses(second)
    check_it_learned(first)
    tm.until_quiet()


@pytest.mark.torch
@pytest.mark.crossings
def test_sharded_fsdp_goes_on_after_a_rank_was_killed(tm):
    tm.write("train.py", FSDP)
    summary = tm.run(tm.task("python train.py", distributed=GANG, retries=1), timeout_s=90)
    for rank in range(2):
        log = tm.logs(summary["run"], "--member", f"worker-{rank}")
        first, second = log.split("going on at step 40\n")
        assert losses(first)[0] > 2.0
        assert losses(second)[0] < losses(first)[0] / 2, "weights and momentum are those of step 40"
        assert losses(second)[-1] < 0.8
    folder = tm.work / "model"
    tm.call("models", "get", summary["models"][0]["uri"], folder)
    assert len(list((folder / "sharded").glob("*.distcp"))) == 2, "each rank wrote its shard"
    tm.until_quiet()
