"""A real Nova whose machines are hosts of the lab: whole runs at the provider ``openstack``.

Keystone is real, too; Neutron and Glance are doubles. What Nova and the lab have at the end is the judge.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent.parent / "places"))

from killed_drivers import MOMENTS_S, Place, kill_twice
from openstack_places import Cloud, renter_of, running_cloud
from place_runs import (
    PATIENCE_S,
    Crossing,
    cross,
    gang,
    have_two_homes,
    keep_for_the_next,
    serve,
    train_as_a_team,
    until,
    until_step,
)
from private_engines import IMAGE, NoEngineError, PrivateEngine, make_image
from renter import Renter

pytestmark = [pytest.mark.places, pytest.mark.timeout(900)]

HOSTNAME = Crossing("hostname", "", "m1.tiny").recipe


@pytest.fixture(scope="module")
def cloud(lab: Any, lab_cache: Path) -> Iterator[Cloud]:
    """One for all tests of this file."""
    yield from running_cloud(lab, lab_cache)


@pytest.fixture
def user(cloud: Cloud, renter: Renter, tmp_path: Path) -> Iterator[Renter]:
    """Who has an account there."""
    yield from renter_of(cloud, renter, tmp_path)


@dataclass(frozen=True)
class Row(Crossing):
    """A row. trouble: of Nova's API. faults: machines that do not boot. boots: hosts of it all."""

    machine: str = "m1.tiny"
    trouble: dict[str, int] = field(default_factory=dict)
    faults: int = 0
    boots: int = 2


ROWS = {
    "gang of two": Row("echo member $TRAINMASTER_INDEX", "member 1"),
    "volume": Row(
        'cat "$TRAINMASTER_DATA_IMAGES/deep/a"', "of the volume", more="data: {images: {volume: images}}"
    ),
    "sweep": Row("echo rate {{rate}}", "rate 2", more="parameters: {rate: [1, 2, 3]}"),
    "cap": Row("sleep 600", "the run ends: it may cost", "m1.small", "{total: $0.6}", code=1),
    "ERROR at boot": Row("echo member $TRAINMASTER_INDEX", "no power, as asked for", faults=1, boots=3),
    "the same request twice": Row(
        "echo member $TRAINMASTER_INDEX", "member 1", trouble={"twice": 1}, boots=4
    ),
    "throttled": Row("echo member $TRAINMASTER_INDEX", "member 1", trouble={"throttled": 3}),
}


@pytest.mark.parametrize("name", ROWS)
def test_crossing(user: Renter, cloud: Cloud, name: str) -> None:
    """It ends as it does elsewhere, with no more machines than it needs."""
    row, before = ROWS[name], len(cloud.hosts.booted)
    cloud.hosts.faults = row.faults
    cloud.nova.asked("POST", "/trouble", row.trouble)
    cross(user, "openstack", row)
    assert not any(cloud.nova.asked("POST", "/trouble", {}).values())
    assert not cloud.hosts.faults
    assert len(cloud.hosts.booted) - before <= row.boots


def test_containers(user: Renter) -> None:
    """Its image goes to the servers, which have an engine."""
    try:
        engine = PrivateEngine("podman", make_image(("bash", "cat", "sleep"), python=False))
    except NoEngineError as error:
        pytest.skip(str(error))
    with engine:
        row = Row("echo image $FROM_IMAGE", "image yes", more=f"container: {IMAGE}", env=engine.env)
        cross(user, "openstack", row)


def test_a_gang_of_three(user: Renter, cloud: Cloud) -> None:
    """A server each."""
    going = user.run(gang(user, 3, 20, "m1.tiny"), provider="openstack")
    until(lambda: len(cloud.servers()) == 3, seen=cloud.servers)
    assert going.end(timeout_s=PATIENCE_S)["state"] == "DONE"


def test_parameter_servers(user: Renter, cloud: Cloud) -> None:
    """Servers of their own."""
    serve(user, "openstack", "m1.tiny", cloud.servers)


