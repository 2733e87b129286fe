"""What is mounted below our directory is found and ended, whatever path leads there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainmaster.cluster.node_files.files import end_mounts_command, mounted_runs, mounted_runs_command


def mounted(below: Path) -> list[str]:
    paths = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return [path for path in paths if path.startswith(f"{below}/")]


def shell(command: str) -> str:
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Path]:
    """Two runs with mounts, one of them two."""
    if os.geteuid() != 0:
        pytest.skip("mounts need root")
    root = tmp_path / "real"
    try:
        for place in ("a-1/data/x", "a-1/data/y", "b-2/data/x"):
            (root / "runs" / place).mkdir(parents=True)
            done = subprocess.run(["mount", "-t", "tmpfs", "none", root / "runs" / place], check=False)
            if done.returncode != 0:
                pytest.skip("no mounts here")
        yield root
    finally:
        for path in mounted(root):
            subprocess.run(["umount", "-l", path], check=False)


def test_mounts_are_found_through_a_link(real: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.symlink_to(real)
    assert mounted_runs(shell(mounted_runs_command(f"{home}/runs"))) == ["a-1", "b-2"]
    shell(end_mounts_command(f"{home}/runs/a-1"))
    assert mounted(real) == [f"{real}/runs/b-2/data/x"]
    shell(f"{end_mounts_command(str(home))}; true")
    assert mounted(real) == []
    assert shell(f"{mounted_runs_command(str(home / 'runs'))}") == ""
    shell(f"{end_mounts_command(str(tmp_path / 'gone'))}; exec rm -rf -- {tmp_path / 'gone'}")
