"""Narrow keys on real servers: what they open, and what they do not."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request

import pytest

from trainmaster.artifacts import publish
from trainmaster.artifacts.sending import reach
from trainmaster.objects import ObjectStore, obstore_backend, renewing
from trainmaster.objects.delegated_credentials import WHOLE_KEYS_VARIABLE, DelegatedCredentials
from trainmaster.objects.narrowing import Grant, TooWideKeysError
from trainmaster.service.models.model_files import ModelFiles
from trainmaster.service.self_signed import self_signed
from trainmaster.spec.errors import PublishError
from trainmaster.testing.private_s3 import NoS3Error, PrivateS3


def check(monkeypatch, bucket: str, *, knows_prefixes: bool, renews: bool) -> None:
    """What is granted can be done with what is lent, and nothing else."""
    monkeypatch.delenv(WHOLE_KEYS_VARIABLE, raising=False)
    ours, others, volume = (f"{bucket}/{name}" for name in ("models/r-1", "models/r-2", "volumes/v"))
    for uri in (ours, others, volume):
        ObjectStore(uri).put("x", b"1")
    # As a node has it: what is lent, and nothing of ours.
    credentials = DelegatedCredentials().environment([Grant(ours, writes=True), Grant(volume)])
    assert credentials is not None
    for name in ("AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in credentials.items():
        monkeypatch.setenv(name, value)
    if renews:  # as the processes of a mount have it: from where new ones may come
        monkeypatch.setattr(renewing, "_read", lambda: credentials)
        monkeypatch.setattr(obstore_backend, "_stores", {})
    for uri in (ours, volume):
        assert ObjectStore(uri).get("x") == b"1"
        assert [info.key for info in ObjectStore(uri).list("")] == ["x"]
        reach(f"{uri}/of/nothing/yet")
    ObjectStore(ours).put("t/0/small", b"2")
    blocks = [b"x" * (1 << 20)] * 20
    ObjectStore(ours).put_blocks("t/0/large", iter(blocks), 20 << 20)
    assert ObjectStore(ours).info("t/0/large").size_bytes == 20 << 20
    with pytest.raises(PublishError):
        ObjectStore(ours).delete(["x"])
    if knows_prefixes:
        for act in (
            lambda: ObjectStore(others).get("x"),
            lambda: ObjectStore(others).put("y", b"2"),
            lambda: list(ObjectStore(others).list("")),
            lambda: list(ObjectStore(bucket).list("")),
            lambda: ObjectStore(volume).put("y", b"2"),
        ):
            with pytest.raises(PublishError):
                act()


@pytest.mark.s3
@pytest.mark.parametrize("renews", [False, True])
def test_keys_for_a_part_of_a_bucket(private_s3, monkeypatch, renews):
    for name, value in private_s3.environment().items():
        monkeypatch.setenv(name, value)
    check(monkeypatch, f"s3://{private_s3.new_bucket()}", knows_prefixes=True, renews=renews)


@pytest.mark.s3
def test_a_server_that_makes_none_gets_no_node_our_keys(monkeypatch):
    try:
        server = PrivateS3(narrows=False)
    except NoS3Error as error:
        pytest.skip(str(error))
    with server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv(WHOLE_KEYS_VARIABLE, raising=False)
        grant = Grant(f"s3://{server.new_bucket()}/models/r-1", writes=True)
        with pytest.raises(TooWideKeysError, match="lend-keys"):
            DelegatedCredentials().environment([grant])


@pytest.mark.parametrize("renews", [False, True])
def test_keys_for_a_container_of_azure(azure_container, monkeypatch, renews):
    check(monkeypatch, azure_container, knows_prefixes=False, renews=renews)


def test_a_link_to_a_file_of_a_model_opens_that_file_and_no_other(tmp_path, monkeypatch):
    pytest.importorskip("boto3", reason="buckets are made with boto3")
    pytest.importorskip("cryptography", reason="the extra `server` is not installed")
    certificate, _ = self_signed(tmp_path, "127.0.0.1")
    try:
        server = PrivateS3(certificate=certificate)
    except NoS3Error as error:
        pytest.skip(str(error))
    source = tmp_path / "model"
    source.mkdir()
    for name in ("weights.bin", "other.bin"):
        (source / name).write_text(name)
    with server:
        for name, value in server.environment(server.tls_url).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
        uri = f"s3://{server.new_bucket()}/store/models/r-1"
        model = ModelFiles(uri, publish({"": source}, uri, kind="model"))
        one, other = (model.find(name) for name in ("weights.bin", "other.bin"))
        trust = ssl.create_default_context(cafile=str(certificate))

        def got(url: str) -> bytes | int:
            try:
                with urllib.request.urlopen(url, context=trust, timeout=60) as answer:
                    return answer.read()
            except urllib.error.HTTPError as error:
                return error.code

        link = model.link(one)
        assert link.startswith(server.tls_url)
        assert got(link) == b"weights.bin"
        assert got(link.replace(one.object, other.object)) == 403
        assert got(link.partition("?")[0]) == 403
