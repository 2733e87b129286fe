"""What goes wrong in a cloud, on request: machines break, are taken back, hang, run out; the API fails."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from trainmaster.providers import load_catalogue

ClientError = pytest.importorskip("botocore.exceptions").ClientError

METADATA = (
    "ask() { python3 - \"$@\" <<'E'\n"
    "import sys, urllib.error, urllib.request as u\n"
    "request = u.Request('http://169.254.169.254/latest/' + sys.argv[2], method=sys.argv[1])\n"
    "for header in sys.argv[3:]: request.add_header(*header.split(': '))\n"
    "try: print(u.urlopen(request, timeout=5).read().decode())\n"
    "except urllib.error.HTTPError as error: print(error.code)\n"
    "E\n}\n"
    "t=$(ask PUT api/token 'X-aws-ec2-metadata-token-ttl-seconds: 60')\n"
    'meta() { ask GET meta-data/$1 "X-aws-ec2-metadata-token: ${2:-$t}"; }\n'
)


@pytest.fixture
def normal(lab: Any) -> Iterator[Any]:
    """The lab, without limits and faults before and after."""

    def reset() -> None:
        lab.do("fault", clear=True)
        lab.do("capacity", count=None)
        lab.do("capacity", count=None, type="c4.large", zone="us-east-1b")
        lab.do("quota", which="on-demand", vcpus=1000)

    reset()
    yield lab
    reset()


def refusal(call: Any, *arguments: Any, **keys: Any) -> str:
    """The code of Amazon's error."""
    with pytest.raises(ClientError) as caught:
        call(*arguments, **keys)
    return str(caught.value.response["Error"]["Code"])


