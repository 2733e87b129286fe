"""What a machine that drives a run may do with AWS: a session policy for a role, for this run's tags only."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from trainmaster.providers.aws.requests import CLUSTER_TAG, HOME_TAG

#: Of a session policy, as AWS documents it.
MOST_CHARACTERS: Final = 2048
_MADE: Final = (
    "instance",
    "volume",
    "key-pair",
    "security-group",
    "placement-group",
    "spot-instances-request",
)
_USED: Final = ("key-pair", "network-interface", "placement-group", "security-group", "subnet")


def run_policy(home: str, run: str, instance_types: Iterable[str], store_url: str) -> str:
    """As JSON; what the role itself does not allow stays forbidden.

    Args:
        home: identity of the home.
        run: its id: names of its clusters begin with it.
        instance_types: that it may rent; as many as there is room for in a policy, else any.
        store_url: of its models.

    >>> found = json.loads(run_policy("h", "r-1", ["m5.large"], "s3://bucket/store"))["Statement"]
    >>> [each["Resource"] for each in found if "s3:PutObject" in each["Action"]]
    ['arn:aws:s3:::bucket/store/*']
    """
    types = sorted(set(instance_types))
    found = json.dumps(_policy(home, run, types, store_url), separators=(",", ":"))
    if len(found) > MOST_CHARACTERS:
        found = json.dumps(_policy(home, run, (), store_url), separators=(",", ":"))
    return found


def _policy(home: str, run: str, types: Iterable[str], store_url: str) -> dict[str, Any]:
    def arns(kinds: Iterable[str]) -> list[str]:
        return [f"arn:aws:ec2:*:*:{kind}/*" for kind in kinds]

    def tagged(of: str) -> dict[str, Any]:
        names = {f"aws:{of}/{HOME_TAG}": home}
        return {"StringEquals": names, "StringLike": {f"aws:{of}/{CLUSTER_TAG}": f"{run}.*"}}

    make = ["ec2:RunInstances", "ec2:CreateSecurityGroup", "ec2:CreatePlacementGroup", "ec2:ImportKeyPair"]
    change = ["ec2:Delete*", "ec2:TerminateInstances", "ec2:*SecurityGroupIngress", "ec2:CreateTags"]
    look = ["ec2:Describe*", "pricing:GetProducts", "servicequotas:GetServiceQuota", "sts:AssumeRole"]
    statements = [
        _allow([*look, "s3:GetObject", "s3:ListBucket"], "*"),
        _allow(make, arns(_MADE), tagged("RequestTag")),
        _allow(["ec2:RunInstances"], ["arn:aws:ec2:*::image/*", *arns(_USED)]),
        _allow(["ec2:CreateSecurityGroup"], arns(["vpc"])),
        _allow(["ec2:CreateTags"], "*", {"Null": {"ec2:CreateAction": "false"}}),
        _allow(change, "*", tagged("ResourceTag")),
    ]
    if types:
        statements.append({
            "Effect": "Deny", "Action": "ec2:RunInstances", "Resource": "arn:aws:ec2:*:*:instance/*",
            "Condition": {"StringNotEquals": {"ec2:InstanceType": list(types)}},
        })  # fmt: skip
    if store_url.startswith("s3://"):
        place = store_url.removeprefix("s3://").strip("/")
        write = ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
        statements.append(_allow(write, f"arn:aws:s3:::{place}/*"))
    return {"Version": "2012-10-17", "Statement": statements}


def _allow(actions: list[str], resource: object, condition: object = None) -> dict[str, Any]:
    found = {"Effect": "Allow", "Action": actions, "Resource": resource}
    return found if condition is None else {**found, "Condition": condition}
