"""The contract of stores, and what is Azure's own, on a real server: Azurite."""

import pytest
from store_contract import StoreContract

from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import PublishError


class TestAzure(StoreContract):
    completion = "PUT", "comp=blocklist"

    @pytest.fixture
    def bucket(self, azure_container):
        return azure_container

    @pytest.fixture
    def faulty(self, faulty_azure):
        return faulty_azure


def sas_token(server, url, permissions):
    return server.sas_token(url.removeprefix("az://"), permissions)


def test_a_sas_token_instead_of_the_key(private_azurite, azure_container, monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", sas_token(private_azurite, azure_container, "rcwdl"))
    store = ObjectStore(f"{azure_container}/v")
    assert store.put_if_absent("a/b", b"one")
    assert not store.put_if_absent("a/b", b"two")
    store.put("c", b"three")
    assert sorted(store.list()) == [("a/b", 3), ("c", 5)]
    store.delete(["a/b", "c"])
    assert list(store.list()) == []


def test_a_sas_token_that_allows_too_little(private_azurite, azure_container, monkeypatch):
    ObjectStore(azure_container).put("there", b"one")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    token = sas_token(private_azurite, azure_container, "rl")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", token)
    store = ObjectStore(azure_container)
    assert store.get("there") == b"one"
    with pytest.raises(PublishError, match="AuthorizationPermissionMismatch") as caught:
        store.put("x", b"two")
    assert "AZURE_STORAGE_SAS_TOKEN" in caught.value.hint
    assert "sig=" not in str(caught.value), "a token in an error would end up in logs"


def test_a_wrong_key(azure_container, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=")
    store = ObjectStore(azure_container)
    for call in (lambda: store.get("x"), lambda: store.put("x", b"1"), lambda: list(store.list())):
        with pytest.raises(PublishError) as caught:
            call()
        assert "AZURE_STORAGE_ACCOUNT_NAME and _KEY" in caught.value.hint
        assert "\n" not in caught.value.args[0]
