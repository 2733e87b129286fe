"""GPUs through the library of the driver: answers as nvidia-ml-py 13.615 gives them, and a real GPU."""

from __future__ import annotations

import ctypes
import inspect
import types

import pytest

from trainmaster.executors.supervisor.gpus import Gpu, GpuReader, Gpus, _load, share_of


class Utilization(ctypes.Structure):
    """``c_nvmlUtilization_t``."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Memory(ctypes.Structure):
    """``c_nvmlMemory_t``."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class NVMLError(Exception):
    """As the library's own: a number, and a text for it."""

    def __init__(self, value):
        super().__init__(value)
        self.value = value


NOT_SUPPORTED, DRIVER_NOT_LOADED = 3, 9


def process(pid, used):
    """``nvmlFriendlyObject``: what the library makes of ``c_nvmlProcessInfo_t``."""
    return types.SimpleNamespace(
        pid=pid, usedGpuMemory=used, gpuInstanceId=0xFFFFFFFF, computeInstanceId=0xFFFFFFFF
    )


class Library:
    """Two GPUs; on the first a training, the second is cut up (MIG) and does not tell its utilisation."""

    UUIDS = ("GPU-3d1c7a52-0e1b-8f04-9d3a-5b2f6c7e8a90", b"GPU-77aa0001-1111-2222-3333-444455556666")

    def nvmlInit(self):
        return None

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return ctypes.c_void_p(0x7F00 + index)

    @staticmethod
    def number(handle):
        return handle.value - 0x7F00

    def nvmlDeviceGetUUID(self, handle):
        return self.UUIDS[self.number(handle)]

    def nvmlDeviceGetUtilizationRates(self, handle):
        if self.number(handle) == 1:
            raise NVMLError(NOT_SUPPORTED)
        return Utilization(gpu=87, memory=31)

    def nvmlDeviceGetMemoryInfo(self, handle):
        return Memory(total=150754820096, free=149754820096, used=1000000000)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [process(4242, 734003200), process(4243, None)] if self.number(handle) == 0 else []


def test_what_the_library_says():
    first, second = GpuReader(Library).read()
    assert (first.number, first.uuid, first.utilisation) == (0, Library.UUIDS[0], 0.87)
    assert first.processes == {4242: 734003200, 4243: None}
    assert (second.uuid, second.utilisation, second.processes) == (Library.UUIDS[1].decode(), None, {})
    assert first.row() == {
        "gpu": 0, "utilisation": 0.87, "memory_used_bytes": 1000000000, "memory_bytes": 150754820096,
    }  # fmt: skip


def test_no_library():
    def load():
        raise ImportError("No module named 'pynvml'")

    assert GpuReader(load).absent


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"])
def test_a_driver_that_does_not_answer(function):
    library = Library()

    def fail(*_):
        raise NVMLError(DRIVER_NOT_LOADED)

    setattr(library, function, fail)
    reader = GpuReader(lambda: library)
    assert reader.absent
    assert reader.read() == []


def test_a_gpu_that_falls_off_the_bus_later():
    library = Library()
    reader = GpuReader(lambda: library)

    def fail(*_):
        raise NVMLError(15)

    for name in ("UtilizationRates", "MemoryInfo", "ComputeRunningProcesses"):
        setattr(library, f"nvmlDeviceGet{name}", fail)
    assert [gpu.row() for gpu in reader.read()] == [
        {"gpu": number, "utilisation": None, "memory_used_bytes": None, "memory_bytes": None}
        for number in range(2)
    ]


def gpu(number, utilisation, processes):
    found = Gpu(number, f"GPU-{number}abc-def")
    found.utilisation, found.processes = utilisation, processes
    return found


def test_the_share_of_a_member():
    gpus = [gpu(0, 0.9, {10: 500, 99: 7000}), gpu(1, 0.5, {11: 300}), gpu(2, 0.25, {})]
    assert share_of(gpus, [10, 11, 12], ()) == (1.4, 800)
    assert share_of(gpus, [10], ["0"]) == (0.9, 500)
    assert share_of(gpus, [12], ["2"]) == (0.25, None), "given, but not used yet"
    assert share_of(gpus, [12], ["GPU-1abc"]) == (0.5, None), "by a name's beginning, as CUDA takes it"
    assert share_of(gpus, [12], ()) == (None, None)
    assert share_of([gpu(0, None, {10: None})], [10], ["0"]) == (None, None)


def test_asked_by_a_thread_that_nobody_waits_for():
    gpus = Gpus(Library)
    assert gpus.look() == [], "the first look only asks"
    answered = next(found for found in iter(gpus.look, None) if found)
    assert [each.number for each in answered] == [0, 1]


def test_without_a_driver_there_is_no_thread(monkeypatch):
    monkeypatch.setattr("trainmaster.executors.supervisor.gpus._DRIVER_PATHS", ("/nowhere",))
    gpus = Gpus()
    assert gpus.look() == []
    assert gpus._thread is None


def test_the_recording_is_like_the_library():
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    for name, function in inspect.getmembers(Library(), inspect.ismethod):
        if name.startswith("nvml"):
            real = inspect.signature(inspect.unwrap(getattr(pynvml, name)))
            real.bind(*inspect.signature(function).parameters)  # takes as many arguments
    for recorded, real in ((Utilization, pynvml.c_nvmlUtilization_t), (Memory, pynvml.c_nvmlMemory_t)):
        assert list(recorded._fields_) == list(real._fields_)
    fields = {name for name, _ in pynvml.c_nvmlProcessInfo_t._fields_}
    assert fields == vars(process(1, 2)).keys()


@pytest.mark.gpu
def test_a_real_gpu():
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")

    reader = GpuReader(_load)
    if reader.absent:
        pytest.skip("there is no GPU here, or its driver does not answer")
    for found in reader.read():
        assert found.uuid.startswith(("GPU-", "MIG-"))
        assert found.memory_bytes is None or found.memory_bytes > 1 << 28
        assert found.utilisation is None or 0 <= found.utilisation <= 1
