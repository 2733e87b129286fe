"""Libcloud's price list: which of its EC2 prices are true, and Google's types as sums of their parts."""

import json
import runpy
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.spec.errors import UsageError

READER = runpy.run_path(str(Path(__file__).parents[3] / "scripts/libcloud_prices.py"))
judge_prices, normalization_factor = READER["judge_prices"], READER["normalization_factor"]
libcloud_catalogue = READER["libcloud_catalogue"]

# As they stand in the list of 2025: m4.xlarge is that of dedicated hardware, m4.10xlarge none at all.
SINGAPORE_M4 = {
    "large": 0.125,
    "xlarge": 0.275,
    "2xlarge": 0.5,
    "4xlarge": 1.0,
    "10xlarge": 0.0,
    "16xlarge": 4.0,
}
STAMP = 1740936978  # 2025-03-02


def listing(**tables):
    ec2 = {f"m4.{size}": {"ap-southeast-1": price} for size, price in SINGAPORE_M4.items()}
    return {"compute": {"ec2_linux": ec2, **tables}, "updated": STAMP}


@pytest.fixture
def read(tmp_path):
    def read(content):
        path = tmp_path / "pricing.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return libcloud_catalogue(path)

    return read


def test_prices_of_dedicated_hardware_and_zeros_are_refused_by_name(read):
    catalogue = read(listing())
    prices = {offer.instance_type: offer.price_usd_per_hour for offer in catalogue}
    assert prices == {"m4.large": 0.125, "m4.2xlarge": 0.5, "m4.4xlarge": 1.0, "m4.16xlarge": 4.0}
    reasons = {refusal.subject: refusal.reason for refusal in catalogue.refused}
    assert reasons == {
        "aws ap-southeast-1 m4.10xlarge": "0.0 is no price",
        "aws ap-southeast-1 m4.xlarge": "10% more than other sizes of its family: that of dedicated hardware",
    }
    assert catalogue.as_of == date(2025, 3, 2)


def test_what_a_type_has_is_what_the_builtin_catalogue_says(read):
    offer = next(offer for offer in read(listing()) if offer.instance_type == "m4.2xlarge")
    assert (offer.vcpus, offer.memory_bytes, offer.nic_gbps) == (8, 32 << 30, 1.0)
    unknown = listing()
    unknown["compute"]["ec2_linux"] |= {"x9.large": {"mars-1": 1.0}, "x9.xlarge": {"mars-1": 2.0}}
    reasons = [str(refusal) for refusal in read(unknown).refused]
    assert any(text.endswith("aws mars-1 x9.large: its vCPUs and memory are unknown") for text in reasons)


def test_the_types_of_the_same_libcloud_come_first(tmp_path):
    constants = tmp_path / "libcloud/compute/constants/ec2_instance_types.py"
    constants.parent.mkdir(parents=True)
    rows = {
        "g5.xlarge": {"vcpu": "4", "gpu": "1", "normalizationSizeFactor": "1"},
        "g5.2xlarge": {"vcpu": "8", "gpu": "1", "normalizationSizeFactor": "1.204771372"},
        "g5.4xlarge": {"vcpu": "16", "gpu": "1", "normalizationSizeFactor": "1.614314115"},
        "trn1.2xlarge": {"vcpu": "8"},
        "trn1.32xlarge": {"vcpu": "128"},
    }
    for row in rows.values():
        row |= {"networkPerformance": "Up to 10 Gigabit", "physicalProcessor": "AMD EPYC 7R32"}
    table = {name: {"extra": row, "ram": 16384} for name, row in rows.items()}
    constants.write_text(f"# Licensed\n\nINSTANCE_TYPES = {table!r}\n")
    pricing = tmp_path / "libcloud/data/pricing.json"
    pricing.parent.mkdir()
    region = "us-east-1"
    prices = {
        "g5.xlarge": 1.006,
        "g5.2xlarge": 1.212,
        "g5.4xlarge": 1.7864,
        "trn1.2xlarge": 1.34375,
        "trn1.32xlarge": 21.5,
    }
    ec2 = {name: {region: price} for name, price in prices.items()}
    pricing.write_text(json.dumps({"compute": {"ec2_linux": ec2}, "updated": STAMP}))
    catalogue = libcloud_catalogue(pricing)
    assert [offer.instance_type for offer in catalogue] == ["g5.xlarge", "g5.2xlarge"]
    offer = catalogue.offers[0]
    assert (offer.vcpus, offer.memory_bytes, offer.arch) == (4, 16 << 30, "x86_64")
    assert (offer.accelerator, offer.accelerators, offer.accelerator_memory_bytes) == ("A10G", 1, 24 << 30)
    assert (offer.nic_gbps, offer.nic_burst_gbps) == (2.5, 10)
    reasons = {refusal.subject.split()[-1]: refusal.reason for refusal in catalogue.refused}
    assert "10% more" in reasons["g5.4xlarge"]
    assert reasons["trn1.2xlarge"] == "its accelerators are unknown"


