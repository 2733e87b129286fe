"""What the whole node uses, for its samples: CPU, memory, disk, network, GPUs."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from trainmaster.executors._gpus import Gpu


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
