"""Somebody who may use a namespace of a Kubernetes, real or not, and what they leave there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from place_runs import until
from renter import Renter

from trainmaster.testing.kubernetes_double import KubernetesDouble
from trainmaster.testing.private_kubernetes import NoKubernetesError, PrivateKubernetes

SETTINGS = """\
image: work:lab
grace: 20s
wait: {wait}
volumes: {{/usr: "/usr:ro"}}
machines:
  node: {{cpus: 0.1, memory: 300MB}}
  driving: {{cpus: 0.7, memory: 600MB}}
  wide: {{cpus: 64, memory: 300MB}}
"""


@dataclass(frozen=True)
class KubernetesAccount:
    """Somebody with a home who may use a namespace. env: of the commands. home: ``TRAINMASTER_HOME``."""

    kubernetes: Any
    home: Path
    env: dict[str, str]

    def settings(self, wait: str = "5m") -> None:
        """Write them."""
        (self.home / "kubernetes.yaml").write_text(SETTINGS.format(wait=wait))


def real_kubernetes(nodes: int) -> Iterator[PrivateKubernetes]:
    """One for all tests, where its programs are."""
    try:
        made = PrivateKubernetes.installed(nodes)
    except NoKubernetesError as error:
        pytest.skip(str(error))
    with made as running:
        yield running


@pytest.fixture(scope="module", params=["double", "real"])
def kubernetes(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One for all tests of a file, the double and the real one."""
    if request.param == "real":
        yield from real_kubernetes(2)
        return
    with KubernetesDouble(nodes=2) as double:
        yield double


def account_of(kubernetes: Any, folder: Path) -> KubernetesAccount:
    """A new user of it."""
    home = folder / "home"
    home.mkdir()
    kept = {
        name: os.environ[name] for name in ("HOME", "LANG", "PATH", "TRAINMASTER_CACHE") if name in os.environ
    }
    environ = {**kept, "TRAINMASTER_HOME": str(home), "KUBECONFIG": str(kubernetes.kubeconfig)}
    made = KubernetesAccount(kubernetes, home, environ)
    made.settings()
    return made


def renter_of(account: KubernetesAccount, folder: Path) -> Iterator[Renter]:
    """They run recipes there; what is left of that goes."""
    work = folder / "work"
    work.mkdir()
    renter = Renter(account, work)
    yield renter
    renter.kill_all()
    for name in account.kubernetes.left():
        account.kubernetes.evict(name)


def check_clean(account: KubernetesAccount) -> None:
    """No pod of ours is left."""
    until(lambda: not account.kubernetes.left(), 60, account.kubernetes.left)


@contextlib.contextmanager
def lost_node(kubernetes: Any, pod: str, *, is_deleted: bool = False) -> Iterator[None]:
    """The node of a pod has no power; it comes back afterwards. is_deleted: its entry is removed, too."""
    lost = kubernetes.node_of(pod)
    (kubernetes.remove if is_deleted else kubernetes.kill)(lost)
    try:
        yield
    finally:
        kubernetes.boot(lost)
        until(lambda: len(kubernetes.ready()) == 2, 120)
