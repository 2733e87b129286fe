"""What members and the node use, every second, as JSON lines.

``DIRECTORY/samples.jsonl`` of an attempt: a line per member and look, over the member's process tree (they
are read by `trainmaster.executors.telemetry.usage`). A member's first line comes within a second, then one
every second for a minute, then one every five; its last one when it has ended. Short tasks cost nothing.
``HOME/supervisor/samples.jsonl``: the node, every five seconds; the older half goes to ``samples.jsonl.1``.
On a cluster's node every second of those goes to the attempt of each run that began first, too, as member
``@NODE``: so what brings the attempts' files brings it.

What the whole node uses, for its samples: CPU, memory, disk, network, GPUs.
"""
# ruff: noqa: PTH105, PTH116, PTH120 - pathlib would slow down the supervisor's start

from __future__ import annotations

import json
import math
import os
import time

from trainmaster.executors.supervisor import processes
from trainmaster.executors.supervisor.gpus import Gpus, share_of
from trainmaster.executors.supervisor.traffic import Traffic

TYPE_CHECKING = False
if TYPE_CHECKING:
    import resource
    from collections.abc import Callable, Container, Iterable, Mapping
    from typing import Any

    from trainmaster.executors.supervisor.gang_processes import GangProcesses, MemberProcess
    from trainmaster.executors.supervisor.gpus import Gpu


