"""Objects in S3, and in whatever speaks as it does."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.objects.amazon import (
    DEFAULT_REGION,
    amazon_identity,
    amazon_settings,
    profile_credentials,
)
from trainmaster.objects.obstore_backend import ObstoreBackend
from trainmaster.objects.renewing import renewed_amazon
from trainmaster.spec.errors import UsageError, fails_as

if TYPE_CHECKING:
    from obstore.store import ObjectStore as AnyStore


class S3Backend(ObstoreBackend):
    """The objects below ``BUCKET/PREFIX``."""

    scheme = "s3"

    def identity(self) -> tuple[str, ...]:
        return amazon_identity()

    def opened(self, bucket: str, options: dict[str, Any]) -> "AnyStore":
        from obstore.store import S3Store

        settings = amazon_settings()
        endpoint = settings.endpoint_url
        if endpoint:
            if not endpoint.startswith(("http://", "https://")):
                raise UsageError(
                    f"AWS_ENDPOINT_URL: {endpoint!r} is no URL.", "Write http://HOST:PORT or https://HOST."
                )
            options["client_options"]["allow_http"] = endpoint.startswith("http://")
        options["region"] = settings.region or DEFAULT_REGION
        if not endpoint and any(os.environ.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")):
            # One that is to be ignored; obstore would take it.
            endpoint = f"https://s3.{options['region']}.amazonaws.com"
        if endpoint:
            options["endpoint"] = endpoint
        if bundle := settings.ca_bundle:
            with fails_as(
                f"AWS_CA_BUNDLE: {bundle} cannot be read", "Name a file of certificates (PEM), or unset it."
            ):
                options["client_options"]["root_certificate"] = Path(bundle).read_bytes()
        if credentials := renewed_amazon() or profile_credentials():
            options["credential_provider"] = credentials
        return S3Store(bucket, **options)
