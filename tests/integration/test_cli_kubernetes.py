"""A run on the double of a Kubernetes; on a real one: tests/integration/places."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("websockets", reason="websockets is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("asyncssh", reason="asyncssh is not installed")

sys.path.append(str(Path(__file__).parent / "lab"))  # the one who rents

from renter import Renter

from trainmaster.testing.kubernetes_double import KubernetesDouble
from trainmaster.testing.kueue_double import QUEUE, KueueDouble
from trainmaster.testing.waits import until

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="pods of the double need namespaces, and these root"),
    pytest.mark.timeout(300),
]
RECIPE = """
name: steps
experiments:
  train:
    distributed: {strategy: allreduce, workers: 2, per_node: 1}
    framework: plain
    hardware: {instance: node}
    checkpoint: {every: 3s}
    command: python3 steps.py 4000 0.15 0.15
"""


@pytest.fixture
def double() -> Iterator[KubernetesDouble]:
    """One node."""
    with KubernetesDouble() as running:
        yield running


def user_of(double: KubernetesDouble, root: Path, more: str = "") -> Renter:
    """Somebody with a home and a login."""
    home, work = root / "home", root / "work"
    home.mkdir(parents=True)
    work.mkdir()
    settings = f"image: any\nmachines:\n  node: {{cpus: 1, memory: 500MB}}\n{more}"
    (home / "kubernetes.yaml").write_text(settings)
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "TRAINMASTER_CACHE") if name in os.environ}
    environ = {**kept, "TRAINMASTER_HOME": str(home), "KUBECONFIG": str(double.kubeconfig)}
    return Renter(SimpleNamespace(home=home, env=environ), work)


def test_a_gang_whose_driver_is_killed(double: KubernetesDouble, tmp_path: Path) -> None:
    """The next one finds its pods; shells lead there; nothing of it stays."""
    user = user_of(double, tmp_path)
    try:
        looked = json.loads(
            user.call("doctor", user.recipe(RECIPE), "--provider", "kubernetes", "--json").stdout
        )
        found = {each["what"]: each["found"] for each in looked["findings"]}
        assert looked["ok"]
        assert "may be made" in found["kubernetes: rights"]
        assert found["kubernetes: steps"].startswith("2 x node, $0 an hour")
        going = user.run(user.recipe(RECIPE), provider="kubernetes")
        run = going.run
        going.until(lambda: user.checkpoints(run), "a checkpoint")
        pods = set(double.left())
        going.kill()
        again = user.start("resume", run, "--json")
        said = user.call("exec", run, "worker-1", "--", "sh", "-c", "echo $TRAINMASTER_INDEX; exit 3", code=3)
        assert said.stdout == "1\n"
        assert set(double.left()) == pods
        again.until(lambda: "started" in again.text, "its driver")
        again.interrupt()  # before it has a controller, where this comes soon enough
        again.end(code=None)
        assert double.left() == []
    finally:
        user.kill_all()


def test_gangs_in_a_queue_of_kueue(tmp_path: Path) -> None:
    """One waits for the other's quota, and goes before it has any; a pod that is lost has its quota again."""
    with KueueDouble(quota_cpus=2.0) as double:
        users = [user_of(double, tmp_path / name, f"queue: {QUEUE}\n") for name in ("first", "second")]
        first, second = users
        try:
            going = first.run(first.recipe(RECIPE.replace("4000 0.15", "100 0.1")), provider="kubernetes")
            going.until(lambda: first.checkpoints(going.run), "a checkpoint")
            waiting = second.run(second.recipe(RECIPE), provider="kubernetes")
            waiting.until_said(f"it waits in queue {QUEUE} of Kueue")
            assert len(double.left()) == 4
            waiting.interrupt()
            waiting.end(code=130)
            pods = double.left()
            assert len(pods) == 2
            double.evict(pods[0])
            going.end()
            assert first.attempts(going.run)[-1] == "SUCCEEDED"
            assert double.left() == []
            until(lambda: double.used_cpus() == 0.0, "the quota is free")
        finally:
            for each in users:
                each.kill_all()