def test_a_team_trains_on_a_server_that_has_an_account(user: Renter, tmp_path: Path) -> None:
    """Its member has neither login nor settings."""
    nowhere = dict.fromkeys(("OS_AUTH_URL", "OS_PASSWORD", "TRAINMASTER_OPENSTACK"), "/nowhere")
    train_as_a_team(user, "openstack", tmp_path, "m1.tiny", **nowhere)


def test_machines_that_are_kept_have_the_next_run(user: Renter, cloud: Cloud) -> None:
    """The same servers; then they are given back."""
    keep_for_the_next(user, "openstack", "m1.tiny", cloud.servers)


def test_two_homes_have_one_project(user: Renter, cloud: Cloud, tmp_path: Path) -> None:
    """Neither ends or uses what the other has."""
    have_two_homes(user, tmp_path / "other", "openstack", "m1.tiny", cloud.servers)


def test_a_driver_that_is_killed_finds_its_servers(user: Renter, cloud: Cloud) -> None:
    """Before and after it has logged in; never two sets of them."""
    going = user.run(gang(user, 2, 200, "m1.tiny"), provider="openstack")
    run = going.run
    until(cloud.servers)
    going.kill()
    again = user.start("resume", run, "--json")
    until_step(user, run)
    held = cloud.servers()
    assert len(held) == 2
    again.kill()
    third = user.start("resume", run, "--json")
    assert third.end(timeout_s=PATIENCE_S)["state"] == "DONE"


@pytest.mark.parametrize("number", range(len(MOMENTS_S)))
def test_a_driver_is_killed_at_any_moment(user: Renter, cloud: Cloud, number: int) -> None:
    """Then killed once more, and resumed: servers are found, and nothing stays; `user` looks for that."""
    kill_twice(user, Place("openstack", "m1.tiny", cloud.servers, 2, list, user.lab), number)


def test_a_server_is_deleted_below_a_run(user: Renter, cloud: Cloud) -> None:
    """Another takes its place, and the work goes on from its checkpoint."""
    going = user.run(gang(user, 2, 200, "m1.tiny"), provider="openstack")
    run = going.run
    until_step(user, run)
    cloud.nova.asked("DELETE", f"/v2.1/servers/{cloud.servers()[0]}", user="me")
    assert going.end(timeout_s=PATIENCE_S)["state"] == "DONE"
    assert max(step for _, step in user.starts(run)) > 0


def left_alone(user: Renter) -> str:
    """A run whose driver is gone, as its machines train."""
    going = user.run(gang(user, 2, 4000, "m1.tiny"), provider="openstack", TRAINMASTER_NODE_LEASE="30s")
    until_step(user, going.run)
    going.kill()
    return going.run


def test_a_driver_that_never_comes_back(user: Renter, cloud: Cloud) -> None:
    """Its servers delete themselves; what else is theirs goes with it."""
    run = left_alone(user)
    until(lambda: not cloud.servers(), PATIENCE_S, cloud.servers)
    assert cloud.nova.left(), "a key pair and a group, which no server may delete"
    user.call("cancel", run)


@pytest.mark.parametrize("by", ["the next run", "cancel"])
def test_a_driver_that_never_comes_back_where_no_server_deletes_itself(
    user: Renter, cloud: Cloud, tmp_path: Path, by: str
) -> None:
    """Hosts switch themselves off; Nova keeps what is theirs until a command of the home comes."""
    with (tmp_path / "openstack.yaml").open("a") as file:
        file.write("ends_only_from_here: true\n")
    with cloud.nova.credential() as environ:
        user.env |= environ
        run = left_alone(user)
        left = cloud.servers()
        for server in left:
            user.lab.until_state(cloud.hosts.booted[server], "stopped")
        assert cloud.servers() == left
        if by == "cancel":
            user.call("cancel", run)
            return
        for server in left:  # as if more time had passed than clocks may differ by
            body = {"metadata": {"trainmaster-until": "1"}}
            cloud.nova.asked("POST", f"/v2.1/servers/{server}/metadata", body, user="me")
        told = user.run(user.recipe(HOSTNAME), provider="openstack")
        told.end()
        assert "2 machines without a run are given back" in told.text
