"""What the GPUs of this node do, and which processes hold memory on them, through ``nvidia-ml-py``.

A driver may take seconds to answer, and a broken one for ever: so a thread of its own asks, and the
supervisor takes the last answer that came. Without a GPU or without the library there is no thread.
"""
# ruff: noqa: PTH110 - pathlib would slow down the supervisor's start

from __future__ import annotations

import os
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

#: The driver's own device: where it is missing, the library need not be loaded to know.
_DRIVER_PATHS = ("/dev/nvidiactl", "/dev/dxg")


class Gpu:
    """One GPU at one moment.

    Attributes:
        number: as the driver counts.
        uuid: the name that ``CUDA_VISIBLE_DEVICES`` takes too.
        utilisation: share of the last moment in which it computed, from 0 to 1; None if not told.
        memory_used_bytes: on the whole GPU; None if not told.
        memory_bytes: that it has; None if not told.
        processes: bytes of each process; None for those that are not told.
    """

    def __init__(self, number: int, uuid: str) -> None:
        self.number = number
        self.uuid = uuid
        self.utilisation: float | None = None
        self.memory_used_bytes: int | None = None
        self.memory_bytes: int | None = None
        self.processes: dict[int, int | None] = {}

    def row(self) -> dict[str, object]:
        """For the samples of the node."""
        return {
            "gpu": self.number,
            "utilisation": self.utilisation,
            "memory_used_bytes": self.memory_used_bytes,
            "memory_bytes": self.memory_bytes,
        }


class Gpus:
    """The last that is known of all GPUs.

    Args:
        load: gives the library; raises ImportError where there is none.
    """

    def __init__(self, load: Callable[[], Any] | None = None) -> None:
        self._load = load or _load
        self._thread: threading.Thread | None = None
        self._wanted = threading.Event()
        self._latest: list[Gpu] = []
        self._absent = load is None and not any(os.path.exists(path) for path in _DRIVER_PATHS)

    def look(self) -> list[Gpu]:
        """The last answer; asks for the next one, which the next look gives. Never waits."""
        if self._absent:
            return []
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="gpus", daemon=True)
            self._thread.start()
        self._wanted.set()
        return self._latest

    def _work(self) -> None:
        reader = GpuReader(self._load)
        while not reader.absent:
            self._wanted.wait()
            self._wanted.clear()
            self._latest = reader.read()
        self._latest = []
        self._absent = True


class GpuReader:
    """Asks the library; whatever it says or fails to say, nothing raises.

    Attributes:
        absent: there is no library, or no GPU that answers it.
    """

    def __init__(self, load: Callable[[], Any]) -> None:
        self._library: Any = None
        self._handles: list[tuple[Any, str]] = []
        try:
            self._library = load()
            self._library.nvmlInit()
            for number in range(self._library.nvmlDeviceGetCount()):
                handle = self._library.nvmlDeviceGetHandleByIndex(number)
                self._handles.append((handle, self._text(self._library.nvmlDeviceGetUUID, handle)))
        except Exception:  # noqa: BLE001 - ImportError, OSError, NVMLError: a library that is not ours
            self._handles = []
        self.absent = not self._handles

    def read(self) -> list[Gpu]:
        """All GPUs now."""
        return [self._read(number, *device) for number, device in enumerate(self._handles)]

    def _read(self, number: int, handle: Any, uuid: str) -> Gpu:  # noqa: ANN401 - the library's own
        gpu = Gpu(number, uuid)
        rates = self._ask(self._library.nvmlDeviceGetUtilizationRates, handle)  # not told with MIG
        if rates is not None:
            gpu.utilisation = rates.gpu / 100
        memory = self._ask(self._library.nvmlDeviceGetMemoryInfo, handle)
        if memory is not None:
            gpu.memory_used_bytes, gpu.memory_bytes = int(memory.used), int(memory.total)
        for process in self._ask(self._library.nvmlDeviceGetComputeRunningProcesses, handle) or ():
            used = process.usedGpuMemory
            gpu.processes[process.pid] = None if used is None else int(used)
        return gpu

    @staticmethod
    def _ask(function: Callable[[Any], Any], handle: Any) -> Any:  # noqa: ANN401 - the library's own
        try:
            return function(handle)
        except Exception:  # noqa: BLE001 - NVMLError of every kind: this GPU does not tell that
            return None

    def _text(self, function: Callable[[Any], Any], handle: Any) -> str:  # noqa: ANN401 - the library's own
        found = self._ask(function, handle)
        return found.decode(errors="replace") if isinstance(found, bytes) else str(found or "")


def share_of(
    gpus: Iterable[Gpu], pids: Iterable[int], gpu_ids: Iterable[str]
) -> tuple[float | None, int | None]:
    """A member's GPUs: the sum of their utilisation (1 is one GPU, fully busy), and the memory it has there.

    Those count that it was given, and those on which its processes hold memory. A GPU that several
    members use counts whole for each of them: the driver does not tell them apart.

    Args:
        gpus: of the node.
        pids: of the member's processes.
        gpu_ids: that it was given, as for ``CUDA_VISIBLE_DEVICES``.
    """
    own, given = set(pids), {text.strip() for text in gpu_ids}
    utilisations: list[float] = []
    memories: list[int] = []
    for gpu in gpus:
        held = [gpu.processes[pid] for pid in own & gpu.processes.keys()]
        is_given = str(gpu.number) in given or any(
            len(text) > 4 and gpu.uuid.startswith(text) for text in given
        )
        if not held and not is_given:
            continue
        if gpu.utilisation is not None:
            utilisations.append(gpu.utilisation)
        memories += [used for used in held if used is not None]
    return (
        round(sum(utilisations), 4) if utilisations else None,
        sum(memories) if memories else None,
    )


def _load() -> Any:  # noqa: ANN401 - the module
    import pynvml

    return pynvml
