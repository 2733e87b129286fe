"""Recipes on hosts of one's own, over SSH: the provider `hosts`, with hosts that the lab has booted."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

pytest.importorskip("ray", reason="ray is not installed")

from renter import SCALE, Renter

from newer_version import newer_version
from trainmaster.testing.waits import until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
EXAMPLE = Path(__file__).parents[3] / "examples" / "tf-ps"
SUM = """
import os
from mpi4py import MPI

world = MPI.COMM_WORLD
who = f"{os.environ['GREETING']} from rank {world.rank} of {world.size}"
sum = world.allreduce(world.rank + 1)
print(f"{who}, sum {sum} on {os.uname().nodename}\\n", end="")  # in one write: mpirun mixes those of ranks
"""
#: Each member answers where `TF_CONFIG` has it, as TensorFlow's servers do, and the chief hears all of them.
MEETS = """
import json, os, socket, time

config = json.loads(os.environ["TF_CONFIG"])
kind, index = config["task"]["type"], config["task"]["index"]
places = {(name, at): place for name, every in config["cluster"].items() for at, place in enumerate(every)}

def join(place):
    host, _, port = place.rpartition(":")
    for _ in range(600):
        try:
            return socket.create_connection((host, int(port)), 10)
        except OSError as error:  # it has not begun
            last = error
            time.sleep(0.1)
    raise last

if kind == "chief":
    for who, place in places.items():
        if who != ("chief", 0):
            with join(place) as stream:
                assert json.loads(stream.makefile().readline()) == list(who)
                stream.sendall(b"heard")
    print("step   20  loss none", flush=True)
else:
    with socket.create_server(("", int(places[kind, index].rpartition(":")[2]))) as server:
        stream, _ = server.accept()
        stream.sendall(json.dumps([kind, index]).encode() + bytes([10]))
        stream.recv(5)
    time.sleep(600 if kind == "ps" else 0)  # it is stopped in the end
"""


@pytest.fixture(scope="module")
def owner(make_lab_user: Callable[[], Any]) -> Any:
    """Somebody with two hosts."""
    user = make_lab_user()
    user.call("up", *SCALE, "--hosts", "2")
    return user


@pytest.fixture
def renter(owner: Any, tmp_path: Path) -> Iterator[Renter]:
    work = tmp_path / "work"
    work.mkdir()
    renter = Renter(owner, work)
    yield renter
    if renter.kill_all():  # a test has failed: the next one is not to wait for its claims to run out
        for host in owner.json("status")["hosts"]:
            owner.ssh(host["id"])("rm -f /var/tmp/trainmaster-claims.u*/*.json")


def test_a_first_quote_of_a_gang_goes_by_what_the_hosts_get_from_each_other(
    renter: Renter, owner: Any
) -> None:
    """A gigabit was believed of cards that nobody had told, whatever they carried."""
    text = """
name: ring
provider: hosts
experiments:
  train:
    distributed: {strategy: allreduce, workers: 2}
    command: python train.py
    steps: 300
"""
    (renter.work / "train.py").write_text(
        "import time, trainmaster\n"
        "for step in range(1, 301):\n    time.sleep(0.02)\n    trainmaster.report(step=step)\n"
    )
    carries = 750 * float(SCALE[SCALE.index("--network-scale") + 1])  # of an m4.xlarge
    for verb in ("quote", "doctor"):
        asked = [renter.recipe(text), "--json"] if verb == "quote" else ["--provider", "hosts", "--json"]
        said = renter.call(verb, *asked).stdout
        words = re.search(r"get ([0-9.]+) ([MG])bit/s", said)
        assert words, said
        mbps = float(words[1]) * (1000 if words[2] == "G" else 1)
        assert 0.5 * carries < mbps < 1.1 * carries, verb


def processes_on_hosts(owner: Any) -> str:
    """Command lines of everything that runs on them."""
    hosts = owner.json("status")["hosts"]
    return "\n".join(owner.ssh(host["id"])("ps -eo args") for host in hosts)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not installed")
def test_mpi_over_two_hosts(renter: Renter) -> None:
    """Ranks log in to each other with the cluster's key, and find the members' environment."""
    text = """
name: steps
experiments:
  train:
    distributed: {strategy: allreduce, workers: 2}
    framework: mpi
    env: {GREETING: hello}
    command: python sum.py
