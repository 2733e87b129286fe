"""Prices by AWS's own calls, which the lab answers: on demand from the price list, spot by zone."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")

from renter import Renter

from trainmaster.lab.instance_types import TYPES


@pytest.fixture
def account(renter: Renter) -> dict[str, str]:
    """What somebody with an account has in the environment."""
    access = renter.lab.access
    return {
        "AWS_ENDPOINT_URL": access["endpoint_url"],
        "AWS_ACCESS_KEY_ID": access["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": access["secret_access_key"],
        "AWS_REGION": access["region"],
        "TRAINMASTER_HOME": str(renter.work / "home"),
    }


def test_prices_are_refreshed_with_the_users_own_credentials(renter: Renter, account: dict[str, str]) -> None:
    wish = ("offers", "--instance", "m4.large", "--region", account["AWS_REGION"], "--json")
    before = json.loads(renter.call(*wish, **account).stdout)["offers"]
    assert not [offer for offer in before if offer["spot"]], "none ships"
    done = renter.call(*wish, "--refresh", **account)
    assert f"{account['AWS_REGION']}: " in done.stderr
    assert "prices of AWS, as of today" in done.stderr
    after = json.loads(done.stdout)["offers"]
    kind = TYPES["m4.large"]
    (on_demand,) = [offer for offer in after if not offer["spot"]]
    machine = on_demand["price_usd_per_hour"] - on_demand["extras_usd_per_hour"]
    assert machine == pytest.approx(kind.price_usd_per_hour)
    assert on_demand["as_of"] > before[0]["as_of"]
    spot = {
        offer["zone"]: offer["price_usd_per_hour"] - offer["extras_usd_per_hour"]
        for offer in after
        if offer["spot"]
    }
    assert sorted(spot) == sorted(renter.lab.access["zones"])
    assert all(price == pytest.approx(kind.spot_price_usd_per_hour) for price in spot.values())
    again = json.loads(renter.call(*wish, "--spot", **account).stdout)["offers"]
    assert {offer["zone"] for offer in again} == set(spot), "kept"
    table = renter.call("offers", "--instance", "m4.large", "--spot", **account).stdout
    assert all(zone in table for zone in spot)


def test_a_region_without_prices_and_keys_that_are_wrong(renter: Renter, account: dict[str, str]) -> None:
    done = renter.call("offers", "--refresh", "--region", "mars-1", code=2, **account)
    assert "mars-1" in done.stderr
    done = renter.call("offers", "--refresh", code=None, **{**account, "AWS_ACCESS_KEY_ID": "wrong"})
    assert done.returncode != 0
    assert "credentials" in done.stderr


def test_a_quote_by_old_prices_asks_for_new_ones(renter: Renter, account: dict[str, str]) -> None:
    """The lab is slow to answer once: then those that ship are used, and that is said."""
    points = renter.work / "points.csv"
    points.write_text(
        "sync,workers,nodes,local_batch,step_time_s,instance\nallreduce,1,1,128,0.5,m4.large\nallreduce,2,2,64,0.3,m4.large\n"
    )
    recipe = renter.recipe(
        "name: steps\nprovider: aws\nexperiments: {train: {command: 'true', steps: 100, batch: {global: 128},"
        " hardware: {instance: m4.large}, distributed: {strategy: allreduce, workers: 2}}}\n"
    )
    quote = ("quote", recipe, "--measurements", points, "--json")
    renter.lab.call("fault", "GetProducts", "--late", "30")
    try:
        late = renter.call(*quote, **account)
    finally:
        renter.lab.call("fault", "none")
    assert "could not be refreshed: AWS has not answered within 4 s" in late.stderr
    old = json.loads(late.stdout)["as_of"]
    (renter.work / "home/prices/tried").unlink()
    fresh = renter.call(*quote, **account)
    assert "days old: refreshed" in fresh.stderr
    assert json.loads(fresh.stdout)["as_of"] > old
