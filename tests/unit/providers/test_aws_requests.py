"""Requests to EC2, what its answers mean, and what its refusals are called. Nothing is sent."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.providers.aws.errors import QuotaError, api_error
from trainmaster.providers.aws.facts import default_image, quota_code
from trainmaster.providers.aws.ledger import AwsLedger
from trainmaster.providers.aws.nodes import (
    instances_of,
    node_of,
    notices_of,
)
from trainmaster.providers.aws.preflight import AwsPreflight
from trainmaster.providers.aws.requests import ANY_ZONE, AwsRequestBuilder, resolved
from trainmaster.providers.aws.settings import DISK_BYTES, AwsSettings
from trainmaster.providers.base import NoCapacityError, NodeRequest, NodeState, ProviderGoneError
from trainmaster.spec.errors import ProviderError, UsageError

RENTER = AwsRequestBuilder(
    "0123456789abcdef0123456789abcdef", AwsSettings(region="eu-west-1", placement_groups=True)
)
REQUESTS = st.builds(
    NodeRequest,
    role=st.sampled_from(["worker", "ps", "chief"]),
    count=st.integers(1, 9),
    instance_type=st.sampled_from(["t2.small", "p3.2xlarge", "g5g.xlarge"]),
    region=st.sampled_from(["eu-west-1", "us-east-1"]),
    zone=st.sampled_from(["", "a", "b"]),
    spot=st.booleans(),
    max_usd_per_hour=st.sampled_from([0.0, 0.036]),
    token=st.sampled_from(["", "t1", "t2"]),
    labels=st.dictionaries(st.sampled_from(["rack", "row"]), st.text("abc", max_size=3)),
)


def run(request: NodeRequest, zone: str = "eu-west-1a", cluster: str = "one") -> dict[str, Any]:
    return dict(RENTER.run(cluster, request, zone, "#!/bin/sh\n").parameters)


@given(REQUESTS)
def test_all_that_is_rented_is_ours_and_gives_itself_back(request: NodeRequest) -> None:
    sent = run(request)
    assert sent["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert sent["MinCount"] == sent["MaxCount"] == request.count, "all or none"
    assert len(sent["ClientToken"]) == 64
    assert sent["ClientToken"].isascii()
    for specification in sent["TagSpecifications"]:
        tags = {tag["Key"]: tag["Value"] for tag in specification["Tags"]}
        assert tags["trainmaster:home"] == RENTER.home
        assert tags["trainmaster:cluster"] == "one"
    assert ("InstanceMarketOptions" in sent) == request.spot
    if request.spot:
        highest = sent["InstanceMarketOptions"]["SpotOptions"].get("MaxPrice")
        assert highest == ("0.036000" if request.max_usd_per_hour else None)
    (disk,) = sent["BlockDeviceMappings"]
    assert disk["Ebs"]["DeleteOnTermination"] is True
    assert disk["Ebs"]["VolumeSize"] == DISK_BYTES // 2**30
    assert ("GroupName" in sent["Placement"]) == (
        request.count > 1 and not request.instance_type.startswith("t2")
    )
    assert json.loads(json.dumps(sent)) == sent, "a dry run can print it"


@given(REQUESTS, REQUESTS, st.sampled_from(["one", "two"]), st.sampled_from(["x", "y"]))
def test_a_token_is_one_request_of_one_cluster_in_one_zone(
    a: NodeRequest, b: NodeRequest, cluster: str, zone: str
) -> None:
    tokens = [run(a, "x")["ClientToken"], run(b, zone, cluster)["ClientToken"]]
    same = RENTER.token(a) == RENTER.token(b) and cluster == "one" and zone == "x"
    assert (tokens[0] == tokens[1]) == same
    other = AwsRequestBuilder("another", RENTER.settings).client_token("one", a, "x")
    assert other != tokens[0], "another home is somebody else"


def test_without_a_zone_a_dry_run_says_so() -> None:
    sent = run(NodeRequest("worker", 2, "m4.large"), ANY_ZONE)
    assert sent["ClientToken"] == "${subnet.ClientToken}"
    known = {"subnet.AvailabilityZone": "r1b", "subnet.ClientToken": "abc"}
    assert resolved(sent, known)["Placement"] == {
        "AvailabilityZone": "r1b",
        "GroupName": "trainmaster-01234567-one-r1b",
    }


def test_references_are_no_shell_variables() -> None:
    """User data has braces of its own, which stay as they are."""
    text = "${now%%.*} ${HOME} ${image.ImageId} ${group.None}"
    assert resolved(text, {"image.ImageId": "ami-1"}) == "${now%%.*} ${HOME} ami-1 ${group.None}"


def test_the_disk_that_was_asked_for() -> None:
    sent = run(NodeRequest("worker", 1, "m4.large", disk_bytes=100 * 10**9))
    assert sent["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 94, "GiB, not less"


@pytest.mark.parametrize(
    ("kind", "name", "user"),
    [
        ("m4.large", "debian-12-amd64-*", "admin"),
        ("c7g.large", "debian-12-arm64-*", "admin"),
        ("p3.2xlarge", "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) *", "ubuntu"),
        ("g5g.xlarge", "Deep Learning ARM64 Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) *", "ubuntu"),
        ("g4ad.xlarge", "debian-12-amd64-*", "admin"),
    ],
)
def test_what_boots(kind: str, name: str, user: str) -> None:
    image = default_image(kind)
    assert (image.name, image.user) == (name, user)
    assert image.owner, "anybody can publish an image of that name"


@pytest.mark.parametrize(
    ("kind", "codes"),
    [
        ("m4.large", ("L-1216C47A", "L-34B43A08")),
        ("im4gn.large", ("L-1216C47A", "L-34B43A08")),
        ("g4dn.xlarge", ("L-DB2E81BA", "L-3819A6DF")),
        ("gr6.4xlarge", ("L-DB2E81BA", "L-3819A6DF")),
        ("p5.48xlarge", ("L-417A185B", "L-C4BD4855")),
        ("inf2.xlarge", ("L-1945791B", "L-B5D1601B")),
        ("hpc7a.48xlarge", ("", "")),
        ("u-6tb1.metal", ("", "")),
        ("nonsense", ("", "")),
    ],
)
def test_quotas(kind: str, codes: tuple[str, str]) -> None:
    assert (quota_code(kind, spot=False), quota_code(kind, spot=True)) == codes


# --- answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cores", "used"), [({"CoreCount": 2, "ThreadsPerCore": 2}, 4), (None, 2)])
def test_what_is_rented_counts_against_the_quota(cores: dict[str, int] | None, used: int) -> None:
    """Machines of the lab do not say how many cores they have: their type does."""
    preflight = object.__new__(AwsPreflight)
    preflight._client = SimpleNamespace(
        pages=lambda _: [{"Reservations": [{"Instances": [instance(CpuOptions=cores)]}]}],
        call=lambda _: {"InstanceTypes": [{"VCpuInfo": {"DefaultVCpus": 2}}]},
    )
    assert preflight._used("eu-west-1", quota_code("m4.large", spot=False)) == used
    assert preflight._used("eu-west-1", quota_code("m4.large", spot=True)) == 0


def instance(state: str = "running", **more: Any) -> dict[str, Any]:
    return {
        "InstanceId": "i-1",
        "InstanceType": "m4.large",
        "State": {"Name": state},
        "Placement": {"AvailabilityZone": "eu-west-1a"},
        "PrivateIpAddress": "172.31.0.4",
        "PublicIpAddress": "203.0.113.4",
        "LaunchTime": datetime(2026, 1, 2, tzinfo=UTC),
        "CpuOptions": {"CoreCount": 2, "ThreadsPerCore": 2},
        "Tags": [
            {"Key": "trainmaster:cluster", "Value": "one"},
            {"Key": "trainmaster:role", "Value": "ps"},
            {"Key": "trainmaster:label:rack", "Value": "7"},
        ],
        **more,
    }


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("pending", NodeState.STARTING),
        ("running", NodeState.READY),
        ("stopping", NodeState.GONE),
        ("stopped", NodeState.GONE),
        ("shutting-down", NodeState.GONE),
        ("terminated", NodeState.GONE),
    ],
)
@pytest.mark.parametrize("leaves_at", [None, 7.0])
def test_states(state: str, expected: NodeState, leaves_at: float | None) -> None:
    node = node_of(
        instance(state, StateReason={"Code": "Server.SpotInstanceTermination"}),
        cluster="one", user="admin", key=Path("k"), leaves_at=leaves_at,
    )  # fmt: skip
    alive = expected is not NodeState.GONE
    assert node.state is (NodeState.LEAVING if alive and leaves_at else expected)
    assert node.leaves_at == (leaves_at if alive else None)
    assert bool(node.address) == bool(node.private_address) == alive
    assert bool(node.reason) == (not alive)
    assert (node.cluster, node.role, node.labels) == ("one", "ps", {"rack": "7"})
    assert (node.slots, node.started_at) == (4, datetime(2026, 1, 2, tzinfo=UTC).timestamp())


def test_a_machine_is_of_the_cluster_that_was_asked_for_whatever_an_ec2_says() -> None:
    """It may be a manager's own, and what is known of clusters lies under their names."""
    told = instance("running", Tags=[{"Key": "trainmaster:cluster", "Value": "/etc"}])
    assert node_of(told, cluster="mine", user="admin", key=Path("k")).cluster == "mine"


