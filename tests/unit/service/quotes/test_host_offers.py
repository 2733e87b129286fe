"""What hosts of one's own are quoted as, by what they have said of themselves."""

import json
from datetime import date

import pytest

from trainmaster.control.task.layout import Home
from trainmaster.providers.base import ProviderPlace
from trainmaster.providers.host_ledger import HostLedger
from trainmaster.service.open_home import OpenHome
from trainmaster.service.quotes.candidate_offers import candidate_offers_of
from trainmaster.spec import read_recipe


@pytest.fixture
def quoted(tmp_path):
    root = tmp_path / "home"
    home = Home.from_environment({"TRAINMASTER_HOME": str(root), "TRAINMASTER_CACHE": str(tmp_path)})
    recipe = {"name": "job", "provider": "hosts", "experiments": {"a": {"command": "true"}}}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))

    def ask(*hosts, **told):
        """What is chosen by, and what is timed: processors of one host."""
        (root / "hosts.yaml").write_text(json.dumps({"hosts": list(hosts)}))
        HostLedger(ProviderPlace(root, "", {}).directory("hosts")).learn_sizes({}, told)
        read = read_recipe(tmp_path / "recipe.yaml")
        found = candidate_offers_of(read, OpenHome(home), {}, date(2026, 11, 30))
        (offer,) = found.catalogue
        return offer.vcpus, (found.shares.of(offer) if found.shares else offer).vcpus

    root.mkdir(exist_ok=True)
    return ask


@pytest.fixture
def carries(tmp_path, quoted):
    def ask(**rates):
        """Mbit/s of the card that hosts are quoted with."""
        quoted(host("h"), host("hh"))
        root = tmp_path / "home"
        HostLedger(ProviderPlace(root, "", {}).directory("hosts")).learn_mbps(rates)
        service = OpenHome(Home.from_environment({"TRAINMASTER_HOME": str(root)}))
        found = candidate_offers_of(read_recipe(tmp_path / "recipe.yaml"), service, {}, date(2026, 11, 30))
        gbps = found.catalogue.offers[0].nic_gbps
        return gbps and gbps * 1000

    return ask


def host(name, **keys):
    return {"name": name, "address": f"10.0.0.{len(name)}", **keys}


def test_hosts_are_quoted_by_the_processors_that_they_have_said(quoted):
    one, other = host("h"), host("hh")
    unknown = quoted(one, other)
    assert quoted(one, other, h=32.0) == unknown, "the other one has never said"
    assert quoted(one, other, hh=16.0) == (16.0, 16.0), "the least one counts, not this machine"


def test_slots_say_how_many_run_there_and_not_how_fast_these_are(quoted):
    assert quoted(host("h", slots=4)) == (4.0, 4.0)
    assert quoted(host("h", slots=4), h=0.5) == (4.0, 0.5)
    assert quoted(host("h", slots=4), h=64.0) == (4.0, 64.0)


def test_hosts_are_quoted_by_what_they_got_from_each_other(carries):
    assert carries() is None
    assert carries(h=0.0, hh=0.0) is None, "they did not reach each other"
    assert carries(h=90.0, hh=940.0) == 90.0, "the least one counts"
    assert carries(h=0.0) == 940.0, "its neighbour was away when it was measured last"