def test_a_lone_price_is_not_trusted():
    verdicts = {v[0]: v[3] for v in judge_prices({"p4d.24xlarge": {"r": 36.0}, "m5.metal": {"r": 4.6}}, {})}
    assert "no other size of its family agrees" in verdicts["p4d.24xlarge"]
    assert "no other size to check it with" in verdicts["m5.metal"]


def test_sizes_whose_factor_is_not_listed_do_not_spoil_those_of_their_family():
    prices = {"g5.xlarge": 1.006, "g5.2xlarge": 1.212, "g5.8xlarge": 2.448, "g5.16xlarge": 8.0}
    factors = {"g5.xlarge": 1.0, "g5.2xlarge": 1.2048, "g5.16xlarge": 4.0716}
    verdicts = {v[0]: v[3] for v in judge_prices({k: {"r": p} for k, p in prices.items()}, factors)}
    assert [name for name, reason in verdicts.items() if not reason] == ["g5.xlarge", "g5.2xlarge"]
    assert "no other size to check it with" in verdicts["g5.8xlarge"]
    assert "cannot be checked" in verdicts["g5.16xlarge"]


@given(
    st.floats(0.01, 1),
    st.floats(1.05, 1.12),
    st.lists(
        st.tuples(
            st.sampled_from(["large", "xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "24xlarge"]),
            st.sampled_from(["shared", "dedicated", "reserved"]),
        ),
        min_size=1,
        unique_by=lambda pair: pair[0],
    ),
)
def test_no_price_of_dedicated_hardware_is_taken_for_a_shared_one(unit, surcharge, sizes):
    """Whatever chance kept of each size, as long as two sizes were kept rightly."""
    prices = {}
    for size, kept in sizes:
        shared = unit * normalization_factor(f"x1.{size}")
        prices[f"x1.{size}"] = {
            "r": {"shared": shared, "dedicated": shared * surcharge, "reserved": 0.0}[kept]
        }
    accepted = {name for name, _, _, reason in judge_prices(prices, {}) if not reason}
    rightly = {f"x1.{size}" for size, kept in sizes if kept == "shared"}
    if len(rightly) >= 2:
        assert accepted == rightly
    elif len(rightly) == 1:
        assert not accepted


def test_google_types_are_the_sum_of_their_parts(read):
    def part(price, spot):
        return {
            "on_demand": {"us-central1": {"price": price}},
            "preemptible": {"us-central1": {"price": spot}},
        }

    catalogue = read(
        listing(gce_instances={"n1": {"cpu": part(0.031611, 0.006655), "ram": part(0.004237, 0.000892)}})
    )
    found = {(o.instance_type, o.spot): o for o in catalogue if o.provider == "gcp"}
    assert found["n1-standard-1", False].price_usd_per_hour == pytest.approx(
        0.0475, abs=1e-4
    )  # as Google prints it
    assert found["n1-standard-1", True].price_usd_per_hour == pytest.approx(0.01, abs=1e-4)
    assert found["n1-highmem-8", False].memory_bytes == 52 << 30
    assert found["n1-standard-8", False].nic_gbps is None  # only the most is published
    assert found["n1-standard-8", False].nic_burst_gbps == 16


def test_a_part_without_a_price_makes_no_type(read):
    ram = {"on_demand": {"us-central1": {"price": 0.004}}}
    zero = {"on_demand": {"us-central1": {"price": 0}}}
    catalogue = read(listing(gce_instances={"n1": {"cpu": zero, "ram": ram}, "n2": {"ram": ram}}))
    assert {offer.provider for offer in catalogue} == {"aws"}


def test_azure_sizes(read):
    azure = {"standardnc6sv3": {"eastus": 3.06, "westus": 0.0}, "basica0": {"eastus": 0.018}}
    catalogue = read(listing(azure_linux=azure))
    (offer,) = [offer for offer in catalogue if offer.provider == "azure"]
    assert (offer.instance_type, offer.accelerator, offer.price_usd_per_hour) == (
        "Standard_NC6s_v3",
        "V100",
        3.06,
    )
    subjects = {refusal.subject for refusal in catalogue.refused}
    assert {"azure westus Standard_NC6s_v3", "azure basica0"} <= subjects


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"compute": 1, "updated": 1}',
        '{"compute": {}, "updated": "x"}',
        '{"compute": {}, "updated": 1e300}',
    ],
)
def test_another_json_is_refused(read, content):
    with pytest.raises(UsageError, match="is no price list of Apache Libcloud"):
        read(content)


def test_a_list_without_our_clouds_is_refused(read):
    with pytest.raises(UsageError, match="no price of EC2, Azure or Google"):
        read({"compute": {"gandi": {"s": 1}}, "updated": STAMP})
