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
sys.path.append(str(Path(__file__).parent / "places"))

from place_runs import MOVED, at_home, team_server, team_token
from renter import Renter
from spread_tasks import spread

from trainmaster.testing.kubernetes_double import KubernetesDouble
from trainmaster.testing.kueue_double import QUEUE, KueueDouble
from trainmaster.testing.private_s3 import PrivateS3
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


def user_of(double: KubernetesDouble, root: Path, more: str = "", cpus: int = 1) -> Renter:
    """Somebody with a home and a login."""
    home, work = root / "home", root / "work"
    home.mkdir(parents=True)
    work.mkdir()
    settings = f"image: any\nmachines:\n  node: {{cpus: {cpus}, memory: 500MB}}\n{more}"
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


@pytest.mark.s3
@pytest.mark.crossings
@pytest.mark.parametrize("queue", ["", f"queue: {QUEUE}\n"], ids=["no queue", "Kueue"])
@pytest.mark.parametrize("options", [(), MOVED], ids=["home", "cluster"])
def test_a_search_and_a_sweep_fill_both_pods(tmp_path: Path, queue: str, options: tuple[str, ...]) -> None:
    """Whose quota is then free."""
    pytest.importorskip("boto3", reason="boto3 is not installed")
    with KueueDouble(quota_cpus=4.0) as double, PrivateS3() as s3:
        user = user_of(double, tmp_path, queue, cpus=2)
        user.env |= {**s3.environment(s3.url), "TRAINMASTER_STORE": f"s3://{s3.new_bucket()}/store"}
        try:
            spread(user, "kubernetes", "node", 4, *options)
            until(lambda: double.left() == [], "its pods are gone")
            until(lambda: double.used_cpus() == 0.0, "the quota is free")
        finally:
            user.kill_all()


@pytest.mark.crossings
def test_a_team_fills_both_pods_with_its_own_login(tmp_path: Path) -> None:
    """In a queue of Kueue, by a server that has no login there."""
    with KueueDouble(quota_cpus=4.0) as double:
        user = user_of(double, tmp_path, f"queue: {QUEUE}\n", cpus=2)
        user.env["TRAINMASTER_WEBHOOK_NETWORKS"] = "127.0.0.0/8"
        kubeconfig = user.env.pop("KUBECONFIG")
        (mia := tmp_path / "mia").mkdir()
        (user.lab.home / "kubernetes.yaml").rename(mia / "kubernetes.yaml")
        try:
            with team_server(user) as server:
                at_mia = at_home(user, server, server.token, mia, KUBECONFIG=kubeconfig)
                at_ann = at_home(user, server, team_token(user, "ann"), tmp_path / "ann")
                user.call("team", "login", "vision", "kubernetes", "--yes", **at_mia)
                spread(user, "kubernetes", "node", 4, **at_ann)
            until(lambda: double.left() == [], "its pods are gone")
            until(lambda: double.used_cpus() == 0.0, "the quota is free")
        finally:
            user.kill_all()
