"""The real Infrastructure Manager in front of the lab: its EC2 connector rents there.

What the lab has at the end is the judge: nothing stays that nobody ends.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")

from renter import Renter

from trainmaster.providers.base import Node, NodeRequest, NodeState, ProviderPlace
from trainmaster.providers.im.client import ImClient
from trainmaster.providers.im.credentials import read_credentials
from trainmaster.providers.im.provider import ImProvider, im_offers
from trainmaster.providers.im.settings import read_settings
from trainmaster.spec.clocks import steady_s
from trainmaster.spec.errors import ProviderError, TrainmasterError
from trainmaster.testing.private_im import NoImError, PrivateIm, installed
from trainmaster.testing.waits import until
from trainmaster.transport.http_calls import HttpAnswer, Send, send_request

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1200)]

#: IM, its cloud and the run share this machine with other tests.
LONG_S = 500.0
PRICES = """\
provider,region,instance_type,vcpus,memory_gib,price_usd_per_hour,as_of
im,ec2,m4.xlarge,4,16,0.2,2026-11-01
im,ec2,m4.large,2,8,0.1,2026-11-01
"""
TYPES = [("m4.xlarge", 4, 16384, 0.2), ("m4.large", 2, 8192, 0.1)]
SERVED = """
name: steps
experiments:
  train:
    distributed: {strategy: ps-async, workers: 1, parameter_servers: 1, hardware: {ps: {instance: m4.large}}}
    framework: plain
    hardware: {instance: m4.xlarge}
    roles: {all: [base], ps: [server]}
    command: |
      test "$TRAINMASTER_ROLE $(cat /var/tmp/base)" = "$TRAINMASTER_ROLE root once 1 server"
      test -e /var/tmp/server || test "$TRAINMASTER_ROLE" = worker
      until test "$TRAINMASTER_ROLE" = worker; do sleep 1; done
"""
#: A second time would be seen.
ROLES = {
    "base": """
- become: true
  ansible.builtin.shell: echo $(id -un) once {{ groups['ps'] | length }} server >> /var/tmp/base
""",
    "server": "- ansible.builtin.file: {path: /var/tmp/server, state: touch}\n",
}
TWO = """
name: steps
experiments:
  train:
    distributed: {strategy: allreduce, workers: 2, per_node: 1}
    framework: plain
    hardware: {cpus: 2}
    command: "true"
"""
#: Not an end yet: to be asked again.
SLOW = re.compile("so far|does not answer|has not destroyed|has trouble")


@pytest.fixture(scope="module")
def manager(lab: Any, lab_cache: Path) -> Iterator[PrivateIm]:
    """One for all tests of this file."""
    try:
        python = installed(lab_cache)
    except NoImError as error:
        pytest.skip(str(error))
    with PrivateIm(python, lab.access["endpoint_url"], TYPES) as running:
        yield running


@pytest.fixture
def settings(manager: PrivateIm, lab: Any, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a user of it; what a test that failed has left is told and ended."""
    access = lab.access
    (tmp_path / "prices.csv").write_text(PRICES)
    credentials = tmp_path / "im.auth"
    credentials.touch(0o600)
    credentials.write_text(
        "type = InfrastructureManager; username = me; password = of-mine\n"
        f"id = ec2; type = EC2; username = {access['access_key_id']}; "
        f"password = {access['secret_access_key']}\n"
    )
    file = tmp_path / "im.yaml"
    file.write_text(
        f"url: {manager.url}\nprices: prices.csv\nclouds:\n"
        f"  ec2: {{image: 'aws://{access['region']}/{access['image_id']}', disk: 10GiB, user: tm}}\n"
    )
    yield {"TRAINMASTER_IM": os.fspath(file)}
    client = ImClient(manager.url, read_credentials(credentials))
    try:
        left = client.infrastructures()
    except ProviderError:
        manager.stop()
        manager.start()
        left = client.infrastructures()
    for each in left:
        print(each, client.state(each), client.message(each), client.description(each), sep="\n")
        client.destroy(each, wait=True)
    if left:
        print(manager.log())


def test_a_machine_is_lost_while_infrastructure_manager_is_away(
    renter: Renter, settings: dict[str, str], manager: PrivateIm
) -> None:
    """The gang waits for it, and goes on with a machine that is added to the same infrastructure."""
    before = renter.lab.alive()
    renting = renter.run(renter.gang(steps=400, pause=0.6, every=2), provider="im", **settings)
    run = renting.run
    renting.until(lambda: renter.checkpoints(run), "a checkpoint", LONG_S)
    machines = renter.lab.alive() - before
    assert len(machines) == 2
    manager.stop()
    renter.lab.end(min(machines))
    manager.start()
    found = renting.end(timeout_s=LONG_S)
    assert (found["reason"], found["cost_usd"] > 0) == ("SUCCEEDED", True), renting.text
    assert renter.attempts(run) == ["NODE_LOST", "SUCCEEDED"]
    assert renter.starts(run)[-1][1] >= 10, renting.text
    assert renter.lab.alive() == before, "nothing is left"


