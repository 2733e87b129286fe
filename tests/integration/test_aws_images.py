"""Images of machines on AWS: machines start from one that has all they need, and else from the base image."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")
pytest.importorskip("moto.server", reason="moto[server] is not installed")

from aws_stand_in import REGION, AwsBench

from trainmaster.providers.base import BakedImage, NodeRequest

WANTED = BakedImage("", "", "first", ("aaaa", "bbbb"), saves_s=74.0, team="biology")
#: What a machine of that type starts from, of the images that the stand-in has.
BASE = "ami-00000002"


def baked(bench: AwsBench) -> BakedImage:
    """The image of a machine that was rented for it and is given back."""
    provider = bench.provider()
    (node,) = provider.acquire("first.main", bench.request())
    made = provider.bake("first.main", node.id, WANTED)
    assert provider.bake("first.main", node.id, WANTED) == made, "a call that is repeated finds it"
    provider.release("first.main")
    return made


def started_from(bench: AwsBench, request: NodeRequest, home: str = "ours") -> str:
    cluster = f"later-{len(bench.stand_in.calls)}.main"
    (node,) = bench.provider(home).acquire(cluster, request)
    (image,) = [one["ImageId"] for one in bench.instances() if one["InstanceId"] == node.id]
    bench.provider(home).release(cluster)
    return str(image)


def test_an_image_is_listed_with_what_it_holds_until_it_is_removed(bench: AwsBench) -> None:
    made = baked(bench)
    assert replace(made, id="", made_at=0.0) == replace(
        WANTED,
        region=REGION,
        base="debian-12-amd64-*",
        is_ready=True,
        size_bytes=15 << 30,
        usd_per_month=0.75,
    )
    assert made.made_at > 0
    provider = bench.provider()
    assert provider.images() == [made]
    other = bench.provider("theirs")
    other.acquire("other.main", bench.request())
    assert (other.images(), other.remove_image(made.id)) == ([], False), "another home's is not touched"
    assert (provider.remove_image(made.id), provider.remove_image(made.id)) == (True, False)
    assert provider.images() == []
    deleted = [call.form["SnapshotId"] for call in bench.stand_in.calls if call.action == "DeleteSnapshot"]
    assert len(deleted) == 1, "which is what it costs"
    (gone,) = [call.form for call in bench.stand_in.calls if call.action == "DeregisterImage"]
    assert gone["DeleteAssociatedSnapshots"] == "true", "who is killed after that leaves none behind"


def test_it_is_taken_only_by_machines_that_need_what_it_holds(bench: AwsBench) -> None:
    made = baked(bench)
    request = bench.request(content=("aaaa",))
    assert started_from(bench, request) == made.id, "what else is on it does no harm"
    assert started_from(bench, bench.request()) == BASE
    assert started_from(bench, bench.request(content=("aaaa", "cccc"))) == BASE, "a setup that has changed"
    assert started_from(bench, replace(request, disk_bytes=8 << 30)) == BASE, "it would not fit on the disk"
    assert started_from(bench, replace(request, instance_type="t4g.micro")) == "ami-00000003"
    assert started_from(bench, request, "theirs") == BASE


def test_an_image_that_is_removed_before_its_machine_is_rented_is_not_missed(bench: AwsBench) -> None:
    baked(bench)
    bench.stand_in.fail("RunInstances", "InvalidAMIID.Unavailable", "The image ID does not exist")
    assert started_from(bench, bench.request(content=("aaaa", "bbbb"))) == BASE
