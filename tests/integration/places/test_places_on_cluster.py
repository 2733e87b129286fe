"""A run at a place that schedules by itself is driven by its first machine; the home may be off."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("websockets", reason="websockets is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("asyncssh", reason="asyncssh is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")

from kubernetes_places import KubernetesAccount, account_of, check_clean, renter_of
from place_runs import (
    COUNTED,
    Crossing,
    cross,
    drive_while_home_is_off,
    keep_for_the_next,
    moved,
    podman_with_image,
    until,
)
from place_runs import check_clean as check_slurm_clean
from private_engines import IMAGE
from ray_places import account_of as ray_account_of
from ray_places import renter_of as ray_renter_of
from ray_places import running_ray
from renter import Renter

from trainmaster.testing.counting_proxy import CountingProxy
from trainmaster.testing.kubernetes_double import KubernetesDouble
from trainmaster.testing.private_kubernetes import (
    ADDRESS,
    SERVICE_ACCOUNT,
    NoKubernetesError,
    PrivateKubernetes,
)
from trainmaster.testing.private_ray import PrivateRay
from trainmaster.testing.private_s3 import PrivateS3
from trainmaster.testing.private_sshd import SshHost, make_key

if TYPE_CHECKING:  # another folder's conftest.py may have the name by then
    from conftest import Account

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="pods of the double need namespaces, and these root"),
    pytest.mark.timeout(600),
    pytest.mark.places,
    pytest.mark.s3,
]


@pytest.fixture(scope="module")
def s3() -> Iterator[PrivateS3]:
    """A store that every machine of a place on this machine reaches."""
    with PrivateS3() as running:
        yield running


@pytest.fixture
def in_pods(
    s3: PrivateS3, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[Renter, KubernetesAccount]]:
    """Who may use a namespace, and a store that pods reach; the real ones have a service account."""
    with ExitStack() as stack:
        if getattr(request, "param", "double") == "double":
            kubernetes, url = stack.enter_context(KubernetesDouble()), s3.url
        else:
            try:
                kubernetes = stack.enter_context(PrivateKubernetes.installed())
            except NoKubernetesError as error:
                pytest.skip(str(error))
            url = stack.enter_context(CountingProxy(s3.url, ADDRESS)).url
        account = account_of(kubernetes, tmp_path)
        if url != s3.url:
            settings = account.home / "kubernetes.yaml"
            text = settings.read_text().replace("volumes: {", f"volumes: {{{tmp_path}: {tmp_path}, ")
            settings.write_text(f"service_account: {SERVICE_ACCOUNT}\n{text}")
        for user in renter_of(account, tmp_path):
            user.env |= {**s3.environment(url), "TRAINMASTER_STORE": f"s3://{s3.new_bucket()}/store"}
            yield user, account


@pytest.mark.parametrize("in_pods", ["double", "real"], indirect=True)
def test_pods_drive_while_their_home_is_off(
    in_pods: tuple[Renter, KubernetesAccount], tmp_path: Path
) -> None:
    """The driver is killed and started again, and the home sees the end; nothing of it stays."""
    user, account = in_pods
    go = tmp_path / "go"

    def let_go(_: str) -> None:
        assert len(set(account.kubernetes.left())) == 2
        go.touch()

    drive_while_home_is_off(user, "kubernetes", "driving", go, let_go)
    check_clean(account)


@pytest.fixture
def in_ray(s3: PrivateS3, tmp_path: Path) -> Iterator[tuple[Renter, PrivateRay]]:
    """Who may use a Ray beside others, and a store that its nodes reach."""
    for ray in running_ray(tmp_path):
        for user in ray_renter_of(ray, ray_account_of(ray, tmp_path), tmp_path):
            with CountingProxy(s3.url, ray.address) as line:
                store = {"TRAINMASTER_STORE": f"s3://{s3.new_bucket()}/store"}
                user.env |= {**s3.environment(line.url), **store}
                yield user, ray


def test_a_node_of_a_ray_drives_while_its_home_is_off(
    in_ray: tuple[Renter, PrivateRay], tmp_path: Path
) -> None:
    """As a driver in that Ray, by its Python; others' work there goes on, and nothing of ours stays."""
    user, ray = in_ray
    go = tmp_path / "go"

    def let_go(_: str) -> None:
        assert len(ray.others()) == 4, "a keeper, a placement group and two actors"
        go.touch()

    drive_while_home_is_off(user, "ray", "node", go, let_go)


@pytest.fixture
def login(account: Account, user: Renter, tmp_path: Path) -> Iterator[SshHost]:
    """A login node, and a user who has Slurm's commands there only."""
    key, folder = tmp_path / "id", tmp_path / "login"
    make_key(key)
    folder.mkdir()
    conf = user.env.pop("SLURM_CONF")
    host = SshHost(folder, "login", key, address=account.slurm.address, SLURM_CONF=conf)
    host.start()
    settings = account.home / "slurm.yaml"
    settings.write_text(f"login: root@{host.address}:{host.port}\nkey: {key}\n{settings.read_text()}")
    yield host
    host.stop()


