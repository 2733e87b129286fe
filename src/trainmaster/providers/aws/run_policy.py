"""What a machine that drives a run may do with AWS: a session policy for a role, for this run's tags only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from trainmaster.providers.aws.requests import CLUSTER_TAG, HOME_TAG, LEASE_TAG
from trainmaster.spec.errors import UsageError

#: Of a session policy, as AWS documents it.
MOST_CHARACTERS: Final = 2048
_MAKE: Final = (
    "ec2:RunInstances",
    "ec2:CreateSecurityGroup",
    "ec2:CreatePlacementGroup",
    "ec2:ImportKeyPair",
)
#: `RunInstances` also here: the key pair and the groups that machines get are the run's own.
_CHANGE: Final = (
    "ec2:RunInstances",
    "ec2:CreateTags",
    "ec2:DeleteKeyPair",
    "ec2:Delete*Group",
    "ec2:TerminateInstances",
    "ec2:GetConsoleOutput",
    "ec2:*SecurityGroupIngress",
)
#: Not all that can be described: user data of others hold keys, and are told by *Attribute and *Versions.
_LOOK: Final = (
    "ec2:DescribeI*s",
    "ec2:DescribeKeyPairs",
    "ec2:Describe*Groups",
    "ec2:DescribeSpot*",
    "ec2:DescribeSubnets",
    "pricing:GetProducts",
    "servicequotas:GetServiceQuota",
)
_WRITE: Final = ("s3:PutObject", "s3:DeleteObject", "s3:*MultipartUpload*")


def run_policy(
    home: str,
    run: str,
    instance_types: Iterable[str],
    store_url: str,
    reads: Iterable[str] = (),
    lend_role: str = "",
) -> str:
    """As JSON; what the role itself does not allow stays forbidden.

    Args:
        home: identity of the home.
        run: its id: names of its clusters begin with it.
        instance_types: that it may rent; where the policy would be too long their families (``m5.*``), or
            all that begin with the same letter.
        store_url: of its models: it reads all of that, and writes what is this run's.
        reads: what it reads beside that.
        lend_role: another role, whose keys nodes get.

    Raises:
        UsageError: there is no such policy, as it would be too long.

    >>> found = json.loads(run_policy("h", "r-1", ["m5.large"], "s3://bucket/store"))["Statement"]
    >>> [each["Resource"][0] for each in found if "s3:PutObject" in each["Action"]]
    ['arn:aws:s3:::bucket/store/*/r-1/*']
    """
    types = sorted(set(instance_types))
    families = sorted({f"{each.partition('.')[0]}.*" for each in types})
    found = ""
    for allowed in (types, families, sorted({f"{each[0]}*" for each in types})):
        statements = [*_machines(home, run, allowed), *_objects(run, store_url, list(reads))]
        if lend_role:
            statements.append(_allow(["sts:AssumeRole"], lend_role))
        found = json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))
        if len(found) <= MOST_CHARACTERS:
            return found
    raise UsageError(
        f"what its machine may do is too long for a policy: {len(found)} characters, of {MOST_CHARACTERS}",
        "Read from fewer places (`data`), or name no role.",
    )


def _machines(home: str, run: str, types: Sequence[str]) -> list[dict[str, Any]]:
    is_made = {f"aws:RequestTag/{HOME_TAG}": home, f"aws:RequestTag/{CLUSTER_TAG}": f"{run}.*"}
    anywhere = [f"arn:aws:ec2:*:*:{kind}/*" for kind in ("network-interface", "subnet", "vpc")]
    return [
        _allow(_LOOK, "*"),
        _allow(_MAKE, "*", {"StringLike": is_made}),
        _allow(["ec2:RunInstances", "ec2:CreateSecurityGroup"], ["arn:aws:ec2:*::image/*", *anywhere]),
        _allow(["ec2:CreateTags"], "*", {"Null": {"ec2:CreateAction": "false"}}),
        _allow(_CHANGE, "*", {"StringLike": {f"aws:ResourceTag/{CLUSTER_TAG}": f"{run}.*"}}),
        # Of what is there only the date changes: else its tags could be taken off, or those of others put on.
        _deny(
            "ec2:CreateTags",
            "*",
            {
                "Null": {"ec2:CreateAction": "true"},
                "ForAnyValue:StringNotEquals": {"aws:TagKeys": [LEASE_TAG]},
            },
        ),
        _deny(
            "ec2:RunInstances",
            "arn:aws:ec2:*:*:instance/*",
            {"StringNotLike": {"ec2:InstanceType": list(types)}},
        ),
    ]


def _objects(run: str, store_url: str, reads: Sequence[str]) -> list[dict[str, Any]]:
    store, *others = [url.removeprefix("s3://").strip("/") for url in (store_url, *reads)]
    places = [store] if store_url.startswith("s3://") else []
    for url, place in zip(reads, others, strict=True):
        if url.startswith("s3://") and not any(f"{place}/".startswith(f"{known}/") for known in places):
            places.append(place)
    if not places:
        return []
    names = [f"{place}/*" for place in places] + [
        place for place in places if place != store and "/" in place
    ]
    # Of all names in a bucket: else S3 says of an object that is not there that it must not be read.
    buckets = dict.fromkeys(place.partition("/")[0] for place in places)
    found = [
        _allow(["s3:GetObject", "s3:ListBucket"], [f"arn:aws:s3:::{name}" for name in (*names, *buckets)])
    ]
    if store_url.startswith("s3://"):
        found.append(_allow(_WRITE, [f"arn:aws:s3:::{store}/*/{run}/*"]))  # models, checkpoints, driver
    return found


def _allow(actions: Sequence[str], resource: object, condition: object = None) -> dict[str, Any]:
    found = {"Effect": "Allow", "Action": list(actions), "Resource": resource}
    return found if condition is None else {**found, "Condition": condition}


def _deny(action: str, resource: str, condition: object) -> dict[str, Any]:
    return {"Effect": "Deny", "Action": action, "Resource": resource, "Condition": condition}
