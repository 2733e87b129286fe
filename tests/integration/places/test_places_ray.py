"""Runs in a real Ray of three nodes that others use, too, and all that may happen to them there."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from place_runs import (
    MOVED_ROWS,
    PATIENCE_S,
    AwayRenter,
    Crossing,
    cross,
    gang,
    have_two_homes,
    keep_for_the_next,
    moving,
    podman_with_image,
    serve,
    train_as_a_team,
    train_with_own_login,
    until,
    until_step,
)
from private_engines import IMAGE
from ray_places import SETTINGS, TENANT, RayAccount, account_of, renter_of, running_ray
from renter import Renter, Renting

from trainmaster.testing.counting_proxy import CountingProxy
from trainmaster.testing.private_ray import PrivateRay
from trainmaster.testing.private_s3 import PrivateS3
from trainmaster.testing.private_sshd import SshHost, make_key

pytestmark = [pytest.mark.timeout(900), pytest.mark.places]
#: Steps of a gang to which something happens: on a busy machine it takes a while until it does.
LONG = 600


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on the `PATH` of every node."""
    return tmp_path_factory.mktemp("tools")


@pytest.fixture(scope="module")
def ray(tools: Path) -> Iterator[PrivateRay]:
    """One for all tests."""
    yield from running_ray(tools)


@pytest.fixture
def account(ray: PrivateRay, tmp_path: Path) -> RayAccount:
    """A new user of it, beside somebody else."""
    return account_of(ray, tmp_path)


@pytest.fixture
def user(ray: PrivateRay, account: RayAccount, tmp_path: Path) -> Iterator[Renter]:
    """They run recipes there."""
    yield from renter_of(ray, account, tmp_path)


@pytest.fixture(scope="module")
def s3() -> Iterator[PrivateS3]:
    """A store that this machine reaches."""
    pytest.importorskip("boto3", reason="boto3 is not installed")
    with PrivateS3() as running:
        yield running


@pytest.fixture
def away(ray: PrivateRay, account: RayAccount, s3: PrivateS3, tmp_path: Path) -> Iterator[Renter]:
    """Their runs are driven by a node; all nodes reach their store."""
    for user in renter_of(ray, account, tmp_path, AwayRenter):
        with CountingProxy(s3.url, ray.address) as line:
            user.env |= {**s3.environment(line.url), "TRAINMASTER_STORE": f"s3://{s3.new_bucket()}/store"}
            yield user


def test_a_gang_of_two_beside_others(user: Renter, ray: PrivateRay) -> None:
    """GPUs are those that Ray has counted; nothing of it stays."""
    going = user.run(gang(user, 2, 20), provider="ray")
    assert going.end(timeout_s=PATIENCE_S)["state"] == "DONE"
    assert "gpus=0" in going.text


@contextlib.contextmanager
def way_there(kind: str, ray: PrivateRay, folder: Path) -> Iterator[str]:
    """As docs have it, in `ray.yaml`. A stand-in for `kubectl` shows what it is asked for."""
    if kind == "port":
        yield ray.client
    elif kind == "kubectl":
        kubectl = folder / "kubectl"
        kubectl.write_text(
            f'#!/bin/sh\ntest "$1 $2 $3 $4" = "exec -i head --" && shift 4 && exec {ray.enter} "$@"\n'
        )
        kubectl.chmod(0o755)
        yield f"via: {kubectl} exec -i head --\naddress: auto\npython: {sys.executable}\n"
    else:
        key, python = folder / "own_key", folder / "python"
        make_key(key)
        python.write_text(f'#!/bin/sh\nexec {ray.enter} {sys.executable} "$@"\n')  # this machine is no head
        python.chmod(0o755)
        (folder / "login").mkdir()
        host = SshHost(folder / "login", "login", key)
        host.start()
        try:
            yield f"login: root@127.0.0.1:{host.port}\nkey: {key}\naddress: auto\npython: {python}\n"
        finally:
            host.stop()


