"""Reading packed volumes: by file, by row, through fsspec and PyTorch, out of one cache per node."""

from __future__ import annotations

from trainmaster.lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.volumes.reading.datasets import VolumeDataset as VolumeDataset
    from trainmaster.volumes.reading.datasets import VolumeLoader as VolumeLoader
    from trainmaster.volumes.reading.datasets import VolumeSampler as VolumeSampler
    from trainmaster.volumes.reading.datasets import VolumeStream as VolumeStream
    from trainmaster.volumes.reading.sharing import TrainingPosition as TrainingPosition
    from trainmaster.volumes.reading.stream import SampleOrder as SampleOrder
    from trainmaster.volumes.reading.stream import samples as samples
    from trainmaster.volumes.reading.volume import Volume as Volume

__all__, __getattr__ = lazy_exports(__name__)
