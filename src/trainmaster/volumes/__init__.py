"""Packed volumes: versioned sets of files in chunks on an object store, for pushing, reading and mounting."""

from __future__ import annotations

from trainmaster.lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.volumes.reading.volume import Volume as Volume

__all__, __getattr__ = lazy_exports(__name__)