def test_its_driver_is_killed_while_machines_are_made(renter: Renter, settings: dict[str, str]) -> None:
    """Nobody has logged in yet; the next driver finds them, and gives back all of them."""
    before = renter.lab.alive()
    renting = renter.run(renter.gang(steps=10), provider="im", **settings)
    run = renting.run
    renting.until(lambda: renter.lab.alive() - before, "a machine", LONG_S)
    renting.kill()
    found = renter.start("resume", run, "--json", **settings).end(timeout_s=LONG_S)
    assert found["reason"] == "SUCCEEDED"
    assert renter.lab.alive() == before, "nothing is left"


@pytest.mark.skipif(find_spec("ansible") is None, reason="ansible-core is not installed")
def test_a_parameter_server_of_another_kind_is_kept_warm_and_given_back(
    renter: Renter, settings: dict[str, str]
) -> None:
    """Each machine is made ready by the roles of its members, once."""
    before, recipe = renter.lab.alive(), renter.recipe(SERVED)
    for role, tasks in ROLES.items():
        (renter.work / role / "tasks").mkdir(parents=True)
        (renter.work / role / "tasks" / "main.yml").write_text(tasks)
    first = renter.run(recipe, "--keep", "20m", provider="im", **settings)
    assert first.end(timeout_s=LONG_S)["reason"] == "SUCCEEDED", first.text
    (kept,) = json.loads(renter.call("clusters", "--json", **settings).stdout)["clusters"]
    assert (kept["state"], kept["provider"], len(kept["machines"])) == ("kept", "im", 2)
    machines = renter.lab.alive() - before
    assert {renter.lab.instance(each)["InstanceType"] for each in machines} == {"m4.xlarge", "m4.large"}
    second = renter.run(recipe, provider="im", **settings)
    assert second.end(timeout_s=LONG_S)["reason"] == "SUCCEEDED", second.text
    assert "is still warm and used again" in second.text
    assert renter.lab.alive() == before, "nobody wanted them any longer"


def test_its_cloud_has_no_capacity_for_a_type_or_the_quota_is_used_up(
    renter: Renter, settings: dict[str, str]
) -> None:
    """Another type is rented; where none can be, what the cloud says is told, and nothing stays."""
    before, recipe, lab = renter.lab.alive(), renter.recipe(TWO), renter.lab
    lab.call("capacity", 0, "--type", "m4.large")
    try:
        renting = renter.run(recipe, provider="im", **settings)
        assert renting.end(timeout_s=LONG_S)["reason"] == "SUCCEEDED", renting.text
    finally:
        lab.call("capacity", "none", "--type", "m4.large")
    assert re.search("no capacity for 2 m4.large .*: the cloud ec2 has no such machines now", renting.text)
    assert "2 x m4.xlarge (ec2) for node-1, node-2" in renting.text
    lab.call("quota", "on-demand", 3)
    try:
        renting = renter.run(recipe, provider="im", **settings)
        renting.until_said("train waits for 2 x m4.large or m4.xlarge", LONG_S)
        renting.interrupt()
        renting.end(code=None, timeout_s=LONG_S)
    finally:
        lab.call("quota", "on-demand", 10_000)
    for kind in ("m4.large", "m4.xlarge"):
        assert re.search(f"no capacity for 2 {kind} .*: your quota in the cloud ec2", renting.text), kind
    assert lab.alive() == before, "nothing is left"


def test_somebody_else_has_its_infrastructure_configured_and_destroys_it(
    renter: Renter, settings: dict[str, str], manager: PrivateIm
) -> None:
    """Machines whose configuration fails go on; of those that are gone the task goes on elsewhere."""
    before = renter.lab.alive()
    renting = renter.run(renter.gang(steps=600, pause=0.5, every=2), provider="im", **settings)
    run = renting.run
    renting.until(lambda: renter.checkpoints(run), "a checkpoint", LONG_S)
    credentials = read_credentials(Path(settings["TRAINMASTER_IM"]).parent / "im.auth")
    client = ImClient(manager.url, credentials)
    (name,) = client.infrastructures()
    found = re.search(r"system (tm-[\w-]+)", client.description(name))
    assert found is not None
    system = found[1]
    radl = (
        f"configure {system} (\n@begin\n- tasks:\n  - command: /bin/false\n@end\n)\n"
        f"contextualize (\n  system {system} configure {system} step 1\n)\n"
    )
    headers = {"Authorization": credentials.header, "Content-Type": "text/plain"}
    address = f"{manager.url}/infrastructures/{name}/reconfigure"
    assert send_request("PUT", address, headers, radl.encode(), 60.0).status == 200
    renting.until(lambda: client.state(name).state == "unconfigured", "it to fail", LONG_S)
    there = max(renter.checkpoints(run))
    renting.until(lambda: max(renter.checkpoints(run)) > there + 1, "later checkpoints", LONG_S)
    assert "is lost" not in renting.text
    client.destroy(name, wait=True)
    ended = renting.end(timeout_s=LONG_S)
    assert ended["reason"] == "SUCCEEDED", renting.text
    assert "somebody has removed it" in renting.text
    assert renter.attempts(run) == ["NODE_LOST", "SUCCEEDED"]
    assert renter.starts(run)[-1][1] >= 10, renting.text
    assert renter.lab.alive() == before, "nothing is left"