@pytest.mark.parametrize("kind", ["port", "kubectl", "login"])
def test_every_way_there_leads_into_machines(
    user: Renter, ray: PrivateRay, account: RayAccount, tmp_path: Path, kind: str
) -> None:
    """By shells, commands and files."""
    with way_there(kind, ray, tmp_path) as way:
        (account.home / "ray.yaml").write_text(SETTINGS.format(way=way, scratch=ray.scratch))
        going = user.run(gang(user, 2, 4000), provider="ray")
        run = going.run
        until_step(user, run)
        assert user.call("ssh", run, "worker-1", "--", "hostname").stdout.strip() in ray.names
        assert user.call("exec", run, "worker-0", "--", "sh", "-c", "exit 3", code=3).returncode == 3
        source = user.work / "sent"
        source.write_bytes(os.urandom(2_000_000))
        user.call("cp", str(source), f"{run}/worker-1:{ray.scratch}/sent")
        user.call("cp", f"{run}/worker-1:{ray.scratch}/sent", str(user.work / "back"))
        assert (user.work / "back").read_bytes() == source.read_bytes()
        (ray.scratch / "sent").unlink()
        going.interrupt()
        going.end(code=None, timeout_s=PATIENCE_S)


def test_what_never_fits_is_refused(user: Renter) -> None:
    """Before anything is asked for; Ray would let it wait for ever."""
    going = user.run(gang(user, 1, 20, "huge"), provider="ray")
    going.process.wait(PATIENCE_S)
    assert going.process.returncode == 2
    assert "can never have 1 x CPU=64" in going.text


def test_a_doctor_looks_at_nodes(user: Renter, ray: PrivateRay) -> None:
    """Nothing of that stays there."""
    said = user.call("doctor", "--provider", "ray").stdout
    assert said.count("reaches all 2 others") == len(ray.names), said
    assert said.count("may write below") == said.count("as ours") == len(ray.names), said


def test_labels_and_resources_of_the_site(user: Renter, ray: PrivateRay) -> None:
    """By which the last node is told from others; a driver that is killed finds what it had."""
    going = user.run(gang(user, 1, 200, "rack"), provider="ray")
    run = going.run
    until_step(user, run)
    before = ray.others()
    assert ray.said("print(ray.available_resources().get('scanner', 0))") == "0"
    going.kill()
    again = user.start("resume", run, "--json")
    again.until_said("train")
    assert ray.others() == before
    again.interrupt()
    again.end(code=None, timeout_s=PATIENCE_S)


ROWS = {
    "volume": Crossing(
        'cat "$TRAINMASTER_DATA_IMAGES/deep/a"', "of the volume", "node",
        more="data: {images: {volume: images}}",
    ),
    "sweep": Crossing("echo rate {{rate}}", "rate 2", "node", more="parameters: {rate: [1, 2, 3]}"),
    "cap": Crossing("sleep 600", "the run ends: it may cost", "dear", "{total: $0.6}", code=1),
    "a limit of waiting": Crossing("echo never", "no machines after 5 s", "node", "{wait: 5s}", code=1),
}  # fmt: skip
#: Holds all GPUs that there are.
HOLD = """
from ray.util.placement_group import placement_group
ray.get(placement_group([{'GPU': 1}] * 3, 'SPREAD', 'held', lifetime='detached').ready())
print(1)
"""
#: Holds the head's GPU: machines are on the other two.
HOLD_HEAD = HOLD.replace("[{'GPU': 1}] * 3", "[{'GPU': 1, 'node:__internal_head__': 0.001}]")
LET_GO = """
from ray.util import get_placement_group, remove_placement_group
remove_placement_group(get_placement_group('held'))
print(1)
"""


