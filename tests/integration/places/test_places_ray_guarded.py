"""Runs in a real Ray of three nodes that answers those only who have its token, or a certificate."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from place_runs import PATIENCE_S, Crossing, cross, drive_while_home_is_off, gang, podman_with_image
from private_engines import IMAGE
from ray_places import SETTINGS, RayAccount, account_of, renter_of, running_ray
from renter import Renter

from trainmaster.testing.counting_proxy import CountingProxy
from trainmaster.testing.private_ray import PrivateRay
from trainmaster.testing.private_s3 import PrivateS3

pytestmark = [pytest.mark.timeout(900), pytest.mark.places]


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on the `PATH` of every node."""
    return tmp_path_factory.mktemp("tools")


@pytest.fixture(scope="module", params=["token", "tls"])
def ray(tools: Path, request: pytest.FixtureRequest) -> Iterator[PrivateRay]:
    """One for all tests."""
    yield from running_ray(tools, request.param)


@pytest.fixture
def account(ray: PrivateRay, tmp_path: Path) -> RayAccount:
    """A new user of it, who has what it wants in the settings."""
    account = account_of(ray, tmp_path)
    way = f"{ray.client}variables: {ray.user_environ}\n"
    (account.home / "ray.yaml").write_text(SETTINGS.format(way=way, scratch=ray.scratch))
    return account


@pytest.fixture
def user(ray: PrivateRay, account: RayAccount, tmp_path: Path) -> Iterator[Renter]:
    """They run recipes there."""
    yield from renter_of(ray, account, tmp_path)


def test_who_shows_nothing_is_refused(user: Renter, ray: PrivateRay, account: RayAccount) -> None:
    """Before anything starts, with what to write; by an address of Ray itself, too."""
    head = ray.client.partition("//")[2].partition(":")[0]
    for way in (ray.client, f"address: {head}:6379\n"):
        (account.home / "ray.yaml").write_text(SETTINGS.format(way=way, scratch=ray.scratch))
        going = user.run(gang(user, 2, 20), provider="ray")
        going.process.wait(PATIENCE_S)
        assert going.process.returncode, going.text
        assert "write them as `variables` in" in going.text
    assert not ray.others()


def test_a_gang_of_two(user: Renter) -> None:
    """Members know neither token nor certificate."""
    text = gang(user, 2, 20).read_text().replace("command: echo", "command: env | grep ^RAY_ || true; echo")
    going = user.run(user.recipe(text), provider="ray")
    told = going.end(timeout_s=PATIENCE_S)
    assert told["state"] == "DONE"
    assert "gpus=0" in going.text
    assert "RAY_" not in user.call("logs", told["run"]).stdout


def test_a_ray_of_the_runs_own_in_it(user: Renter) -> None:
    """It has its own token and certificates."""
    text = re.sub(r"(?m)^engine: .*", "engine: ray", gang(user, 2, 20).read_text())
    going = user.run(user.recipe(text), provider="ray")
    assert going.end(timeout_s=PATIENCE_S)["state"] == "DONE"


def test_a_container(user: Renter, tools: Path) -> None:
    """As elsewhere."""
    with podman_with_image(tools):
        chosen = {"TRAINMASTER_CONTAINER_ENGINE": "podman"}
        more = f"container: {IMAGE}"
        cross(user, "ray", Crossing("echo image $FROM_IMAGE", "image yes", "node", more=more, env=chosen))
    (tools / "podman").unlink()  # the next one is another


def test_a_node_drives_while_its_home_is_off(user: Renter, ray: PrivateRay, tmp_path: Path) -> None:
    """It shows what the node's own processes show."""
    pytest.importorskip("boto3", reason="boto3 is not installed")
    go = tmp_path / "go"
    with PrivateS3() as s3, CountingProxy(s3.url, ray.address) as line:
        user.env |= {**s3.environment(line.url), "TRAINMASTER_STORE": f"s3://{s3.new_bucket()}/store"}
        drive_while_home_is_off(user, "ray", "node", go, lambda _: go.touch())
