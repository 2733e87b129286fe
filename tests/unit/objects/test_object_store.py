import errno
import os
import secrets
import threading
from pathlib import Path

import obstore
import pytest
from obstore.store import LocalStore

from trainmaster.objects.object_store import ObjectStore, explained, split_url
from trainmaster.spec.errors import PublishError, UsageError

pytest_plugins = ["object_store_fixtures"]


def test_what_is_put_is_there(store_url):
    store = ObjectStore(store_url)
    assert store.get("a/b") is None
    assert not store.exists("a/b")
    store.put("a/b", b"one")
    store.put("a/b", b"two")
    store.put("a/c/d", b"")
    assert store.get("a/b") == b"two"
    assert store.get("a") is None
    assert store.exists("a/b")
    assert not store.exists("a")
    assert sorted(store.list()) == [("a/b", 3), ("a/c/d", 0)]
    assert sorted(store.list("a/c")) == [("a/c/d", 0)]
    assert list(store.list("a/c/x")) == []
    assert list(store.folders()) == ["a"]
    assert list(store.folders("a")) == ["c"]
    assert list(store.folders("nothing")) == []
    store.delete(["a/b", "never/was"])
    assert not store.exists("a/b")
    store.delete_all("a")
    store.delete_all("a")
    assert list(store.list()) == []


def test_what_is_too_large_is_not_read(store_url):
    store = ObjectStore(store_url)
    store.put("a/small", b"x" * 100)
    assert store.get("a/small", 100) == b"x" * 100
    with pytest.raises(PublishError, match=r"a/small has .* at most 99 are read"):
        store.get("a/small", 99)
    assert store.get("a/none", 1) is None
    assert not store.put_if_absent("a/small", b"x")
    assert store.put_if_absent("a/small", b"x" * 100)


def test_a_prefix_is_no_other_prefix_with_the_same_beginning(store_url):
    store = ObjectStore(store_url)
    store.put("run-1/x", b"1")
    store.put("run-10/x", b"10")
    assert [info.key for info in store.list("run-1")] == ["run-1/x"]
    store.delete_all("run-1")
    assert store.get("run-10/x") == b"10"
    assert ObjectStore(f"{store_url}/run-10").get("x") == b"10"


def test_one_of_many_creates(store_url):
    store = ObjectStore(store_url)
    won = []

    def create(number):
        if store.put_if_absent("head", b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.get("head") == b"%d" % won[0]
    assert store.put_if_absent("head", b"%d" % won[0]), "its own answer may have been lost"
    assert [info.key for info in store.list()] == ["head"], "nothing is left of those who lost"


def test_large_objects_go_through_in_blocks(store_url):
    store = ObjectStore(store_url)
    blocks = [secrets.token_bytes(1 << 20) for _ in range(20)]
    store.put_blocks("large", iter(blocks), 20 << 20)
    assert b"".join(store.blocks("large")) == b"".join(blocks)
    with pytest.raises(FileNotFoundError):
        list(store.blocks("absent"))


@pytest.mark.parametrize("size_bytes", [1, 20 << 20])
def test_an_exception_while_writing_leaves_nothing(store_url, size_bytes):
    store = ObjectStore(store_url)

    def broken():
        yield b"x" * 1000
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.put_blocks("x/half", broken(), size_bytes)
    assert list(store.list()) == []


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
        (RuntimeError("Generic S3 error: ... <Code>NoSuchBucket</Code>"), "Create the bucket"),
        (RuntimeError("... InvalidAccessKeyId ..."), "AWS_ACCESS_KEY_ID"),
        (RuntimeError("error sending request: tcp connect error"), "AWS_ENDPOINT_URL"),
        (RuntimeError("what?\n\nDebug source: x"), "Try again"),
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
