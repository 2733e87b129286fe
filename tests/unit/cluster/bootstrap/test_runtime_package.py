"""What is sent: named by what is in it, complete, and nothing of this machine's own."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from trainmaster.cluster.bootstrap.runtime_package import (
    closure,
    code_layer,
    make_layer,
    make_runtime_package,
)
from trainmaster.spec.errors import MissingPartError
from trainmaster.transport.base import Target
from trainmaster.transport.host_keys import HostKeys


def test_a_layer_is_named_by_what_is_in_it(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "a.py").write_text("1")
    first = code_layer(tmp_path / "one")
    assert first.name == code_layer(tmp_path / "two").name
    (tmp_path / "two" / "deep" / "a.py").chmod(0o755)
    second = code_layer(tmp_path / "two").name
    (tmp_path / "two" / "deep" / "a.py").write_text("2")
    third = code_layer(tmp_path / "two").name
    (tmp_path / "two" / "deep" / "a.py").rename(tmp_path / "two" / "deep" / "b.py")
    assert len({first.name, second, third, code_layer(tmp_path / "two").name}) == 4


def test_an_archive_is_made_once_and_says_nothing_of_us(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("1")
    (tmp_path / "code" / "link.py").symlink_to("a.py")
    layer = code_layer(tmp_path / "code")
    archive = layer.archive(tmp_path / "cache")
    made = archive.stat().st_ino
    assert layer.archive(tmp_path / "cache").stat().st_ino == made
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [archive.name]
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == ["a.py", "link.py"]
    assert {(member.uid, member.uname, member.isfile()) for member in members} == {(0, "", True)}


def test_the_cache_does_not_grow_for_ever(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    archives = []
    for number in range(6):
        (tmp_path / "code" / "a.py").write_text(str(number))
        archives.append(code_layer(tmp_path / "code").archive(tmp_path / "cache"))
        os.utime(archives[-1], (number, number))
    assert [path.exists() for path in archives] == [False, False, True, True, True, True]


def test_the_kit_is_complete_and_the_same_each_time() -> None:
    package, again = make_runtime_package(), make_runtime_package()
    assert (package.packages.name, package.source.name) == (again.packages.name, again.source.name)
    packages = {path for path, _ in package.packages.files}
    assert "psutil/__init__.py" in packages
    assert any(path.endswith(".so") for path in packages)
    assert not [path for path in packages if "__pycache__" in path or path.startswith("trainmaster")]
    assert not [path for path in packages if path.startswith(("pytest", "torch"))], (
        "what a node does not need"
    )
    assert not [path for path in packages if path.startswith(("sqlalchemy", "rich"))], "the driver's only"
    assert not [pin for pin in package.pins if pin.startswith(("sqlalchemy==", "rich=="))]
    source = {path for path, _ in package.source.files}
    assert "trainmaster/executors/supervisor/program.py" in source
    assert "trainmaster/cluster/bootstrap/host_programs/install.py" in source
    unused = ("testing", "lab", "api", "cli", "service", "web")
    assert not [path for path in source if path.startswith(tuple(f"trainmaster/{name}/" for name in unused))]
    driving = {path for path, _ in make_runtime_package(drives=True).source.files}
    assert {path.split("/")[1] for path in driving - source} >= set(unused) - {"testing", "lab"}
    assert any(path.endswith(".dist-info/METADATA") for path in source)
    assert any(pin.startswith("psutil==") for pin in package.pins)


def test_bytecode_comes_along_made_here_and_nowhere_else(tmp_path: Path) -> None:
    """It is believed without a look at its source, so that nobody else's gets into a layer."""
    place = tmp_path / "executors"
    (place / "__pycache__").mkdir(parents=True)
    (place / "a.py").write_text("import sys\nWHAT = 'ours' if 1 is 1 else sys\nassert not WHAT\n")
    (place / "b.py").write_text("print 'for Python 2'\n")
    foreign = place / "__pycache__" / f"a.{sys.implementation.cache_tag}.pyc"
    foreign.write_bytes(b"foreign")
    files = [(f"trainmaster/executors/{path.name}", path) for path in place.glob("*.py")]
    layer = make_layer("runtimes", files)
    again = make_layer("runtimes", files)
    assert (layer.name, layer.members) == (again.name, 4)
    with tarfile.open(layer.archive(tmp_path / "cache")) as tar:
        assert len(tar.getnames()) == layer.members
        tar.extractall(tmp_path / "node", filter="data")
    there = tmp_path / "node" / "trainmaster" / "executors"
    (there / "a.py").write_text("WHAT = 'changed on the node'\nassert not WHAT\n")

    def run(name: str) -> str:
        command = [sys.executable, "-I", "-c", f"import sys; sys.path[:0] = ['{there}']; import {name}"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stderr

    assert "AssertionError" in run("a"), "assertions are not left out, however the driver runs"
    assert f'File "{there}/a.py", line 3' in run("a"), "it is what was compiled here"
    assert "SyntaxError" in run("b"), "it is left to the host"
    assert make_layer("code", [("a.py", place / "a.py")]).members == 1, "of the user nothing is compiled"


def test_extras_and_their_needs_come_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def install(name: str, *lines: str) -> None:
        info = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        head = ("Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0")
        (info / "METADATA").write_text("\n".join((*head, *lines, "")))

    install("tm-a", "Provides-Extra: x", "Requires-Dist: tm-b", "Requires-Dist: tm-c[y]; extra == 'x'")
    install("tm-b", "Requires-Dist: tm-a", "Requires-Dist: not-here; python_version < '3'")
    install("tm-c", "Provides-Extra: y", "Requires-Dist: tm-d>=1; extra == 'y'")
    install("tm-d")
    monkeypatch.syspath_prepend(tmp_path)
    assert [dist.name for dist in closure(["tm-a"])] == ["tm-a", "tm-b"]
    assert [dist.name for dist in closure(["tm-a[x]", "tm-c"])] == ["tm-a", "tm-b", "tm-c", "tm-d"]


def test_what_is_not_installed_is_named() -> None:
    with pytest.raises(MissingPartError, match="no-such-thing is needed by you") as caught:
        closure(["trainmaster", "no-such-thing>=2"])
    assert "pip install 'no-such-thing>=2'" in caught.value.hint


def test_host_keys_are_read_as_openssh_writes_them(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(
        "# mine\n|1|hashed|name ssh-ed25519 AAAA0\n@cert-authority * ssh-ed25519 AAAA1\n\nbroken\n"
        "a,[b]:2222 ssh-ed25519 AAAA2 comment\na ssh-rsa AAAA3\n"
    )
    keys = HostKeys(file)
    assert [(pin.key, pin.line) for pin in keys.pins(Target("x", "a"))] == [
        ("ssh-ed25519 AAAA2", 6),
        ("ssh-rsa AAAA3", 7),
    ]
    assert [pin.key for pin in keys.pins(Target("x", "b", 2222))] == ["ssh-ed25519 AAAA2"]
    assert keys.pins(Target("x", "b")) == []
    assert keys.algorithms(Target("x", "a"))[:3] == ["ssh-ed25519", "rsa-sha2-512", "rsa-sha2-256"]
    rented = Target("x", "a", pin_as="i-0123")
    keys.accept(rented, "ssh-ed25519 AAAA9")
    assert file.read_text().endswith("i-0123 ssh-ed25519 AAAA9\n")
    keys.forget(rented)
    assert "i-0123" not in file.read_text()
    assert file.read_text().startswith("# mine\n")
