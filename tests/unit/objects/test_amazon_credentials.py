"""What is wrong when there are no credentials for S3."""

from types import SimpleNamespace

import pytest

from trainmaster.objects.amazon import AmazonCredentials
from trainmaster.objects.errors import UnreachableStoreError
from trainmaster.objects.narrowing import _explained

exceptions = pytest.importorskip("botocore.exceptions")


def unreachable():
    raise exceptions.EndpointConnectionError(endpoint_url="https://sts.amazonaws.com")


def test_a_service_that_cannot_be_reached_has_refused_nobody():
    with pytest.raises(UnreachableStoreError, match=r"(?s)sts\.amazonaws\.com.*Check the network"):
        AmazonCredentials(SimpleNamespace(get_credentials=unreachable))
    with pytest.raises(UnreachableStoreError, match="No keys for nodes"), _explained():
        unreachable()
