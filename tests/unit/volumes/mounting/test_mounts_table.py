import os
import sys

import pytest

from trainmaster.spec.errors import MissingPartError, UsageError
from trainmaster.volumes import mounting
from trainmaster.volumes.mounting import lifecycle, mounts, providing
from trainmaster.volumes.packed.pushing import push


def test_public_names():
    for name in mounting.__all__:
        assert getattr(mounting, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'remount'"):
        _ = mounting.remount


def test_what_is_mounted():
    root = mounts.mounted_at("/")
    assert root is not None
    assert root.directory == "/"
    proc = mounts.mounted_at("/proc/../proc")
    assert proc is not None
    assert proc.type == "proc"
    assert mounts.mounted_at("/nowhere") is None
    assert not mounts.is_ours("/proc")
    assert not mounts.is_dead("/proc")
    assert not mounts.detach("/nowhere")


def test_names_with_spaces_are_read_as_the_kernel_writes_them():
    assert mounts._unescaped(rb"/a\040b\134c\012d") == b"/a b\\c\nd"


def test_nothing_is_mounted_here(tmp_path):
    assert not mounting.unmount(tmp_path)
    assert not mounting.withdraw(tmp_path / "absent")


@pytest.fixture
def no_fuse(monkeypatch):
    monkeypatch.setattr(lifecycle, "available", lambda: "this machine has no /dev/fuse")


def test_without_fuse_mounting_says_why(no_fuse, tmp_path):
    with pytest.raises(MissingPartError, match=r"cannot be mounted here: this machine has no /dev/fuse"):
        mounting.mount("pets", tmp_path / "mnt")
    assert not (tmp_path / "mnt").exists()


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "mfusepy", None)
    monkeypatch.setattr(mounts, "find_spec", lambda name: None)
    assert "pip install 'trainmaster[mount]'" in mounts.available()


def test_provided_without_fuse(no_fuse, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINMASTER_CACHE", os.fspath(tmp_path / "cache"))
    (tmp_path / "src/sub").mkdir(parents=True)
    (tmp_path / "src/sub/file").write_bytes(b"content")
    uri = push(tmp_path / "src", f"file://{tmp_path}/store").uri
    place = tmp_path / "data"
    with pytest.raises(MissingPartError):
        mounting.provide(uri, place, means="mounted")
    assert mounting.provide(uri, place) == "fetched"
    assert (place / "sub/file").read_bytes() == b"content"
    assert mounting.provide(uri, place) == "fetched", "again is no harm"
    assert len([path for path in (tmp_path / "cache/volumes/whole").iterdir() if path.is_dir()]) == 1
    assert mounting.withdraw(place)
    assert not place.exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").touch()
    with pytest.raises(UsageError, match="cannot become a link to the volume"):
        mounting.provide(uri, tmp_path / "full", means="fetched")
    assert (tmp_path / "full/mine").exists()


def test_links_of_others_are_left_alone(tmp_path):
    (tmp_path / "link").symlink_to("/usr")
    assert not providing.withdraw(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
