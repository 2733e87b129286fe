"""Object stores: one interface over directories, S3, Google Cloud, Azure and HDFS."""

from __future__ import annotations

from trainmaster.lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.objects.object_store import ObjectStore as ObjectStore

__all__, __getattr__ = lazy_exports(__name__)