def test_what_goes_wrong_with_infrastructure_manager_leaves_nothing(
    lab: Any, settings: dict[str, str], manager: PrivateIm, tmp_path: Path
) -> None:
    """Its cloud refuses or is late, it is killed in mid-create, its answer is lost, nobody ever logs in."""
    before = lab.alive()
    read = read_settings(Path(settings["TRAINMASTER_IM"]))
    credentials = read_credentials(read.credentials_file)
    client = ImClient(read.url, credentials)
    wanted = NodeRequest("worker", 1, "m4.xlarge", "ec2", token="one", lease_s=20)

    def provider(send: Send = send_request, ahead_s: float = 0.0) -> ImProvider:
        offers, place = im_offers(read, credentials.clouds), ProviderPlace(tmp_path / "home", "faults")
        clock: Callable[[], float] = lambda: steady_s() + ahead_s  # noqa: E731
        return ImProvider(read, credentials, offers, place, send=send, clock=clock)

    def said(call: Callable[[], object]) -> str:
        """What it refuses with in the end, however slow this machine is."""

        def once() -> str:
            try:
                call()
            except TrainmasterError as error:
                time.sleep(0.3)
                return "" if SLOW.search(str(error)) else str(error)
            raise AssertionError("it does not refuse")

        return str(until(once, "an end", LONG_S))

    def got(call: Callable[[], Any]) -> Any:
        """What it gives in the end."""

        def once() -> tuple[Any] | None:
            try:
                return (call(),)
            except ProviderError as error:
                if not SLOW.search(str(error)):
                    raise
                time.sleep(0.3)  # a look costs IM something
                return None

        return until(once, "an answer", LONG_S)[0]

    def ends(method: str, *rest: Any) -> HttpAnswer:
        answer = send_request(method, *rest)
        if method == "POST":
            manager.stop()
        return answer

    def renews(method: str, address: str, *rest: Any) -> HttpAnswer:
        if address.endswith("/state"):
            provider().renew("late", 20)
        return send_request(method, address, *rest)

    def loses(method: str, *rest: Any) -> HttpAnswer:
        answer = send_request(method, *rest)
        if method == "POST":
            raise ConnectionResetError(104, "Connection reset by peer")
        return answer

    lab.do("fault", action="RunInstances", code="AuthFailure", status=401, count=None, delay_s=0.0)
    try:
        words = said(lambda: provider().acquire("refused", wanted))
        assert "does not take your credentials" in words
        assert got(client.infrastructures) == []
        with pytest.raises(ProviderError, match="does not answer"):
            provider(send=ends).acquire("stopped", wanted)
        manager.start()
        words = said(lambda: provider(ahead_s=200).acquire("stopped", wanted))
        assert re.search("started anew|your credentials", words), words
        assert got(client.infrastructures) == []
    finally:
        lab.do("fault", clear=True)

    lab.do("fault", action="RunInstances", code="", status=503, count=1, delay_s=4.0)
    try:
        assert len(got(lambda: provider(send=renews).acquire("late", wanted))) == 1
    finally:
        lab.do("fault", clear=True)
    got(lambda: provider().release("late"))
    assert got(client.infrastructures) == []

    with pytest.raises(ProviderError, match="does not answer"):
        provider(send=loses).acquire("lost", wanted)
    assert len(got(lambda: provider().acquire("lost", wanted))) == 1
    (machine,) = lab.alive() - before
    lab.until_state(machine, "stopped", LONG_S)  # its switch has come with its boot

    def gone() -> list[Node]:
        time.sleep(0.3)
        return [node for node in got(lambda: provider().nodes("lost")) if node.state is NodeState.GONE]

    (node,) = until(gone, "IM to see it", LONG_S)
    assert "switched off" in node.reason
    got(lambda: provider(ahead_s=1000).reap([]))
    assert got(client.infrastructures) == []
    assert lab.alive() == before, "nothing is left"
