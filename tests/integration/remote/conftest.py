"""Fixtures for tests over real SSH."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("asyncssh", reason="asyncssh is not installed")

from trainmaster.cluster.bootstrap.bootstrap import Bootstrap, BootstrapSettings
from trainmaster.cluster.bootstrap.runtime_package import RuntimePackage, make_runtime_package
from trainmaster.testing.private_sshd import SSHD, SshHost, make_key
from trainmaster.transport.host_keys import HostKeys
from trainmaster.transport.ssh import Ssh, SshSettings


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them need OpenSSH."""
    here = Path(__file__).parent
    missing = not SSHD or not shutil.which("ssh-keygen") or not shutil.which("ssh")
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.ssh)
            if missing:
                item.add_marker(pytest.mark.skip(reason="OpenSSH's server is not installed"))


@pytest.fixture(scope="session")
def user_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's key pair."""
    path = tmp_path_factory.mktemp("keys") / "id_ed25519"
    make_key(path)
    return path


@pytest.fixture(scope="session")
def packages() -> tuple[RuntimePackage, RuntimePackage]:
    """Our runtime as it is, the same with and without GPUs."""
    package = make_runtime_package(imports=("psutil", "obstore", "trainmaster.executors.supervisor.program"))
    return package, package


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Archives, made once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def new_host(tmp_path: Path, user_key: Path) -> Iterator[Callable[..., SshHost]]:
    """Makes hosts that run; they end with the test."""
    hosts: list[SshHost] = []

    def make(name: str = "h1", *, start: bool = True, **options: object) -> SshHost:
        place = tmp_path / f"host-{name}"
        place.mkdir()
        host = SshHost(place, name, user_key, **options)  # type: ignore[arg-type]
        hosts.append(host)
        if start:
            host.start()
        return host

    yield make
    for host in hosts:
        host.thaw() if host._server else None
        host.stop()


@pytest.fixture
def keepalive_s() -> float:
    """How often a silent connection is asked for a sign of life; tests that must not need it have an hour."""
    return 10.0


@pytest.fixture
def ssh(tmp_path: Path, keepalive_s: float) -> Iterator[Ssh]:
    """Connects, with patience: others use this machine, too."""
    settings = SshSettings(connect_timeout_s=60.0, keepalive_s=keepalive_s, command_timeout_s=120.0)
    with Ssh(HostKeys(tmp_path / "tm-home" / "known_hosts"), settings) as ssh:
        yield ssh


@pytest.fixture
def hasty_ssh(tmp_path: Path) -> Iterator[Ssh]:
    """Connects, with little patience, to see that what hangs is given up."""
    settings = SshSettings(connect_timeout_s=5.0, keepalive_s=1.0, keepalive_count=3, command_timeout_s=60.0)
    with Ssh(HostKeys(tmp_path / "tm-home" / "known_hosts"), settings) as ssh:
        yield ssh


@pytest.fixture
def bootstrap(ssh: Ssh, packages: tuple[RuntimePackage, RuntimePackage], cache: Path) -> Bootstrap:
    """As it is used, and as if these hosts were other machines."""
    settings = BootstrapSettings(check_timeout_s=180.0, probe_timeout_s=120.0, share_files=False)
    return Bootstrap(ssh, packages, cache, settings)
