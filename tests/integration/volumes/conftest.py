"""A real S3 server for all tests of volumes, and a proxy before it that fails as asked."""

import pytest
from fault_proxy import FaultProxy

from trainmaster.testing.private_s3 import NoS3Error, PrivateS3


@pytest.fixture(scope="session")
def private_s3():
    """One SeaweedFS for the session; ask it for a `new_bucket`."""
    pytest.importorskip("boto3", reason="buckets are made with boto3")
    try:
        server = PrivateS3()
    except NoS3Error as error:
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def s3_bucket(private_s3, monkeypatch):
    """A new bucket as a URL; the environment leads to its server."""
    for name, value in private_s3.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{private_s3.new_bucket()}"


@pytest.fixture
def faulty_s3(private_s3, monkeypatch):
    """A new bucket behind a `FaultProxy`: the proxy and the URL."""
    with FaultProxy(private_s3.url) as proxy:
        for name, value in private_s3.environment(proxy.url).items():
            monkeypatch.setenv(name, value)
        yield proxy, f"s3://{private_s3.new_bucket()}"