def test_why_it_is_gone() -> None:
    told = instance(
        "terminated",
        StateReason={"Code": "Client.InstanceInitiatedShutdown", "Message": "Client.I: x"},
        StateTransitionReason="User initiated (2026-01-02 03:04:05 GMT)",
    )
    node = node_of(told, cluster="one", user="admin", key=Path("k"))
    assert "its lease was over" in node.reason
    assert "Client." not in node.reason, "EC2's code says nothing more"
    assert node.ended_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()
    bare = {"InstanceId": "i-2", "State": {"Name": "terminated"}}
    bare = node_of(bare, cluster="one", user="u", key=Path("k"))
    assert (bare.ended_at, bare.started_at) == (None, 0.0)
    assert "does not say why" in bare.reason


def test_notices() -> None:
    told = datetime(2026, 1, 2, tzinfo=UTC)
    answer = {
        "SpotInstanceRequests": [
            {"InstanceId": "i-1", "Status": {"Code": "marked-for-termination", "UpdateTime": told}},
            {"InstanceId": "i-2", "Status": {"Code": "fulfilled", "UpdateTime": told}},
            {"Status": {"Code": "marked-for-termination", "UpdateTime": told}},
            {"InstanceId": "i-3"},
        ]
    }
    assert notices_of(answer) == {"i-1": told.timestamp() + 120}
    assert instances_of({}) == []


