"""What the keys of a machine that drives a run may do: its policy, judged as AWS documents that it judges."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

pytest.importorskip("botocore", reason="botocore is not installed")
import botocore.session
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.providers.aws.requests import CLUSTER_TAG, HOME_TAG, LEASE_TAG, AwsRequest, AwsRequestBuilder
from trainmaster.providers.aws.run_policy import MOST_CHARACTERS, run_policy
from trainmaster.providers.aws.settings import AwsSettings
from trainmaster.providers.base import NodeRequest
from trainmaster.spec.errors import UsageError

HOME = "0123456789abcdef0123456789abcdef"
STORE = "s3://bucket/store"
RUN = "digits-7f3a09c2d1"
LEND = "arn:aws:iam::123456789012:role/lending"
OURS = {HOME_TAG: HOME, CLUSTER_TAG: f"{RUN}.train"}
EC2 = "arn:aws:ec2:eu-west-1:123456789012"
LOOK = {
    "ec2:DescribeImages", "ec2:DescribeInstances", "ec2:DescribeInstanceTypes",
    "ec2:DescribeInstanceTypeOfferings", "ec2:DescribeKeyPairs", "ec2:DescribePlacementGroups",
    "ec2:DescribeSecurityGroups", "ec2:DescribeSpotInstanceRequests", "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSubnets",
}  # fmt: skip
END = {
    "ec2:TerminateInstances", "ec2:DeleteKeyPair", "ec2:DeletePlacementGroup", "ec2:DeleteSecurityGroup",
    "ec2:AuthorizeSecurityGroupIngress", "ec2:RevokeSecurityGroupIngress",
    "ec2:GetConsoleOutput",
}  # fmt: skip


# --- a judge ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """An action on a resource, with what is known of both."""

    action: str
    resource: str
    context: Mapping[str, str | list[str]] = field(default_factory=dict)


@cache
def regular(pattern: str) -> re.Pattern[str]:
    parts = (".*" if each == "*" else "." if each == "?" else re.escape(each) for each in pattern)
    return re.compile("".join(parts), re.S)


def matches(pattern: str, value: str) -> bool:
    return regular(pattern).fullmatch(value) is not None


def values_of(found: Any) -> list[str]:
    return found if isinstance(found, list) else [found]


def is_met(operator: str, wanted: Any, have: Any) -> bool:
    """Of one key of a condition; an operator that is not known here is an error."""
    expected = values_of(wanted)
    if operator == "Null":
        return (have is None) == (expected == ["true"])
    if operator == "ForAnyValue:StringNotEquals":
        return any(each not in expected for each in have or [])
    assert have is None or isinstance(have, str)
    like = have is not None and any(matches(each, have) for each in expected)
    return {"StringLike": like, "StringNotLike": not like}[operator]  # what is not there is not like


def concerns(statement: Mapping[str, Any], asked: Asked) -> bool:
    return (
        any(matches(each.lower(), asked.action.lower()) for each in values_of(statement["Action"]))
        and any(matches(each, asked.resource) for each in values_of(statement["Resource"]))
        and all(
            is_met(operator, wanted, asked.context.get(key))
            for operator, keys in statement.get("Condition", {}).items()
            for key, wanted in keys.items()
        )
    )


@cache
def statements(policy: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(policy)["Statement"]
    return found


def allows(policy: str, asked: Asked) -> bool:
    """Whether the policy allows it: nothing denies it, and something allows it."""
    effects = {each["Effect"] for each in statements(policy) if concerns(each, asked)}
    return effects == {"Allow"}


def tags(of: str, found: Mapping[str, str]) -> dict[str, str | list[str]]:
    return {f"aws:{of}/{name}": value for name, value in found.items()}


def all_of(request: AwsRequest, groups: Mapping[str, str] = OURS) -> list[Asked]:
    """What EC2 asks for a request: each resource that it makes, with the tags, and each that it uses."""
    action, given_ = f"ec2:{request.operation}", request.parameters
    found = []
    for made in given_.get("TagSpecifications", []):
        kind, named = made["ResourceType"], {each["Key"]: each["Value"] for each in made["Tags"]}
        resource, context = f"{EC2}:{kind}/x", tags("RequestTag", named) | {"aws:TagKeys": list(named)}
        known = {"ec2:InstanceType": given_["InstanceType"]} if kind == "instance" else {}
        found += [
            Asked(action, resource, context | known),
            Asked("ec2:CreateTags", resource, context | {"ec2:CreateAction": request.operation}),
        ]
    if request.operation == "RunInstances":
        plain = (f"{EC2}:subnet/x", f"{EC2}:network-interface/x", "arn:aws:ec2:eu-west-1::image/x")
        found += [Asked(action, each) for each in plain]
        used = ("security-group", "key-pair", "placement-group")
        found += [Asked(action, f"{EC2}:{each}/x", tags("ResourceTag", groups)) for each in used]
    if request.operation == "CreateSecurityGroup":
        found.append(Asked(action, f"{EC2}:vpc/x"))
    if not found:
        found = [Asked(action, f"{EC2}:security-group/x", tags("ResourceTag", groups))]
    return found


# --- what it says ----------------------------------------------------------------------------------------


RENTER = AwsRequestBuilder(HOME, AwsSettings(region="eu-west-1", placement_groups=True))
POLICY = run_policy(HOME, RUN, ["m5.large", "m5.xlarge"], STORE, ["s3://other/data/train"], LEND)


def requests(cluster: str, wanted: NodeRequest) -> list[AwsRequest]:
    return [
        RENTER.import_key(cluster, "eu-west-1", "ssh-ed25519 A"),
        RENTER.create_group(cluster, "eu-west-1"),
        RENTER.create_placement(cluster, "eu-west-1", "eu-west-1a"),
        RENTER.open_inside("eu-west-1"),
        RENTER.open_ssh("eu-west-1"),
        RENTER.close_ssh("eu-west-1", "1.2.3.4/32", "sg-1"),
        RENTER.run(cluster, wanted, "eu-west-1a", "#!/bin/sh\n"),
    ]


@given(
    cluster=st.sampled_from([f"{RUN}.train", f"{RUN}.other", "digits-7f3a09c2d2.train", RUN, ""]),
    kind=st.sampled_from(["m5.large", "m5.xlarge", "p4d.24xlarge", "m5.metal"]),
    spot=st.booleans(),
)
def test_it_rents_with_the_tags_of_the_run_and_machines_of_its_types_only(cluster, kind, spot):
    wanted = NodeRequest(role="worker", count=2, instance_type=kind, region="eu-west-1", spot=spot)
    *others, rent = requests(cluster, wanted)
    mine = {HOME_TAG: HOME, CLUSTER_TAG: cluster}
    is_ours = cluster.startswith(f"{RUN}.")
    for request in others:
        assert all(allows(POLICY, each) for each in all_of(request, mine)) == is_ours, request
    may_rent = all(allows(POLICY, each) for each in all_of(rent, mine))
    assert may_rent == (is_ours and kind in ("m5.large", "m5.xlarge"))


def test_it_rents_nothing_for_another_home_nor_into_groups_of_others():
    wanted = NodeRequest(role="worker", count=1, instance_type="m5.large", region="eu-west-1")
    another = AwsRequestBuilder("f" * 32, AwsSettings(region="eu-west-1"))
    rent = another.run(f"{RUN}.train", wanted, "eu-west-1a", "#!/bin/sh\n")
    assert not all(allows(POLICY, each) for each in all_of(rent))
    rent = RENTER.run(f"{RUN}.train", wanted, "eu-west-1a", "#!/bin/sh\n")
    assert not all(allows(POLICY, each) for each in all_of(rent, {}))
    assert all(allows(POLICY, each) for each in all_of(rent))


@cache
def operations(service: str) -> set[str]:
    """Every one that there is."""
    model = botocore.session.get_session().get_service_model(service)
    return {f"{service}:{name}" for name in model.operation_names}


def test_of_all_that_ec2_can_do_it_may_look_and_end_what_is_its_own():
    known = (f"{EC2}:instance/x", "*")
    own, theirs = tags("ResourceTag", OURS), tags("ResourceTag", {HOME_TAG: HOME, CLUSTER_TAG: "other-1.x"})

    def may(context: Mapping[str, Any]) -> set[str]:
        return {
            action
            for action in operations("ec2")
            for resource in known
            if allows(POLICY, Asked(action, resource, context))
        }

    seen = may({})
    assert seen >= LOOK
    assert all(action.startswith("ec2:Describe") for action in seen)
    assert not {each for each in seen if re.search("(Attribute|Versions|Output)$", each)}  # user data, keys
    assert may(theirs) == seen
    assert may(own) - seen <= {*END, "ec2:RunInstances", "ec2:CreateTags"} | {
        each for each in operations("ec2") if re.fullmatch("ec2:Delete.*Group", each)
    }
    assert may(own) >= END


def test_it_can_neither_widen_itself_nor_name_another_role():
    for action in operations("iam") | operations("sts") | {"iam:PassRole", "organizations:MoveAccount"}:
        for resource in ("*", "arn:aws:iam::123456789012:role/drivers"):
            assert not allows(POLICY, Asked(action, resource)), action
    assert allows(POLICY, Asked("sts:AssumeRole", LEND))
    assert not allows(run_policy(HOME, RUN, ["m5.large"], STORE), Asked("sts:AssumeRole", LEND))


@given(
    st.sets(st.sampled_from([HOME_TAG, CLUSTER_TAG, LEASE_TAG, "Name", "x"]), min_size=1),
    st.sampled_from([OURS, {}, {HOME_TAG: HOME, CLUSTER_TAG: "other-1.train"}]),
)
def test_of_what_is_there_it_changes_the_date_of_its_own_machines_and_no_other_tag(names, bears):
    context = tags("ResourceTag", bears) | {"aws:TagKeys": sorted(names)}
    may = allows(POLICY, Asked("ec2:CreateTags", f"{EC2}:instance/i-1", context))
    assert may == (bears == OURS and names == {LEASE_TAG})
    assert not allows(POLICY, Asked("ec2:DeleteTags", f"{EC2}:instance/i-1", context))


def test_it_writes_what_is_the_runs_and_reads_its_store_and_data():
    def places(action: str) -> set[str]:
        found = ("store/models/other-1/m", f"store/models/{RUN}/main/m", f"store/checkpoints/{RUN}/a",
                 f"store/driver/{RUN}/claim-000001", "store/volumes/v/heads/1", "elsewhere")  # fmt: skip
        names = [f"bucket/{each}" for each in found]
        names += ["other/data/train", "other/data/train/1", "other/data/trainers", "third/x"]
        return {name for name in names if allows(POLICY, Asked(action, f"arn:aws:s3:::{name}"))}

    own = {
        f"bucket/store/{each}" for each in (f"models/{RUN}/main/m", f"checkpoints/{RUN}/a",
                                            f"driver/{RUN}/claim-000001")
    }  # fmt: skip
    assert places("s3:PutObject") == places("s3:DeleteObject") == places("s3:AbortMultipartUpload") == own
    assert places("s3:GetObject") == own | {
        "bucket/store/models/other-1/m", "bucket/store/volumes/v/heads/1", "other/data/train",
        "other/data/train/1",
    }  # fmt: skip
    lists = {name for name in ("bucket", "other", "third")
             if allows(POLICY, Asked("s3:ListBucket", f"arn:aws:s3:::{name}"))}  # fmt: skip
    assert lists == {"bucket", "other"}
    for action in ("s3:PutBucketPolicy", "s3:PutObjectAcl", "s3:DeleteBucket", "s3:PutBucketAcl"):
        for name in ("bucket", f"bucket/store/models/{RUN}/m"):
            assert not allows(POLICY, Asked(action, f"arn:aws:s3:::{name}"))


def test_elsewhere_it_has_no_objects():
    policy = run_policy(HOME, RUN, ["m5.large"], "gs://bucket/store")
    assert "s3:" not in policy


@pytest.mark.parametrize("many", [1, 3, 40, 200])
def test_it_fits_whatever_may_be_rented(many):
    types = [f"{letter}{n}.large" for letter in "cmr" for n in range(many)]
    policy = run_policy(HOME, "a-name" * 8, types, "s3://some-bucket/store", ["s3://other/data/train"], LEND)
    assert len(policy) <= MOST_CHARACTERS
    for each, may in ((types[0], True), ("p4d.24xlarge", False)):
        context = {"ec2:InstanceType": each} | tags(
            "RequestTag", {HOME_TAG: HOME, CLUSTER_TAG: "a-name" * 8 + ".t"}
        )
        assert allows(policy, Asked("ec2:RunInstances", f"{EC2}:instance/i-1", context)) == may


def test_one_that_does_not_fit_is_none():
    with pytest.raises(UsageError, match="too long"):
        run_policy(HOME, RUN, ["m5.large"], STORE, [f"s3://bucket-{n}/some/data" for n in range(40)])
