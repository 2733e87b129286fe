"""A Kubernetes of one's own says what it needs."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from trainmaster.testing.private_kubernetes import NoKubernetesError, PrivateKubernetes


def test_every_program_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything starts, so that its tests are skipped with what to install."""
    monkeypatch.setenv("TRAINMASTER_CACHE", str(tmp_path))
    with pytest.raises(NoKubernetesError, match="make kubernetes"):
        PrivateKubernetes.installed()
    (built := tmp_path / "kubernetes-1.20").mkdir()
    for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"):
        (built / name).touch()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NoKubernetesError, match=r"etcd, .*busybox.* not installed .*busybox-static"):
        PrivateKubernetes.installed()


@pytest.mark.skipif(os.geteuid() != 0, reason="it has a directory in /run")
def test_who_is_interrupted_while_another_has_the_network_ends_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end the nodes of the other one."""
    swept = list[object]()
    monkeypatch.setattr(PrivateKubernetes, "_sweep", lambda it: swept.append(it))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fcntl, "flock", interrupted)
    with pytest.raises(KeyboardInterrupt), PrivateKubernetes(tmp_path):
        pass
    assert not swept
