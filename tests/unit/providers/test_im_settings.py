"""`im.yaml` and price lists: mistakes are told with their place, clouds have the offers that they have."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from trainmaster.providers.im.provider import im_offers
from trainmaster.providers.im.settings import DISK_BYTES, IM, read_settings
from trainmaster.providers.loading import load_catalogue
from trainmaster.spec.errors import RecipeError, UsageError

TODAY = date(2026, 1, 5)
GOOD = """\
url: https://im.example.org/im
prices: prices.csv
clouds:
  egi: {image: 'ost://keystone/1', gpu_image: 'ost://keystone/2', disk: 20GiB, public_addresses: false}
  ec2: {image: 'aws://eu-west-1/ami-1', user: ubuntu, ssh_from: 203.0.113.7/32}
"""
PRICES = "provider,region,instance_type,vcpus,memory_gib,price_usd_per_hour,as_of\n"


def settings(tmp_path: Path, text: str = GOOD) -> Path:
    file = tmp_path / "im.yaml"
    file.write_text(text)
    return file


def test_what_is_said_and_what_is_left_out(tmp_path: Path) -> None:
    found = read_settings(settings(tmp_path))
    assert found.credentials_file == tmp_path / "im.auth"
    assert found.prices_file == tmp_path / "prices.csv"
    assert list(found.clouds) == ["egi", "ec2"]
    egi, ec2 = found.cloud("egi"), found.cloud("ec2")
    assert (egi.disk_bytes, ec2.disk_bytes) == (20 << 30, DISK_BYTES)
    assert (egi.user, ec2.user) == ("cloudadm", "ubuntu")
    assert (egi.public_addresses, ec2.public_addresses) == (False, True)
    with pytest.raises(UsageError, match="has no cloud 'gce'"):
        found.cloud("gce")


def test_another_file_may_be_named(tmp_path: Path) -> None:
    assert IM.file(tmp_path, {"TRAINMASTER_IM": "/etc/im.yaml"}) == Path("/etc/im.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("clouds: {a: {image: x}}", "no `url`"),
        ("url: https://x/im", "no `clouds`"),
        ("url: ftp://x\nclouds: {a: {image: x}}", "write the address of IM's REST API"),
        ("url: https://x\nclouds: {a: {}}", "write `image`"),
        ("url: https://x\nclouds: {a: {image: x, imagee: y}}", "did you mean 'image'"),
        ("url: https://x\nclouds: {a: {image: x, ssh_from: 1.2.3}}", "no IPv4 block"),
        ('url: https://x\nclouds: {a: {image: "it\'s"}}', "write an image as IM names it"),
    ],
)
def test_mistakes_have_a_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words) as caught:
        read_settings(settings(tmp_path, text))
    assert "im.yaml:" in str(caught.value)


def test_settings_that_are_too_long_are_not_cut(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="more than 1 MiB"):
        read_settings(settings(tmp_path, f"{GOOD}# {'x' * 2**20}\nclouds: {{}}\n"))


def test_settings_in_another_encoding_are_refused_where_they_are(tmp_path: Path) -> None:
    (file := tmp_path / "im.yaml").write_bytes(GOOD.encode() + "# J\xe9r\xf4me".encode("latin-1"))
    with pytest.raises(RecipeError, match=r"im.yaml:6:4: the byte 0xe9 is not UTF-8"):
        read_settings(file)


def test_credentials_do_not_go_in_clear(tmp_path: Path) -> None:
    for url in ("http://127.0.0.1:8800", "http://localhost:8800"):
        read_settings(settings(tmp_path, GOOD.replace("https://im.example.org/im", url)))
    with pytest.raises(UsageError, match="in clear"):
        read_settings(settings(tmp_path, GOOD.replace("https", "http")))
    with pytest.raises(UsageError, match="there are no settings"):
        read_settings(tmp_path / "none.yaml")


def test_the_users_list_comes_first_and_ec2_has_the_prices_of_aws(tmp_path: Path) -> None:
    known = read_settings(settings(tmp_path))
    (tmp_path / "prices.csv").write_text(PRICES + "im,egi,m1.large,8,16,0.1,2026-01-02\n")
    clouds = {"egi": "OpenStack", "ec2": "EC2"}
    aws = load_catalogue(None, today=TODAY)
    found = im_offers(known, clouds, aws, TODAY)
    assert {offer.provider for offer in found} == {"im"}
    assert [offer.instance_type for offer in found if offer.region == "egi"] == ["m1.large"]
    expected = {
        (o.instance_type, o.price_usd_per_hour)
        for o in aws.where(provider="aws", region="eu-west-1")
        if not o.spot and o.arch != "arm64"
    }
    assert {(o.instance_type, o.price_usd_per_hour) for o in found if o.region == "ec2"} == expected
    (tmp_path / "prices.csv").write_text(PRICES + "im,ec2,m4.large,2,8,0.5,2026-01-02\n")
    found = im_offers(known, clouds, aws, TODAY)
    assert [(o.region, o.instance_type, o.price_usd_per_hour) for o in found] == [("ec2", "m4.large", 0.5)]


def test_prices_of_a_cloud_that_is_not_in_the_settings(tmp_path: Path) -> None:
    known = read_settings(settings(tmp_path))
    (tmp_path / "prices.csv").write_text(PRICES + "im,egy,m1.large,8,16,0.1,2026-01-02\n")
    with pytest.raises(UsageError, match="prices of egy, which are no clouds"):
        im_offers(known, {}, today=TODAY)