class NodeMeter:
    """Reads this node through psutil, which is loaded at the first use.

    Args:
        directory: whose file system's free space counts.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._psutil: Any = None
        self._measuring = False

    def row(self, gpus: Iterable[Gpu] = ()) -> dict[str, object]:
        """What can be read now; nothing raises."""
        row: dict[str, object] = {}
        try:
            disk = os.statvfs(self._directory)
            row["disk_free_bytes"] = disk.f_bavail * disk.f_frsize
        except OSError:
            pass  # the home has been moved away
        if self._psutil is None:
            try:
                import psutil
            except ImportError:
                self._psutil = False
            else:
                self._psutil = psutil
        if self._psutil:
            try:
                percent = self._psutil.cpu_percent()  # since the call before
                row["cpu_percent"] = percent if self._measuring else None
                self._measuring = True
                row["memory_available_bytes"] = self._psutil.virtual_memory().available
                network = self._psutil.net_io_counters()
                row["network_received_bytes"] = network.bytes_recv if network else None
                row["network_sent_bytes"] = network.bytes_sent if network else None
            except (OSError, ValueError, KeyError, AttributeError, RuntimeError):
                pass  # an unusual /proc (containers)
        if shown := [gpu.row() for gpu in gpus]:
            row["gpus"] = shown
        return row


FIRST_AFTER_S = 0.8
EVERY_S = 1.0
#: A member that is older than this gets a line every `LATER_EVERY_S`; its connections are still looked at.
OFTEN_FOR_S = 60.0
LATER_EVERY_S = 5.0
_NODE_AFTER_S = 2.0
_NODE_EVERY_S = 5.0
#: Looking takes at most this share of one core, however many processes and connections there are.
_MOST_SHARE = 0.03
_TOLERANCE_S = 0.1
_NODE_FILE_BYTES = 4 << 20
#: Every so many looks at a node one is for its runs.
_NODE_THINNED = 2


class _SampledMember:
    """A member that has been looked at."""

    def __init__(self, gang: GangProcesses, member: MemberProcess) -> None:
        self.directory = gang.directory
        self.name = member.name
        self.log = member.output.log if member.output is not None else None
        self.started_at = member.started_at or 0.0
        self.sampled_at = 0.0
        self.cpu_seconds = self.cpu_wait_seconds = 0.0
        self.machine_before = processes.machine_cpu_s()
        self.io_wait_before_s = processes.io_wait_s()
        self.tree: list[int] = []
        self.rss_bytes = self.peak_rss_bytes = self.processes = 0
        self.gpus: tuple[float | None, int | None] | None = None
        self.written = (0, 0)  # bytes sent and received, in the last line


class MemberSampler:
    """Looks at the members that live; one pass over ``/proc`` for all of them.

    Args:
        node_file: where the samples of the node go.
        watch: told the process ids of all members that live, at each look.
        exceed: called with a gang whose memory nothing else bounds, and which has more than it may.
        traffic: of the node (tests have their own).
        gpus: of the node.
    """

    def __init__(
        self,
        node_file: str,
        watch: Callable[[Iterable[int]], None] = lambda _: None,
        traffic: Traffic | None = None,
        gpus: Gpus | None = None,
        exceed: Callable[[GangProcesses], None] = lambda _: None,
    ) -> None:
        self._node_file = node_file
        self._watch = watch
        self._exceed = exceed
        self._look_at: float | None = None
        self._node_at = -math.inf
        self._seen: dict[int, _SampledMember] = {}
        self._ended: dict[int, _SampledMember] = {}
        self._tick_seconds = 1.0 / os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._traffic = traffic or Traffic()
        self._counts_traffic = False
        self._gpus = gpus or Gpus()
        self._node = NodeMeter(os.path.dirname(node_file))
        self._node_looks = 0
        self._node_name = f"@{os.uname().nodename}"
        self._own_peak_bytes = 0
        self._machine = processes.machine_cpu_s()
        self._io_wait_s = processes.io_wait_s()

    def tick(
        self, living: Mapping[int, tuple[GangProcesses, int]], now: float, unix_time: float
    ) -> float | None:
        """Sample what is due; seconds until the next look, None while nothing lives.

        Args:
            living: members by process id.
            now: monotonic time in seconds.
            unix_time: time in seconds.
        """
        if not living and not self._ended:
            self._look_at = None
            return None
        if self._look_at is None:
            self._look_at = now + FIRST_AFTER_S
        elif now >= self._look_at:
            self._look_at = now + self._look(living, now, unix_time)
        return self._look_at - now

    def ended(self, pid: int, usage: resource.struct_rusage, unix_time: float) -> None:
        """A member has ended: its last line, if it had any.

        Args:
            pid: its process.
            usage: its own, and that of its children that it waited for, as ``wait4`` says.
            unix_time: time in seconds.
        """
        seen = self._seen.pop(pid, None)
        if seen is None:
            return
        seen.cpu_seconds = max(seen.cpu_seconds, usage.ru_utime + usage.ru_stime)
        peak_bytes = usage.ru_maxrss * 1024
        if peak_bytes > self._own_peak_bytes:  # before it became a bash, it had our memory
            seen.peak_rss_bytes = max(seen.peak_rss_bytes, peak_bytes)
        _append(f"{seen.directory}/samples.jsonl", [self._row(pid, seen, unix_time, last=True)])
        if self._counts_traffic:
            seen.sampled_at = unix_time
            self._ended[pid] = seen  # the kernel may still be closing its connections

    def _look(self, living: Mapping[int, tuple[GangProcesses, int]], now: float, unix_time: float) -> float:
        """Look at everything; seconds until the next time."""
        began = time.thread_time()
        self._finish_ended(living)
        self._watch(living)
        next_s = EVERY_S
        oldest_s = 0.0
        for pid, (gang, index) in living.items():
            member = gang.members[index]
            age_s = unix_time - (member.started_at or unix_time)
            oldest_s = max(oldest_s, age_s)
            if pid in self._seen:
                continue
            if age_s >= FIRST_AFTER_S - _TOLERANCE_S:
                self._seen[pid] = _SampledMember(gang, member)
            else:
                next_s = min(next_s, FIRST_AFTER_S - age_s)
        self._seen = {pid: seen for pid, seen in self._seen.items() if pid in living}
        if self._seen:
            self._measure(living)
            self._write(unix_time)
        if oldest_s >= _NODE_AFTER_S and now - self._node_at >= _NODE_EVERY_S - _TOLERANCE_S:
            self._node_at = now
            self._sample_node(unix_time, living)
        took_s = time.thread_time() - began
        return max(next_s, _TOLERANCE_S, took_s / _MOST_SHARE)

    def _measure(self, living: Mapping[int, tuple[GangProcesses, int]]) -> None:
        self._machine = processes.machine_cpu_s()
        self._io_wait_s = processes.io_wait_s()
        table = processes.scan()
        roots = processes.descent(table, living.keys())
        self._counts_traffic = self._traffic.look(roots)
        gpus = self._gpus.look()
        sums = {pid: [0, 0, 0] for pid in self._seen}
        trees: dict[int, list[int]] = {pid: [] for pid in self._seen}
        for pid, root in roots.items():
            total = sums.get(root)
            if total is None:
                continue
            process = table[pid]
            total[0] += process.cpu_ticks
            total[1] += process.rss_pages
            total[2] += 1
            trees[root].append(pid)
        for pid, seen in self._seen.items():
            cpu_ticks, rss_pages, seen.processes = sums[pid]
            # it never falls: children that somebody else waited for take theirs along
            seen.cpu_seconds = max(seen.cpu_seconds, cpu_ticks * self._tick_seconds)
            seen.tree = trees[pid]
            seen.rss_bytes = rss_pages * self._page_bytes
            seen.peak_rss_bytes = max(seen.peak_rss_bytes, seen.rss_bytes)
            if gpus:
                gang, index = living[pid]
                seen.gpus = share_of(gpus, trees[pid], gang.members[index].gpu_ids)
        for gang in {id(gang): gang for gang, _ in living.values() if gang.is_watched}.values():
            pids = [pid for root, tree in trees.items() if living[root][0] is gang for pid in tree]
            if sum(table[pid].rss_pages for pid in pids) * self._page_bytes > gang.memory_bytes:
                self._weigh(gang, pids)
        own = table.get(os.getpid())
        if own is not None:
            self._own_peak_bytes = max(self._own_peak_bytes, own.rss_pages * self._page_bytes)

    def _weigh(self, gang: GangProcesses, pids: Iterable[int]) -> None:
        """What processes share counts once: that takes longer to tell."""
        if sum(map(processes.proportional_bytes, pids)) > gang.memory_bytes:
            self._exceed(gang)

    def _write(self, unix_time: float) -> None:
        lines: dict[str, list[dict[str, object]]] = {}
        for pid, seen in self._seen.items():
            every_s = EVERY_S if unix_time - seen.started_at < OFTEN_FOR_S else LATER_EVERY_S
            if not seen.processes or unix_time - seen.sampled_at < every_s - _TOLERANCE_S:
                continue
            seen.sampled_at = unix_time
            # Threads that have ended take theirs along: it never falls, too.
            waited_s = sum(map(processes.cpu_wait_s, seen.tree))
            seen.cpu_wait_seconds = max(seen.cpu_wait_seconds, waited_s)
            lines.setdefault(seen.directory, []).append(self._row(pid, seen, unix_time))
        for directory, rows in lines.items():
            _append(f"{directory}/samples.jsonl", rows)

    def _row(self, pid: int, seen: _SampledMember, unix_time: float, last: bool = False) -> dict[str, object]:
        row: dict[str, object] = {
            "time": round(unix_time, 3),
            "member": seen.name,
            "seconds": round(max(0.0, unix_time - seen.started_at), 3),
            "cpu_seconds": round(seen.cpu_seconds, 3),
            "cpu_wait_seconds": round(seen.cpu_wait_seconds, 3),
            "machine_cpu_seconds": round(self._machine[0] - seen.machine_before[0], 2),
            "stolen_seconds": round(self._machine[1] - seen.machine_before[1], 2),
            "rss_bytes": 0 if last else seen.rss_bytes,
            "peak_rss_bytes": seen.peak_rss_bytes,
            "processes": 0 if last else seen.processes,
            "bytes_sent": None,
            "bytes_received": None,
            "log_bytes": None if seen.log is None else seen.log.size,
            "reported_bytes": _size(f"{seen.directory}/{seen.name}.metrics.jsonl"),
        }
        if self._counts_traffic:
            seen.written = self._traffic.last_total(pid) if last else self._traffic.total(pid)
            row["bytes_sent"], row["bytes_received"] = seen.written
            if (trip_ms := self._traffic.round_trip_ms(pid)) is not None:
                row["round_trip_ms"] = trip_ms
                row["send_busy_seconds"] = round(self._traffic.busy_s(pid), 3)
        if self._io_wait_s is not None and seen.io_wait_before_s is not None:
            row["io_wait_seconds"] = round(self._io_wait_s - seen.io_wait_before_s, 3)
        if seen.gpus is not None and not last:
            row["gpu_utilisation"], row["gpu_memory_bytes"] = seen.gpus
        return row

    def _finish_ended(self, living: Container[int]) -> None:
        """What the connections of those that have ended carried after their last line."""
        for pid, seen in self._ended.items():
            if self._traffic.last_total(pid) != seen.written:
                _append(f"{seen.directory}/samples.jsonl", [self._row(pid, seen, seen.sampled_at, last=True)])
        self._ended = {}
        self._traffic.keep(living)

    def _sample_node(self, unix_time: float, living: Mapping[int, tuple[GangProcesses, int]]) -> None:
        row = {"time": round(unix_time, 3), **self._node.row(self._gpus.look())}
        try:
            if os.stat(self._node_file).st_size > _NODE_FILE_BYTES:
                os.replace(self._node_file, self._node_file + ".1")
        except OSError:
            pass
        _append(self._node_file, [row])
        self._node_looks += 1
        if self._node_looks % _NODE_THINNED:
            return
        firsts: dict[str, str] = {}
        for pid, (gang, _) in living.items():
            if gang.is_on_node and pid in self._seen:
                firsts.setdefault(gang.run, gang.directory)
        for directory in firsts.values():
            _append(f"{directory}/samples.jsonl", [{"member": self._node_name, **row}])


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0  # it has reported nothing


def _append(path: str, rows: list[dict[str, object]]) -> None:
    data = b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows)
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        # Whatever a script has put there: a named pipe would stop us, with all other members.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
    except OSError:
        pass  # a full disk, or the directory is gone: a sample is not worth a word
