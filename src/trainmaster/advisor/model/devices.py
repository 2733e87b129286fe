"""How fast a device is that the job was never measured on: published figures, with their error."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from trainmaster.dataclass import dataclass

#: Peak TFLOPS of one GPU as its vendor publishes them: in 32 bits, and of 16-bit matrix products (dense;
#: without matrix units those of 32 bits, or of 16 bits where they are faster).
PEAK_TFLOPS: Final[Mapping[str, tuple[float, float]]] = {
    "k80": (4.4, 4.4),
    "m60": (4.8, 4.8),
    "p4": (5.5, 5.5),
    "p40": (11.8, 11.8),
    "p100": (9.5, 19.0),
    "v100": (15.7, 125.0),
    "t4": (8.1, 65.0),
    "t4g": (8.1, 65.0),
    "a10": (31.2, 125.0),
    "a10g": (35.0, 70.0),
    "a100": (19.5, 312.0),
    "l4": (30.3, 121.0),
    "l40s": (91.6, 362.0),
    "h100": (67.0, 989.0),
    "h200": (67.0, 989.0),
    "b200": (75.0, 2250.0),
    "rtx3090": (35.6, 71.0),
    "rtx4090": (82.6, 165.0),
    "rtx6000": (16.3, 130.5),
}
#: Training does not gain all that the peaks promise (memory and launches do not speed up alike).
_GAIN: Final = 0.75
#: A core's share of a GPU's peak: the geometric mean of both is 0.05 TFLOPS a core.
_CORE_TFLOPS: Final = 0.05
#: More cores serve one worker less than proportionally. Less than one core is a share of its time, and
#: counts in full.
_CORES_GAIN: Final = 0.75
_LEAST_CORES: Final = 0.01
#: Spread (log) of what is said here: same family, from CPU to GPU, and of a GPU that no table has.
_BETWEEN_GPUS: Final = 0.35
_BETWEEN_CPUS: Final = 0.3
_PER_FOLD: Final = 0.1
_CPU_TO_GPU: Final = 1.0
_UNKNOWN_GPU: Final = 1.0
#: What was measured on machines of another place, which this one's catalogue does not have, is named so; and
#: what is not known of how fast they are (log).
ELSEWHERE: Final = "elsewhere:"
_ELSEWHERE: Final = 1.0


@dataclass(frozen=True, slots=True)
class Device:
    """What one worker computes on.

    Attributes:
        accelerator: model of the GPU, empty for CPUs.
        cores: CPU cores that one worker has for itself.
        offer: name of the instance type; the same type twice is the same device.
    """

    accelerator: str
    cores: float
    offer: str = ""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Speed of one device over another's: the median of its logarithm, and its spread."""

    log: float
    spread: float


def speed_ratio(device: Device, measured: Device) -> Ratio:
    """How much faster ``device`` computes than the one that was measured.

    >>> speed_ratio(Device("", 8), Device("", 8))
    Ratio(log=0.0, spread=0.3)
    >>> speed_ratio(Device("V100", 8, "p3.2xlarge"), Device("V100", 8, "p3.2xlarge"))
    Ratio(log=0.0, spread=0.0)
    >>> round(math.exp(speed_ratio(Device("", 0.5), Device("", 1)).log), 3)
    0.5
    """
    if device == measured and device.offer:
        return Ratio(0.0, 0.0)
    if measured.offer.startswith(ELSEWHERE):
        return Ratio(0.0, _ELSEWHERE)
    if not device.accelerator and not measured.accelerator:
        log = _log_speed(device.cores) - _log_speed(measured.cores)
        return Ratio(log, _BETWEEN_CPUS + _PER_FOLD * abs(log))
    if _is_same(device.accelerator, measured.accelerator):  # the same GPU in another machine
        return Ratio(0.0, 0.1)
    log = _GAIN * (math.log(_tflops(device)) - math.log(_tflops(measured)))
    known = all(not d.accelerator or _model(d.accelerator) in PEAK_TFLOPS for d in (device, measured))
    if not known:
        return Ratio(log, _UNKNOWN_GPU)
    between = _BETWEEN_GPUS if device.accelerator and measured.accelerator else _CPU_TO_GPU
    return Ratio(log, between)


def _log_speed(cores: float) -> float:
    """Logarithm of what CPU cores do for one worker; 0 for one core."""
    cores = max(cores, _LEAST_CORES)
    return math.log(cores) * (_CORES_GAIN if cores > 1 else 1.0)


def _tflops(device: Device) -> float:
    if not device.accelerator:
        return max(device.cores, 0.1) * _CORE_TFLOPS
    plain, matrix = PEAK_TFLOPS.get(_model(device.accelerator), PEAK_TFLOPS["v100"])
    return math.sqrt(plain * matrix)


def _is_same(one: str, other: str) -> bool:
    """Whether two names are of one model, whatever its memory and socket.

    >>> _is_same("V100", "v100-32gb"), _is_same("RTX-A5000", "RTX-A6000"), _is_same("", "V100")
    (True, False, False)
    """
    return one.lower() == other.lower() or (_model(one) == _model(other) and _model(one) in PEAK_TFLOPS)


def _model(name: str) -> str:
    """The name as in the table: without vendor, memory and socket."""
    text = re.sub(r"nvidia|tesla|geforce|[^a-z0-9-]", "", name.lower())
    whole = text.replace("-", "")
    return whole if whole in PEAK_TFLOPS else text.partition("-")[0]
