"""What goes wrong when renting on AWS: answers that are lost, late or wrong, crashes in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")
pytest.importorskip("moto.server", reason="moto[server] is not installed")

from aws_stand_in import (
    DROP,
    REGION,
    ZONES,
    Answer,
    AwsBench,
    Call,
    Rule,
    free_port,
    hidden,
    refusal,
    runs,
)

from trainmaster.providers.aws.provider import AwsProvider
from trainmaster.providers.base import NoCapacityError, NodeState, ProviderPlace
from trainmaster.providers.plugins import get_provider
from trainmaster.spec.errors import ProviderError, UsageError
from trainmaster.testing.provider_contract import alive

# --- what is rented ----------------------------------------------------------------------------------


def test_spot_and_on_demand_in_one_cluster(bench: AwsBench) -> None:
    """And everything about them that somebody relies on later."""
    provider = bench.provider()
    workers = provider.acquire("digits-7f3a", bench.request(count=2, spot=True, token="w", lease_s=321))
    (server,) = provider.acquire("digits-7f3a", bench.request("ps", instance_type="t2.small", token="p"))
    assert [node.spot for node in workers] == [True, True]
    assert not server.spot
    found = {one["InstanceId"]: one for one in bench.instances()}
    assert len(found) == 3
    for node in [*workers, server]:
        one = found[node.id]
        tags = {tag["Key"]: tag["Value"] for tag in one["Tags"]}
        assert tags["trainmaster:home"] == "ours-0123456789abcdef"
        assert tags["trainmaster:cluster"] == "digits-7f3a"
        assert tags["trainmaster:role"] == node.role
        assert tags["Name"] == f"trainmaster digits-7f3a {node.role}"
        assert (one.get("InstanceLifecycle") == "spot") == node.spot
        assert node.started_at == one["LaunchTime"].timestamp()
        assert node.zone == ZONES[0]
        assert one["ImageId"] == "ami-00000002", "Debian's newest"
        assert node.user == "admin"
        assert one["KeyName"].endswith("digits-7f3a")
    shown = {node.id: node for node in provider.nodes("digits-7f3a")}
    assert shown.keys() == found.keys()
    for node in shown.values():
        assert node.state is NodeState.READY
        assert node.address == found[node.id]["PublicIpAddress"]
        assert node.private_address.startswith("172.31.")
        assert node.key
        assert node.key.stat().st_mode & 0o77 == 0
        assert "OPENSSH PRIVATE KEY" in node.key.read_text()
    client = bench.ec2()
    for node in [*workers, server]:
        behaviour = client.describe_instance_attribute(
            InstanceId=node.id, Attribute="instanceInitiatedShutdownBehavior"
        )["InstanceInitiatedShutdownBehavior"]["Value"]
        assert behaviour == "terminate"
    (group,) = client.describe_security_groups(
        Filters=[{"Name": "tag:trainmaster:cluster", "Values": ["digits-7f3a"]}]
    )["SecurityGroups"]
    client.close()
    rules = {(rule["IpProtocol"], rule.get("FromPort")): rule for rule in group["IpPermissions"]}
    assert set(rules) == {("-1", None), ("tcp", 22)} or set(rules) == {("-1", -1), ("tcp", 22)}
    inside = next(rule for (protocol, _), rule in rules.items() if protocol == "-1")
    assert [pair["GroupId"] for pair in inside["UserIdGroupPairs"]] == [group["GroupId"]]
    assert inside["IpRanges"] == []
    sent = runs(bench.stand_in)[0].as_dict()["parameters"]
    assert "first=$((now + 321))" in sent["UserData"]
    assert sent["InstanceMarketOptions"]["SpotOptions"]["InstanceInterruptionBehavior"] == "terminate"
    assert sent["Placement"]["GroupName"].endswith(f"digits-7f3a-{ZONES[0]}")
    assert sent["MetadataOptions"] == {"HttpTokens": "required", "HttpPutResponseHopLimit": 1}
    assert (sent["MinCount"], sent["MaxCount"]) == (2, 2)
    provider.release("digits-7f3a")
    assert bench.left() == []


def test_a_cluster_in_two_regions(bench: AwsBench) -> None:
    provider = bench.provider()
    here = provider.acquire("one", bench.request(token="a"))
    there = provider.acquire("one", bench.request(region="us-west-2", zone="us-west-2b", token="b"))
    assert alive(bench.provider(), "one") == {here[0].id, there[0].id}
    assert there[0].zone == "us-west-2b"
    bench.provider().release("one")
    assert alive(provider, "one") == set()


def test_the_endpoint_of_the_environment(
    bench: AwsBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "TRAINMASTER_AWS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", bench.stand_in.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("TRAINMASTER_AWS_IMAGE", "210987654321/debian-*")
    monkeypatch.setenv("TRAINMASTER_AWS_USER", "root")
    provider = get_provider("aws", ProviderPlace(tmp_path / "home", "f" * 32, dict(os.environ)))
    assert isinstance(provider, AwsProvider)
    (node,) = provider.acquire("one", bench.request())
    assert node.user == "root"
    assert [(one["InstanceId"], one["ImageId"]) for one in bench.instances()] == [(node.id, "ami-00000004")]
    provider.release("one")
    provider.close()


def test_the_lab_is_the_same_with_other_settings(bench: AwsBench, tmp_path: Path) -> None:
    """What a lab writes into the home is all that is needed."""
    lab = tmp_path / "home" / "lab"
    lab.mkdir(parents=True)
    facts = {
        "endpoint_url": bench.stand_in.endpoint,
        "region": REGION,
        "access_key_id": "AKIALAB",
        "secret_access_key": "s",
        "image_id": "ami-00000001",
        "user": "admin",
    }
    (lab / "lab.json").write_text(json.dumps(facts))
    provider = get_provider("lab", ProviderPlace(tmp_path / "home", "f" * 32, {}))
    assert isinstance(provider, AwsProvider)
    assert provider.name == "lab"
    (node,) = provider.acquire("one", bench.request())
    assert node.user == "admin"
    assert not [call for call in bench.stand_in.calls if "PlacementGroup" in call.action]
    provider.release("one")
    provider.close()
    assert bench.left() == []


# --- once, whatever happens --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "action", ["RunInstances", "CreateSecurityGroup", "ImportKeyPair", "CreatePlacementGroup"]
)
def test_an_answer_that_is_lost(bench: AwsBench, action: str) -> None:
    bench.stand_in.lose_answer(action)
    rented = bench.provider().acquire("one", bench.request(count=2))
    assert {one["InstanceId"] for one in bench.instances()} == {node.id for node in rented}
    assert len(rented) == 2
    bench.provider().release("one")
    assert bench.left() == []


_CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
from aws_stand_in import AwsBench, StandIn
stand_in = StandIn(0, port={port})
bench = AwsBench(stand_in, Path({root!r}))
bench.provider(timeout_s=60.0).acquire("one", bench.request(count=2, token="t", zone={zone!r}))
"""


