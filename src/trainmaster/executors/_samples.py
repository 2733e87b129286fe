"""What members and the node use, every few seconds, as JSON lines.

``DIRECTORY/samples.jsonl``: ``time member cpu_seconds rss_bytes processes``, over each member's process
tree. ``HOME/supervisor/samples.jsonl``: ``time cpu_percent memory_available_bytes network_received_bytes
network_sent_bytes``; the older half goes to ``samples.jsonl.1`` in time. Short tasks cost nothing.
"""
# ruff: noqa: PTH116, PTH105 - pathlib would slow down the supervisor's start

from __future__ import annotations

import json
import os

from trainmaster.executors import _processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from trainmaster.executors._gangs import Gang, Member

FIRST_AFTER_S = 2.0
EVERY_S = 5.0
_LOOK_EVERY_S = 1.0
_NODE_FILE_BYTES = 4 << 20


class Sampler:
    """Looks at the members that live; one pass over ``/proc`` for all of them."""

    def __init__(self, node_file: str) -> None:
        self._node_file = node_file
        self._look_at: float | None = None
        self._sampled_at: dict[int, float] = {}
        self._node_at = 0.0
        self._tick_seconds = 1.0 / os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._psutil: Any = None

    def tick(self, living: Mapping[int, tuple[Gang, int]], now: float, unix_time: float) -> float | None:
        """Sample what is due; seconds until the next look, None while nothing lives.

        Args:
            living: members by process id.
            now: monotonic time in seconds.
            unix_time: time in seconds.
        """
        if not living:
            self._look_at = None
            return None
        if self._look_at is None:
            self._look_at = now + FIRST_AFTER_S
        elif now >= self._look_at:
            self._look_at = now + _LOOK_EVERY_S
            self._look(living, now, unix_time)
        return self._look_at - now

    def _look(self, living: Mapping[int, tuple[Gang, int]], now: float, unix_time: float) -> None:
        due: dict[int, tuple[Gang, Member]] = {}
        sampled_at: dict[int, float] = {}
        for pid, (gang, index) in living.items():
            member = gang.members[index]
            if unix_time - (member.started_at or unix_time) < FIRST_AFTER_S - 0.1:
                continue
            sampled_at[pid] = self._sampled_at.get(pid, 0.0)
            if now - sampled_at[pid] >= EVERY_S - 0.1:
                due[pid] = (gang, member)
                sampled_at[pid] = now
        self._sampled_at = sampled_at  # those that ended are forgotten
        if not due:
            return
        self._sample_members(due, unix_time)
        if now - self._node_at >= EVERY_S - 0.1:
            self._node_at = now
            self._sample_node(unix_time)

    def _sample_members(self, due: Mapping[int, tuple[Gang, Member]], unix_time: float) -> None:
        table = _processes.scan()
        roots = _processes.descent(table, due.keys())
        sums = {pid: [0, 0, 0] for pid in due}
        for pid, root in roots.items():
            total, process = sums[root], table[pid]
            total[0] += process.cpu_ticks
            total[1] += process.rss_pages
            total[2] += 1
        lines: dict[str, list[dict[str, object]]] = {}
        for pid, (gang, member) in due.items():
            cpu_ticks, rss_pages, count = sums[pid]
            if not count:
                continue
            lines.setdefault(gang.directory, []).append(
                {
                    "time": round(unix_time, 3),
                    "member": member.name,
                    "cpu_seconds": round(cpu_ticks * self._tick_seconds, 3),
                    "rss_bytes": rss_pages * self._page_bytes,
                    "processes": count,
                }
            )
        for directory, rows in lines.items():
            _append(f"{directory}/samples.jsonl", rows)

    def _sample_node(self, unix_time: float) -> None:
        if self._psutil is None:
            try:
                import psutil
            except ImportError:
                self._psutil = False
            else:
                self._psutil = psutil
                psutil.cpu_percent()  # the first call only starts the measurement
        if not self._psutil:
            return
        row: dict[str, object] = {"time": round(unix_time, 3)}
        try:
            row["cpu_percent"] = self._psutil.cpu_percent()
            row["memory_available_bytes"] = self._psutil.virtual_memory().available
            network = self._psutil.net_io_counters()
            row["network_received_bytes"] = network.bytes_recv if network else None
            row["network_sent_bytes"] = network.bytes_sent if network else None
        except (OSError, ValueError, KeyError, AttributeError, RuntimeError):
            return  # an unusual /proc (containers): no samples are better than no supervisor
        try:
            if os.stat(self._node_file).st_size > _NODE_FILE_BYTES:
                os.replace(self._node_file, self._node_file + ".1")
        except OSError:
            pass
        _append(self._node_file, [row])


def _append(path: str, rows: list[dict[str, object]]) -> None:
    data = b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
    except OSError:
        pass  # a full disk, or the directory is gone: a sample is not worth a word
