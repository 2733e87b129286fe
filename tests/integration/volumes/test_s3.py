"""Artifacts and checkpoints through HTTP, with what can go wrong there."""

import os

import pytest
from fake_s3 import FakeS3

from trainmaster import artifacts
from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import PublishError


@pytest.fixture
def s3(monkeypatch):
    """An S3 server with one bucket, ``models``."""
    server = FakeS3()
    server.buckets["models"] = {}
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source/sub dir").mkdir(parents=True)
    for number in range(5):
        (tmp_path / f"source/sub dir/ü {number}\n").write_bytes(os.urandom(1000 * number))
    (tmp_path / "source/large").write_bytes(os.urandom(30_000_000))
    return tmp_path / "source"


def test_there_and_back(s3, source, tmp_path):
    manifest = artifacts.publish({"": source}, "s3://models/run/0", kind="model")
    assert s3.largest_body_bytes <= 8 << 20, "sent in parts"
    assert artifacts.fetch("s3://models/run/0", tmp_path / "back") == manifest
    for entry in manifest.files:
        assert (tmp_path / "back" / entry.path).read_bytes() == (source / entry.path).read_bytes()
    assert artifacts.read_manifest("s3://models/run/0") == manifest
    assert artifacts.publish({"": source}, "s3://models/run/0", kind="model") == manifest
    artifacts.delete("s3://models/run/0")
    assert s3.buckets["models"] == {}
    assert s3.uploads == {}


def test_checkpoints(s3, source):
    series = artifacts.CheckpointSeries("s3://models/run/checkpoints")
    for step in range(3):
        (source / "large").write_text(str(step))
        assert series.publish({"": source}, attempt=1) == step + 1
    assert series.prune(2) == [1]
    assert series.complete() == [2, 3]


def test_an_answer_that_was_lost_is_no_second_publisher(s3, source):
    s3.lose_answers = 1
    assert artifacts.publish({"": source}, "s3://models/m", kind="model") == artifacts.read_manifest(
        "s3://models/m"
    )
    assert len(ObjectStore("s3://models/m").folders()) == 1


def test_a_file_that_changes_in_mid_upload_leaves_nothing(s3, source, monkeypatch):
    original = artifacts.collecting.Content.blocks

    def blocks(content):
        for block in original(content):
            yield block
            if content.node.path == "large":
                with (source / "large").open("ab") as file:
                    file.write(b"more")

    monkeypatch.setattr(artifacts.collecting.Content, "blocks", blocks)
    with pytest.raises(artifacts.UnstableDirectory):
        artifacts.publish({"": source}, "s3://models/m", kind="model")
    assert s3.buckets["models"] == {}
    assert s3.uploads == {}


def test_no_such_bucket(s3, source):
    with pytest.raises(PublishError, match=r"(?s)s3://modles/m.*Create the bucket first"):
        artifacts.publish({"": source}, "s3://modles/m", kind="model")
    with pytest.raises(PublishError, match="Create the bucket first"):
        artifacts.CheckpointSeries("s3://modles/m").newest()
    with pytest.raises(PublishError, match="Create the bucket first") as caught:
        ObjectStore("s3://modles/m").put("x", b"1")
    assert "Debug" not in str(caught.value)


def test_no_permission(s3, source):
    s3.deny = True
    with pytest.raises(PublishError, match=r"(?s)s3://models/m.*AWS_ACCESS_KEY_ID"):
        artifacts.publish({"": source}, "s3://models/m", kind="model")
    with pytest.raises(PublishError, match="AWS_ACCESS_KEY_ID"):
        artifacts.read_manifest("s3://models/m")


def test_an_object_that_was_deleted_behind_our_back(s3, source, tmp_path):
    manifest = artifacts.publish({"": source}, "s3://models/m", kind="model")
    del s3.buckets["models"]["m/" + manifest.files[0].object]
    with pytest.raises(PublishError, match="'large' is missing"):
        artifacts.fetch("s3://models/m", tmp_path / "back")
    assert not (tmp_path / "back").exists()
