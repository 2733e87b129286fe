"""Reading packed volumes: by file, by row, through fsspec and PyTorch, out of one cache per node.

Importing this package costs nothing; each name is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmaster.volumes.reading.cache import ChunkCache
    from trainmaster.volumes.reading.datasets import VolumeDataset, VolumeLoader, VolumeSampler, VolumeStream
    from trainmaster.volumes.reading.errors import CacheError
    from trainmaster.volumes.reading.order import EpochOrder, Layout, Quality, quality
    from trainmaster.volumes.reading.sharing import Progress
    from trainmaster.volumes.reading.stream import SampleOrder, samples
    from trainmaster.volumes.reading.volume import Volume

__all__ = [
    "CacheError",
    "ChunkCache",
    "EpochOrder",
    "Layout",
    "Progress",
    "Quality",
    "SampleOrder",
    "Volume",
    "VolumeDataset",
    "VolumeLoader",
    "VolumeSampler",
    "VolumeStream",
    "quality",
    "samples",
]

_HOME = {
    "CacheError": "errors",
    "ChunkCache": "cache",
    "EpochOrder": "order",
    "Layout": "order",
    "Progress": "sharing",
    "Quality": "order",
    "Volume": "volume",
    "SampleOrder": "stream",
    "VolumeDataset": "datasets",
    "VolumeLoader": "datasets",
    "VolumeSampler": "datasets",
    "VolumeStream": "datasets",
    "samples": "stream",
    "quality": "order",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
