"""A Kubernetes of one's own says what it needs."""

from __future__ import annotations

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
    with pytest.raises(NoKubernetesError, match=r"etcd, .*busybox not installed .*busybox-static"):
        PrivateKubernetes.installed()
