"""Object stores that are not where the public ones are."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from trainmaster.objects.delegated_credentials import store_host
from trainmaster.objects.object_store import ObjectStore
from trainmaster.objects.plugins import split_url
from trainmaster.spec.errors import PublishError, UsageError


class Nothing(BaseHTTPRequestHandler):
    """There are no objects here."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.send_error(404)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server():
    found = HTTPServer(("127.0.0.1", 0), Nothing)
    found.asked = []
    thread = threading.Thread(target=found.serve_forever, args=(0.02,))
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def test_azure_by_plain_http(server, monkeypatch):
    """Azurite, and gateways within a lab."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "me")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"http://127.0.0.1:{server.server_port}/me")
    assert ObjectStore("az://container/x").get("a/b") is None
    assert server.asked == ["/me/container/x/a/b"]
    assert store_host("az://container/x") == "127.0.0.1"


@pytest.mark.parametrize("url", ["s3://b/a/../c", "gs://..", "az://b/.", "s3://b/./x/"])
def test_dots_are_no_names_of_objects(url):
    with pytest.raises(UsageError, match=r"no `\.` and `\.\.`"):
        split_url(url)
    assert split_url("s3://b/a..b/.c") == ("s3", "b/a..b/.c")


def test_an_account_that_is_not_named(monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(PublishError) as caught:
        ObjectStore("az://container/x").get("a")
    assert "AZURE_STORAGE_ACCOUNT_NAME" in caught.value.hint


def test_a_link_is_signed_where_there_is_somebody_to_follow_it(monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAXXXXXXXXXXXXXXXX")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s" * 40)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    url = ObjectStore("s3://bucket/models").signed_url("a/b c.txt", 60)
    assert url.startswith("https://")
    assert "models/a/b%20c.txt?" in url
    assert "X-Amz-Signature=" in url
    assert "X-Amz-Expires=60" in url
    assert ObjectStore(f"file://{tmp_path}").signed_url("a", 60) is None
    assert ObjectStore("memory://signed").signed_url("a", 60) is None
