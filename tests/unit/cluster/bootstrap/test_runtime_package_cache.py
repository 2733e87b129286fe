"""What hosts need is named anew when a file has changed, and only then."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from trainmaster.cluster.bootstrap import runtime_package
from trainmaster.cluster.bootstrap.runtime_package import RuntimePackage, cached_runtime_packages, make_layer

ROOTS, IMPORTS = ("trainmaster",), ("psutil",)


class Installation:
    """Two small layers, and how often they were read."""

    def __init__(self, root: Path) -> None:
        self.library, self.own = root / "library.py", root / "own.py"
        for file in (self.library, self.own):
            file.write_text("x = 1\n")
            os.utime(file, (1, 1))
        self.reads = 0

    def runtime_packages(
        self, _roots: object, imports: tuple[str, ...], _unused: object, *, drives: bool
    ) -> tuple[RuntimePackage, RuntimePackage]:
        self.reads += 1
        packages = make_layer("packages", [("library.py", self.library)])
        package = RuntimePackage(
            (3, 11), "abi", packages, make_layer("runtimes", [("own.py", self.own)]), ("a==1",), imports
        )
        return package, package


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    here = Installation(tmp_path)
    monkeypatch.setattr(runtime_package, "make_runtime_packages", here.runtime_packages)
    return here


def test_nothing_is_read_again(installation: Installation, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = cached_runtime_packages(cache, ROOTS, IMPORTS)
    again = cached_runtime_packages(cache, ROOTS, IMPORTS)
    assert first == again
    assert again[0] is again[1], "one for hosts with and without GPUs"
    assert installation.reads == 1


@pytest.mark.parametrize("which", ["library", "own"])
def test_a_changed_file_is_seen(installation: Installation, tmp_path: Path, which: str) -> None:
    cache = tmp_path / "cache"
    before = cached_runtime_packages(cache, ROOTS, IMPORTS)
    file: Path = getattr(installation, which)
    file.write_text("x = 2\n")
    os.utime(file, (2, 2))
    after = cached_runtime_packages(cache, ROOTS, IMPORTS)
    assert installation.reads == 2
    assert (before[0].packages.name != after[0].packages.name) == (which == "library")
    assert (before[0].source.name != after[0].source.name) == (which == "own")


def test_a_file_that_is_gone_and_a_torn_memory(installation: Installation, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cached_runtime_packages(cache, ROOTS, IMPORTS)
    (memory,) = cache.iterdir()
    for text in ("{", json.dumps({"places": []}), json.dumps([1])):
        memory.write_text(text)
        assert cached_runtime_packages(cache, ROOTS, IMPORTS)[0].pins == ("a==1",)
    assert installation.reads == 4
    installation.own.unlink()
    with pytest.raises(FileNotFoundError):
        cached_runtime_packages(cache, ROOTS, IMPORTS)


def test_what_was_written_to_meanwhile_is_not_kept(installation: Installation, tmp_path: Path) -> None:
    later = time.time() + 60
    os.utime(installation.own, (later, later))
    cached_runtime_packages(tmp_path / "cache", ROOTS, IMPORTS)
    assert not (tmp_path / "cache").exists()


def test_other_needs_are_another_memory(installation: Installation, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cached_runtime_packages(cache, ROOTS, IMPORTS)
    assert cached_runtime_packages(cache, ROOTS, ("ray",))[0].imports == ("ray",)


def test_no_room_for_a_memory(installation: Installation, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert cached_runtime_packages(tmp_path / "cache", ROOTS, IMPORTS)[0].soabi == "abi"
