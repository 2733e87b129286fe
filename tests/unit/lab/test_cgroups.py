"""Version 2 is written here into a directory that looks like it; version 1 is what the lab's tests run on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainmaster.lab.cgroups import CgroupTree, HostCgroup, lab_groups
from trainmaster.lab.errors import LabError
from trainmaster.lab.instance_types import HostLimits

LIMITS = HostLimits(cpu_cores=0.25, cpus=1, memory_bytes=2**30, nic_mbps=100)


def test_version_1_is_found_by_controller_and_as_mounted_together() -> None:
    mounts = "\n".join(
        f"cgroup /sys/fs/cgroup/{names} cgroup rw,nosuid,relatime,{names} 0 0"
        for names in ("cpu,cpuacct", "cpuset", "memory", "pids", "freezer")
    )
    tree = CgroupTree(mounts + "\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0")
    assert not tree.unified
    assert tree.roots["cpu"] == Path("/sys/fs/cgroup/cpu,cpuacct")
    assert tree.hierarchies == ("cpu,cpuacct", "cpuset", "memory", "pids")


def test_a_machine_without_control_groups_is_told() -> None:
    with pytest.raises(LabError, match="no control group for cpu"):
        CgroupTree("proc /proc proc rw 0 0")


def test_version_2(tmp_path: Path) -> None:
    tree = CgroupTree(f"cgroup2 {tmp_path} cgroup2 rw,nosuid 0 0")
    assert tree.unified
    assert tree.hierarchies == ("2",)
    group = HostCgroup(tree, "tmlab-1", "i-1")
    group.make(LIMITS, 0)
    place = tmp_path / "tmlab-1" / "i-1"
    assert group.directories == [place]
    assert (place / "cpu.max").read_text() == "5000 20000"
    assert (place / "memory.max").read_text() == str(2**30)
    assert (place / "memory.swap.max").read_text() == "0"
    assert int((place / "cpuset.cpus").read_text()) in os.sched_getaffinity(0)
    assert "+cpu" in (tmp_path / "tmlab-1" / "cgroup.subtree_control").read_text()
    group.freeze()
    assert (place / "cgroup.freeze").read_text() == "1"
    group.thaw()
    assert (place / "cgroup.freeze").read_text() == "0"
    (place / "memory.current").write_text("3000\n")
    (place / "memory.stat").write_text("anon 1000\nfile 2000\n")
    assert group.memory_bytes() == (1000, 2000)
    assert lab_groups(tree, "tmlab-1") == ["i-1"]


def test_the_processor_is_limited_while_a_host_runs_and_what_it_used_is_counted(tmp_path: Path) -> None:
    group = HostCgroup(CgroupTree(f"cgroup2 {tmp_path} cgroup2 rw 0 0"), "tmlab-1", "i-1")
    group.make(LIMITS, 0)
    group.limit_cpu(0.025)  # the kernel takes no quota below 1 ms: the period is longer
    place = tmp_path / "tmlab-1" / "i-1"
    assert (place / "cpu.max").read_text() == "1000 40000"
    (place / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    assert group.cpu_s() == 2.5
