"""A server of a real Nova drives the run, and the home may be off. Servers are hosts of the lab."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")
pytest.importorskip("cryptography", reason="cryptography is not installed")

sys.path.append(str(Path(__file__).parent.parent / "places"))

from openstack_places import Cloud, renter_of, running_cloud
from place_runs import (
    COUNTED,
    MOVED,
    MOVED_ROWS,
    Crossing,
    cross,
    drive_while_home_is_off,
    keep_for_the_next,
    moved,
    moving,
    serve,
    until,
)
from private_engines import IMAGE, NoEngineError, PrivateEngine, make_image
from renter import Renter, drivers

pytestmark = [pytest.mark.places, pytest.mark.s3, pytest.mark.timeout(900)]

#: On a server, which sees no files of this machine.
GO = Path("/var/tmp/go")
MACHINE = "m1.tiny"


@pytest.fixture(scope="module")
def cloud(lab: Any, lab_cache: Path) -> Iterator[Cloud]:
    """One for all tests of this file."""
    yield from running_cloud(lab, lab_cache)


@pytest.fixture
def user(cloud: Cloud, renter: Renter, store: Any, tmp_path: Path) -> Iterator[Renter]:
    """Who has an account there, and a store that servers reach."""
    yield from renter_of(cloud, renter, tmp_path)


def driving(cloud: Cloud) -> list[str]:
    """Names of the credentials of servers that drive."""
    return [each for each in cloud.nova.credentials() if each.endswith(" driver")]


def let_go(user: Renter, run: str) -> None:
    """Members begin to count."""
    for member in ("worker-0", "worker-1"):
        user.call("exec", run, member, "--", "touch", GO)


def test_the_home_is_off(user: Renter, cloud: Cloud) -> None:
    """The driver has a credential of its own, which goes with the run; `user` looks for that."""

    def see(run: str) -> None:
        assert len(driving(cloud)) == 1
        assert len(cloud.servers()) == 2
        let_go(user, run)

    drive_while_home_is_off(user, "openstack", MACHINE, GO, see)


def test_servers_that_have_driven_are_kept(user: Renter, cloud: Cloud) -> None:
    """For the next run; what they have driven with goes when a run is over."""

    def held() -> list[str]:
        until(lambda: not driving(cloud))
        return cloud.servers()

    keep_for_the_next(user, "openstack", MACHINE, held, *MOVED)


@pytest.mark.parametrize("name", [name for name in MOVED_ROWS if name != "cap"])
def test_crossing(user: Renter, name: str) -> None:
    """It ends as it does where its home drives."""
    cross(user, "openstack", moving(MOVED_ROWS[name], MACHINE, "m1.small"))


def test_parameter_servers(user: Renter, cloud: Cloud) -> None:
    """The first server drives them, and has a member of its own."""
    serve(user, "openstack", MACHINE, cloud.servers, *MOVED)


def test_cap(user: Renter, cloud: Cloud) -> None:
    """What drives ends the run by a credential that is held to its rules."""
    row = moving(MOVED_ROWS["cap"], MACHINE, "m1.small")
    going, _ = moved(user, "openstack", user.recipe(row.recipe))
    assert "/v2.1/os-keypairs" in cloud.nova.credentials(), "a path that only what drives may use"
    going.end(row.code)
    assert row.words in going.text


def test_containers(user: Renter) -> None:
    """The image is sent by the home, and servers have an engine."""
    try:
        engine = PrivateEngine("podman", make_image(("bash", "cat", "sleep"), python=False))
    except NoEngineError as error:
        pytest.skip(str(error))
    with engine:
        row = Crossing("echo image $FROM_IMAGE", "image yes", more=f"container: {IMAGE}", env=engine.env)
        cross(user, "openstack", moving(row, MACHINE))


def test_floating_addresses(user: Renter, cloud: Cloud, tmp_path: Path) -> None:
    """The home reaches servers by them, and these each other by their own; none is left at the end."""
    with (tmp_path / "openstack.yaml").open("a") as file:
        file.write("floating: public\n")

    def see(run: str) -> None:
        made = cloud.nova.asked("GET", "/network/v2.0/floatingips")["floatingips"]
        assert len(made) == 2
        let_go(user, run)

    drive_while_home_is_off(user, "openstack", MACHINE, GO, see)


@pytest.mark.parametrize("how", ["its host dies", "somebody deletes it"])
def test_the_server_that_drives_is_lost(user: Renter, cloud: Cloud, how: str) -> None:
    """The home goes on with the run, and its credential is removed."""
    going, _ = moved(user, "openstack", user.recipe(COUNTED.format(machine=MACHINE, go=GO, steps=400)))
    run = going.run
    let_go(user, run)
    going.until(lambda: "step=" in user.call("status", run).stdout, "what its driver publishes")
    (name,) = driving(cloud)
    server = name.split(" ")[1]
    kept = set(cloud.servers()) - {server}
    if how == "its host dies":
        user.lab.ec2.terminate_instances(InstanceIds=[cloud.hosts.booted[server]])
    else:
        cloud.nova.asked("DELETE", f"/v2.1/servers/{server}", user="me")
    going.until_said("it goes on, driven from here in the background")
    until(lambda: not driving(cloud))
    going.until(lambda: len(user.starts(run)) > 1, "its second attempt")
    assert kept < set(cloud.servers()), "the server that is left is worked on"
    assert going.end()["reason"] == "SUCCEEDED", going.text
    assert user.attempts(run) == ["NODE_LOST", "SUCCEEDED"]


def test_another_server_is_lost(user: Renter, cloud: Cloud) -> None:
    """The server that drives rents another one, and goes on from a checkpoint; its home is off."""
    going, driver = moved(user, "openstack", user.recipe(COUNTED.format(machine=MACHINE, go=GO, steps=300)))
    run = going.run
    let_go(user, run)
    until(lambda: user.saved_at(run))
    going.kill()
    (name,) = driving(cloud)
    (lost,) = set(cloud.servers()) - {name.split(" ")[1]}
    cloud.nova.asked("DELETE", f"/v2.1/servers/{lost}", user="me")
    again = user.start("resume", run, "--json")
    again.until_said("driven by another process")
    again.until(lambda: len(user.starts(run)) > 1, "its second attempt")
    assert drivers(run) == [driver]
    assert again.end()["reason"] == "SUCCEEDED", again.text
    assert max(step for _, step in user.starts(run)) > 0