@pytest.mark.parametrize("zone", [ZONES[0], ""], ids=["zone", "any-zone"])
def test_killed_between_request_and_answer(bench: AwsBench, zone: str) -> None:
    """Amazon has the request; what sent it is dead; nothing is shown yet: still no second machine."""
    arrived, go = threading.Event(), threading.Event()

    def hang(call: Call, answer: Answer) -> Answer:
        arrived.set()
        go.wait(60)
        return DROP

    if zone == "":
        bench.stand_in.fail("RunInstances", "InsufficientInstanceCapacity", zone=ZONES[0])
    bench.stand_in.rule(Rule("RunInstances", after=hang, times=1))
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            _CHILD.format(
                here=str(Path(__file__).parent), port=bench.stand_in.port, root=str(bench.root), zone=zone
            ),
        ]
    )
    try:
        assert arrived.wait(60)
        child.send_signal(signal.SIGKILL)
        child.wait()
    finally:
        child.kill()
        go.set()
    made = {one["InstanceId"] for one in bench.instances()}
    assert len(made) == 2
    bench.stand_in.rule(Rule("DescribeInstances", after=hidden, times=1))
    again = bench.provider().acquire("one", bench.request(count=2, token="t", zone=zone))
    assert {node.id for node in again} == made
    assert {one["InstanceId"] for one in bench.instances()} == made
    bench.provider().release("one")
    assert bench.left() == []


