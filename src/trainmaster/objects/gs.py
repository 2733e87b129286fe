"""Objects in Google Cloud Storage."""

import os
from typing import TYPE_CHECKING, Any, Final

from trainmaster.objects.obstore_backend import ObstoreBackend, settings_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore as AnyStore

#: Variables that name another server than the public one.
ENDPOINT_VARIABLES: Final = ("GOOGLE_BASE_URL",)


class GoogleBackend(ObstoreBackend):
    """The objects below ``BUCKET/PREFIX``."""

    scheme = "gs"

    def identity(self) -> tuple[str, ...]:
        return settings_of("GOOGLE_")

    def opened(self, bucket: str, options: dict[str, Any]) -> "AnyStore":
        from obstore.store import GCSStore

        endpoints = (os.environ.get(name, "") for name in ENDPOINT_VARIABLES)
        options["client_options"]["allow_http"] = any(each.startswith("http://") for each in endpoints)
        return GCSStore(bucket, **options)