"""
    pytest.importorskip("mpi4py")
    (renter.work / "sum.py").write_text(SUM)
    found = renter.run(renter.recipe(text), provider="hosts").end()
    lines = [line for line in renter.call("logs", found["run"]).stdout.splitlines() if "from rank" in line]
    assert sorted(line.split(" on ")[0].split("hello ")[1] for line in lines) == [
        "from rank 0 of 2, sum 3",
        "from rank 1 of 2, sum 3",
    ]
    assert len({line.split(" on ")[1] for line in lines}) == 2


def test_a_setup_of_a_killed_driver_is_ended_by_cancel(renter: Renter, owner: Any) -> None:
    """It goes on for the next driver; a host of one's own does not keep it."""
    text = """
name: steps
experiments: {train: {setup: sleep 24680, command: "true"}}
"""
    going = renter.run(renter.recipe(text), provider="hosts")
    going.until(lambda: "sleep 24680" in processes_on_hosts(owner), "its setup")
    going.kill()
    assert "sleep 24680" in processes_on_hosts(owner)
    renter.call("cancel", going.run)
    until(lambda: "sleep 24680" not in processes_on_hosts(owner), "it is ended")


@pytest.mark.crossings  # to cancel takes a minute, as the host is waited for
def test_a_setup_on_a_host_that_cancel_did_not_reach_is_ended_by_the_next_one(
    renter: Renter, owner: Any
) -> None:
    """The end of its lease does not."""
    text = """
name: steps
experiments:
  train:
    distributed: {strategy: allreduce, workers: 2}
    framework: plain
    setup: SETUP
    command: "true"
"""
    renter.env["TRAINMASTER_NODE_LEASE"] = "40s"
    going = renter.run(renter.recipe(text.replace("SETUP", "sleep 24681")), provider="hosts")
    going.until(lambda: processes_on_hosts(owner).count("\nsleep 24681") == 2, "a setup on each")
    going.kill()
    cut = owner.json("status")["hosts"][1]["id"]
    owner.call("cut", cut)
    renter.call("cancel", going.run)
    owner.call("heal", cut)
    assert processes_on_hosts(owner).count("\nsleep 24681") == 1
    renter.run(renter.recipe(text.replace("SETUP", "'true'")), provider="hosts").end()
    assert "sleep 24681" not in processes_on_hosts(owner)


@pytest.mark.tensorflow
@pytest.mark.parametrize("script", ["meets", pytest.param("example", marks=pytest.mark.crossings)])
def test_parameter_servers_on_two_hosts(renter: Renter, script: str) -> None:
    """The workers are on different hosts, and the others sit with them; the example as it is, in step, too.

    TensorFlow on each member takes a minute of a processor: `make test` has members that meet without it.
    """
    if script == "example":
        pytest.importorskip("tensorflow")
        shutil.copy(EXAMPLE / "train.py", renter.work)
    else:
        (renter.work / "train.py").write_text(MEETS)
    text = """
name: steps
experiments:
  train:
    framework: tensorflow
    distributed: {strategy: ps-sync, workers: 2, parameter_servers: 1}
    command: echo "on $(hostname)"; python train.py --sync --steps 20
"""
    found = renter.run(renter.recipe(text), provider="hosts").end()
    assert found["reason"] == "SUCCEEDED"
    places = {
        member: renter.call("logs", found["run"], "--member", member).stdout.partition("on ip-")[2].split()[0]
        for member in ("chief-0", "worker-0", "worker-1", "ps-0")
    }
    assert places["worker-0"] != places["worker-1"]
    assert "step   20  loss" in renter.call("logs", found["run"], "--member", "chief-0").stdout


@pytest.mark.crossings  # `test_lab_data.py` looks for what stays
def test_two_runs_share_the_hosts_one_after_the_other_and_nothing_of_them_stays(
    renter: Renter, owner: Any
) -> None:
    """A host without slots is lent to one run at a time: the other one waits for it."""
    first = renter.run(renter.gang(steps=20, engine="ray"), provider="hosts")
    first.until_said("attempt 1 starts")
    second = renter.run(renter.gang(steps=20), provider="hosts")
    found = first.end()
    assert (found["reason"], found["cost_usd"]) == ("SUCCEEDED", 0.0)
    assert renter.call("logs", found["run"]).stdout.count("done at 20") == 2
    assert second.end()["reason"] == "SUCCEEDED"
    left = processes_on_hosts(owner)
    assert "ray" not in left
    assert "steps.py" not in left
    assert "supervisor" not in left


