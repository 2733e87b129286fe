"""Files of this machine become versions of a team's volume, over TCP; what breaks off goes on."""

from __future__ import annotations

import io
import os
import tarfile

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("blake3", reason="the extra `volumes` is not installed")
from served_tcp import serving

from trainmaster.api.remote import volume_push
from trainmaster.api.remote.connection import ServerUnreachableError
from trainmaster.api.remote.directory_tar import DirectoryTar
from trainmaster.service.volumes import PushProgress, open_volume
from trainmaster.spec.errors import PublishError, UsageError


@pytest.fixture
def server(home):
    with serving(home, ["read", "run"]) as connection:
        connection.sleep = lambda _: None
        yield connection


@pytest.fixture
def files(tmp_path):
    place = tmp_path / "files"
    (place / "deep" / "empty").mkdir(parents=True)
    (place / "run.sh").write_text("#!/bin/sh\n")
    (place / "run.sh").chmod(0o755)
    (place / "deep" / "ü.bin").write_bytes(os.urandom(70_000))
    (place / "link").symlink_to("deep/ü.bin")
    return place


def pushed(server, source, volume="pets"):
    progress, told = PushProgress(), []
    done = volume_push.push(server, str(source), volume, progress, told.append)
    assert progress.done_bytes == progress.total_bytes
    return done, told


def test_a_directory_becomes_a_version_with_its_links_and_modes(server, home, files):
    done, told = pushed(server, files)
    assert (done.uri, done.head.version, done.head.file_count, told) == ("pets@1", 1, 2, [])
    assert done.sent_bytes > 70_000
    opened = open_volume(f"{home.store_url}/volumes/pets@1", home.cache)
    found = {entry.path: entry for entry in map(opened.table.entry, range(opened.table.row_count))}
    assert (found["run.sh"].mode & 0o100, found["deep/ü.bin"].mode & 0o100) == (0o100, 0)
    assert (found["link"].kind, found["link"].target) == ("symlink", "deep/ü.bin")
    assert found["deep/empty"].kind == "directory"
    assert pushed(server, files, "cats/small")[0].uri == "cats/small@1"


def test_a_tar_is_sent_as_it_is(server, files, tmp_path):
    with tarfile.open(tmp_path / "pets.tar.gz", "w:gz") as archive:
        archive.add(files, ".")
    done, _ = pushed(server, tmp_path / "pets.tar.gz")
    assert done.head.file_count == 2


def test_a_push_that_broke_off_goes_on_where_the_server_is(server, files, monkeypatch):
    monkeypatch.setattr(volume_push, "_PIECE_BYTES", 10_000)
    ask, count = server.ask, []

    def killed(method, *rest, **more):
        count.append(method)
        if count.count("PATCH") == 4:
            raise KeyboardInterrupt
        return ask(method, *rest, **more)

    with monkeypatch.context() as patched:
        patched.setattr(server, "ask", killed)
        with pytest.raises(KeyboardInterrupt):
            pushed(server, files)
    (begun,) = server.get("/uploads")["uploads"]
    assert begun["offset"] == 30_000
    done, _ = pushed(server, files)
    assert (done.uri, done.sent_bytes) == ("pets@1", begun["size_bytes"] - 30_000)
    assert server.get("/uploads")["uploads"] == []


def test_answers_that_were_lost_are_asked_for_again(server, files, monkeypatch):
    monkeypatch.setattr(volume_push, "_PIECE_BYTES", 30_000)
    ask, seen = server.ask, set()

    def lost(method, path, *rest, **more):
        found = ask(method, path, *rest, **more)
        if (method, path) not in seen:
            seen.add((method, path))
            raise ServerUnreachableError("the server does not answer", "")
        return found

    monkeypatch.setattr(server, "ask", lost)
    done, told = pushed(server, files)
    assert done.uri == "pets@1", "one upload, one version"
    assert len(told) >= 3
    assert "does not answer; trying again" in told[0]
    monkeypatch.setattr(server, "ask", ask)
    assert server.get("/uploads")["uploads"] == []
    assert [each["version"] for each in server.get("/volumes/pets")["versions"]] == [1]


def test_a_server_that_stays_away_is_given_up(server, files, monkeypatch):
    def away(*_, **__):
        raise ServerUnreachableError("the server does not answer", "")

    monkeypatch.setattr(server, "ask", away)
    with pytest.raises(ServerUnreachableError):
        pushed(server, files)


def test_what_cannot_be_pushed_is_said_before_anything_is_sent(server, files, tmp_path):
    for source, volume, words in (
        (files, "pets@1", "no name of a volume"),
        (files / "run.sh", "pets", "neither a directory nor an archive"),
        (tmp_path / "none", "pets", "neither a directory nor an archive"),
        ("s3://bucket/pets", "pets", "files of this machine"),
    ):
        with pytest.raises(UsageError, match=words):
            pushed(server, source, volume)
    (files / "out").symlink_to("../../etc")
    with pytest.raises(PublishError, match="leads out"):
        pushed(server, files)
    assert server.get("/uploads")["uploads"] == []


def test_a_directory_is_a_tar_wherever_one_begins_to_read(files):
    os.mkfifo(files / "pipe")
    found = DirectoryTar(files)
    whole = found.read(0, found.size_bytes)
    assert len(whole) == found.size_bytes
    assert found.notes == ["left out: 'pipe' is neither a file nor a link nor a directory"]
    assert b"".join(found.read(at, 777) for at in range(0, found.size_bytes, 777)) == whole
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        assert archive.getnames() == ["deep", "deep/empty", "deep/ü.bin", "link", "run.sh"]
        assert archive.extractfile("deep/ü.bin").read() == (files / "deep" / "ü.bin").read_bytes()
    assert DirectoryTar(files).digest == found.digest
    (files / "run.sh").write_text("#!/bin/sh\nexit 1\n")
    assert DirectoryTar(files).digest != found.digest
    with pytest.raises(PublishError, match=r"run\.sh changed"):
        found.read(0, found.size_bytes)


def test_a_small_file_takes_two_blocks(tmp_path):
    """And one that was changed within a second is another one to what goes on with an upload."""
    (tmp_path / "a").write_text("one")
    os.utime(tmp_path / "a", ns=(0, 1_500_000_000))
    found = DirectoryTar(tmp_path)
    assert found.size_bytes == 4 * tarfile.BLOCKSIZE
    os.utime(tmp_path / "a", ns=(0, 1_600_000_000))
    assert DirectoryTar(tmp_path).digest != found.digest
