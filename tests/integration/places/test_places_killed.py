"""`kill -9` of a driver in the first seconds of its run: nothing that has no owner stays at its place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("websockets", reason="websockets is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("asyncssh", reason="asyncssh is not installed")

import kubernetes_places
import place_runs
import ray_places
from killed_drivers import MOMENTS_S, Place, kill_after, kill_twice, moments_s, programs, runs_of
from place_runs import gang, until
from renter import Renter

from trainmaster.testing.kubernetes_double import KubernetesDouble
from trainmaster.testing.private_kubernetes import PrivateKubernetes
from trainmaster.testing.private_ray import PrivateRay
from trainmaster.testing.private_slurm import PrivateSlurm
from trainmaster.transport.kubernetes.api import KubeApi
from trainmaster.transport.kubernetes.login import read_login

if TYPE_CHECKING:  # another folder's conftest.py may have the name by then
    from conftest import Account

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="nodes and pods need namespaces, and these root"),
    pytest.mark.timeout(600),
    pytest.mark.places,
]
LEASE = {"TRAINMASTER_NODE_LEASE": "30s"}


@pytest.fixture(scope="module")
def double() -> Iterator[KubernetesDouble]:
    """One for all tests."""
    with KubernetesDouble() as running:
        yield running


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateRay]:
    """One for all tests."""
    yield from ray_places.running_ray(tmp_path_factory.mktemp("tools"))


@pytest.fixture(scope="module")
def real() -> Iterator[PrivateKubernetes]:
    """The same, where its programs are."""
    yield from kubernetes_places.real_kubernetes(2)


@pytest.fixture(params=["slurm", "ray", "double", "real"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Each of them."""
    if request.param == "slurm":
        account: Account = request.getfixturevalue("account")
        slurm = account.slurm

        def check_clean() -> None:
            place_runs.check_clean(account)

            def left() -> list[str]:
                pids = [pid for name in slurm.names for pid in slurm.processes(name)]
                return [f"{pid} {Path(f'/proc/{pid}/cmdline').read_bytes()!r}" for pid in pids]

            until(lambda: not any(map(slurm.processes, slurm.names)), 60, left)

        return Place("slurm", "half", slurm.jobs, 1, check_clean, account)
    if request.param == "ray":
        ray: PrivateRay = request.getfixturevalue("ray")

        def check_ray() -> None:
            until(lambda: not ray.others(), 120, ray.others)
            until(lambda: not ray.files() and not ray.runs("steps.py"), 60, ray.files)

        # A keeper, a placement group and two actors.
        return Place("ray", "node", ray.others, 4, check_ray, ray_places.account_of(ray, tmp_path))
    kubernetes: KubernetesDouble | PrivateKubernetes = request.getfixturevalue(request.param)
    mine = kubernetes_places.account_of(kubernetes, tmp_path)
    return Place("kubernetes", "node", kubernetes.left, 2, lambda: kubernetes_places.check_clean(mine), mine)


@pytest.fixture
def driven(place: Place, tmp_path: Path) -> Iterator[Renter]:
    """They run recipes there."""
    (work := tmp_path / "work").mkdir()
    renter = Renter(place.account, work)
    yield renter
    renter.kill_all()


def check_all_clean(place: Place) -> None:
    """Neither there nor here."""
    place.check_clean()
    until(lambda: not programs(place), 60, lambda: programs(place))


@pytest.mark.parametrize("number", range(len(MOMENTS_S)))
def test_it_is_resumed(driven: Renter, place: Place, number: int) -> None:
    """Then killed once more, and resumed: what was had is found, and never had twice."""
    kill_twice(driven, place, number)
    check_all_clean(place)


def test_no_driver_comes_back(driven: Renter, place: Place) -> None:
    """All is over with the last lease; then the home is as good as new."""
    recipe = gang(driven, 2, 4000, place.machine)
    for number, moment_s in enumerate(moments_s(place), 1):
        kill_after(driven.run(recipe, provider=place.name, **LEASE), place, number, moment_s)
    going = driven.run(recipe, provider=place.name, **LEASE)
    until(lambda: "step=" in driven.call("status", going.run).stdout)
    going.kill()
    check_all_clean(place)
    for run in runs_of(place):
        driven.call("cancel", run)
    going = driven.run(gang(driven, 2, 10, place.machine), provider=place.name)
    assert going.end()["state"] == "DONE"
    check_all_clean(place)
    if place.name == "kubernetes":  # entries of pods that have ended themselves are gone, too
        login = read_login("", {"KUBECONFIG": str(place.account.kubernetes.kubeconfig)})
        api = KubeApi(login, "research")
        until(lambda: not api.all("pods"), 60, lambda: api.all("pods"))


def test_what_begins_after_its_lease(user: Renter, account: Account, slurm: PrivateSlurm) -> None:
    """It waited in the queue when its driver was killed: it ends at once, not after another lease."""
    slurm.command("sbatch", "-N3", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1000")
    until(slurm.jobs, 20)
    going = user.run(gang(user, 2, 4000), provider="slurm")
    until(lambda: len(slurm.jobs()) == 2, 60)
    going.kill()
    job = slurm.command("squeue", "-h", "-t", "PD", "-o", "%A %k").split()
    long_ago = job[1].rpartition(":")[0] + ":1"
    slurm.command("scontrol", "update", f"JobId={job[0]}", f"Comment={long_ago}")
    slurm.command("scancel", "-n", "wrap")
    until(lambda: not slurm.jobs(), 60)
    told = slurm.command("scontrol", "show", "job", job[0])
    assert "ExitCode=45:0" in told, told
    again = user.start("resume", going.run, "--json")
    again.until_said("no run wanted it any more")
    user.call("cancel", going.run)
    again.end(code=None)
    place_runs.check_clean(account)


def let_in(kubernetes: KubernetesDouble | PrivateKubernetes, *, is_open: bool) -> None:
    """Whether its nodes take pods."""
    if isinstance(kubernetes, KubernetesDouble):
        kubernetes.cpus = 16.0 if is_open else 0.0
        return
    body = {"spec": {"unschedulable": not is_open}}
    for name in kubernetes.ready():
        kubernetes.api.call("PATCH", f"/api/v1/nodes/{name}", body, kind="application/merge-patch+json")


def annotate(kubernetes: KubernetesDouble | PrivateKubernetes, key: str, value: str) -> None:
    """Write something on every pod."""
    if isinstance(kubernetes, KubernetesDouble):
        kubernetes.annotate(key, value)
        return
    body = {"metadata": {"annotations": {key: value}}}
    for name in kubernetes.left():
        kubernetes.api.call("PATCH", f"pods/{name}", body, kind="application/merge-patch+json")


def test_a_pod_that_begins_after_its_lease(driven: Renter, place: Place) -> None:
    """The same of one that had no node."""
    if place.name != "kubernetes":
        pytest.skip("a Slurm's jobs have a test of their own")
    kubernetes = place.account.kubernetes
    let_in(kubernetes, is_open=False)
    going = driven.run(gang(driven, 2, 4000, place.machine), provider="kubernetes")
    try:
        until(lambda: len(kubernetes.left()) == 2, 60)
        going.kill()
        annotate(kubernetes, "trainmaster/until", "1")
    finally:
        let_in(kubernetes, is_open=True)
    until(lambda: not kubernetes.left(), 60, kubernetes.left)
    again = driven.start("resume", going.run, "--json")
    again.until_said("no run wanted it any more")
    driven.call("cancel", going.run)
    again.end(code=None)
    check_all_clean(place)