@pytest.mark.crossings
@pytest.mark.parametrize("is_killed", [False, True], ids=["resumed", "killed"])
def test_hosts_that_others_use_meanwhile_send_a_run_on_to_the_next_place(
    renter: Renter, *, is_killed: bool
) -> None:
    """From its newest checkpoint, for no more than `budget.total`; also if its driver is killed."""
    text = renter.gang(steps=60, every=2).read_text() + "provider: [hosts, lab]\nbudget: {total: $1}\n"
    first = renter.start("run", renter.recipe(text), "--yes", "--json")
    run = first.run
    first.until(lambda: renter.checkpoints(run), "a checkpoint")
    first.interrupt()
    first.end(code=None)
    other = renter.run(renter.gang(steps=2000), provider="hosts")
    other.until_said("attempt 1 starts")
    going = renter.start("resume", run, "--json")
    if is_killed:
        going.until_said("hosts has no machines")
        going.kill()
        going = renter.start("resume", run, "--json")
    found = going.end()
    assert found["reason"] == "SUCCEEDED"
    assert 0 < found["cost_usd"] < 1
    assert (found["place"]["provider"], found["place"]["next"]) == ("lab", [])
    assert found["place"]["given_up"][0].startswith("hosts: ")
    assert "at lab; no machines at hosts" in renter.call("status", run).stdout
    assert renter.starts(run)[-1][1] > 0
    assert [
        each["provider"] for each in json.loads(renter.call("clusters", "--json").stdout)["clusters"]
    ] == ["hosts"]
    other.interrupt()
    other.end(code=None)


def test_hosts_that_are_broken_are_left_out_where_the_others_suffice(
    renter: Renter, owner: Any, tmp_path: Path
) -> None:
    """One lets nobody in, one has no Python: single tasks go on without them, a gang does not begin."""
    lines = (owner.directory / "hosts.yaml").read_text().splitlines()
    well, other = (json.loads(line.strip().removeprefix("- ")) for line in lines if "address" in line)
    shut = {**well, "name": "shut.lab", "port": 2}
    bare = {**other, "name": "bare.lab", "python": "/nowhere/python"}
    inventory = tmp_path / "hosts.yaml"
    inventory.write_text(json.dumps({"hosts": [{**well, "name": "well.lab"}, bare, shut]}))
    sweep = """
name: steps
experiments:
  train:
    workers: 3
    parameters: {x: {range: 1-4, step: 1}}
    command: echo task {{x}} on $(hostname)
"""
    hosts = {"TRAINMASTER_HOSTS": str(inventory)}
    renting = renter.run(renter.recipe(sweep), provider="hosts", **hosts)
    found = renting.end()
    assert found["experiments"]["train"]["tasks"]["succeeded"] == 4
    assert "shut.lab is left out: " in renting.text
    assert re.search(r"bare.lab\) is given up: .*no Python", renting.text)

    gang = renter.run(renter.gang(workers=2, steps=5), provider="hosts", **hosts)
    assert gang.end(code=1)["reason"] == "INTERNAL"
    assert re.search(r"bare.lab\) cannot be used: .*no Python", gang.text)
    strict = renter.gang(workers=3, steps=5).read_text().replace("workers: 3", "workers: 3, per_node: 1")
    refused = renter.run(renter.recipe(strict), provider="hosts", **hosts)
    refused.end(code=1)
    assert "2 hosts for 3 worker nodes (shut.lab" in refused.text
    assert "started" not in refused.text


def entries(owner: Any) -> list[dict[str, Any]]:
    """The hosts as they are listed."""
    found: list[dict[str, Any]] = YAML(typ="safe").load(owner.directory / "hosts.yaml")["hosts"]
    return found


def inventory(owner: Any, path: Path, **second: Any) -> dict[str, str]:
    """The variable that names another list of the hosts, in which the second one is told otherwise."""
    hosts = entries(owner)
    hosts[1] |= second
    path.write_text(json.dumps({"hosts": hosts}))
    return {"TRAINMASTER_HOSTS": str(path)}


