"""Code that is sent to a server: whole, by its digest, and never outside its directory."""

from __future__ import annotations

import hashlib
import io
import tarfile

import pytest

from trainmaster.control.layout import Home
from trainmaster.service import code_uploads
from trainmaster.service.code_uploads import CodeUploads
from trainmaster.spec.errors import NotFoundError, UsageError


@pytest.fixture
def uploads(tmp_path):
    return CodeUploads(Home(tmp_path, tmp_path, "file:///x", ""), None)


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


def test_teams_know_nothing_of_each_other(uploads, tmp_path):
    packed, digest = tar(main=b"1")
    uploads.put(digest, packed)
    with pytest.raises(NotFoundError):
        CodeUploads(Home(tmp_path, tmp_path, "file:///x", ""), "vision").find(digest)


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
    else:  # absolute names are taken for relative ones
        assert {path.name for path in uploads.find(digest).rglob("*")} <= {"good", "etc", "out"}
    assert not (tmp_path / "out").exists()


def test_what_is_something_else_or_too_much_is_refused(uploads, monkeypatch):
    packed, digest = tar(main=b"print(1)")
    for name, stream in ((digest.upper(), packed), ("../" + digest, packed), ("0" * 64, packed)):
        with pytest.raises(UsageError):
            uploads.put(name, stream)
    garbage = b"\x1f\x8b" + b"no tar" * 100
    with pytest.raises(UsageError, match="no tar"):
        uploads.put(hashlib.sha256(garbage).hexdigest(), io.BytesIO(garbage))
    monkeypatch.setattr(code_uploads, "MAX_BYTES", 4)
    with pytest.raises(UsageError, match="has more than"):
        uploads.put(digest, packed)
    assert not uploads.has(digest)
