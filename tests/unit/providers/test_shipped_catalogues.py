"""What ships with the package: facts that a person checked stand in it, and nothing that was not meant to."""

import json
from datetime import date
from importlib.resources import files
from pathlib import Path

import pytest
from counted_calls import counted_calls

from trainmaster.providers import load_catalogue
from trainmaster.providers.own_csv import write_own_csv

FC2 = json.loads((Path(__file__).parents[2] / "data" / "seed_vectors.json").read_text())["fc2"]
GIB = 1 << 30


@pytest.fixture(scope="module")
def builtin():
    return load_catalogue()


def test_the_builtin_catalogue_is_broad_and_has_no_gaps(builtin):
    assert len(builtin) > 500
    assert {offer.provider for offer in builtin} == {"aws", "azure", "gcp"}
    assert not builtin.refused
    assert not builtin.warnings
    assert all(offer.price_usd_per_hour > 0 for offer in builtin)
    assert all("libcloud" in offer.source for offer in builtin)
    assert all(date(2020, 1, 1) < offer.as_of <= date(2025, 3, 2) for offer in builtin)
    assert {offer.provider for offer in builtin if offer.spot} == {"gcp"}  # nobody's else has a source


def test_it_is_small_and_loads_at_once():
    assert len((files("trainmaster.providers") / "data/builtin.csv").read_bytes()) < 150_000
    calls, offers = counted_calls(load_catalogue)
    assert calls < 150 * len(offers), "100 today, which take less than 0.05 s"


@pytest.mark.parametrize(
    ("kind", "region", "usd", "vcpus", "gib", "gpu", "gpus"),
    [  # as the vendors print them
        ("m5.large", "us-east-1", 0.096, 2, 8, "", 0),
        ("m4.large", "ap-southeast-1", 0.125, 2, 8, "", 0),
        ("c5.18xlarge", "us-east-1", 3.06, 72, 144, "", 0),
        ("t3.small", "us-west-2", 0.0208, 2, 2, "", 0),
        ("p2.xlarge", "ap-southeast-1", 1.718, 4, 61, "K80", 1),
        ("p3.2xlarge", "us-east-1", 3.06, 8, 61, "V100", 1),
        ("p3.16xlarge", "eu-west-1", 26.44, 64, 488, "V100", 8),
        ("g4dn.xlarge", "us-east-1", 0.526, 4, 16, "T4", 1),
        ("g5.xlarge", "us-east-1", 1.006, 4, 16, "A10G", 1),
        ("g6.12xlarge", "us-west-2", 4.6016, 48, 192, "L4", 4),
        ("p4d.24xlarge", "eu-west-1", 35.39655, 96, 1152, "A100", 8),
        ("p5.48xlarge", "us-east-1", 98.32, 192, 2048, "H100", 8),
        ("Standard_D2s_v3", "eastus", 0.096, 2, 8, "", 0),
        ("Standard_NC6s_v3", "eastus", 3.06, 6, 112, "V100", 1),
        ("n1-standard-8", "us-central1", 0.38, 8, 30, "", 0),
        ("e2-standard-4", "us-central1", 0.134, 4, 16, "", 0),
    ],
)
def test_facts_that_everybody_can_look_up(builtin, kind, region, usd, vcpus, gib, gpu, gpus):
    (offer,) = builtin.where(instances=(kind,), region=region, spot=False)
    assert offer.price_usd_per_hour == pytest.approx(usd, rel=1e-3)
    assert (offer.vcpus, offer.memory_bytes, offer.accelerator, offer.accelerators) == (
        vcpus,
        gib * GIB,
        gpu,
        gpus,
    )


@pytest.mark.parametrize(
    ("kind", "slow", "fast"),
    [
        ("m4.2xlarge", 1.0, None),
        ("m5.large", 0.75, 10),
        ("t3.large", 0.512, 5),
        ("p3.2xlarge", 2.5, 10),
        ("p3.8xlarge", 10, 10),
        ("g4dn.xlarge", 5, 25),
        ("p5.48xlarge", 3200, 3200),
        ("t2.xlarge", None, None),
        ("n1-standard-8", None, 16),
        ("Standard_D8s_v3", 4, 4),
        ("Standard_NC6s_v3", None, None),
    ],
)
def test_bandwidths_are_published_ones_or_unknown(builtin, kind, slow, fast):
    assert {(o.nic_gbps, o.nic_burst_gbps) for o in builtin.where(instances=(kind,))} == {(slow, fast)}


@pytest.mark.parametrize(
    ("kind", "credits_per_hour", "kind_of_credits"),
    [
        ("t2.small", 12, "standard"),
        ("t2.xlarge", 54, "standard"),
        ("t2.2xlarge", 81.6, "standard"),
        ("t3.small", 24, "unlimited"),
        ("t3.large", 36, "unlimited"),
        ("t3.2xlarge", 192, "unlimited"),
    ],
)
def test_cpu_credits_are_those_of_aws(builtin, kind, credits_per_hour, kind_of_credits):
    offer = builtin.cheapest(kind)
    assert offer.cpu_baseline_share * offer.vcpus * 60 == pytest.approx(credits_per_hour)
    assert offer.cpu_credits == kind_of_credits


def test_a_larger_size_of_a_family_is_never_cheaper(builtin):
    """The prices of dedicated hardware that Libcloud's list has would break this or the next one."""
    seen = {}
    for offer in sorted(builtin.where(spot=False, provider="aws"), key=lambda o: (o.vcpus, o.memory_bytes)):
        family = (offer.instance_type.partition(".")[0], offer.region, offer.accelerators)
        assert offer.price_usd_per_hour > seen.get(family, 0)
        seen[family] = offer.price_usd_per_hour


def test_sizes_of_cpu_families_cost_the_same_per_core(builtin):
    units = {}
    for offer in builtin.where(spot=False, provider="aws", gpus=0):
        family = offer.instance_type.partition(".")[0]
        if family not in ("t2", "t3") and offer.instance_type not in ("c4.8xlarge",):  # 36 cores, not 32
            units.setdefault((family, offer.region), []).append(offer.price_usd_per_hour / offer.vcpus)
    for found in units.values():
        assert max(found) / min(found) < 1.02


def test_the_paper_by_its_tables():
    catalogue = load_catalogue("fc2-2018")
    offers = {offer.instance_type: offer for offer in catalogue}
    assert offers.keys() == FC2["ps"].keys() | FC2["workers"].keys()
    for name, facts in (FC2["ps"] | FC2["workers"]).items():
        assert offers[name].price_usd_per_hour == facts["usd_h"]
        assert offers[name].memory_bytes == facts["gib"] * GIB
        assert offers[name].accelerators == facts.get("gpu", 0)
        assert offers[name].nic_gbps == (facts["mbps"] / 1000 if "mbps" in facts else None)
        assert (offers[name].region, offers[name].spot) == ("ap-southeast-1", False)
    assert catalogue.as_of == date(2018, 8, 31)


@pytest.mark.parametrize("name", [None, "fc2-2018"])
def test_written_again_it_is_the_same(name, tmp_path):
    catalogue = load_catalogue(name)
    path = tmp_path / "again.csv"
    path.write_text(write_own_csv(catalogue))
    assert load_catalogue(path).offers == catalogue.offers