def test_a_host_that_does_not_let_us_in_is_named(renter: Renter, owner: Any, tmp_path: Path) -> None:
    key = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    env = inventory(owner, tmp_path / "hosts.yaml", key=str(key))
    renting = renter.run(renter.gang(steps=20), provider="hosts", **env)
    renting.end(2)
    second = entries(owner)[1]
    assert f"{second['name']} ({second['address']}" in renting.text
    assert f"does not let admin in with the key {key}" in renting.text


def test_a_host_with_another_key_is_refused(renter: Renter, owner: Any, tmp_path: Path) -> None:
    first = entries(owner)[0]
    env = inventory(owner, tmp_path / "hosts.yaml", host_key=first["host_key"])
    renting = renter.run(renter.gang(steps=20), provider="hosts", **env)
    renting.end(2)
    assert "shows another host key than it should" in renting.text
    assert "steps.py" not in processes_on_hosts(owner)


def test_killed_while_hosts_are_made_nodes(renter: Renter, owner: Any, tmp_path: Path) -> None:
    """The next run finds what is there, half of it or not."""
    hosts = entries(owner)
    for host in hosts:
        host["directory"] = "/var/tmp/elsewhere"
    path = tmp_path / "hosts.yaml"
    path.write_text(json.dumps({"hosts": hosts}))
    first, _ = (owner.ssh(host["name"], stay=True) for host in hosts)
    renting = renter.run(renter.gang(steps=20), provider="hosts", TRAINMASTER_HOSTS=str(path))
    run = renting.run
    renting.until(lambda: first.run("ls -A /var/tmp/elsewhere/*").stdout, "something of ours")
    renting.kill()
    found = renter.start("resume", run, "--json", TRAINMASTER_HOSTS=str(path)).end()
    assert found["reason"] == "SUCCEEDED"
    assert renter.starts(run) == [(1, 0)]
    until(lambda: "supervisor" not in processes_on_hosts(owner), "nothing of it stays")


@pytest.mark.crossings
def test_what_waits_for_a_lost_host_ends_without_a_driver(renter: Renter, owner: Any) -> None:
    """Both hosts have asked each other in vain for the lease; the next driver goes on from the checkpoint."""
    renter.env["TRAINMASTER_NODE_LEASE"] = "90s"
    renting = renter.run(renter.gang(steps=2000, pause=0.5, later=0.002, engine="ssh"), provider="hosts")
    run = renting.run
    renting.until_said("train/0: step")
    renting.kill()
    machines = renter.machines(run)
    time.sleep(30)  # every eighth of the lease it is asked how the other member is
    owner.call("cut", machines["worker-1"])
    stays = owner.ssh(machines["worker-0"])
    until(lambda: "steps.py" not in stays("ps -eo args"), "the member that is left ends", patience_s=240.0)
    said = stays("cat $(find /var/tmp/trainmaster-*/ -name 'worker-?.log')")
    assert "is lost while no process drives the run]" in said
    assert "told to stop" in said
    owner.call("heal", machines["worker-1"])
    assert renter.start("resume", run, "--json").end()["reason"] == "SUCCEEDED"
    assert renter.attempts(run) == ["NODE_LOST", "SUCCEEDED"]


@pytest.mark.crossings
@pytest.mark.parametrize("engine", ["ssh", "ray"])
def test_agents_of_a_newer_version_are_left_for_15_minutes(
    renter: Renter, owner: Any, tmp_path: Path, engine: str
) -> None:
    """Its driver is not understood, which is told; when hosts are given up, it begins on them again."""
    renter.env["TRAINMASTER_NODE_LEASE"] = "40s"
    newer = str(newer_version(tmp_path / "newer", also_agents=True))
    going = renter.run(renter.gang(steps=900, every=3, engine=engine), provider="hosts", PYTHONPATH=newer)
    run = going.run
    until(lambda: renter.checkpoints(run), "a checkpoint", patience_s=120.0)
    going.kill()
    refused = renter.call("resume", run, code=1).stderr
    assert "its agent was started by another version of Trainmaster" in refused
    assert "without a driver for 15 minutes" in refused
    assert "steps.py" in processes_on_hosts(owner)
    time.sleep(50)  # here it is 40 s
    assert renter.start("resume", run, "--json").end()["reason"] == "SUCCEEDED"
    assert renter.attempts(run) == ["NODE_LOST", "SUCCEEDED"]
    assert max(step for _, step in renter.starts(run)) > 0
    assert "steps.py" not in processes_on_hosts(owner)
