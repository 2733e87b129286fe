"""`HostCgroup`: what a host may use of this machine, by control groups of version 1 or 2."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from trainmaster.lab.errors import LabError
from trainmaster.lab.instance_types import HostLimits

CONTROLLERS: Final = ("cpu", "cpuacct", "cpuset", "memory", "pids", "freezer")
#: Finer than the kernel's 100 ms: a host at a tenth of a core would be away for 90 ms at a time.
PERIOD_US: Final = 20_000
#: The kernel refuses less.
QUOTA_FLOOR_US: Final = 1_000
PROCESSES: Final = 4096
#: Between asking the kernel to end processes and believing that it cannot.
KILL_TIMEOUT_S: Final = 20.0
_MOUNT_OPTIONS: Final = (
    "rw",
    "ro",
    "relatime",
    "noatime",
    "nosuid",
    "nodev",
    "noexec",
    "seclabel",
    "clone_children",
)


class CgroupTree:
    """Where the control groups of this machine are.

    Attributes:
        unified: whether there is one tree for all controllers (version 2).
        roots: controller -> directory; of version 2 the same for all.
        hierarchies: how they are mounted together, such as ``cpu,cpuacct``; of version 2 just ``2``.
    """

    def __init__(self, mounts: str | None = None) -> None:
        text = Path("/proc/mounts").read_text() if mounts is None else mounts
        self.unified = False
        self.roots: dict[str, Path] = {}
        hierarchies: dict[Path, str] = {}
        unified = None
        for line in text.splitlines():
            _, place, kind, options, *_ = line.split(" ")
            if kind == "cgroup":
                for name in set(options.split(",")) & set(CONTROLLERS):
                    self.roots.setdefault(name, Path(place))
                hierarchies[Path(place)] = ",".join(o for o in options.split(",") if o not in _MOUNT_OPTIONS)
            elif kind == "cgroup2":
                unified = Path(place)
        if not self.roots and unified is not None:
            self.unified = True
            self.roots = dict.fromkeys(CONTROLLERS, unified)
        shown = [root for name, root in self.roots.items() if name not in ("cpuacct", "freezer")]
        self.hierarchies = ("2",) if self.unified else tuple(hierarchies[r] for r in dict.fromkeys(shown))
        missing = [name for name in CONTROLLERS if name not in self.roots]
        if missing:
            raise LabError(
                f"this machine has no control group for {', '.join(missing)}",
                "The lab limits its hosts with them: see `grep cgroup /proc/mounts`.",
            )

    def places(self, *names: str) -> dict[str, Path]:
        """Controller -> the directory of the group with this path."""
        return {controller: root.joinpath(*names) for controller, root in self.roots.items()}


class HostCgroup:
    """The control group of one host.

    Args:
        tree: of this machine.
        mark: of the lab.
        name: of the host.
    """

    def __init__(self, tree: CgroupTree, mark: str, name: str) -> None:
        self._tree = tree
        self._mark = mark
        self._places = tree.places(mark, name)

    @property
    def directories(self) -> list[Path]:
        """A process that writes its id to ``cgroup.procs`` of each of them is in."""
        return list(dict.fromkeys(self._places.values()))

    def make(self, limits: HostLimits, first_cpu: int) -> None:
        """Make it, with its limits."""
        if self._tree.unified:
            self._delegate()
        for place in self.directories:
            place.mkdir(parents=True, exist_ok=True)
        if not self._tree.unified:
            self._inherit_cpus()
        self.limit(limits, first_cpu)

    def limit(self, limits: HostLimits, first_cpu: int) -> None:
        """Set the limits, also while the host runs."""
        available = sorted(os.sched_getaffinity(0))
        cpus = [available[(first_cpu + i) % len(available)] for i in range(min(limits.cpus, len(available)))]
        self._write("cpuset", "cpuset.cpus", ",".join(map(str, sorted(cpus))))
        self._write("pids", "pids.max", PROCESSES)
        self.limit_cpu(limits.cpu_cores)
        if self._tree.unified:
            self._write("memory", "memory.max", limits.memory_bytes)
            with contextlib.suppress(OSError):  # not there without swap accounting
                self._write("memory", "memory.swap.max", 0)
            return
        self._write("memory", "memory.limit_in_bytes", limits.memory_bytes)

    def limit_cpu(self, cores: float) -> None:
        """Set how many seconds of CPU it may use per second, also while the host runs."""
        quota_us = max(QUOTA_FLOOR_US, int(cores * PERIOD_US))
        period_us = max(PERIOD_US, int(QUOTA_FLOOR_US / cores))
        if self._tree.unified:
            self._write("cpu", "cpu.max", f"{quota_us} {period_us}")
            return
        self._write("cpu", "cpu.cfs_quota_us", -1)  # else the kernel may refuse one for the other's sake
        self._write("cpu", "cpu.cfs_period_us", period_us)
        self._write("cpu", "cpu.cfs_quota_us", quota_us)

    def cpu_s(self) -> float:
        """Seconds of CPU that it has used."""
        if self._tree.unified:
            words = (self._places["cpu"] / "cpu.stat").read_text().split()
            return int(words[words.index("usage_usec") + 1]) / 1e6
        return int((self._places["cpuacct"] / "cpuacct.usage").read_text()) / 1e9

    def freeze(self) -> None:
        """Stop every process where it is."""
        if self._tree.unified:
            self._write("freezer", "cgroup.freeze", 1)
        else:
            self._write("freezer", "freezer.state", "FROZEN")

    def thaw(self) -> None:
        """Let them go on."""
        if not self._places["freezer"].exists():
            return
        if self._tree.unified:
            self._write("freezer", "cgroup.freeze", 0)
        else:
            self._write("freezer", "freezer.state", "THAWED")

    def memory_bytes(self) -> tuple[int, int]:
        """Used for good, and used by caches that could be dropped."""
        place = self._places["memory"]
        if self._tree.unified:
            used, cache_key = int((place / "memory.current").read_text()), "file"
        else:
            used, cache_key = int((place / "memory.usage_in_bytes").read_text()), "cache"
        cache = 0
        for line in (place / "memory.stat").read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == cache_key:
                cache = min(used, int(value))
        return used - cache, cache

    def processes(self) -> set[int]:
        """Everybody in it."""
        found: set[int] = set()
        for place in self.directories:
            for group in _groups(place):
                with contextlib.suppress(OSError):
                    found.update(int(word) for word in (group / "cgroup.procs").read_text().split())
        return found

    def kill(self) -> None:
        """End all processes in it, also frozen ones.

        Raises:
            LabError: some do not end.
        """
        with contextlib.suppress(OSError):
            self.thaw()
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while left := self.processes():
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise LabError(f"processes {sorted(left)} of {self._mark} do not end")
            time.sleep(0.005)

    def remove(self) -> None:
        """End everybody in it, and remove it."""
        for place in self.directories:
            for group in reversed(list(_groups(place))):
                _remove(group, self.kill)

    def _delegate(self) -> None:
        """Version 2: a group has the controllers that those above it pass on."""
        root = self._tree.roots["cpu"]
        wanted = " ".join(f"+{name}" for name in ("cpu", "cpuset", "memory", "pids"))
        for place in (root, root / self._mark):
            place.mkdir(exist_ok=True)
            try:
                (place / "cgroup.subtree_control").write_text(wanted)
            except OSError as error:
                raise LabError(
                    f"{place}: the controllers {wanted} cannot be passed on: {error.strerror}",
                    "The lab needs the control groups of the machine, not those of a container.",
                ) from error

    def _inherit_cpus(self) -> None:
        """Version 1: a new cpuset is empty, and takes no process in."""
        root, place = self._tree.roots["cpuset"], self._places["cpuset"]
        for name in ("cpuset.cpus", "cpuset.mems"):
            whole = (root / name).read_text()
            for group in (place.parent, place):
                if not (group / name).read_text().strip():
                    (group / name).write_text(whole)

    def _write(self, controller: str, name: str, value: object) -> None:
        (self._places[controller] / name).write_text(str(value))


def lab_groups(tree: CgroupTree, mark: str) -> list[str]:
    """Names of the hosts' groups that a lab has or has left."""
    names: set[str] = set()
    for place in set(tree.places(mark).values()):
        if place.is_dir():
            names.update(entry.name for entry in place.iterdir() if entry.is_dir())
    return sorted(names)


def remove_lab_groups(tree: CgroupTree, mark: str) -> int:
    """End everybody in the groups of a lab, and remove them; how many there were."""
    names = lab_groups(tree, mark)
    for name in names:
        HostCgroup(tree, mark, name).remove()
    for place in set(tree.places(mark).values()):
        if place.is_dir():
            _remove(place, lambda: None)
    return len(names)


def _groups(place: Path) -> Iterator[Path]:
    """A group and all below it, from the top."""
    if not place.is_dir():
        return
    yield place
    for entry in sorted(place.iterdir()):
        if entry.is_dir():
            yield from _groups(entry)


def _remove(group: Path, empty: Callable[[], None]) -> None:
    """Remove a group; ``empty`` ends what is in it."""
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while True:
        empty()
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # the kernel keeps it busy for a moment after its last process
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
