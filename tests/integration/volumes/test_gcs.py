"""The contract of stores, and what is Google's own, on an imitation that keeps the rules of its XML API."""

import json
import subprocess

import pytest
from store_contract import StoreContract

from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import PublishError


class TestGcs(StoreContract):
    @pytest.fixture
    def bucket(self, fake_gcs):
        return "gs://bucket"

    @pytest.fixture
    def faulty(self, faulty_gcs):
        return faulty_gcs

    test_a_volume_by_the_command_line = None  # the same code as for Azure, only slower


def test_the_key_of_a_service_account(fake_gcs, monkeypatch, tmp_path):
    made = subprocess.run(
        ["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"],
        capture_output=True,
        check=True,
        text=True,
    )
    key = {
        "type": "service_account",
        "private_key": made.stdout,
        "private_key_id": "1",
        "client_email": "me@project.iam.gserviceaccount.com",
        "client_id": "1",
    }
    (tmp_path / "key.json").write_text(json.dumps(key))
    monkeypatch.delenv("GOOGLE_BEARER_TOKEN")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    ObjectStore("gs://bucket").put("x", b"1")
    (token,) = fake_gcs.tokens
    assert token.count(".") == 2, "signed here, without asking anybody"


def test_a_wrong_token(fake_gcs):
    fake_gcs.token = "another"
    store = ObjectStore("gs://bucket")
    for call in (lambda: store.get("x"), lambda: store.put("x", b"1"), lambda: list(store.list())):
        with pytest.raises(PublishError) as caught:
            call()
        assert "GOOGLE_APPLICATION_CREDENTIALS" in caught.value.hint
