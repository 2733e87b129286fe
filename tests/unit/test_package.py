"""What `pip install trainmaster` brings, and which version it says it is."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import trainmaster

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("hatchling")
pytest.importorskip("hatch_vcs")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, unpacked."""
    place = tmp_path_factory.mktemp("wheel")
    # Git may not look at files of another user; then the version is the fallback, with a warning.
    command = [sys.executable, "-W", "ignore", "-m", "hatchling", "build", "-t", "wheel", "-d", place]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (file,) = place.glob("trainmaster-*.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(place / "unpacked")
    return place / "unpacked"


def hatch_version(directory: Path) -> str:
    command = [sys.executable, "-W", "ignore", "-m", "hatchling", "version"]
    done = subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def git(directory: Path, *arguments: str) -> None:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments]
    subprocess.run(command, cwd=directory, check=True, capture_output=True)


def test_the_wheel_has_the_contracts_and_none_of_our_private_servers(wheel: Path) -> None:
    files = {path.relative_to(wheel).as_posix() for path in wheel.rglob("*") if path.is_file()}
    testing = {name for name in files if name.startswith("trainmaster/testing/")}
    assert {
        f"trainmaster/testing/{kind}_contract.py" for kind in ("executor", "provider", "launcher")
    } < testing
    stray = ("private_", "simul", "failures", "sabotages", "sniffer", "counting_proxy", "stepped_store")
    assert not [name for name in testing if any(word in name for word in stray)]
    assert not [name for name in files if name.startswith(("tests", "src", "benchmarks"))]
    assert {"trainmaster/cli/app.py", "trainmaster/db/migrations/env.py"} < files


def test_all_that_the_wheel_has_for_tests_works_from_it(wheel: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(wheel)!r})
import importlib, pkgutil, trainmaster.testing
names = [module.name for module in pkgutil.iter_modules(trainmaster.testing.__path__)]
for name in names:
    importlib.import_module("trainmaster.testing." + name)
print(trainmaster.testing.__file__, len(names))
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    file, number = done.stdout.split()
    assert Path(file).is_relative_to(wheel)
    assert int(number) >= 5


def test_a_tag_makes_the_version_and_no_tags_the_fallback(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    (tmp_path / "README.md").touch()
    assert hatch_version(tmp_path) == "0.4.0.dev0"  # a zip
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "all")
    assert hatch_version(tmp_path) == "0.4.0.dev1"  # a clone without tags: commits are counted
    git(tmp_path, "tag", "v0.4.1")
    assert hatch_version(tmp_path) == "0.4.1"


def test_the_version_is_that_of_the_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trainmaster.__version__ == metadata.version("trainmaster")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = trainmaster.nothing  # type: ignore[attr-defined]

    def not_installed(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.delattr(trainmaster, "__version__")
    monkeypatch.setattr(metadata, "version", not_installed)
    assert trainmaster.__version__ == "0+unknown"
    monkeypatch.delattr(trainmaster, "__version__")
