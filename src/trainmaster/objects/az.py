"""Objects in Azure Blob Storage."""

import os
from typing import TYPE_CHECKING, Any, Final

from trainmaster.objects.obstore_backend import ObstoreBackend, settings_of
from trainmaster.objects.renewing import renewed_azure

if TYPE_CHECKING:
    from obstore.store import ObjectStore as AnyStore

#: Variables that name another server than the public one.
ENDPOINT_VARIABLES: Final = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")


class AzureBackend(ObstoreBackend):
    """The objects below ``CONTAINER/PREFIX``."""

    scheme = "az"

    def identity(self) -> tuple[str, ...]:
        return settings_of("AZURE_")

    def opened(self, bucket: str, options: dict[str, Any]) -> "AnyStore":
        from obstore.store import AzureStore

        endpoints = (os.environ.get(name, "") for name in ENDPOINT_VARIABLES)
        options["client_options"]["allow_http"] = any(each.startswith("http://") for each in endpoints)
        if token := renewed_azure():
            options["credential_provider"] = token
        return AzureStore(bucket, **options)
