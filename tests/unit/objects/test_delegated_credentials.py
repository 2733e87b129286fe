"""What of our environment goes to a node, and what never does."""

from __future__ import annotations

import getpass
import json
from pathlib import Path

import pytest

from trainmaster.objects.delegated_credentials import store_environment, store_host

OURS = {
    "AWS_ACCESS_KEY_ID": "id",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_SESSION_TOKEN": "token",
    "AWS_ENDPOINT_URL": "http://10.0.0.9:8333",
    "AWS_PROFILE": "me",
    "AWS_SHARED_CREDENTIALS_FILE": "/home/me/.aws/credentials",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "/run/token",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/x",
    "AZURE_STORAGE_ACCOUNT_NAME": "account",
    "AZURE_FEDERATED_TOKEN_FILE": "/run/azure",
    "HOME": "/home/me",
    "WANDB_API_KEY": "private",
}


def test_only_what_the_store_needs_and_what_means_the_same_elsewhere() -> None:
    credentials = store_environment("s3://bucket/x", OURS)
    assert credentials == {
        name: OURS[name]
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL")
    } | {"AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL_S3": OURS["AWS_ENDPOINT_URL"]}
    # Said in full: what the other machine has configured must not be added.
    assert store_environment("s3://bucket/x", {"AWS_DEFAULT_REGION": "eu"}) == {
        "AWS_DEFAULT_REGION": "eu",
        "AWS_REGION": "eu",
        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true",
    }
    assert store_environment("az://container/x", OURS) == {"AZURE_STORAGE_ACCOUNT_NAME": "account"}
    assert store_environment("hdfs://name:9870/x", {"HADOOP_USER_NAME": "h"}) == {"HADOOP_USER_NAME": "h"}
    assert store_environment("hdfs://name:9870/x", {}) == {"HADOOP_USER_NAME": getpass.getuser()}


@pytest.mark.parametrize("uri", ["file:///store", "/store", "memory://bucket"])
def test_a_store_of_this_machine_alone_is_not_lent(uri: str) -> None:
    assert store_environment(uri, OURS) is None


def test_the_key_of_a_service_account_is_lent_as_a_text(tmp_path: Path) -> None:
    key, own = tmp_path / "key.json", tmp_path / "own.json"
    key.write_text(json.dumps({"type": "service_account", "private_key": "k"}))
    own.write_text(json.dumps({"type": "authorized_user"}))
    name = "GOOGLE_APPLICATION_CREDENTIALS"
    credentials = store_environment("gs://bucket", {name: str(key), "GOOGLE_SKIP_SIGNATURE": "no"})
    assert credentials == {"GOOGLE_SERVICE_ACCOUNT_KEY": key.read_text(), "GOOGLE_SKIP_SIGNATURE": "no"}
    for place in (own, tmp_path / "none.json"):
        assert store_environment("gs://bucket", {name: str(place)}) == {}


def test_where_a_store_is() -> None:
    assert store_host("s3://bucket", OURS) == "10.0.0.9"
    assert (
        store_host("s3://bucket", OURS | {"AWS_ENDPOINT_URL_S3": "https://s3.example.org"})
        == "s3.example.org"
    )
    assert store_host("s3://bucket", {}) == store_host("gs://bucket", {}) == store_host("/store", {}) == ""
    assert store_host("hdfs://name.example.org:9870/x", {}) == "name.example.org"
