"""What AWS refuses, takes back and makes difficult: capacity, quotas, permissions, notices, firewalls."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")
pytest.importorskip("moto.server", reason="moto[server] is not installed")

from aws_stand_in import (
    ZONES,
    AwsBench,
    Rule,
    runs,
)
from botocore.exceptions import EndpointConnectionError

from trainmaster.providers.aws import prerequisites, requests
from trainmaster.providers.aws.client import AwsClient
from trainmaster.providers.aws.errors import QuotaError
from trainmaster.providers.aws.provider import AwsProvider
from trainmaster.providers.aws.requests import LEASE_FORMAT, LEASE_S_TAG, LEASE_TAG, AwsRequest
from trainmaster.providers.aws.settings import AwsSettings
from trainmaster.providers.base import NoCapacityError, NodeState, ProviderPlace
from trainmaster.spec.errors import MissingPartError, ProviderError, UsageError
from trainmaster.testing.provider_contract import alive

# --- failures that do not ----------------------------------------------------------------------------


def test_the_next_zone(bench: AwsBench) -> None:
    """Each zone is asked once, at once, and one that lacked capacity comes last from then on."""
    pauses: list[float] = []
    provider = AwsProvider(
        bench.settings(), ProviderPlace(bench.root / "ours", "a" * 32), sleep=pauses.append
    )
    bench.stand_in.fail("RunInstances", "InsufficientInstanceCapacity", "None.", 500, None, zone=ZONES[0])
    (node,) = provider.acquire("one", bench.request(zone="", token="a"))
    assert node.zone == ZONES[1]
    assert [call.zone for call in runs(bench.stand_in)] == [ZONES[0], ZONES[1]]
    bench.stand_in.rules.clear()
    (other,) = provider.acquire("one", bench.request(zone="", token="b"))
    assert other.zone != ZONES[0], "never straight back"
    assert pauses == []
    provider.release("one")
    assert bench.left() == []
    provider.close()


def test_no_zone_has_any(bench: AwsBench) -> None:
    with bench.without_capacity(), pytest.raises(NoCapacityError) as caught:
        bench.provider().acquire("one", bench.request(zone="", count=2))
    assert caught.value.zones == ZONES
    assert len(runs(bench.stand_in)) == 3
    assert not isinstance(caught.value, QuotaError)
    bench.provider().release("one")
    assert bench.left() == []


def test_the_zone_that_was_asked_for(bench: AwsBench) -> None:
    """Another one is the caller's decision."""
    with bench.without_capacity(), pytest.raises(NoCapacityError, match=ZONES[2]) as caught:
        bench.provider().acquire("one", bench.request(zone=ZONES[2], spot=True))
    assert caught.value.zones == (ZONES[2],)


@pytest.mark.parametrize("code", ["VcpuLimitExceeded", "MaxSpotInstanceCountExceeded"])
def test_over_quota(bench: AwsBench, code: str) -> None:
    """It holds in every zone, so the others are not tried."""
    bench.stand_in.fail("RunInstances", code, "You have requested more vCPU capacity.", times=None)
    with pytest.raises(QuotaError, match=code) as caught:
        bench.provider().acquire("one", bench.request(zone=""))
    assert caught.value.zones == ZONES
    assert "Service Quotas" in caught.value.hint
    assert len(runs(bench.stand_in)) == 1


def test_preflight_counts_what_the_account_may_have(bench: AwsBench) -> None:
    bench.stand_in.quotas |= {"L-1216C47A": 5.0, "L-34B43A08": 2.0}
    provider = bench.provider()
    assert provider.preflight([bench.request(count=2), bench.request(spot=True)]) == []
    with pytest.raises(QuotaError, match=r"6 vCPUs are wanted in eu-west-1 .*may have 5") as caught:
        provider.preflight([bench.request(count=1), bench.request(role="ps", count=2)])
    assert "L-1216C47A" in caught.value.hint
    with pytest.raises(QuotaError, match="spot"):
        provider.preflight([bench.request(count=2, spot=True)])
    assert bench.left() == []


def test_preflight_says_what_it_could_not_look_at(bench: AwsBench) -> None:
    bench.stand_in.rule(
        Rule(
            "GetServiceQuota",
            lambda call: (400, json.dumps({"__type": "AccessDeniedException", "message": "no"})),
        )
    )
    (note,) = bench.provider().preflight([bench.request()])
    assert re.search(r"quota L-1216C47A in eu-west-1 could not be read \(AccessDeniedException\)", note)


