"""A run at a place that schedules by itself is driven by its first machine; the home may be off."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

pytest.importorskip("asyncssh", reason="asyncssh is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")

from place_runs import (
    COUNTED,
    MOVED,
    MOVED_ROWS,
    Crossing,
    check_clean,
    cross,
    drive_while_home_is_off,
    keep_for_the_next,
    moved,
    moving,
    podman_with_image,
    serve,
    until,
)
from private_engines import IMAGE
from ray_places import account_of as ray_account_of
from ray_places import renter_of as ray_renter_of
from ray_places import running_ray
from renter import Renter
from spread_tasks import spread

from trainmaster.testing.counting_proxy import CountingProxy
from trainmaster.testing.private_ray import PrivateRay
from trainmaster.testing.private_s3 import PrivateS3
from trainmaster.testing.private_sshd import SshHost, make_key

if TYPE_CHECKING:  # another folder's conftest.py may have the name by then
    from conftest import Account

pytestmark = [
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
        check_clean(account)
    assert not list((account.home / "providers" / "slurm").glob("cluster-*"))


SETUP = """
name: steps
experiments:
  first:
    distributed: {strategy: allreduce, workers: 2, per_node: 1}
    framework: plain
    hardware: {instance: half}
    command: sleep 15
  train:
    after: first
    distributed: {strategy: allreduce, workers: 2, per_node: 1}
    framework: plain
    hardware: {instance: half}
    setup: sleep 24695
    command: "true"
"""


@pytest.mark.usefixtures("node_store")
@pytest.mark.parametrize("lost", ["driver", "node"])
def test_cancel_ends_a_setup_whose_driver_is_lost(account: Account, user: Renter, lost: str) -> None:
    """Killed, or with the node that it is on; the other node is given back, too."""

    def setups() -> int:
        return sum(each.info["cmdline"] == ["sleep", "24695"] for each in psutil.process_iter(["cmdline"]))

    going, driver = moved(user, "slurm", user.recipe(SETUP))
    run = going.run
    until(lambda: setups() == 2, seen=lambda: going.text)
    going.kill()
    if lost == "driver":
        os.kill(driver, signal.SIGKILL)
    else:
        (node,) = [name for name in account.slurm.names if driver in account.slurm.processes(name)]
        account.slurm.kill(node)
    try:
        user.call("cancel", run)
        until(lambda: not setups(), seen=setups)
        assert json.loads(user.call("status", run, "--json").stdout)["reason"] == "CANCELLED"
        until(lambda: not account.slurm.jobs())
    finally:
        if lost == "node":
            account.slurm.boot(node)


CONTAINER = Crossing(
    "echo image $FROM_IMAGE", "image yes", more=f"container: {IMAGE}",
    env={"TRAINMASTER_CONTAINER_ENGINE": "podman"},
)  # fmt: skip


@pytest.fixture
def node_store(account: Account, user: Renter, s3: PrivateS3) -> Iterator[None]:
    """A store that nodes of the Slurm reach."""
    with CountingProxy(s3.url, account.slurm.address) as line:
        user.env |= {**s3.environment(line.url), "TRAINMASTER_STORE": f"s3://{s3.new_bucket()}/store"}
        yield


@pytest.mark.usefixtures("node_store")
@pytest.mark.parametrize("name", [*MOVED_ROWS, "container"])
def test_crossing_in_slurm(account: Account, user: Renter, tmp_path: Path, name: str) -> None:
    """It ends as it does where its home drives."""
    settings = account.home / "slurm.yaml"
    settings.write_text(settings.read_text() + "  dear: {cpus: 1, memory: 300MB, usd_per_hour: 3}\n")
    if name != "container":
        cross(user, "slurm", moving(MOVED_ROWS[name], "half"))
    else:
        with podman_with_image(tmp_path):
            settings.write_text(f"before: export PATH={tmp_path}:$PATH\n{settings.read_text()}")
            cross(user, "slurm", moving(CONTAINER, "half"))
    check_clean(account)


@pytest.mark.usefixtures("node_store")
def test_a_search_and_a_sweep_fill_both_nodes(account: Account, user: Renter) -> None:
    """The driver takes no place of theirs."""
    spread(user, "slurm", "node", 4, *MOVED)
    check_clean(account)


@pytest.mark.usefixtures("node_store")
def test_parameter_servers_in_slurm(account: Account, user: Renter) -> None:
    """The first node of a heterogeneous job drives it."""
    serve(user, "slurm", "half", None, *MOVED)
    check_clean(account)


@pytest.mark.usefixtures("node_store")
def test_nodes_that_are_kept_have_the_next_run(account: Account, user: Renter) -> None:
    """The same job, which a driver gives to the next one."""
    keep_for_the_next(user, "slurm", "half", account.slurm.jobs, *MOVED)
    check_clean(account)