@pytest.mark.parametrize("name", ROWS)
def test_crossing(user: Renter, ray: PrivateRay, name: str) -> None:
    """It ends as it does elsewhere."""
    if name == "a limit of waiting":
        assert ray.said(HOLD)
    cross(user, "ray", ROWS[name])
    if name == "a limit of waiting":
        assert ray.said(LET_GO)


@pytest.mark.parametrize("name", MOVED_ROWS)
def test_crossing_driven_by_a_node(away: Renter, name: str) -> None:
    """It ends as it does when it is driven at home."""
    cross(away, "ray", replace(moving(MOVED_ROWS[name], "node"), options=()))


def test_parameter_servers_driven_by_a_node(away: Renter) -> None:
    """The server is on the third."""
    serve(away, "ray", "node")


def test_machines_that_are_kept_drive_the_next_run(away: Renter, ray: PrivateRay) -> None:
    """The same actors; what the first driver had there is gone."""
    keep_for_the_next(away, "ray", "node", ray.others)


@pytest.mark.parametrize("who", ["user", "away"])
def test_two_homes_have_one_ray(
    request: pytest.FixtureRequest, ray: PrivateRay, tmp_path: Path, who: str
) -> None:
    """Driven from the homes, and by nodes."""
    have_two_homes(request.getfixturevalue(who), tmp_path / "other", "ray", "half", ray.others)


def test_containers(user: Renter, tools: Path) -> None:
    """Where nodes can start any, tasks run in theirs; else it is said which engine they lack."""
    container = Crossing("echo image $FROM_IMAGE", "image yes", "node", more=f"container: {IMAGE}")
    with podman_with_image(tools):
        chosen = {"TRAINMASTER_CONTAINER_ENGINE": "podman"}
        cross(user, "ray", replace(container, env=chosen))
    (tools / "podman").write_text("#!/bin/sh\nexit 127\n")
    cross(user, "ray", replace(container, env=chosen, words="podman", code=1))


def test_a_gang_of_three(user: Renter, ray: PrivateRay) -> None:
    """A node each."""
    going = user.run(gang(user, 3, 60), provider="ray")
    until(lambda: sorted(ray.runs("steps.py")) == sorted(ray.names), seen=lambda: going.text)
    assert going.end(timeout_s=PATIENCE_S)["state"] == "DONE"


def test_parameter_servers(user: Renter) -> None:
    """They are in the workers' placement group: all or none."""
    serve(user, "ray", "node")


def test_machines_that_are_kept_have_the_next_run(user: Renter, ray: PrivateRay) -> None:
    """The same actors."""
    keep_for_the_next(user, "ray", "node", ray.others)


def test_a_team_trains_on_a_server_that_may_use_it(user: Renter, tmp_path: Path) -> None:
    """Its member has no settings of it."""
    train_as_a_team(user, "ray", tmp_path, "node")


def test_a_node_is_removed(user: Renter, ray: PrivateRay) -> None:
    """The gang goes on from its checkpoint, on the third."""
    going = user.run(gang(user, 2, LONG), provider="ray")
    run = going.run
    until_step(user, run)
    held = ray.said("print(*(n['NodeManagerAddress'] for n in ray.nodes() if n['Alive']))").split()
    lost = next(name for name in ray.runs("steps.py") if name != ray.names[0])
    ray.remove(lost)
    try:
        told = going.end(timeout_s=PATIENCE_S)
    finally:
        ray.boot(lost)
        until(lambda: len(held) == int(ray.said("print(sum(n['Alive'] for n in ray.nodes()))") or 0))
    assert told["state"] == "DONE"
    assert max(step for _, step in user.starts(run)) > 0


