import os

import psutil
import pytest

from trainmaster.executors.capacity import detect_capacity


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    return tmp_path


def write(root, path, text):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_plain(root):
    found = detect_capacity(root)
    assert (found.cores, found.memory_bytes, found.gpus) == (8, psutil.virtual_memory().total, ())


def test_control_group_2(root):
    write(root, "proc/self/cgroup", "0::/a/b\n")
    write(root, "sys/fs/cgroup/a/b/cpu.max", "max 100000\n")
    write(root, "sys/fs/cgroup/a/cpu.max", "250000 100000\n")
    write(root, "sys/fs/cgroup/a/b/memory.max", "1000000\n")
    found = detect_capacity(root)
    assert (found.cores, found.memory_bytes) == (2, 1_000_000)


def test_control_group_1(root):
    write(root, "proc/self/cgroup", "4:memory:/x\n1:cpu,cpuacct:/x\n0::/\n")
    write(root, "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "50000\n")
    write(root, "sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000\n")
    found = detect_capacity(root)
    assert (found.cores, found.memory_bytes) == (1, 2_000_000)


def test_the_memory_of_a_container_whose_limit_is_above_what_it_sees(root):
    write(root, "proc/self/cgroup", "0::/\n")
    write(root, "sys/fs/cgroup/memory.max", "max\n")
    write(root, "proc/meminfo", "MemTotal:        1000 kB\nMemFree: 5 kB\n")
    assert detect_capacity(root).memory_bytes == 1_024_000


def test_gpus_of_the_driver(root):
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        (root / "proc/driver/nvidia/gpus" / bus).mkdir(parents=True)
    assert detect_capacity(root).gpus == ("0", "1")


def test_gpus_of_the_tool(root):
    write(root, "nvidia-smi", "#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-1)'\necho 'GPU 1: x'\n")
    (root / "nvidia-smi").chmod(0o755)
    assert detect_capacity(root).gpus == ("0", "1")
    write(root, "nvidia-smi", "#!/bin/sh\necho 'GPU access blocked'\nexit 9\n")
    assert detect_capacity(root).gpus == ()


def test_gpus_that_the_caller_chose(root, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, GPU-abc")
    assert detect_capacity(root).gpus == ("2", "GPU-abc")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert detect_capacity(root).gpus == ()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert detect_capacity(root).gpus == ()


def test_this_machine():
    found = detect_capacity()
    assert found.cores >= 1
    assert found.memory_bytes > 0
