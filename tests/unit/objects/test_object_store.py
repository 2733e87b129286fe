import errno
import os
import secrets
from pathlib import Path

import obstore
import pytest
from obstore.store import LocalStore

from trainmaster.objects.errors import StoreTrouble, explained
from trainmaster.objects.object_store import ObjectStore
from trainmaster.objects.obstore_errors import store_error
from trainmaster.objects.plugins import split_url
from trainmaster.spec.errors import PublishError, UsageError
from trainmaster.testing.object_store_contract import ObjectStoreContract
from trainmaster.testing.stepped_store import SteppedStore


class TestDirectory(ObjectStoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        return ObjectStore(str(tmp_path / "store"))

    @pytest.fixture
    def troubles(self, tmp_path, monkeypatch):
        """A disk that is full, and a file that is in the way."""
        (tmp_path / "file").write_text("")
        full = ObjectStore(str(tmp_path / "full"))

        def write(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(full._backend, "_write", write)
        return {StoreTrouble.FULL: full, StoreTrouble.REFUSED: ObjectStore(str(tmp_path / "file"))}


def test_an_object_is_created_though_its_folder_is_removed_meanwhile(tmp_path, monkeypatch):
    store, link, removals = ObjectStore(str(tmp_path / "store")), os.link, 2

    def removed(scratch, path):
        nonlocal removals
        if removals:
            removals -= 1
            store.delete_all("000001")
        link(scratch, path)

    monkeypatch.setattr(os, "link", removed)
    assert store.put_if_absent("000001/manifest.json", b"x")
    assert [each.name for each in (tmp_path / "store/000001").iterdir()] == ["manifest.json"]
    assert not store.put_if_absent("000001/manifest.json", b"y")


class TestMemory(ObjectStoreContract):
    @pytest.fixture
    def store(self):
        return ObjectStore(f"memory://{secrets.token_hex(8)}/some where")


class TestStage(ObjectStoreContract):
    """What stands in for a store in simulations is one."""

    @pytest.fixture
    def store(self):
        with SteppedStore() as stage:
            yield stage.store("s/some where")


def test_what_we_write_locally_obstore_reads(tmp_path):
    store = ObjectStore(str(tmp_path))
    keys = ["plain", "a%20b/c%0Ad", "=abc/x@y,z+", ".hidden", "..."]
    for key in keys:
        store.put(key, key.encode())
    theirs = LocalStore(tmp_path)
    assert {meta["path"] for page in obstore.list(theirs) for meta in page} == set(keys)
    for key in keys:
        assert bytes(obstore.get(theirs, key).bytes()) == key.encode()


def test_a_write_that_was_killed_is_in_no_listing(tmp_path):
    store = ObjectStore(str(tmp_path))
    store.put("x", b"1")
    (tmp_path / "x#123456").write_bytes(b"half")
    assert [info.key for info in store.list()] == ["x"]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/a/b/", ("file", "/a/b")),
        ("file:///a/b/", ("file", "/a/b")),
        ("file://localhost/a", ("file", "/a")),
        ("file:///a%20b#?", ("file", "/a b#?")),
        ("file:////a", ("file", "/a")),
        ("/a%20b", ("file", "/a%20b")),
        ("s3://bucket/x/", ("s3", "bucket/x")),
        ("s3a://bucket", ("s3", "bucket")),
    ],
)
def test_urls_and_paths(url, expected):
    assert split_url(url) == expected


def test_a_url_leads_back_to_its_path(tmp_path):
    path = tmp_path / "100% of\nit #1"
    store = ObjectStore(str(path))
    ObjectStore(store.url).put("x", b"1")
    assert (path / "x").read_bytes() == b"1"
    assert ObjectStore(store.url).url == store.url
    assert ObjectStore(store.url_of("50%")).url.endswith("#1/50%25")


def test_a_bare_path_is_relative_to_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ObjectStore("models").url == f"file://{tmp_path}/models"


@pytest.mark.parametrize("url", ["", "ftp://x/y", "s3://", "file://relative"])
def test_what_is_no_store_is_a_mistake_of_the_caller(url):
    with pytest.raises(UsageError):
        ObjectStore(url)


def test_hdfs_is_a_store_that_is_asked_only_when_it_is_used():
    assert ObjectStore("hdfs://namenode:9870/x/y/").url == "hdfs://namenode:9870/x/y"


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        PublishError, match=r"(?s)Cannot write file://.*/file/x/y: Not a directory.*file is where"
    ):
        ObjectStore(str(tmp_path / "file")).put("x/y", b"")


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "Free some space"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), "Free some space"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS)), "only be read"),
        (PermissionError(errno.EACCES, "Permission denied"), "Change the permissions"),
        (store_error("Generic S3 error: ... <Code>NoSuchBucket</Code>"), "Create the bucket"),
        (store_error("... InvalidAccessKeyId ..."), "AWS_ACCESS_KEY_ID"),
        (store_error("error sending request: tcp connect error"), "AWS_ENDPOINT_URL"),
        (store_error("what?\n\nDebug source: x"), "Try again"),
    ],
)
def test_every_error_says_what_to_do(error, hint):
    told = explained(error, "write", "s3://bucket/x")
    assert "Cannot write s3://bucket/x: " in str(told)
    assert hint in told.hint
    assert "Debug" not in str(told)


def test_two_stores_of_one_url_share_the_memory():
    name = secrets.token_hex(8)
    ObjectStore(f"memory://{name}/a").put("x", b"1")
    assert ObjectStore(f"memory://{name}").get("a/x") == b"1"
    assert ObjectStore("memory://another").get("a/x") is None


def test_a_store_is_made_only_when_written_to(tmp_path):
    store = ObjectStore(str(tmp_path / "new"))
    assert list(store.list()) == []
    assert not Path(tmp_path / "new").exists()


def test_the_way_to_a_store_can_be_timed():
    """An empty block says that it answers; the first that is not has at least a MiB."""
    store, data = ObjectStore(f"memory://{secrets.token_hex(8)}"), os.urandom(3 << 20)
    store.put("x", data)
    empty, first, *rest = store.range_blocks("x", 5, 2 << 20)
    assert (len(empty), len(first) >= 1 << 20) == (0, True)
    assert b"".join(map(bytes, (first, *rest))) == data[5 : 5 + (2 << 20)]