def test_a_node_is_removed_while_another_drives(away: Renter, ray: PrivateRay) -> None:
    """It brings the third what it needs, over that Ray."""
    going = away.run(gang(away, 2, 300), provider="ray")
    until(lambda: "step=" in away.call("status", going.run).stdout and len(away.saved_at(going.run)))
    (driver,) = ray.runs("machine_driver")
    lost = next(name for name in ray.runs("steps.py") if name != driver)
    ray.remove(lost)
    try:
        told = going.end(timeout_s=PATIENCE_S)
    finally:
        ray.boot(lost)
        until(lambda: len(ray.names) == int(ray.said("print(sum(n['Alive'] for n in ray.nodes()))") or 0))
    assert told["state"] == "DONE"
    assert max(step for _, step in away.starts(going.run)) > 0


def test_a_node_that_is_taken_back_is_left_in_time(user: Renter, ray: PrivateRay) -> None:
    """It is drained, with some time left: what was learnt is saved, and the gang goes on on the third."""
    going = user.run(gang(user, 2, LONG), provider="ray")
    run = going.run
    until_step(user, run)
    lost = next(name for name in ray.runs("steps.py") if name != ray.names[0])
    ray.drain(lost, 60)
    try:
        until(lambda: lost not in ray.runs("steps.py"), 60, seen=lambda: going.text)
    finally:
        ray.remove(lost)
        ray.boot(lost)
        until(lambda: len(ray.names) == int(ray.said("print(sum(n['Alive'] for n in ray.nodes()))") or 0))
    assert going.end(timeout_s=PATIENCE_S)["state"] == "DONE"
    assert "is taken back in" in going.text
    assert max(step for _, step in user.starts(run)) > 0


def test_a_driver_that_never_comes_back_leaves_nothing(user: Renter, ray: PrivateRay) -> None:
    """Each node's own switch, and the keeper's, need nobody; others' work goes on."""
    going = user.run(gang(user, 2, 4000), provider="ray", TRAINMASTER_NODE_LEASE="30s")
    until_step(user, going.run)
    going.kill()
    until(lambda: not ray.others(), 120, seen=ray.others)
    until(lambda: not ray.runs("steps.py"), seen=lambda: ray.runs("steps.py"))


def test_somebody_ends_our_actor(user: Renter, ray: PrivateRay) -> None:
    """As they may: another is asked for, in the same place."""
    going = user.run(gang(user, 2, LONG), provider="ray")
    run = going.run
    until_step(user, run)
    name = next(name for name in ray.others() if name.endswith(".1"))
    home = name.partition("-")[0]
    ray.said(f"ray.kill(ray.get_actor({name!r}, namespace='trainmaster-{home}'))\nprint(1)")
    assert going.end(timeout_s=PATIENCE_S)["state"] == "DONE"
    assert max(step for _, step in user.starts(run)) > 0


def test_the_head_is_started_anew(user: Renter, ray: PrivateRay) -> None:
    """With all that it knew gone: machines are asked for again, and the work goes on from the checkpoint."""
    going = user.run(gang(user, 2, LONG), provider="ray")
    run = going.run
    until_step(user, run)
    for name in ray.names:
        ray.kill(name)
    ray.start()
    assert ray.said(TENANT)
    assert going.end(timeout_s=2 * PATIENCE_S)["state"] == "DONE"
    assert max(step for _, step in user.starts(run)) > 0


@contextlib.contextmanager
def driven_beside_the_head(away: Renter, ray: PrivateRay, steps: int = 300) -> Iterator[tuple[Renting, str]]:
    """A gang that a node drives which is not the head, and which node; the head is free then, too."""
    assert ray.said(HOLD_HEAD)
    try:
        going = away.run(gang(away, 2, steps), provider="ray")
    finally:
        assert ray.said(LET_GO)
    until(lambda: "step=" in away.call("status", going.run).stdout and len(away.saved_at(going.run)))
    (driver,) = ray.runs("machine_driver")
    assert driver != ray.names[0]
    yield going, driver
    told = going.end(timeout_s=2 * PATIENCE_S)
    assert told["state"] == "DONE"
    assert max(step for _, step in away.starts(going.run)) > 0