@pytest.mark.parametrize(
    "action",
    [
        "RunInstances",
        "CreateSecurityGroup",
        "ImportKeyPair",
        "DescribeSubnets",
        "DescribeImages",
        "CreatePlacementGroup",
    ],
)
def test_preflight_names_the_permission(bench: AwsBench, action: str) -> None:
    message = "You are not authorized to perform this operation. Encoded authorization failure message: q1w2"
    bench.stand_in.fail(action, "UnauthorizedOperation", message, 403, times=None)
    with pytest.raises(UsageError, match=f"ec2:{action}") as caught:
        bench.provider().preflight([bench.request(count=2)])
    assert "q1w2" not in str(caught.value)
    assert f"ec2:{action}" in caught.value.hint
    assert bench.changed() == []


def test_unauthorized_half_way(bench: AwsBench) -> None:
    """What was made before is found by release."""
    provider = bench.provider()
    bench.stand_in.fail("RunInstances", "UnauthorizedOperation", status=403)
    with pytest.raises(UsageError, match="ec2:RunInstances"):
        provider.acquire("one", bench.request())
    assert bench.left() != []
    provider.release("one")
    assert bench.left() == []


@pytest.mark.parametrize("code", ["AuthFailure", "InvalidClientTokenId", "ExpiredToken", "RequestExpired"])
def test_wrong_keys(bench: AwsBench, code: str) -> None:
    bench.stand_in.fail("*", code, status=401, times=None)
    with pytest.raises(UsageError, match=code) as caught:
        bench.provider().preflight([bench.request()])
    assert "aws sts get-caller-identity" in caught.value.hint
    assert len(bench.stand_in.calls) == 1, "not asked again"


