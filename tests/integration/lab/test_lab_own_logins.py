"""A team's own login at real clouds whose machines are hosts of the lab: only the team can use them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")

sys.path.append(str(Path(__file__).parent.parent / "places"))

from openstack_places import SETTINGS, running_cloud
from place_runs import train_with_own_login, until
from renter import Renter

from trainmaster.testing.private_im import NoImError, PrivateIm, installed

pytestmark = [pytest.mark.crossings, pytest.mark.timeout(900)]

PRICES = """\
provider,region,instance_type,vcpus,memory_gib,price_usd_per_hour,as_of
aws,us-east-1,m4.large,2,8,0.1,2026-11-01
im,ec2,m4.large,2,8,0.1,2026-11-01
"""
IM_CREDENTIALS = """\
type = InfrastructureManager; username = me; password = of-the-team
id = ec2; type = EC2; username = {access_key_id}; password = {secret_access_key}
"""
IM_SETTINGS = """\
url: {url}
credentials: im.auth
prices: prices.csv
clouds: {{ec2: {{image: 'aws://{region}/{image_id}', disk: 10GiB, user: tm}}}}
"""


@dataclass
class Own:
    """What a manager uses a place with. variables: of theirs. secrets: of it. machine: that runs name."""

    machine: str
    secrets: list[str]
    variables: dict[str, str]
    left: Callable[[], list[str]] = field(default=list)


@contextmanager
def openstack(user: Renter, cache: Path, mia: Path) -> Iterator[Own]:
    """A real Nova and Keystone, and an application credential that may make others."""
    for cloud in running_cloud(user.lab, cache):
        (mia / "openstack.yaml").write_text(SETTINGS)
        with cloud.nova.credential(unrestricted=True) as variables:
            own = Own("m1.tiny", [variables["OS_APPLICATION_CREDENTIAL_SECRET"]], variables)
            own.left = cloud.nova.left
            yield own


@contextmanager
def im(user: Renter, cache: Path, mia: Path) -> Iterator[Own]:
    """A real Infrastructure Manager."""
    access = user.lab.access
    try:
        python = installed(cache)
    except NoImError as error:
        pytest.skip(str(error))
    with PrivateIm(python, access["endpoint_url"], [("m4.large", 2, 8192, 0.1)]) as manager:
        file = mia / "im.auth"
        file.touch(0o600)
        file.write_text(IM_CREDENTIALS.format(**access))
        (mia / "prices.csv").write_text(PRICES)
        (mia / "im.yaml").write_text(IM_SETTINGS.format(url=manager.url, **access))
        yield Own("m4.large", ["of-the-team", access["secret_access_key"]], {})


@contextmanager
def aws(user: Renter, cache: Path, mia: Path) -> Iterator[Own]:
    """The provider `aws` at the API of EC2 that the lab has, with prices that the server names."""
    del cache
    access, prices = user.lab.access, mia.parent / "prices.csv"
    prices.write_text(PRICES)
    user.env["TRAINMASTER_CATALOGUE"] = str(prices)
    variables = {
        "AWS_ACCESS_KEY_ID": access["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": access["secret_access_key"],
        "AWS_REGION": access["region"],
        "AWS_ENDPOINT_URL": access["endpoint_url"],
        "TRAINMASTER_AWS_IMAGE": access["image_id"],
        "TRAINMASTER_AWS_USER": access["user"],
        "TRAINMASTER_AWS_DISK_GIB": "8",
    }
    yield Own("m4.large", [access["secret_access_key"]], variables)


@pytest.mark.parametrize("place", [openstack, im, aws], ids=lambda place: place.__name__)
def test_a_team_trains_with_its_own_login(
    renter: Renter, lab_cache: Path, tmp_path: Path, place: Callable[..., Any]
) -> None:
    """The server has neither settings nor keys; nothing stays."""
    before = renter.lab.alive()
    (mia := tmp_path / "mia").mkdir()
    renter.env |= {"TRAINMASTER_WEBHOOK_NETWORKS": "127.0.0.0/8", "TRAINMASTER_HOME": str(tmp_path / "home")}
    with place(renter, lab_cache, mia) as own:
        train_with_own_login(renter, place.__name__, tmp_path, own.machine, own.secrets, **own.variables)
        until(lambda: renter.lab.alive() == before, 60, renter.lab.alive)
        until(lambda: not own.left(), 60, own.left)