@pytest.mark.parametrize("asks", ["Slurm itself", "by a login node"])
def test_a_job_of_slurm_drives_while_its_home_is_off(
    account: Account, user: Renter, s3: PrivateS3, tmp_path: Path, request: pytest.FixtureRequest, asks: str
) -> None:
    """The node asks Slurm, and gives its own job back last; `cancel` at home is heard there."""
    go = tmp_path / "go"
    if asks == "by a login node":
        request.getfixturevalue("login")
    with CountingProxy(s3.url, account.slurm.address) as line:
        user.env |= {**s3.environment(line.url), "TRAINMASTER_STORE": f"s3://{s3.new_bucket()}/store"}
        going, driver = moved(user, "slurm", user.recipe(COUNTED.format(machine="half", go=go, steps=4000)))
        run = going.run
        going.kill()
        go.touch()
        os.kill(driver, signal.SIGKILL)
        until(lambda: "step=" in user.call("status", run).stdout)
        said = user.call("exec", run, "worker-1", "--", "sh", "-c", "echo $TRAINMASTER_INDEX; exit 3", code=3)
        assert said.stdout == "1\n"
        user.call("cancel", run)
        assert json.loads(user.call("status", run, "--json").stdout)["reason"] == "CANCELLED"
        check_slurm_clean(account)
    assert not list((account.home / "providers" / "slurm").glob("cluster-*"))


def test_the_pod_that_drives_is_lost(in_pods: tuple[Renter, KubernetesAccount], tmp_path: Path) -> None:
    """Verbs at home work before; then the home goes on with it, and ends it with all that it has."""
    user, account = in_pods
    go = tmp_path / "go"
    going, _ = moved(user, "kubernetes", user.recipe(COUNTED.format(machine="node", go=go, steps=4000)))
    run = going.run
    go.touch()
    going.until(lambda: "step=" in user.call("status", run).stdout, "what its driver publishes")
    said = user.call("exec", run, "worker-1", "--", "sh", "-c", "echo $TRAINMASTER_INDEX; exit 3", code=3)
    assert said.stdout == "1\n"
    assert json.loads(user.call("status", run, "--json").stdout)["driver"]["state"] == "working"
    pods = set(account.kubernetes.left())
    account.kubernetes.evict(user.machines(run)["worker-0"], grace_s=0)
    going.until_said("it goes on, driven from here in the background")
    going.until(lambda: len(user.starts(run)) > 1, "its second attempt")
    assert len(pods & set(account.kubernetes.left())) == 1, "the pod that is left is worked on"
    user.call("cancel", run)
    assert going.end(code=None)["reason"] == "CANCELLED"
    check_clean(account)


ROWS = {
    "volume": Crossing(
        'cat "$TRAINMASTER_DATA_IMAGES/deep/a"', "of the volume", more="data: {images: {volume: images}}"
    ),
    "sweep": Crossing("echo rate {{rate}}", "rate 2", more="parameters: {rate: [1, 2, 3]}"),
    "cap": Crossing("sleep 600", "the run ends: it may cost", "dear", "{total: $0.6}", code=1),
}
CONTAINER = Crossing(
    "echo image $FROM_IMAGE", "image yes", more=f"container: {IMAGE}",
    env={"TRAINMASTER_CONTAINER_ENGINE": "podman"},
)  # fmt: skip
MOVED = ("--on-cluster", "--send-keys")
DEAR = "  dear: {cpus: 0.7, memory: 300MB, usd_per_hour: 3}\n"


def moving(row: Crossing, machine: str) -> Crossing:
    """The same row, driven by its first machine."""
    machine = row.machine if row.machine == "dear" else machine
    return replace(row, machine=machine, options=MOVED)


@pytest.mark.parametrize("name", ROWS)
def test_crossing_in_pods(in_pods: tuple[Renter, KubernetesAccount], name: str) -> None:
    """It ends as it does where its home drives."""
    user, account = in_pods
    settings = account.home / "kubernetes.yaml"
    settings.write_text(settings.read_text() + DEAR)
    cross(user, "kubernetes", moving(ROWS[name], "driving"))
    check_clean(account)


@pytest.fixture
def node_store(account: Account, user: Renter, s3: PrivateS3) -> Iterator[None]:
    """A store that nodes of the Slurm reach."""
    with CountingProxy(s3.url, account.slurm.address) as line:
        user.env |= {**s3.environment(line.url), "TRAINMASTER_STORE": f"s3://{s3.new_bucket()}/store"}
        yield


@pytest.mark.usefixtures("node_store")
@pytest.mark.parametrize("name", [*ROWS, "container"])
def test_crossing_in_slurm(account: Account, user: Renter, tmp_path: Path, name: str) -> None:
    """It ends as it does where its home drives."""
    settings = account.home / "slurm.yaml"
    settings.write_text(settings.read_text() + DEAR.replace("0.7", "1"))
    if name != "container":
        cross(user, "slurm", moving(ROWS[name], "half"))
    else:
        with podman_with_image(tmp_path):
            settings.write_text(f"before: export PATH={tmp_path}:$PATH\n{settings.read_text()}")
            cross(user, "slurm", moving(CONTAINER, "half"))
    check_slurm_clean(account)


@pytest.mark.usefixtures("node_store")
def test_nodes_that_are_kept_have_the_next_run(account: Account, user: Renter) -> None:
    """The same job, which a driver gives to the next one."""
    keep_for_the_next(user, "slurm", "half", account.slurm.jobs, *MOVED)
    check_slurm_clean(account)


def test_pods_that_are_kept_have_the_next_run(in_pods: tuple[Renter, KubernetesAccount]) -> None:
    """The same pods, which a driver gives to the next one."""
    user, account = in_pods
    keep_for_the_next(user, "kubernetes", "driving", lambda: sorted(account.kubernetes.left()), *MOVED)
    check_clean(account)
