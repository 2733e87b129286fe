"""Code that is sent to a server: whole, by its digest, and never outside its directory."""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import tarfile
import time
import zipfile

import pytest

from trainmaster.control.task.layout import Home
from trainmaster.service.uploads import code_uploads
from trainmaster.service.uploads.code_uploads import CodeUploads, TeamQuotaError, collect_code
from trainmaster.spec.errors import NotFoundError, UsageError


@pytest.fixture
def uploads(tmp_path):
    return CodeUploads(home(tmp_path), None)


def home(root):
    return Home(root, root, f"file://{root}/store", "")


def tar(*members, **files):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
        for member in members:
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    return packed, hashlib.sha256(packed.getvalue()).hexdigest()


def member(name, **values):
    found = tarfile.TarInfo(name)
    for key, value in values.items():
        setattr(found, key, value)
    return found


def test_it_is_kept_once(uploads):
    packed, digest = tar(main=b"print(1)")
    assert (uploads.has(digest), uploads.put(digest, packed), uploads.put(digest, packed)) == (
        False,
        True,
        False,
    )
    assert (uploads.find(digest) / "main").read_bytes() == b"print(1)"


def test_another_server_finds_it_on_the_store(uploads, tmp_path):
    packed, digest = tar(main=b"print(1)")
    uploads.put(digest, packed)
    shutil.rmtree(tmp_path / "uploads")
    assert (uploads.find(digest) / "main").read_bytes() == b"print(1)"


def test_an_archive_of_any_kind_is_the_same_code(uploads, tmp_path):
    packed, _ = tar(main=b"print(1)")
    for name in ("a.tar", "a.tgz"):
        (tmp_path / name).write_bytes(
            packed.getvalue() if name == "a.tar" else gzip.compress(packed.getvalue())
        )
    for name in ("a.zip", "a-1-py3-none-any.whl"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("main", "print(1)")
    names = ("a.tar", "a.tgz", "a.zip", "a-1-py3-none-any.whl")
    (digest,) = {uploads.add(tmp_path / name, name) for name in names}
    assert (uploads.find(digest) / "main").read_bytes() == b"print(1)"
    (tmp_path / "upload").write_text("print(2)")
    script = uploads.find(uploads.add(tmp_path / "upload", "folder/train.py"))
    assert [path.name for path in script.iterdir()] == ["train.py"]


def test_links_of_an_archive_become_what_they_lead_to(uploads, tmp_path):
    packed, _ = tar(member("link", type=tarfile.SYMTYPE, linkname="good"), good=b"1")
    (tmp_path / "a.tar").write_bytes(packed.getvalue())
    code = uploads.find(uploads.add(tmp_path / "a.tar", "a.tar"))
    assert ((code / "link").is_symlink(), (code / "link").read_bytes()) == (False, b"1")


def bomb(directory, name):
    packed = io.BytesIO()
    if name.endswith(".zip"):
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("zeros", bytes(1 << 20))
    else:
        packed = io.BytesIO(gzip.compress(tar(zeros=bytes(1 << 20))[0].getvalue()))
    (directory / name).write_bytes(packed.getvalue())
    return directory / name


@pytest.mark.parametrize("name", ["bomb.tar.gz", "bomb.zip"])
def test_bombs_are_stopped_while_they_are_unpacked(uploads, tmp_path, monkeypatch, name):
    monkeypatch.setattr(code_uploads, "MAX_BYTES", 100_000)
    with pytest.raises(UsageError, match="has more than"):
        uploads.add(bomb(tmp_path, name), name)
    assert not list((tmp_path / "uploads").rglob("zeros"))


@pytest.mark.parametrize("name", ["../out", "/etc/../../out", "a/../../out"])
def test_a_zip_leaves_nothing_outside(uploads, tmp_path, name):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(name, "x")
    with pytest.raises(UsageError, match="would lie outside"):
        uploads.add(tmp_path / "a.zip", "a.zip")
    with pytest.raises(UsageError, match="is no archive"):
        uploads.add(tmp_path / "a.zip", "a.exe")
    assert not list(tmp_path.rglob("out"))


def test_old_code_is_removed(uploads, tmp_path):
    packed, digest = tar(main=b"1")
    uploads.put(digest, packed)
    collect_code(home(tmp_path), time.time())
    assert uploads.has(digest)
    collect_code(home(tmp_path), time.time() + 31 * 86400)
    assert not uploads.has(digest)
    assert not list((tmp_path / "uploads" / "own" / "code").iterdir())


def test_code_of_a_team_takes_so_much_and_no_more(tmp_path, monkeypatch):
    team, owner = CodeUploads(home(tmp_path), "vision"), CodeUploads(home(tmp_path), None)
    (first, name), (second, other) = tar(main=b"1"), tar(main=b"2")
    monkeypatch.setattr(code_uploads, "QUOTA_BYTES", len(first.getvalue()))
    assert team.put(name, first)
    with pytest.raises(TeamQuotaError, match="do not fit"):
        team.put(other, second)
    assert not (tmp_path / "uploads" / "team-vision" / "code" / other).exists()
    assert not team.put(name, first), "what is there needs no room"
    assert owner.put(name, first)
    assert owner.put(other, second)


def test_teams_know_nothing_of_each_other(uploads, tmp_path):
    packed, digest = tar(main=b"1")
    uploads.put(digest, packed)
    with pytest.raises(NotFoundError):
        CodeUploads(home(tmp_path), "vision").find(digest)


@pytest.mark.parametrize(
    "bad",
    [
        member("../out", size=1),
        member("/etc/out", size=1),
        member("link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("up", type=tarfile.SYMTYPE, linkname="../../x"),
        member("inside", type=tarfile.SYMTYPE, linkname="good"),
        member("hard", type=tarfile.LNKTYPE, linkname="good"),
        member("dev", type=tarfile.CHRTYPE),
        member("pipe", type=tarfile.FIFOTYPE),
    ],
    ids=lambda bad: bad.name,
)
def test_nothing_leaves_the_directory(uploads, tmp_path, bad):
    packed, digest = tar(bad, good=b"1")
    try:
        uploads.put(digest, packed)
    except UsageError:
        assert not uploads.has(digest)
    else:  # absolute names are taken for relative ones, hard links for files
        assert {path.name for path in uploads.find(digest).rglob("*")} <= {"good", "etc", "out", "hard"}
    assert not (tmp_path / "out").exists()


def test_what_is_something_else_or_too_much_is_refused(uploads, monkeypatch):
    packed, digest = tar(main=b"print(1)")
    for name, stream in ((digest.upper(), packed), ("../" + digest, packed), ("0" * 64, packed)):
        with pytest.raises(UsageError):
            uploads.put(name, stream)
    garbage = b"\x1f\x8b" + b"no tar" * 100
    with pytest.raises(UsageError, match="no archive"):
        uploads.put(hashlib.sha256(garbage).hexdigest(), io.BytesIO(garbage))
    monkeypatch.setattr(code_uploads, "MAX_BYTES", 4)
    with pytest.raises(UsageError, match="has more than"):
        uploads.put(digest, packed)
    assert not uploads.has(digest)
