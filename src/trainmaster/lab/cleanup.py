"""`remove_leftovers`: whatever a lab has left behind, found by its names and removed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

from trainmaster.lab.cgroups import CgroupTree, remove_lab_groups
from trainmaster.lab.place import LabPlace
from trainmaster.lab.region import drop_link
from trainmaster.lab.shell import call
from trainmaster.spec.units import counted

_PATIENCE_S = 10.0


def remove_leftovers(place: LabPlace) -> list[str]:
    """End and remove everything of a lab whose daemon is gone; safe to repeat.

    Returns:
        What was found, for people.
    """
    found = []
    if count := _end_daemons(place):
        found.append(counted(count, "daemon"))
    if count := remove_lab_groups(CgroupTree(), place.mark):
        found.append(counted(count, "host"))
    if drop_link(place.root_link):
        found.append("the network")
    if mounts := _mounts_below(place.directory):
        for path in mounts:  # the last one first
            call(["umount", "-l", path], check=False)
        found.append(counted(len(mounts), "mount"))
    if place.directory.is_dir():
        for entry in place.directory.iterdir():
            if entry == place.lock:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
    return found


def _end_daemons(place: LabPlace) -> int:
    """Daemons of this lab that still run, without its file perhaps."""
    found = daemons(place)
    for pid in found:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _PATIENCE_S
    while daemons(place) and time.monotonic() < deadline:
        time.sleep(0.02)
    return len(found)


def daemons(place: LabPlace) -> list[int]:
    """Process ids of the daemons of this lab."""
    mark = f"trainmaster.lab.daemon\0{place.directory}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def _mounts_below(directory: Path) -> list[str]:
    """Mount points below a directory, the newest first."""
    prefix = f"{directory}/"
    points = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        # Blanks are written in octal.
        point = line.split(" ")[4].encode().decode("unicode_escape")
        if point.startswith(prefix):
            points.append(point)
    return points[::-1]
