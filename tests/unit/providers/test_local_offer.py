"""This machine as an offer."""

import os
from datetime import date

import psutil
import pytest

from trainmaster.providers import load_catalogue
from trainmaster.providers.local_machine import local_offer

TODAY = date(2026, 6, 1)


def card(root, name, speed, *, device=True):
    folder = root / "sys/class/net" / name
    folder.mkdir(parents=True)
    if device:
        (folder / "device").mkdir()
    if speed is not None:
        (folder / "speed").write_text(f"{speed}\n")


def test_it_is_this_machine_for_nothing():
    (offer,) = load_catalogue("local", today=TODAY)
    assert 0 < offer.vcpus <= len(os.sched_getaffinity(0))
    assert 0 < offer.memory_bytes <= psutil.virtual_memory().total
    assert (offer.provider, offer.price_usd_per_hour, offer.as_of) == ("local", 0, TODAY)


@pytest.mark.parametrize(
    ("cards", "gbps"),
    [
        ([], None),
        ([("eth0", 1000, True), ("eth1", 25000, True)], 25.0),
        ([("eth0", -1, True)], None),  # virtio does not know
        ([("eth0", None, True)], None),  # EINVAL: down
        ([("docker0", 10000, False), ("lo", 100000, True)], None),
    ],
)
def test_the_fastest_real_network_card(tmp_path, cards, gbps):
    for name, speed, device in cards:
        card(tmp_path, name, speed, device=device)
    assert local_offer(TODAY, tmp_path).nic_gbps == gbps


def test_in_a_container_it_is_what_was_granted(tmp_path):
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("50000 100000\n")
    (group / "memory.max").write_text(f"{1 << 28}\n")
    offer = local_offer(TODAY, tmp_path)
    assert (offer.vcpus, offer.memory_bytes) == (0.5, 1 << 28)
    (group / "cpu.max").write_text("max 100000\n")
    (group / "memory.max").write_text("max\n")
    offer = local_offer(TODAY, tmp_path)
    assert offer.vcpus == len(os.sched_getaffinity(0))
    assert offer.memory_bytes == psutil.virtual_memory().total


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    def nvidia_smi(script):
        program = tmp_path / "bin/nvidia-smi"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return nvidia_smi


def test_gpus(nvidia_smi, monkeypatch):
    nvidia_smi("echo 'Tesla T4, 15360'; echo 'Tesla T4, 15360'")
    offer = local_offer(TODAY)
    assert (offer.accelerator, offer.accelerators) == ("Tesla T4", 2)
    assert offer.accelerator_memory_bytes == 15 << 30
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert local_offer(TODAY).accelerators == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert local_offer(TODAY).accelerators == 0


def test_a_driver_that_does_not_answer(nvidia_smi):
    nvidia_smi("echo 'NVIDIA-SMI has failed, is it running?'; exit 9")
    assert local_offer(TODAY).accelerators == 0


@pytest.mark.parametrize(
    ("groups", "limits"),
    [
        ("0::/a/b\n", {"a/memory.max": "1000000", "a/b/memory.max": "max", "a/cpu.max": "50000 100000"}),
        (
            "4:cpuset,memory:/x\n5:cpu:/x\n0::/\n",
            {
                "memory/x/memory.limit_in_bytes": "1000000",
                "cpu/x/cpu.cfs_quota_us": "50000",
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/x/cpu.cfs_period_us": "100000",
            },
        ),
    ],
    ids=["version 2, above ours", "version 1"],
)
def test_it_has_what_its_control_groups_leave(tmp_path, groups, limits):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, limit in limits.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{limit}\n")
    offer = local_offer(TODAY, tmp_path)
    assert (offer.memory_bytes, offer.vcpus) == (1_000_000, 0.5)