def test_no_keys(bench: AwsBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    provider = bench.provider(access_key_id="", secret_access_key="")
    with pytest.raises(UsageError, match="no AWS credentials"):
        provider.preflight([bench.request()])
    with pytest.raises(UsageError, match="no AWS region"):
        bench.provider(region="").preflight([bench.request()])
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(UsageError, match="nobody"):
        provider.preflight([bench.request()])


@pytest.mark.parametrize(
    ("settings", "request_", "says"),
    [
        ({"image": "no-such-image-*", "user": "admin"}, {}, "no image 'no-such-image-"),
        ({"image": "ami-0123456789abcdef0", "user": "admin"}, {}, "ami-0123456789abcdef0"),
        ({"vpc": "vpc-12345678"}, {}, "vpc-12345678 has no subnets"),
        ({}, {"zone": "eu-west-1x"}, "eu-west-1x"),
        ({}, {"instance_type": "m99.huge"}, "m99.huge"),
        ({}, {"instance_type": ""}, "no instance type"),
    ],
)
def test_preflight_refuses(
    bench: AwsBench, settings: dict[str, Any], request_: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(says)) as caught:
        bench.provider(**settings).preflight([bench.request(**request_)])
    assert caught.value.hint
    assert bench.left() == []


def test_a_region_that_does_not_exist_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody answers there; of one that exists, that is the network's fault, and it is tried again."""
    waits: list[float] = []
    keys = AwsSettings(access_key_id="AKIA", secret_access_key="secret", attempts=3)
    client = AwsClient(keys, waits.append)

    def nobody(*_: Any) -> Any:
        def method(**_: Any) -> Any:
            raise EndpointConnectionError(endpoint_url="https://ec2.example")

        return method

    monkeypatch.setattr(client, "_method", nobody)
    with pytest.raises(UsageError, match="no region 'eu-wset-1'") as caught:
        client.call(AwsRequest("DescribeImages", {}, "eu-wset-1"))
    assert (caught.value.hint, waits) == ("Did you mean eu-west-1?", [])
    with pytest.raises(ProviderError, match="cannot be reached for DescribeImages in eu-west-1"):
        client.call(AwsRequest("DescribeImages", {}, "eu-west-1"))
    assert len(waits) == 2


def test_without_botocore(bench: AwsBench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("boto3", "botocore"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPartError, match="botocore, which is not installed") as caught:
        bench.provider().preflight([bench.request()])
    assert "trainmaster[aws]" in caught.value.hint


# --- taken back, given back --------------------------------------------------------------------------


def test_a_spot_notice(bench: AwsBench) -> None:
    provider = bench.provider()
    taken, stays = provider.acquire("one", bench.request(count=2, spot=True))
    told = float(int(time.time()))
    bench.stand_in.notices[taken.id] = told
    nodes = {node.id: node for node in provider.nodes("one")}
    assert nodes[taken.id].state is NodeState.LEAVING
    assert nodes[taken.id].leaves_at == told + 120
    assert nodes[taken.id].address
    assert nodes[stays.id].state is NodeState.READY
    bench.ec2().terminate_instances(InstanceIds=[taken.id])
    after = {node.id: node for node in provider.nodes("one")}[taken.id]
    assert (after.state, after.leaves_at) == (NodeState.GONE, None)
    assert after.reason
    assert after.ended_at
    assert told <= after.ended_at <= time.time(), "whole seconds, as EC2 tells them"


def test_notices_that_may_not_be_read(bench: AwsBench) -> None:
    """The nodes are shown all the same."""
    provider = bench.provider()
    rented = provider.acquire("one", bench.request(spot=True))
    bench.stand_in.fail("DescribeSpotInstanceRequests", "UnauthorizedOperation", status=403, times=None)
    assert [node.id for node in provider.nodes("one")] == [node.id for node in rented]


def test_what_is_still_in_use_is_waited_for(bench: AwsBench) -> None:
    provider = bench.provider()
    provider.acquire("one", bench.request(count=2))
    bench.stand_in.fail("DeleteSecurityGroup", "DependencyViolation", times=3)
    provider.release("one")
    assert bench.left() == []


def test_what_stays_in_use_is_left_to_the_reaper(bench: AwsBench) -> None:
    """Release does not wait for ever, and reap removes what is left of clusters that nobody knows."""
    provider = bench.provider(release_patience_s=0.5)
    provider.acquire("one", bench.request())
    rule = bench.stand_in.fail("DeleteSecurityGroup", "DependencyViolation", times=None)
    provider.release("one")
    assert alive(provider, "one") == set()
    assert len(bench.left()) == 1
    bench.stand_in.rules.remove(rule)
    assert bench.provider().reap(["one"]) == []
    assert len(bench.left()) == 1, "a cluster that is known keeps what is its own"
    assert bench.provider().reap([]) == []
    assert bench.left() == []


def test_two_homes_reap_at_once(bench: AwsBench) -> None:
    """Each has one cluster that it knows and one that it lost, of the same names."""
    homes = ["ours", "theirs"]
    kept: dict[str, set[str]] = {}
    for home in homes:
        provider = bench.provider(home)
        kept[home] = {node.id for node in provider.acquire("known", bench.request(count=2))}
        provider.acquire("lost", bench.request())
        provider.renew("known", 5 * 3600.0)
    bench.later(3600.0)
    ended: dict[str, list[str]] = {}
    providers = {home: bench.provider(home) for home in homes}
    threads = [
        threading.Thread(target=lambda h=home: ended.update({h: providers[h].reap(["known"])}))
        for home in homes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {home: len(ids) for home, ids in ended.items()} == {"ours": 1, "theirs": 1}
    assert not set(ended["ours"]) & set(ended["theirs"])
    bench.later(6 * 3600.0)
    for home in homes:
        assert alive(bench.provider(home), "known") == kept[home]
        bench.provider(home).reap([])
        bench.provider(home).reap([])
    assert bench.left() == []


def test_a_protected_machine_is_said(bench: AwsBench) -> None:
    provider = bench.provider()
    provider.acquire("one", bench.request())
    bench.stand_in.fail("TerminateInstances", "OperationNotPermitted", "disableApiTermination is set.")
    with pytest.raises(ProviderError, match="disableApiTermination"):
        provider.release("one")
    provider.release("one")
    assert bench.left() == []


# --- where SSH comes from ----------------------------------------------------------------------------


def test_a_laptop_that_moves(bench: AwsBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """SSH is let in from where we are, and after a move from there, too, with the next renewal."""
    here = ["203.0.113.7"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4096)
                    body = f"{here[0]}\n"
                    connection.sendall(
                        f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n"
                        f"Connection: close\r\n\r\n{body}".encode()
                    )

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        monkeypatch.setattr(requests, "ADDRESS_URL", f"http://127.0.0.1:{port}/")
        monkeypatch.setattr(AwsSettings, "is_own_cloud", property(lambda self: False))
        now = [0.0]
        monkeypatch.setattr(prerequisites, "boot_s", lambda: now[0])
        provider = bench.provider()
        (asks,) = [r for r in provider.dry_run("one", [bench.request()]) if r["service"] == "https"]
        assert asks["parameters"] == {"url": f"http://127.0.0.1:{port}/"}
        provider.acquire("one", bench.request())
        assert _let_in(bench) == {"203.0.113.7/32"}
        provider.renew("one", 600)
        assert _let_in(bench) == {"203.0.113.7/32"}
        here[0] = "2001:db8::9"
        provider.renew("one", 600)
        assert _let_in(bench) == {"203.0.113.7/32", "2001:db8::9/128"}, "it may come back"
        now[0] += 700
        provider.renew("one", 600)
        assert _let_in(bench) == {"2001:db8::9/128"}, "who has that address now has no business there"
        _let_in_more(
            bench, "198.51.100.1/32", "SSH from Trainmaster on another 01234567, since 2026-01-02T03:04Z"
        )
        _let_in_more(bench, "198.51.100.2/32", "somebody's own")
        here[0] = "203.0.113.8"
        again = bench.provider()
        again.acquire("one", bench.request())
        assert "2001:db8::9/128" in _let_in(bench)
        for _ in range(2):
            now[0] += 700
            again.renew("one", 600)
        assert _let_in(bench) == {"203.0.113.8/32", "198.51.100.1/32", "198.51.100.2/32"}
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def _let_in_more(bench: AwsBench, block: str, description: str) -> None:
    client = bench.ec2()
    filters = [{"Name": "tag:trainmaster:cluster", "Values": ["one"]}]
    (group,) = client.describe_security_groups(Filters=filters)["SecurityGroups"]
    rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
    rule["IpRanges"] = [{"CidrIp": block, "Description": description}]
    client.authorize_security_group_ingress(GroupId=group["GroupId"], IpPermissions=[rule])
    client.close()


def _let_in(bench: AwsBench) -> set[str]:
    client = bench.ec2()
    filters = [{"Name": "tag:trainmaster:cluster", "Values": ["one"]}]
    (group,) = client.describe_security_groups(Filters=filters)["SecurityGroups"]
    client.close()
    rules = [rule for rule in group["IpPermissions"] if rule["IpProtocol"] == "tcp"]
    return {r["CidrIp"] for rule in rules for r in rule["IpRanges"]} | {
        r["CidrIpv6"] for rule in rules for r in rule.get("Ipv6Ranges", [])
    }


@pytest.mark.parametrize("ahead_s", [-3600.0, 0.0, 3600.0])
def test_times_are_translated_where_clocks_differ(bench: AwsBench, ahead_s: float) -> None:
    """What EC2 states is told by our clock; what others read is written by EC2's."""
    provider = bench.provider(ahead_s=ahead_s)
    (node,) = provider.acquire("one", bench.request())
    (one,) = bench.instances()
    assert node.started_at - ahead_s == pytest.approx(one["LaunchTime"].timestamp(), abs=2.0)
    provider.renew("one", 1800.0)
    (one,) = bench.instances()
    tags = {tag["Key"]: tag["Value"] for tag in one["Tags"]}
    renewed_at = datetime.strptime(tags[LEASE_TAG], LEASE_FORMAT).replace(tzinfo=UTC).timestamp() - 1800.0
    assert provider._client.clock.now() - renewed_at < 600.0, "not by our clock, which is an hour off"
    assert renewed_at - one["LaunchTime"].timestamp() < 600.0
    provider.release("one")
    (gone,) = provider.nodes("one")
    assert gone.ended_at is not None
    assert -2.0 <= gone.ended_at - gone.started_at < 600.0


def test_a_reaper_whose_clock_is_ahead_ends_nothing_that_is_leased(bench: AwsBench) -> None:
    leased = {node.id for node in bench.provider().acquire("one", bench.request(lease_s=900.0))}
    assert bench.provider(ahead_s=3600.0).reap([]) == []
    renewing = bench.provider(ahead_s=-3600.0)
    assert {node.id for node in renewing.nodes("one")} == leased
    bench.later(800.0)
    renewing.renew("one", 900.0)
    bench.later(800.0)
    assert bench.provider(ahead_s=3600.0).reap([]) == []
    bench.later(800.0)
    assert set(bench.provider(ahead_s=-3600.0).reap([])) == leased, "over by EC2's clock"
    bench.provider().reap([])
    assert bench.left() == []


def test_a_dry_run_needs_neither_keys_nor_cloud(bench: AwsBench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    provider = bench.provider(
        endpoint_url="http://127.0.0.1:1", access_key_id="", secret_access_key="", attempts=1
    )
    shown = provider.dry_run("one", [replace(bench.request(count=2, spot=True), zone="")])
    assert json.loads(json.dumps(shown)) == shown
    assert shown[-1]["parameters"]["Placement"]["AvailabilityZone"] == "${subnet.AvailabilityZone}"


def test_a_machine_that_says_nothing_of_a_lease_has_the_usual_one(bench: AwsBench) -> None:
    """With tags that somebody has changed by hand."""
    provider = bench.provider()
    for token, tags in enumerate([{}, {LEASE_S_TAG: "long"}, {LEASE_TAG: "soon"}]):
        (node,) = provider.acquire("one", bench.request(token=str(token)))
        bench.ec2().delete_tags(Resources=[node.id], Tags=[{"Key": LEASE_S_TAG}])
        if tags:
            named = [{"Key": key, "Value": value} for key, value in tags.items()]
            bench.ec2().create_tags(Resources=[node.id], Tags=named)
    bench.later(800.0)
    assert bench.provider().reap([]) == [], "15 minutes"
    bench.later(200.0)
    assert len(bench.provider().reap([])) == 3
    bench.provider().reap([])
    assert bench.left() == []