# --- refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        ("UnauthorizedOperation", UsageError, "ec2:RunInstances"),
        ("AuthFailure", UsageError, "AWS_PROFILE"),
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", UsageError, "spot.amazonaws.com"),
        ("OptInRequired", UsageError, "console"),
        ("InsufficientInstanceCapacity", NoCapacityError, "eu-west-1a"),
        ("SpotMaxPriceTooLow", NoCapacityError, "eu-west-1a"),
        ("VcpuLimitExceeded", QuotaError, "Service Quotas"),
        ("RequestLimitExceeded", ProviderError, "several times"),
        ("InvalidAMIID.NotFound", UsageError, "TRAINMASTER_AWS_IMAGE"),
        ("InvalidParameterValue", UsageError, "InvalidParameterValue"),
        ("OperationNotPermitted", ProviderError, "OperationNotPermitted"),
    ],
)
def test_refusals(code: str, kind: type[Exception], says: str) -> None:
    error = api_error("RunInstances", code, "Said so.\n", region="eu-west-1", zones=["eu-west-1a"])
    assert type(error) is kind
    assert says in str(error)
    assert "Said so" in str(error)
    assert "\n\n" not in str(error)


def test_a_type_that_a_zone_does_not_have() -> None:
    message = (
        "Your requested instance type (p3.2xlarge) is not supported in your requested Availability Zone (x)."
    )
    assert isinstance(api_error("RunInstances", "Unsupported", message), NoCapacityError)


# --- settings and memory -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SSH_FROM", "here"),
        ("DISK_GIB", "4"),
        ("DISK_GIB", "64GB"),
        ("PUBLIC_ADDRESSES", "maybe"),
        ("IMAGE", "ami-1"),
        ("USER", "Ubuntu"),
    ],
)
def test_settings_that_mean_nothing(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"TRAINMASTER_AWS_{name}") as caught:
        AwsSettings.from_environment({f"TRAINMASTER_AWS_{name}": value})
    assert caught.value.hint