def test_a_spot_machine_is_warned_and_taken_back(lab: Any) -> None:
    agreed = {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.090000"}}
    (name,) = lab.rent(InstanceMarketOptions=agreed)
    assert lab.instance(name)["InstanceLifecycle"] == "spot"
    ssh = lab.ssh(name)
    assert ssh(METADATA + "meta spot/instance-action; meta instance-life-cycle") == "404\nspot"
    before = time.time()
    mine = {"Filters": [{"Name": "instance-id", "Values": [name]}]}
    (request,) = lab.ec2.describe_spot_instance_requests(**mine)["SpotInstanceRequests"]
    assert (request["State"], request["Status"]["Code"]) == ("active", "fulfilled")
    assert request["SpotPrice"] == "0.090000"
    agreed["SpotOptions"] = {"MaxPrice": "0.001"}
    assert refusal(lab.rent, InstanceMarketOptions=agreed) == "SpotMaxPriceTooLow"
    lab.call("interrupt", name, "--notice", 600)
    after = time.time()
    (request,) = lab.ec2.describe_spot_instance_requests(**mine)["SpotInstanceRequests"]
    assert request["Status"]["Code"] == "marked-for-termination"
    notice = json.loads(ssh(METADATA + "meta spot/instance-action"))
    assert notice["action"] == "terminate"
    when = datetime.strptime(notice["time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    assert before + 599 <= when <= after + 600
    assert lab.state(name) == "running"
    lab.call("interrupt", name, "--notice", 1)  # a later notice counts instead
    lab.until_state(name, "terminated")
    assert lab.instance(name)["StateReason"]["Code"] == "Server.SpotInstanceTermination"


def test_metadata_by_version_2(lab: Any, shared_host: Any) -> None:
    name, ssh = shared_host
    found = ssh(
        METADATA
        + "meta instance-id; meta placement/availability-zone; meta public-keys/0/openssh-key; meta nothing;"
        "meta instance-id wrong; ask GET meta-data/instance-type; ask GET user-data; ask PUT api/token"
    ).split("\n")
    instance = lab.instance(name)
    assert found[0] == name
    assert found[1] == instance["Placement"]["AvailabilityZone"]
    assert found[2].startswith("ssh-ed25519 ")
    assert found[3:] == ["404", "401", "m4.xlarge", "404", "400"]


def test_metadata_may_require_the_token(lab: Any, host: Any) -> None:
    name, ssh = host
    lab.ec2.modify_instance_metadata_options(InstanceId=name, HttpTokens="required")
    assert ssh(METADATA + "ask GET meta-data/instance-id; meta instance-id").split("\n") == ["401", name]


def test_a_machine_breaks(lab: Any, host: Any) -> None:
    name, _ = host
    lab.call("terminate", name)
    lab.until_state(name, "terminated")
    assert lab.instance(name)["StateReason"]["Code"] == "Server.InternalError"
    assert {h["id"]: h["state"] for h in lab.json("status")["hosts"]}[name] == "terminated"


def test_frozen_cut_and_healed(lab: Any, host: Any) -> None:
    name, ssh = host
    ssh("nohup bash -c 'while :; do date +%s.%N >> ~/ticks; sleep 0.05; done' > /dev/null 2>&1 &")
    lab.call("freeze", name)
    assert lab.json("status")["conditions"][name]["frozen"] is True
    assert ssh.run("true").returncode == 255  # the kernel answers, but nobody says hello
    lab.call("heal", name)
    ssh.until_ready()
    ticks = [float(line) for line in ssh("cat ticks").split()]
    assert max(b - a for a, b in itertools.pairwise(ticks)) > 1.5
    lab.call("cut", name)
    assert ssh.run("true").returncode == 255
    assert lab.state(name) == "running"  # the cloud sees nothing wrong
    lab.call("heal", name)
    ssh.until_ready()
    lab.call("freeze", name)
    lab.end(name)  # also what is frozen can be ended


def test_a_zone_runs_out(normal: Any) -> None:
    lab = normal
    zone = {"AvailabilityZone": "us-east-1b"}
    lab.call("capacity", 1, "--type", "c4.large", "--zone", "us-east-1b")
    (name,) = lab.rent("c4.large", Placement=zone)
    assert lab.instance(name)["Placement"]["AvailabilityZone"] == "us-east-1b"
    assert refusal(lab.rent, "c4.large", Placement=zone) == "InsufficientInstanceCapacity"
    (elsewhere,) = lab.rent("c4.large")
    assert lab.instance(elsewhere)["Placement"]["AvailabilityZone"] != "us-east-1b"
    # As many as there are, if fewer than wanted will do.
    lab.call("capacity", 2, "--type", "c4.large", "--zone", "us-east-1b")
    access = lab.access
    answer = lab.ec2.run_instances(
        ImageId=access["image_id"], InstanceType="c4.large", MinCount=1, MaxCount=5, Placement=zone
    )
    assert len(answer["Instances"]) == 1
    lab.end(name, elsewhere, answer["Instances"][0]["InstanceId"])


def test_an_account_has_a_quota(normal: Any) -> None:
    normal.call("quota", "on-demand", 0)
    assert refusal(normal.rent) == "VcpuLimitExceeded"
    assert "There are on-demand, spot" in normal.call("quota", "gpus", 3, code=2).stderr


def test_the_api_fails_on_request(normal: Any) -> None:
    ec2 = normal.ec2
    normal.call("fault", "DescribeInstances", "RequestLimitExceeded", "--count", 1, "--status", 400)
    assert refusal(ec2.describe_instances) == "RequestLimitExceeded"
    ec2.describe_instances()
    normal.call("fault", "*", "--late", 0.5)
    start = time.monotonic()
    ec2.describe_instances()
    assert time.monotonic() - start > 0.5


def test_mistakes_are_refused_as_amazon_does(lab: Any) -> None:
    assert refusal(lab.rent, "m9.huge") == "InvalidParameterValue"
    assert refusal(lab.rent, ImageId="ami-00000000") == "InvalidAMIID.NotFound"
    assert refusal(lab.rent, KeyName="nobody's") == "InvalidKeyPair.NotFound"
    assert refusal(lab.rent, Placement={"AvailabilityZone": "eu-west-1a"}) == "InvalidParameterValue"
    import boto3

    access = lab.access
    keys = {
        "aws_access_key_id": "AKIAWRONG",
        "aws_secret_access_key": "x",
        "endpoint_url": access["endpoint_url"],
    }
    assert refusal(boto3.client("ec2", region_name="us-east-1", **keys).describe_instances) == "AuthFailure"


def test_prices_are_published(lab: Any) -> None:
    offers = load_catalogue(lab.access["prices"])
    assert not offers.refused
    assert not offers.warnings
    (m4,) = offers.where(instances=("m4.xlarge",), spot=False)
    assert (m4.price_usd_per_hour, m4.vcpus, m4.memory_bytes / 2**30, m4.nic_gbps) == (0.2, 4, 16, 0.75)
    assert (m4.provider, m4.region, m4.source) == ("lab", "us-east-1", "lab")
    assert datetime.now(UTC).date() - m4.as_of <= timedelta(days=1), (
        "it came up for this test, or before midnight"
    )
    (gpu,) = offers.where(instances=("p2.xlarge",), spot=True)
    assert (gpu.accelerator, gpu.spot) == ("K80", True)

    history = lab.ec2.describe_spot_price_history(
        InstanceTypes=["m4.xlarge"], ProductDescriptions=["Linux/UNIX"]
    )
    assert {float(entry["SpotPrice"]) for entry in history["SpotPriceHistory"]} == {0.06}
    assert len(history["SpotPriceHistory"]) == 3
    kinds = lab.ec2.describe_instance_types(InstanceTypes=["g3.4xlarge"])["InstanceTypes"]
    assert kinds[0]["VCpuInfo"]["DefaultVCpus"] == 16
    assert kinds[0]["GpuInfo"]["Gpus"][0]["Count"] == 1
    there = lab.ec2.describe_instance_type_offerings(LocationType="availability-zone")[
        "InstanceTypeOfferings"
    ]
    assert {offer["Location"] for offer in there} == {"us-east-1a", "us-east-1b", "us-east-1c"}
    images = lab.ec2.describe_images(
        Owners=["136693071363"], Filters=[{"Name": "name", "Values": ["debian-12-*"]}]
    )
    assert [image["ImageId"] for image in images["Images"]] == [lab.access["image_id"]]


def test_the_console_shows_the_key_of_the_host(lab: Any, shared_host: Any) -> None:
    name, _ = shared_host
    text = lab.ec2.get_console_output(InstanceId=name)["Output"]
    key = text.partition("-----BEGIN SSH HOST KEY KEYS-----\n")[2].split()
    known = (lab.directory / "known_hosts").read_text()
    assert key[0] == "ssh-ed25519"
    assert key[1] in known