def test_machines_of_one_request_that_are_not_all_shown_yet(
    bench: AwsBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What asks again after a crash must not take the others for never made: they would be billed."""

    made = {node.id for node in bench.provider().acquire("one", bench.request(count=2, token="t"))}
    again = bench.provider()
    find = again._instances
    monkeypatch.setattr(again, "_instances", lambda *of: list(find(*of))[:1])
    with pytest.raises(ProviderError, match="shows 1 of 2 machines"):
        again.acquire("one", bench.request(count=2, token="t"))
    monkeypatch.undo()
    assert {node.id for node in again.acquire("one", bench.request(count=2, token="t"))} == made
    assert {one["InstanceId"] for one in bench.instances()} == made
    bench.provider().release("one")
    assert bench.left() == []


def test_a_release_sees_what_a_crashed_call_made(bench: AwsBench) -> None:
    """EC2 shows it late: a release that looked once only would leave it running."""
    provider = bench.provider(attempts=1)
    bench.stand_in.lose_answer("RunInstances")
    with pytest.raises(ProviderError):
        provider.acquire("one", bench.request())
    bench.stand_in.rule(Rule("DescribeInstances", after=hidden, times=2))
    bench.provider().release("one")
    assert bench.left() == []


def test_another_request_under_the_same_token(bench: AwsBench) -> None:
    """The user data has changed, say: what the first call made is what there is."""
    first = bench.provider().acquire("one", bench.request(lease_s=100))
    bench.stand_in.rule(Rule("DescribeInstances", after=hidden, times=2))
    again = bench.provider().acquire("one", bench.request(lease_s=200))
    assert [node.id for node in again] == [node.id for node in first]
    assert len(bench.instances()) == 1


def test_somebody_removed_the_group(bench: AwsBench) -> None:
    """It is made again."""
    provider = bench.provider()
    provider.acquire("one", bench.request(token="a"))
    provider.release("one", [node.id for node in provider.nodes("one")])
    client = bench.ec2()
    for group in client.describe_security_groups()["SecurityGroups"]:
        if group["GroupName"] != "default":
            client.delete_security_group(GroupId=group["GroupId"])
    client.close()
    assert len(provider.acquire("one", bench.request(token="b"))) == 1
    provider.release("one")
    assert bench.left() == []


# --- failures that pass ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status"),
    [("RequestLimitExceeded", 503), ("NeverHeardOf", 500), ("Throttling", 400)],
)
@pytest.mark.parametrize("action", ["RunInstances", "DescribeInstances"])
def test_asked_again(bench: AwsBench, action: str, code: str, status: int) -> None:
    pauses: list[float] = []
    provider = AwsProvider(
        bench.settings(backoff_s=0.5), ProviderPlace(bench.root / "ours", "a" * 32), sleep=pauses.append
    )
    bench.stand_in.fail(action, code, status=status, times=3)
    assert len(provider.acquire("one", bench.request())) == 1
    assert bench.stand_in.actions().count(action) == 4
    assert len(pauses) == 3
    assert pauses[0] <= 0.5
    assert pauses[2] >= 1.0, "it backs off"
    provider.close()


def test_asked_in_vain(bench: AwsBench) -> None:
    bench.stand_in.fail("RunInstances", "RequestLimitExceeded", "Request limit exceeded.", 503, times=None)
    with pytest.raises(ProviderError, match="several times") as caught:
        bench.provider().acquire("one", bench.request())
    assert not isinstance(caught.value, NoCapacityError)
    assert len(runs(bench.stand_in)) == 4
    assert bench.instances() == []


def test_no_answer_in_time(bench: AwsBench) -> None:
    """The first answer takes too long; the call is repeated, and gives the same machine."""

    def late(call: Call, answer: Answer) -> Answer:
        time.sleep(2.5)
        return answer

    provider = bench.provider()
    provider.acquire("zero", bench.request())  # everything is loaded now
    quick = bench.provider(timeout_s=2.0)
    bench.stand_in.rule(Rule("RunInstances", after=late, times=1))
    (node,) = quick.acquire("one", bench.request())
    assert alive(provider, "one") == {node.id}
    assert len(bench.instances()) == 2


def test_an_answer_that_is_no_answer(bench: AwsBench) -> None:
    """A hotel's login page, say: asked again, and then said."""
    page = (200, "<!doctype html><title>Welcome</title>")
    bench.stand_in.rule(Rule("RunInstances", lambda call: page, times=1))
    provider = bench.provider(attempts=2)
    assert len(provider.acquire("one", bench.request())) == 1
    bench.stand_in.rule(Rule("DescribeInstances", lambda call: page))
    with pytest.raises(ProviderError, match="cannot be reached"):
        provider.nodes("one")


def test_no_cloud_there(bench: AwsBench) -> None:
    provider = bench.provider(endpoint_url=f"http://127.0.0.1:{free_port()}", attempts=2)
    with pytest.raises(ProviderError, match="cannot be reached") as caught:
        provider.acquire("one", bench.request())
    assert "AWS_ENDPOINT_URL" in caught.value.hint


def test_credentials_that_somebody_renews_in_their_file_are_used(
    bench: AwsBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver lives for days, and what `aws sso login` or another tool writes is valid for hours."""
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def write(key: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n")

    def check(call: Call) -> Answer | None:
        return refusal("RequestExpired", "Request has expired.") if call.key == "AKIAOLD" else None

    write("AKIAOLD")
    provider = bench.provider(access_key_id="", secret_access_key="")
    provider.acquire("one", bench.request())
    bench.stand_in.rule(Rule("*", before=check))
    with pytest.raises(UsageError, match=r"RequestExpired.*\n.*aws sso login"):
        provider.nodes("one")
    write("AKIANEW")
    assert len(provider.nodes("one")) == 1
    provider.release("one")
