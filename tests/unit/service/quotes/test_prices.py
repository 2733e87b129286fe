"""Prices of the user's own account: kept in the home, asked for when they are old, never waited for long."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import date, timedelta

import pytest

from trainmaster.cluster.renting.plan_clusters import plan_clusters
from trainmaster.control.task.layout import Home
from trainmaster.providers import load_catalogue
from trainmaster.providers.base import ProviderPlace
from trainmaster.service.offer_list import refresh_prices
from trainmaster.service.open_home import OpenHome
from trainmaster.service.quotes.candidate_offers import candidate_offers_of
from trainmaster.service.quotes.prices import Prices, named_regions
from trainmaster.service.teams.team_logins import TeamLogins
from trainmaster.service.users.access import Access
from trainmaster.spec import read_recipe
from trainmaster.spec.errors import UsageError

TODAY = date(2026, 11, 21)
REGION = "eu-central-1"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_REGION": REGION}


@pytest.fixture
def home(tmp_path):
    return Home.from_environment(
        {"TRAINMASTER_HOME": str(tmp_path / "home"), "TRAINMASTER_CACHE": str(tmp_path)}
    )


@pytest.fixture
def recipe(tmp_path):
    def make(provider="aws", **hardware):
        path = tmp_path / "recipe.yaml"
        experiment = {"command": "true", "hardware": hardware}
        path.write_text(json.dumps({"name": "job", "provider": provider, "experiments": {"a": experiment}}))
        return read_recipe(path)

    return make


def offers(as_of=TODAY, price=0.05):
    known = next(
        o for o in load_catalogue(None, today=TODAY) if (o.instance_type, o.region) == ("m5.large", REGION)
    )
    newer = replace(known, price_usd_per_hour=price, as_of=as_of)
    return [
        newer,
        *(replace(newer, spot=True, zone=f"{REGION}{z}", price_usd_per_hour=price / 2) for z in "ab"),
    ]


class Fake(Prices):
    """AWS answers what the test says."""

    def _read(self, region):
        found = self.place.environ["fake"]
        return found() if callable(found) else found


def prices(home, found=(), **environ):
    place = ProviderPlace(home.root, "", {**KEYS, **environ, "fake": found})
    return Fake(place, "TRAINMASTER_CATALOGUE" in environ, TODAY)


def test_refreshed_prices_are_used_by_everything_that_follows(home, recipe):
    assert prices(home, offers()).refresh([REGION]) == {REGION: 3}
    candidate_offers = candidate_offers_of(recipe(), OpenHome(home), KEYS, TODAY)
    mine = [o for o in candidate_offers.catalogue if o.instance_type == "m5.large"]
    assert {(o.zone, o.spot, o.price_usd_per_hour) for o in mine} == {
        ("", False, 0.05),
        (f"{REGION}a", True, 0.025),
        (f"{REGION}b", True, 0.025),
    }
    assert len(candidate_offers.catalogue) == len(mine), "what AWS does not list now is not to be had"
    elsewhere = prices(home).catalogue().where(provider="aws", region="us-*")
    assert all(o.as_of < TODAY for o in elsewhere), "other regions keep what ships, with its date"


def test_regions_that_were_asked_for_before_stay(home):
    there = [replace(offer, region="us-east-1", zone="") for offer in offers()[:1]]
    prices(home, there).refresh(["us-east-1"])
    prices(home, offers()).refresh([REGION])
    assert {o.region for o in prices(home)._kept()} == {REGION, "us-east-1"}


def test_old_prices_are_refreshed_before_a_quote_and_how_old_they_were_is_said(home, recipe):
    told = []
    prices(home, offers()).keep_fresh(recipe(instance="m5.large"), told.append)
    (line,) = told
    assert line.startswith(f"prices of aws in {REGION} are ")
    assert line.endswith(" days old: refreshed")
    prices(home, lambda: pytest.fail("asked again")).keep_fresh(recipe(), told.append)
    assert told == [line], "they are new now"


def test_spot_prices_grow_old_in_a_day(home, recipe):
    prices(home, offers(TODAY - timedelta(days=3))).refresh([REGION])
    told = []
    asked = prices(home, offers())
    asked.keep_fresh(recipe(), told.append)
    assert told == [], "those on demand have not"
    asked.keep_fresh(recipe(spot=True), told.append)
    assert told == [f"prices of aws in {REGION} are 3 days old: refreshed"]


def test_who_does_not_answer_is_not_waited_for_but_what_comes_later_is_kept(home, recipe):
    go, done = threading.Event(), threading.Event()

    def late():
        go.wait(30)
        threading.Timer(0.0, done.set).start()
        return offers()

    told = []
    slow = prices(home, late)
    slow.keep_fresh(recipe(), told.append, patience_s=0.01)
    assert "could not be refreshed: AWS has not answered within 0.01 s" in told[0]
    slow.keep_fresh(recipe(), told.append, patience_s=0.01)
    assert len(told) == 1, "not asked again at once"
    go.set()
    for thread in threading.enumerate():
        if thread.name == "prices":
            thread.join(30)
    assert {o.price_usd_per_hour for o in slow._kept()} == {0.05, 0.025}


def test_a_refusal_is_said_and_the_quote_goes_on(home, recipe):
    def refuse():
        raise UsageError("AWS refuses GetProducts: no permission", "Allow pricing:GetProducts.")

    told = []
    prices(home, refuse).keep_fresh(recipe(), told.append)
    assert "could not be refreshed: AWS refuses GetProducts: no permission" in told[0]


def test_without_credentials_nobody_is_asked(home, recipe, tmp_path):
    told = []
    environ = {"AWS_REGION": REGION, "HOME": str(tmp_path), "fake": lambda: pytest.fail("asked")}
    nobody = Fake(ProviderPlace(home.root, "", environ), False, TODAY)
    nobody.keep_fresh(recipe(), told.append)
    assert "days old; with AWS credentials `trainmaster offers --refresh` brings new ones" in told[0]


def test_prices_of_a_region_that_ships_none_are_asked_for(home, recipe):
    told = []
    prices(home, offers(), AWS_REGION="eu-south-2").keep_fresh(recipe(), told.append)
    assert told == ["prices of aws in eu-south-2 are not known: refreshed"]


@pytest.mark.parametrize("environ", [{"TRAINMASTER_CATALOGUE": "mine.csv"}, {}], ids=["a list", "local"])
def test_prices_that_are_not_used_are_not_asked_for(home, recipe, environ):
    of = recipe() if environ else recipe("local")
    prices(home, lambda: pytest.fail("asked"), **environ).keep_fresh(of, pytest.fail)


def test_a_damaged_file_is_as_good_as_none(home):
    prices(home, offers()).refresh([REGION])
    prices(home)._file.write_text("no,list\n")
    assert prices(home)._kept() == []
    assert len(prices(home).catalogue()) == len(load_catalogue(None, today=TODAY))


def test_which_regions_are_meant(home):
    known = load_catalogue(None, today=TODAY)
    assert named_regions("mars-1", known, {}) == ["mars-1"], "AWS knows better than our list"
    assert REGION in named_regions("eu-*", known, {})
    assert named_regions(None, known, {"AWS_REGION": "us-east-1"}) == ["us-east-1"]
    for pattern in (None, "mars-*"):
        with pytest.raises(UsageError, match="of which region"):
            named_regions(pattern, known, {"HOME": "/nowhere"})


def test_the_zone_with_the_lowest_spot_price_comes_first(home, recipe):
    """And the others after it, for when there is no capacity."""
    machine = offers()[0]
    zones = {"a": 0.03, "b": 0.02, "c": 0.025}
    spot = [
        replace(machine, spot=True, zone=f"{REGION}{name}", price_usd_per_hour=usd)
        for name, usd in zones.items()
    ]
    prices(home, [machine, *spot]).refresh([REGION])
    wanted = recipe(spot=True, instance="m5.large")
    (plan,) = plan_clusters(
        wanted, candidate_offers_of(wanted, OpenHome(home), KEYS, TODAY).available("x86_64")
    )
    assert [way.zone for way in plan.roles[0].rentals] == [f"{REGION}{name}" for name in "bca"]


def test_a_team_with_keys_of_its_own_asks_with_them_and_keeps_what_it_is_told(home, recipe, monkeypatch):
    """Zones have other names in its account; others see none of it."""
    opened = OpenHome(home)
    Access(opened.database).make_team("red", None)
    own = {**KEYS, "AWS_ACCESS_KEY_ID": "AKIARED", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "eu-south-2"}
    TeamLogins(opened.database, home.root, {}).put("red", "aws", {}, own, "mia")
    asked = []

    def answer(client, region, known, today):
        asked.append((client._settings.access_key_id, client._settings.secret_access_key, region))
        return [replace(offer, region=region) for offer in offers()[:1]]

    monkeypatch.setattr("trainmaster.providers.aws.prices.read_prices", answer)
    told, red = [], opened.of_team("red")
    Prices.of(red, KEYS, TODAY).keep_fresh(recipe(), told.append)
    assert asked == [("AKIARED", "s", "eu-south-2")]
    assert refresh_prices(red, KEYS, None) == {"eu-south-2": 1}
    assert {each.region for each in candidate_offers_of(recipe(), red, KEYS, TODAY).catalogue} == {
        "eu-south-2"
    }
    for of in (opened, opened.of_team("blue")):
        assert Prices.of(of, KEYS, TODAY)._kept() == []
    opened.close()
