"""What the keys of a machine that drives a run may do, as a policy."""

from __future__ import annotations

import json

from trainmaster.providers.aws.run_policy import MOST_CHARACTERS, run_policy

HOME = "0123456789abcdef0123456789abcdef"


def statements(*given):
    return json.loads(run_policy(*given))["Statement"]


def test_nothing_is_made_changed_or_ended_without_the_tags_of_the_run():
    for each in statements(HOME, "r-1", ["m5.large"], "gs://bucket"):
        actions = {action for action in each["Action"] if not action.startswith(("ec2:Describe", "s3:"))}
        if each["Effect"] == "Deny" or (each["Resource"] == "*" and "Condition" not in each):
            continue
        if actions & {"ec2:TerminateInstances", "ec2:ImportKeyPair"}:
            (tag,) = each["Condition"]["StringLike"].items()
            assert tag[0].endswith("Tag/trainmaster:cluster")
            assert tag[1] == "r-1.*"
            assert HOME in each["Condition"]["StringEquals"].values()


def test_it_fits_whatever_may_be_rented():
    few = run_policy(HOME, "a-name" * 8, ["m5.large"], "s3://some-bucket/store")
    many = run_policy(HOME, "a-name" * 8, [f"m{n}.large" for n in range(200)], "s3://some-bucket/store")
    assert "m5.large" in few
    assert "InstanceType" not in many
    assert max(len(few), len(many)) <= MOST_CHARACTERS
