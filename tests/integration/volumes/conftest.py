"""A real S3 server for all tests of volumes, and a proxy before it that fails as asked."""

import os

import pytest
from fake_gcs import FakeGcs
from fault_proxy import FaultProxy
from private_azurite import NoAzuriteError, PrivateAzurite

pytest.register_assert_rewrite("store_contract")


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


@pytest.fixture(scope="session")
def private_azurite():
    """One Azurite for the session; ask it for a `new_container`."""
    try:
        server = PrivateAzurite()
    except NoAzuriteError as error:
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def azure_container(private_azurite, monkeypatch):
    """A new container as a URL; the environment leads to its server."""
    settle(monkeypatch, "AZURE_", private_azurite.environment())
    return f"az://{private_azurite.new_container()}"


@pytest.fixture
def faulty_azure(private_azurite, monkeypatch):
    """A new container behind a `FaultProxy`: the proxy and the URL."""
    with FaultProxy(private_azurite.url) as proxy:
        settle(monkeypatch, "AZURE_", private_azurite.environment(proxy.url))
        yield proxy, f"az://{private_azurite.new_container()}"


@pytest.fixture
def fake_gcs(monkeypatch):
    """A Google Cloud Storage with one bucket, ``bucket``; the environment leads to it."""
    server = FakeGcs()
    server.buckets["bucket"] = {}
    settle(monkeypatch, "GOOGLE_", {"GOOGLE_BASE_URL": server.url, "GOOGLE_BEARER_TOKEN": "token"})
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def faulty_gcs(fake_gcs, monkeypatch):
    """Its bucket behind a `FaultProxy`: the proxy and the URL."""
    with FaultProxy(fake_gcs.url) as proxy:
        monkeypatch.setenv("GOOGLE_BASE_URL", proxy.url)
        yield proxy, "gs://bucket"


def settle(monkeypatch, beginning, environment):
    """Gives the environment these variables, and no others that begin like them."""
    for name in [name for name in os.environ if name.startswith(beginning)]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
