"""Who is root on a host is not root on this machine: each attack is tried from within."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

#: What the kernel answers a process that it does not let.
NO = re.compile(
    r"not permitted|denied|read-only|superuser|busy|cannot remount|no such process", re.IGNORECASE
)


def refused(ssh: Any, script: str, says: re.Pattern[str] = NO) -> None:
    """Run it as the host's root, who must not be able to."""
    done = ssh.run(f"sudo sh -euc {shlex.quote(script)}")
    assert done.returncode != 0, (script, done.stdout)
    assert says.search(done.stderr), (script, done.stderr)


def disk() -> tuple[int, int]:
    """A block device of this machine's."""
    device = Path("/").stat().st_dev
    if os.major(device):
        return os.major(device), os.minor(device)
    for line in Path("/proc/partitions").read_text().splitlines()[2:]:
        major, minor, *_ = line.split()
        return int(major), int(minor)
    pytest.skip("this machine has no disk")


def test_the_disks_of_this_machine_are_not_to_be_had(shared_host: Any) -> None:
    _, ssh = shared_host
    major, minor = disk()
    refused(ssh, f"mknod /root/disk b {major} {minor}")
    refused(ssh, f"cd /dev/shm && mknod disk b {major} {minor} && head -c 512 disk")
    refused(ssh, "mount -t ext4 /dev/vda /mnt")
    refused(ssh, "mount -t devtmpfs none /mnt")
    refused(ssh, "mknod /root/mem c 1 1")


@pytest.mark.parametrize(
    "path",
    [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/panic_on_oops",
        "/proc/sys/vm/drop_caches",
        "/proc/sysrq-trigger",
        "/proc/irq/default_smp_affinity",
    ],
)
def test_the_kernel_cannot_be_told_anything(shared_host: Any, path: str) -> None:
    _, ssh = shared_host
    if not Path(path).exists():
        pytest.skip("this kernel has no such file")
    value = Path(path).read_text().strip() if Path(path).stat().st_mode & 0o444 else "x"  # it does no harm
    write = f"echo {shlex.quote(value)} > {path}"
    inner = shlex.quote(write)
    for way in (
        write,
        f"mount -o remount,rw /proc && {write}",
        f"mount -o remount,bind,rw /proc/sys && {write}",
        f"umount -l /proc/sys && {write}",
        f"mount -t proc proc /mnt && echo {shlex.quote(value)} > /mnt{path.removeprefix('/proc')}",
        f"unshare --user --map-root-user --mount sh -c {inner}",
        f"unshare --mount --pid --fork --mount-proc sh -c {inner}",
    ):
        refused(ssh, way, re.compile(f"{NO.pattern}|not mounted|invalid argument|nonexistent", re.IGNORECASE))


def test_nothing_of_this_machine_is_hidden_below_a_mount(shared_host: Any) -> None:
    _, ssh = shared_host
    refused(ssh, "mount -o remount,bind,rw /sys && mkdir /sys/fs/cgroup/x")
    refused(ssh, "mount -t sysfs sysfs /mnt && echo x > /mnt/kernel/mm/ksm/run")
    for kind in ("cgroup2 none", "cgroup -o devices none", "cgroup -o memory none"):
        refused(ssh, f"mount -t {kind} /mnt && echo 0 > /mnt/cgroup.procs")
    refused(ssh, "mount -t debugfs none /mnt")


def test_modules_memory_and_clock_are_left_alone(shared_host: Any) -> None:
    _, ssh = shared_host
    load = (  # 313: finit_module
        "import ctypes, os; ctypes.CDLL(None, use_errno=True).syscall(313, 0, b'', 0); "
        "raise OSError(os.strerror(ctypes.get_errno()))"
    )
    refused(ssh, f"python3 -c {shlex.quote(load)}", re.compile("not permitted|not implemented"))
    refused(ssh, "date -s 2001-01-01")
    if Path("/proc/kcore").exists():
        refused(ssh, "head -c 1 /proc/kcore")


def test_processes_outside_are_neither_seen_nor_signalled(shared_host: Any) -> None:
    _, ssh = shared_host
    with subprocess.Popen(["sleep", "611"]) as victim:
        try:
            refused(ssh, f"kill -0 {victim.pid}")
            refused(ssh, f"ls /proc/{victim.pid}/root", re.compile("No such file"))
            assert "sleep 611" not in ssh("ps ax")
            assert victim.poll() is None
        finally:
            victim.kill()


def test_the_devices_that_all_use_keep_their_mode(shared_host: Any) -> None:
    _, ssh = shared_host
    touched = 978307200.0
    ssh("sudo touch -d 2001-01-01 /dev/full")
    assert Path("/dev/full").stat().st_mtime != touched


def test_a_host_is_still_a_machine(shared_host: Any) -> None:
    """What its root may do on a machine of its own."""
    _, ssh = shared_host
    ssh("sudo ip link add dummy0 type bridge && sudo ip link delete dummy0")
    ssh("sudo iptables -A INPUT -p tcp --dport 9 -j DROP && sudo iptables -F INPUT")
    ssh("sudo sysctl -q -w net.ipv4.tcp_wmem='4096 16384 4194304'")
    ssh("sudo mount -t tmpfs tmpfs /mnt && sudo umount /mnt")
    ssh("sudo useradd -m bob && sudo su bob -c 'touch ~/x' && sudo chown bob /tmp && sudo chown root /tmp")
    ssh("echo one > /dev/null; head -c 9 /dev/urandom > /dev/shm/x; [ -c /dev/fuse ]")
    ssh("unshare --user --map-root-user id -u")
    assert ssh("sudo hostname other && hostname; sudo hostname -F /etc/hostname").startswith("other")
