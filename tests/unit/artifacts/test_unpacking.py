"""Archives of others: what is unpacked, and what is refused without a trace outside."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.artifacts.unpacking import TooLargeError, UnpackError, UnpackLimits, unpack

ROOM = UnpackLimits(1 << 20)


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


def member(name: str, content: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=kind, linkname=target)


def folder(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.DIRTYPE, mode=0o755)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "outer" / "place"
    path.mkdir(parents=True)
    (tmp_path / "outer" / "victim").write_text("whole")
    return path


def outside(place: Path) -> dict[str, str]:
    top = place.parent.parent
    files = [path for path in top.rglob("*") if place not in path.parents and path.is_file()]
    return {str(path.relative_to(top)): path.read_text() for path in files}


def taken(data: bytes, place: Path, name: str = "a.tar", limits: UnpackLimits = ROOM) -> None:
    unpack(io.BytesIO(data), name, place, limits)


def test_what_is_good(place: Path) -> None:
    long = "d" * 200 + "/" + "f" * 200
    taken(
        tar_of(
            folder("./sub"),
            member("./sub/run.sh", b"#!/bin/sh", mode=0o7777, mtime=5),
            member("/data/plain", b"1", mode=0o600),
            link("sub/up", "../data/plain"),
            link("sub/same", "data/plain", tarfile.LNKTYPE),
            member(long, b"long"),
        ),
        place,
    )
    assert (place / "sub/up").read_text() == (place / "sub/same").read_text() == "1"
    assert (place / long).read_text() == "long"
    mode = (place / "sub/run.sh").stat()
    assert (stat.S_IMODE(mode.st_mode), mode.st_mtime) == (0o755, 5)
    assert stat.S_IMODE((place / "data/plain").stat().st_mode) == 0o644


@pytest.mark.parametrize("mode", ["gz", "bz2", "xz"])
def test_packed_ones(place: Path, tmp_path: Path, mode: str) -> None:
    with tarfile.open(tmp_path / f"a.tar.{mode}", f"w:{mode}") as archive:
        archive.addfile(member("x", b"")[0])
    unpack(tmp_path / f"a.tar.{mode}", f"a.tar.{mode}", place, ROOM)
    assert (place / "x").exists()


@pytest.mark.parametrize("mode", ["gz", "bz2", "xz"])
def test_a_changed_byte_of_a_packed_one_is_refused_or_changes_nothing(tmp_path: Path, mode: str) -> None:
    packed = tmp_path / f"a.tar.{mode}"
    content = os.urandom(300)
    with tarfile.open(packed, f"w:{mode}") as archive:
        archive.addfile(tarfile.TarInfo("empty"))
        archive.addfile(member("x", size=len(content))[0], io.BytesIO(content))
    data = packed.read_bytes()
    refused = 0
    # No checksum covers the time and the name at the beginning, and what fills bzip2's last byte.
    places = range(20, len(data) - 1)
    for at in places:
        place = tmp_path / f"to{at}"
        place.mkdir()
        changed = io.BytesIO(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        try:
            unpack(changed, packed.name, place, ROOM)
        except UnpackError:
            refused += 1
        else:  # deflate copies zeros from elsewhere: from where does not matter
            assert {file.name: file.read_bytes() for file in place.iterdir()} == {"empty": b"", "x": content}
    assert refused >= 0.9 * len(places)


@pytest.mark.parametrize(
    ("left", "changed"), [(3072, None), (3172, None), (None, 3082)], ids=["between", "in a header", "changed"]
)
def test_what_lies_behind_a_damaged_header_is_not_left_out(
    tmp_path: Path, left: int | None, changed: int | None
) -> None:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for number in range(6):
            info = tarfile.TarInfo(f"f{number}")
            info.size = 100
            archive.addfile(info, io.BytesIO(bytes(100)))
    data = bytearray(raw.getvalue()[:left])
    if changed is not None:
        data[changed] ^= 1
    with pytest.raises(UnpackError, match=r"header|end"):
        unpack(io.BytesIO(data), "x.tar", tmp_path, ROOM)


def long_chain() -> bytes:
    """Links so long that `os.path.realpath` gives up, and takes the rest for a plain path."""
    component = "d" * 247
    members = []
    path = ""
    for letter in "abcdefghijklmnop":
        members.append(folder(f"{path}{component}/"))
        members.append(link(f"{path}{letter}", component))
        path = f"{path}{component}/"
    chain = "/".join("abcdefghijklmnop")
    members.append(link(f"{chain}/" + "l" * 254, "../" * 16))
    members.append(link("escape", f"{chain}/" + "l" * 254 + "/.."))
    members.append(member("escape/victim", b"overwritten"))
    members.append(member("escape/newfile", b"new"))
    return tar_of(*members)


ATTACKS = {
    "parent": tar_of(member("../victim", b"x")),
    "deep parent": tar_of(member("a/b/../../../victim", b"x")),
    "long chain": long_chain(),
    "absolute link": tar_of(link("l", "/etc/passwd")),
    "link outside": tar_of(link("l", "../victim")),
    "link through a link": tar_of(link("deep/er/l", "../.."), link("e", "deep/er/l/../victim")),
    "write through a link": tar_of(link("l", ".."), member("l/victim", b"x")),
    "write through a late link": tar_of(member("l/f", b"x"), link("l", "..")),
    "hard link outside": tar_of(link("h", "../victim", tarfile.LNKTYPE)),
    "hard link through a link": tar_of(link("l", ".."), link("h", "l/victim", tarfile.LNKTYPE)),
    "a device": tar_of(member("d", type=tarfile.CHRTYPE)),
    "a pipe": tar_of(member("d", type=tarfile.FIFOTYPE)),
    "deep": tar_of(member("/".join("a" * 200), b"x")),
    "long": tar_of(member("/".join(["b" * 250] * 20), b"x")),
    "longer": tar_of(member("c" * 300, b"x")),
    "no tar": b"no tar" * 1000,
    "empty": b"",
    "packed rubbish": b"\x1f\x8b" + b"rubbish" * 100,
}


@pytest.mark.parametrize("attack", list(ATTACKS))
def test_what_is_bad(place: Path, attack: str) -> None:
    before = outside(place)
    with pytest.raises(UnpackError, match=r"a\.tar"):
        taken(ATTACKS[attack], place)
    assert outside(place) == before


def test_a_name_that_comes_again_is_not_written_through(place: Path) -> None:
    taken(tar_of(member("a", b"first"), link("b", "a", tarfile.LNKTYPE), member("b", b"second")), place)
    assert (place / "a").read_text() == "first"
    assert (place / "b").read_text() == "second"


def test_limits(place: Path) -> None:
    with pytest.raises(TooLargeError, match="1,000 bytes"):
        taken(tar_of(member("a", b"x" * 600), member("b", b"x" * 600)), place, limits=UnpackLimits(1000))
    with pytest.raises(TooLargeError, match="2 entries"):
        taken(tar_of(*(member(name) for name in "abc")), place, limits=UnpackLimits(1000, most_entries=2))


def test_a_zip_that_lies_about_its_sizes(place: Path) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(50 << 20))
    with pytest.raises(TooLargeError, match="size_limit"):
        taken(data.getvalue(), place, "a.zip")
    assert sum(path.stat().st_size for path in place.rglob("*")) <= ROOM.most_bytes


def test_a_header_of_an_announced_terabyte_is_not_read_whole(place: Path) -> None:
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 1 << 40
    with pytest.raises(UnpackError, match="out of all measure"):
        taken(info.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20), place)


def test_zips(place: Path) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("d/", "")
        archive.writestr("d/f", "1")
        info = zipfile.ZipInfo("d/l")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "f")
    taken(data.getvalue(), place, "a.zip")
    assert (place / "d/l").read_text() == "1"
    for name in ("../victim", "a/../../victim"):
        bad = io.BytesIO()
        with zipfile.ZipFile(bad, "w") as archive:
            archive.writestr(name, "x")
        with pytest.raises(UnpackError, match="outside"):
            taken(bad.getvalue(), place, "a.zip")
    assert outside(place) == {"outer/victim": "whole"}


names = st.text(alphabet="ab./\0é\udc80", max_size=12)
names |= st.sampled_from(["a", "b", "a/b", "../x", "a/../..", "/e"])
kinds = st.sampled_from([b"0", b"1", b"2", b"3", b"5", b"6", b"x", b"g", b"L", b"K", b"S", b"7", b"\0", b"9"])
modes, sizes = st.integers(0, 0o7777), st.integers(-9, 1 << 33)
entries = st.tuples(names, kinds, names, st.binary(max_size=600), modes, sizes)


def hostile_tar(found: list[tuple[str, bytes, str, bytes, int, int]], size_off_by: int) -> bytes:
    data = b""
    for name, kind, target, content, mode, size in found:
        info = tarfile.TarInfo(name.replace("\0", ""))
        info.type, info.mode = kind, mode
        info.linkname = target.replace("\0", "")
        info.size = max(0, len(content) + size_off_by if size_off_by < 5 else size)
        data += info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        data += content + bytes(-len(content) % 512)
    return data + bytes(1024)


@settings(max_examples=150, deadline=None)
@given(st.lists(entries, max_size=6), st.integers(-3, 5), st.binary(max_size=3), st.integers(0, 2000))
def test_any_tar_is_unpacked_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    found: list[tuple[str, bytes, str, bytes, int, int]],
    size_off_by: int,
    noise: bytes,
    where: int,
) -> None:
    data = bytearray(hostile_tar(found, size_off_by))
    data[where : where + len(noise)] = noise
    refused_or_inside(tmp_path_factory.mktemp("fuzz"), bytes(data), "a.tar")


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(names, st.binary(max_size=40), st.integers(0, 0xFFFF)), max_size=5), st.data())
def test_any_zip_is_unpacked_or_refused(
    tmp_path_factory: pytest.TempPathFactory, found: list[tuple[str, bytes, int]], draw: st.DataObject
) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number, (name, content, mode) in enumerate(found):
            info = zipfile.ZipInfo(name.replace("\0", "").replace("\udc80", "") or f"n{number}")
            info.external_attr = mode << 16
            try:
                archive.writestr(info, content)
            except UserWarning:  # the same name twice
                continue
    data = bytearray(out.getvalue())
    for _ in range(draw.draw(st.integers(0, 4))):
        position = draw.draw(st.integers(0, len(data) - 4))
        struct.pack_into("<I", data, position, draw.draw(st.integers(0, 0xFFFFFFFF)))
    refused_or_inside(tmp_path_factory.mktemp("fuzz"), bytes(data), "a.zip")


def refused_or_inside(top: Path, data: bytes, name: str) -> None:
    place = top / "place"
    place.mkdir()
    (top / "victim").write_text("whole")
    with contextlib.suppress(UnpackError):
        taken(data, place, name, UnpackLimits(10_000, most_entries=50))
    assert sorted(path.name for path in top.iterdir()) == ["place", "victim"]
    assert (top / "victim").read_text() == "whole"
    for path in place.rglob("*"):
        status = path.lstat()
        assert stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode)
        assert not status.st_mode & 0o7000 or stat.S_ISLNK(status.st_mode)
        if path.is_symlink():
            assert Path(os.path.realpath(path)).is_relative_to(place) or not path.exists()


def test_nothing_of_ours_unpacks_otherwise() -> None:
    source = Path(__file__).parents[3] / "src"
    calls = (".extractall(", "unpack_archive(")
    users = [path.name for path in source.rglob("*.py") if any(call in path.read_text() for call in calls)]
    assert users == []