def test_the_node_that_drives_is_lost(away: Renter, ray: PrivateRay) -> None:
    """Its home goes on with the run, on the machine that is left and the third."""
    with driven_beside_the_head(away, ray) as (going, driver):
        machines = {name for name in ray.others() if name.rpartition("-")[2].count(".") == 1}
        ray.kill(driver)
        going.until_said("it goes on, driven from here in the background")
        until(lambda: len(machines & set(ray.others())) == 1, seen=ray.others)
        ray.boot(driver)


def test_the_head_is_started_anew_while_a_node_drives(away: Renter, ray: PrivateRay) -> None:
    """Other nodes end when they see it, up to a minute later, with the driver: its home asks again."""
    with driven_beside_the_head(away, ray, 2000) as (going, _):
        ray.restart_head()
        assert ray.said(TENANT)
        going.until_said("it goes on, driven from here in the background", PATIENCE_S)


@pytest.mark.parametrize("whose", ["driver", "worker", "keeper"])
def test_somebody_ends_our_actor_while_a_node_drives(away: Renter, ray: PrivateRay, whose: str) -> None:
    """The driver asks for another; its own, or the keeper's, ends it, and its home goes on."""
    with driven_beside_the_head(away, ray) as (going, _):
        names = {"driver": ".0", "worker": ".1"}
        ours = [name for name in ray.others() if "-" in name]
        if whose == "keeper":
            (name,) = [each for each in ours if "." not in each.rpartition("-")[2]]
        else:
            machines = [each for each in ours if each.rpartition("-")[2].count(".") == 1]  # groups have two
            (name,) = [each for each in machines if each.endswith(names[whose])]
        home = name.partition("-")[0]
        assert ray.said(f"ray.kill(ray.get_actor({name!r}, namespace='trainmaster-{home}'))\nprint(1)")
        if whose != "worker":
            going.until_said("it goes on, driven from here in the background", PATIENCE_S)


def test_a_node_that_does_not_suit_is_left_out(away: Renter, ray: PrivateRay, account: RayAccount) -> None:
    """It is said which one and why, and another is had; one that does may drive."""
    settings = account.home / "ray.yaml"
    settings.write_text(SETTINGS.format(way=ray.way, scratch="/var/tmp/ours"))
    bad = ray.var(ray.names[1]) / "ours"
    bad.write_text("no directory")
    assert ray.said(HOLD_HEAD)
    try:
        going = Renter.run(away, gang(away, 2, 60), "--on-cluster", "--send-keys", provider="ray")
        going.until_said("does not suit, and is left out")
        assert ray.said(LET_GO)
        said = away.call("doctor", "--provider", "ray", code=None).stdout
        assert said.count("may write below") == 2, said
        assert said.count("may not write below") == 1, said
        going.until_said(r"drives it from now on")
        (away.work / "go").touch()
        assert going.end(timeout_s=PATIENCE_S)["state"] == "DONE"
    finally:
        bad.unlink()
        for place in (ray.var(name) / "ours" for name in ray.names):  # an empty one stays
            until(lambda place=place: not place.exists() or not list(place.iterdir()))
            with contextlib.suppress(FileNotFoundError):
                place.rmdir()


def test_a_team_trains_with_its_own_login(
    user: Renter, ray: PrivateRay, account: RayAccount, tmp_path: Path
) -> None:
    """By SSH, with its own key, where the server has neither a way to Ray nor settings for it."""
    (account.home / "ray.yaml").unlink()
    (tmp_path / "mia").mkdir()
    user.env["TRAINMASTER_WEBHOOK_NETWORKS"] = "127.0.0.0/8"
    with way_there("login", ray, tmp_path) as way:
        (tmp_path / "mia" / "ray.yaml").write_text(SETTINGS.format(way=way, scratch=ray.scratch))
        secret = (tmp_path / "own_key").read_text().splitlines()[3]
        train_with_own_login(user, "ray", tmp_path, "half", [secret])
