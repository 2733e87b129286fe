"""``trainmaster volume`` with a server: what is named is the team's, by the command line and over TCP."""

from __future__ import annotations

import json
import random
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import psutil
import pytest

from command_line import invoke

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("blake3", reason="the extra `volumes` is not installed")
from served_tcp import serving

from trainmaster.api.remote.volume_objects import know_servers
from trainmaster.api.remote.volumes import RemoteVolume
from trainmaster.cli import opening
from trainmaster.objects.errors import RefusingStoreError
from trainmaster.service.volumes import GetProgress, open_volume, push
from trainmaster.service.volumes.stored import content as content_of
from trainmaster.spec.errors import NotFoundError, PublishError, UsageError
from trainmaster.volumes.mounting import available


@pytest.fixture
def server(home, tmp_path, monkeypatch):
    """A server that this machine's command line asks; its own home is an empty one."""
    with serving(home, ["read", "run", "manage"]) as connection:
        monkeypatch.setattr(opening, "_is_local", False)
        for name, value in {
            "TRAINMASTER_URL": connection.url,
            "TRAINMASTER_TOKEN": connection._token,
            "TRAINMASTER_HOME": str(tmp_path / "laptop"),
            "TRAINMASTER_CACHE": str(tmp_path / "laptop-cache"),
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("TRAINMASTER_STORE", raising=False)
        yield connection


@pytest.fixture
def files(tmp_path):
    place = tmp_path / "files"
    (place / "deep" / "empty").mkdir(parents=True)
    (place / "run.sh").write_text("#!/bin/sh\n")
    (place / "run.sh").chmod(0o755)
    (place / "deep" / "ü.bin").write_bytes(bytes(range(256)) * 300)
    (place / "link").symlink_to("deep/ü.bin")
    return place


def call(*words):
    done = invoke("volume", *words)
    assert done.exit_code == 0, done.stderr
    return done


def test_a_push_prints_what_it_prints_at_home(server, files, tmp_path):
    done = call("push", files, "pets")
    assert done.stderr.startswith("pets@1: 2 files, 77 kB in 1 chunk, "), done.stderr
    found = json.loads(call("push", files, "pets", "--json").stdout)
    right = json.loads(call("push", files, f"file://{tmp_path}/other", "--json").stdout)
    assert (found["uri"], right["uri"]) == ("pets@2", f"file://{tmp_path}/other@1")
    assert set(right) - set(found) == {"sent_chunks", "shared_chunks"}
    for key in ("kind", "files", "bytes", "chunks", "notes"):
        assert found[key] == right[key]
    assert [
        each["version"] for each in json.loads(call("versions", "pets", "--json").stdout)["versions"]
    ] == [1, 2]
    with pytest.raises(UsageError, match="Leave them out"):
        call("push", files, "pets", "--chunk-size", "1MiB")


def test_bytes_that_end_before_they_begin_are_none(server, files):
    call("push", files, "pets")
    for begin, end, size in ((10, 5, 0), (5, 10, 5), (0, 0, 0)):
        asked = Request(
            f"{server.url}/api/v1/volume-contents/pets?begin={begin}&end={end}",
            headers={"Authorization": f"Bearer {server._token}"},
        )
        with urlopen(asked) as answer:
            assert len(answer.read()) == size


def test_names_are_read_from_the_server_and_the_rest_from_here(server, files, tmp_path):
    (files / "deep" / "none").touch()
    call("push", files, "cats/small")
    here = f"file://{tmp_path}/other"
    call("push", files, here)

    def read(volume, *words):
        found = json.loads(call("ls", volume, *words, "--json").stdout)["entries"]
        return [{key: value for key, value in each.items() if key != "mtime_ns"} for each in found]

    for words in ([], ["-r"], ["deep"], ["run.sh"], ["link"]):
        assert read("cats/small", *words) == read(here, *words)
    assert call("ls", "cats/small@1", "-r").stdout == call("ls", here, "-r").stdout
    for path in ("deep/ü.bin", "deep/none", "link"):
        assert call("cat", "cats/small", path).stdout_bytes == (files / path).read_bytes()
    for place, volume in (("one", "cats/small"), ("two", here)):
        found = json.loads(call("get", volume, tmp_path / place, "--json").stdout)
        assert (found["got_files"], found["got_bytes"], found["version"]) == (3, 76_810, 1)
        assert (tmp_path / place / "deep" / "ü.bin").read_bytes() == (files / "deep" / "ü.bin").read_bytes()
        assert (tmp_path / place / "link").readlink() == Path("deep/ü.bin")
        assert (tmp_path / place / "run.sh").stat().st_mode & 0o777 == 0o755
        assert (tmp_path / place / "deep" / "empty").is_dir()
    call("get", "cats/small", tmp_path / "three", "--only", "deep/none", "--only", "run.sh")
    assert sorted(str(each.relative_to(tmp_path / "three")) for each in (tmp_path / "three").rglob("*")) == [
        "deep", "deep/none", "run.sh"
    ]  # fmt: skip
    for words in (
        ["ls", "cats/small", "no"],
        ["cat", "cats/small", "no"],
        ["cat", "cats/small@2", "run.sh"],
        ["get", "cats", tmp_path / "four"],
    ):
        with pytest.raises(NotFoundError):
            call(*words)
    with pytest.raises(UsageError, match="is a directory"):
        call("cat", "cats/small", "deep")
    with pytest.raises(UsageError, match="not empty"):
        call("get", "cats/small", tmp_path / "one")
    assert "gc" not in call("rm", "cats/small@1", "--yes").stderr


def test_a_file_in_several_chunks_is_proved(server, home, files, tmp_path):
    content = random.Random(1).randbytes(200_000)
    (files / "big").write_bytes(content)
    push(files, f"{home.store_url}/volumes/pets", cache=home.cache, chunk_limit_bytes=64 << 10)
    call("get", "pets", tmp_path / "one")
    assert (tmp_path / "one" / "big").read_bytes() == content
    found = RemoteVolume(server, "pets")
    found._bytes_of = lambda part: iter([(files / part.path).read_bytes()[:-1] + b"!"])
    with pytest.raises(PublishError, match="came damaged"):
        found.get(tmp_path / "two", only=["big"], jobs=1, progress=GetProgress())
    assert not (tmp_path / "two").exists()


def test_many_files_come_in_few_requests_and_go_on_where_the_connection_broke(
    server, home, tmp_path, monkeypatch
):
    place, told = tmp_path / "many", random.Random(2)
    for number in range(400):
        path = place / f"{number % 7}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(told.randbytes(number % 5 * 500))
    (place / "big").write_bytes(told.randbytes(700_000))
    push(place, f"{home.store_url}/volumes/pets", cache=home.cache, chunk_limit_bytes=256 << 10)
    monkeypatch.setattr("trainmaster.api.remote.volumes._PART_BYTES", 300_000)
    monkeypatch.setattr(server, "sleep", lambda _: None)
    asked, opened = [], server.open

    @contextmanager
    def breaking(path, query, headers=None):
        asked.append((path, query.get("begin")))
        with opened(path, query, headers) as answer:
            if "contents" in path:
                whole, left = answer.read1, [150_000]

                def some(most):
                    piece = whole(min(most, left[0]))
                    left[0] -= len(piece)
                    if not left[0]:
                        raise OSError("broken")
                    return piece

                answer.read1 = some
            yield answer

    monkeypatch.setattr(server, "open", breaking)
    found = RemoteVolume(server, "pets")
    found.get(tmp_path / "one", only=[], jobs=4, progress=GetProgress())
    for path in place.rglob("*.*"):
        assert (tmp_path / "one" / path.relative_to(place)).read_bytes() == path.read_bytes()
    assert (tmp_path / "one" / "big").read_bytes() == (place / "big").read_bytes()
    assert len(asked) < 20, asked
    found.get(tmp_path / "two", only=["3", "3/3.bin", "5/5.bin"], jobs=2, progress=GetProgress())
    got = {str(path.relative_to(tmp_path / "two")) for path in (tmp_path / "two").rglob("*.bin")}
    assert got == {f"3/{number}.bin" for number in range(400) if number % 7 == 3} | {"5/5.bin"}


@pytest.mark.parametrize(
    "row", [{"path": "../x"}, {"path": "/x"}, {"path": "x", "kind": "symlink", "target": "../../etc"}]
)
def test_a_server_writes_nothing_elsewhere(server, files, tmp_path, monkeypatch, row):
    call("push", files, "pets")
    line = {"kind": "file", "bytes": 1, "mode": "644", "mtime_ns": 0} | row
    monkeypatch.setattr(server, "pieces", lambda *_, **__: iter([json.dumps(line).encode() + b"\n"]))
    with pytest.raises(PublishError, match="leads out"):
        RemoteVolume(server, "pets").get(tmp_path / "one", only=[], jobs=1, progress=GetProgress())
    assert not (tmp_path / "one").exists()


def test_what_a_server_does_not_do_says_what_to_do(server, files, tmp_path):
    with pytest.raises(UsageError, match="volume push DIR pets") as error:
        call("index", f"file://{files}", "pets")
    assert "trainmaster --local" in error.value.hint
    with pytest.raises(NotFoundError):  # what has a URL is looked at from here
        call("fsck", f"file://{tmp_path}/none")


def test_a_server_looks_through_a_volume_and_frees_what_no_version_needs(server, home, files, tmp_path):
    here = f"file://{tmp_path}/other"
    for _ in range(2):
        call("push", files, "pets")
        call("push", files, here)
        (files / "run.sh").write_text("#!/bin/sh\necho\n")
    for words in ([], ["--deep"]):
        told = call("fsck", "pets", *words)
        assert told.stdout == call("fsck", here, *words).stdout
        assert "version 2 was looked through" in told.stderr
    found = json.loads(call("fsck", "pets@2", "--json").stdout)
    assert (found["volume"], found["damaged"], len(found["versions"])) == ("pets", 0, 1)
    call("rm", "pets@1", "--yes")
    assert json.loads(call("gc", "pets", "--now", "--grace", "0s", "--json").stdout)["under_way"] == 0
    for chunk in Path(home.store_url.removeprefix("file://"), "volumes", "pets", "chunks").rglob("*"):
        if chunk.is_file():
            chunk.write_bytes(chunk.read_bytes()[:-1])
    damaged = invoke("volume", "fsck", "pets", "--json")
    assert (damaged.exit_code, json.loads(damaged.stdout)["damaged"]) == (1, 1)
    for words in (["fsck", "cats"], ["gc", "cats"], ["fsck", "pets@7"]):
        with pytest.raises(NotFoundError):
            call(*words)


def test_a_volume_is_read_here_by_the_objects_that_the_server_gives(server, home, files, tmp_path):
    content = random.Random(3).randbytes(200_000)
    (files / "big").write_bytes(content)
    push(files, f"{home.store_url}/volumes/cats/small", cache=home.cache, chunk_limit_bytes=64 << 10)
    know_servers()
    url = f"trainmaster+{server.url}/volumes/cats/small"
    opened = open_volume(url, tmp_path / "here")
    assert opened.uri == f"{url}@1"
    assert b"".join(content_of(opened, "big")) == content
    assert b"".join(content_of(opened, "link")) == (files / "link").read_bytes()
    with pytest.raises(NotFoundError, match="no version 2"):
        open_volume(f"{url}@2", tmp_path / "here")
    with pytest.raises(NotFoundError, match="no volume"):
        open_volume(f"trainmaster+{server.url}/volumes/dogs", tmp_path / "here")
    store = opened.store
    assert store.exists("heads/000001.json")
    with pytest.raises(FileNotFoundError):
        store.get_range(f"chunks/00/{'0' * 64}", 0, 1)
    for key in ("heads/../../../../t.db", "journal/x", "heads/000001.json/../000001.json"):
        assert store.get(key) is None
    for write in (lambda: store.put("x", b""), lambda: store.delete(["heads/000001.json"])):
        with pytest.raises(RefusingStoreError, match="only be read"):
            write()


@pytest.mark.skipif(available() is not None, reason="volumes cannot be mounted here")
def test_a_volume_of_the_server_is_mounted(server, files, tmp_path):
    call("push", files, "pets")
    place = tmp_path / "mounted"
    try:
        told = json.loads(call("mount", "pets", place, "--means", "fuse", "--json").stdout)
        assert told == {"uri": "pets@1", "directory": str(place), "means": "fuse"}
        assert (place / "link").read_bytes() == (files / "link").read_bytes()
        assert (place / "run.sh").stat().st_mode & 0o111
        (keeper,) = [each for each in psutil.process_iter(["cmdline"]) if is_guard(each, place)]
        assert "TRAINMASTER_TOKEN" not in keeper.environ()
    finally:
        call("unmount", place)
    keeper.wait(60)  # it ends with the mount


def is_guard(process, place):
    words = process.info["cmdline"] or []
    return "guard" in words and str(place) in words