def test_settings() -> None:
    found = AwsSettings.from_environment(
        {
            "TRAINMASTER_AWS_IMAGE": "amazon/My image *",
            "TRAINMASTER_AWS_USER": "ubuntu",
            "TRAINMASTER_AWS_DISK_GIB": "100",
            "TRAINMASTER_AWS_PUBLIC_ADDRESSES": "no",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": "http://localhost:5000",
        }
    )
    assert (found.image, found.image_owner, found.user) == ("My image *", "amazon", "ubuntu")
    assert (found.disk_bytes, found.public_addresses) == (100 * 2**30, False)
    assert (found.region, found.is_own_cloud) == ("us-east-1", True)
    ignored = {"AWS_ENDPOINT_URL": "http://x", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}
    assert AwsSettings.from_environment(ignored).endpoint_url == ""
    assert "secret-key" not in repr(AwsSettings(secret_access_key="secret-key"))


@pytest.mark.parametrize("text", [None, "{", "[]", '{"region": "x"}'])
def test_no_lab(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "lab.json").write_text(text)
    with pytest.raises(UsageError, match=re.escape(str(tmp_path))) as caught:
        AwsSettings.from_lab(tmp_path)
    assert "trainmaster lab up" in caught.value.hint
    is_gone = isinstance(caught.value, ProviderGoneError)
    assert is_gone is (text is None), "one that was taken down has taken its machines along"


def test_memory(tmp_path: Path) -> None:
    memory = AwsLedger(tmp_path)
    assert memory.regions() == []
    for region in ("b", "a", "b"):
        memory.add_region(region)
    assert AwsLedger(tmp_path).regions() == ["a", "b"]
    memory.set_attempt("one", "t1", "a1")
    memory.set_attempt("one", "t2", "a2")
    memory.set_attempt("one", "t2", "")
    memory.set_attempt("two", "t1", "b1")
    assert memory.attempt("one", "t1") == "a1"
    assert memory.attempt("one", "t9") == ""
    assert memory.attempts("one") == ["t1"]
    memory.forget("one")
    assert memory.attempts("one") == []
    assert memory.attempts("two") == ["t1"]


def test_one_key_for_all_that_ask_at_once(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="cryptography is not installed")
    found: list[str] = []
    threads = [Thread(target=lambda: found.append(AwsLedger(tmp_path).public_key())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert re.fullmatch(r"ssh-ed25519 [A-Za-z0-9+/]{68} trainmaster", found[0])
    assert (tmp_path / "id_ed25519").stat().st_mode & 0o777 == 0o600


def test_boto3_is_loaded_when_something_is_sent() -> None:
    """Looking a provider up does not wait for it."""
    modules = "trainmaster.providers.aws.provider, trainmaster.providers.plugins"
    code = f"import sys, {modules}; print('botocore' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"


def test_the_policy_in_the_documentation_is_what_is_called() -> None:
    """Every operation that the code knows, and no other; those of images stand on their page."""
    docs = Path(__file__).parents[3] / "docs"
    policy = re.search(r"```json\n(.*?)```", (docs / "aws/permissions.md").read_text(), re.DOTALL)
    assert policy
    allowed = {a for s in json.loads(policy[1])["Statement"] for a in s["Action"]}
    allowed |= set(re.findall(r"`(ec2:[A-Za-z]+)`", (docs / "machine-images.md").read_text()))
    code = "".join(path.read_text() for path in (docs.parent / "src/trainmaster/providers/aws").glob("*.py"))
    verbs = "Describe|Create|Delete|Deregister|Import|Authorize|Revoke|Run|Terminate|GetConsole"
    called = set(re.findall(rf'(?:AwsRequest\(\s*|_change\(\s*|, )"((?:{verbs})[A-Za-z]+)"(?!:)', code))
    called |= {f"Describe{kind}" for kind in ("SecurityGroups", "PlacementGroups", "KeyPairs")}
    called.discard("Describe")
    others = {"servicequotas:GetServiceQuota", "pricing:GetProducts"}
    assert {f"ec2:{name}" for name in called} | others == {
        action for action in allowed if not action.startswith("iam:")
    }
