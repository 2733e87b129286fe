"""What an offer may be, how a catalogue is searched, how old its prices may be."""

from dataclasses import replace
from datetime import date, timedelta

import numpy as np
import pytest

from trainmaster.providers import STALE_DAYS, Catalogue, Offer, OfferFilter, load_catalogue
from trainmaster.providers.filters import same_gpu
from trainmaster.providers.gathering import LoadedFile, gather
from trainmaster.spec import Hardware

TODAY = date(2026, 6, 1)
GIB = 1 << 30
M4 = Offer(
    provider="aws",
    region="eu-west-1",
    zone="",
    instance_type="m4.large",
    vcpus=2.0,
    memory_bytes=8 * GIB,
    accelerator="",
    accelerators=0.0,
    accelerator_memory_bytes=None,
    nic_gbps=0.45,
    nic_burst_gbps=None,
    cpu_credits="",
    price_usd_per_hour=0.111,
    spot=False,
    billing_quantum_s=1.0,
    billing_minimum_s=60.0,
    currency="USD",
    as_of=TODAY,
    source="test",
)
P3 = replace(
    M4,
    instance_type="p3.2xlarge",
    vcpus=8.0,
    memory_bytes=61 * GIB,
    accelerator="V100",
    accelerators=1.0,
    accelerator_memory_bytes=16 * GIB,
    nic_gbps=2.5,
    nic_burst_gbps=10.0,
    price_usd_per_hour=3.305,
)
P3_SPOT = replace(P3, spot=True, zone="eu-west-1a", price_usd_per_hour=1.2)
NC6 = replace(
    P3, provider="azure", region="westeurope", instance_type="Standard_NC6s_v3", price_usd_per_hour=3.823
)
CATALOGUE = Catalogue("test", (M4, P3, P3_SPOT, NC6))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"price_usd_per_hour": 0.0}, "the price is 0 USD"),
        ({"price_usd_per_hour": -1.0}, "the price is -1 USD"),
        ({"price_usd_per_hour": float("nan")}, "the price is nan USD"),
        ({"price_usd_per_hour": float("inf")}, "the price is inf USD"),
        ({"vcpus": 0.0}, "0 vCPUs"),
        ({"vcpus": float("nan")}, "nan vCPUs"),
        ({"memory_bytes": 0}, "memory is 0 bytes"),
        ({"accelerator": "V100"}, "(V100) without a number"),
        ({"accelerators": 1.0}, "1 GPUs without a model"),
        ({"accelerators": -1.0, "accelerator": "V100"}, "-1 GPUs"),
        ({"accelerator_memory_bytes": GIB}, "on 0 GPUs"),
        ({"nic_gbps": 0.0}, "carries 0 Gbit/s"),
        ({"nic_gbps": 10.0, "nic_burst_gbps": 5.0}, "bursts to 5 Gbit/s but sustains 10"),
        ({"nic_burst_gbps": float("nan")}, "bursts to nan"),
        ({"billing_quantum_s": 0.0}, "billed by 0 s"),
        ({"cpu_credits": "many"}, "'many'"),
        ({"cpu_baseline_share": 1.5}, "baseline is 1.5"),
        ({"currency": "EUR"}, "in EUR"),
        ({"instance_type": ""}, "an instance type"),
    ],
)
def test_an_offer_that_cannot_be_true_is_refused(wrong, says):
    with pytest.raises(ValueError, match=says.replace("(", r"\(").replace(")", r"\)")):
        replace(M4, **wrong)


def test_only_the_users_own_machines_may_cost_nothing():
    for provider in ("local", "hosts"):
        assert replace(M4, provider=provider, price_usd_per_hour=0.0).price_usd_per_hour == 0


@pytest.mark.parametrize(
    ("wishes", "found"),
    [
        ({}, [M4, P3, P3_SPOT, NC6]),
        ({"gpu": "v100"}, [P3, P3_SPOT, NC6]),
        ({"gpu": "V100-16GB"}, []),  # nothing says that these are
        ({"gpus": 1}, [P3, P3_SPOT, NC6]),
        ({"gpus": 2}, []),
        ({"gpus": 0}, [M4]),
        ({"cpus": 3}, [P3, P3_SPOT, NC6]),
        ({"memory_bytes": 9 * GIB, "provider": "AWS"}, [P3, P3_SPOT]),
        ({"max_price_usd_per_hour": 1.2}, [M4, P3_SPOT]),
        ({"region": "eu-*"}, [M4, P3, P3_SPOT]),
        ({"region": "eu-west-1a"}, [P3_SPOT]),
        ({"instances": ("M4.LARGE", "standard_*")}, [M4, NC6]),
        ({"spot": True}, [P3_SPOT]),
        ({"spot": False}, [M4, P3, NC6]),
    ],
)
def test_filters(wishes, found):
    assert list(CATALOGUE.where(OfferFilter(**wishes))) == found
    assert list(CATALOGUE.where(**wishes)) == found


def test_wishes_of_a_recipe():
    hardware = Hardware(gpu="v100", gpus=1, memory_bytes=16 * GIB)
    assert list(CATALOGUE.where(OfferFilter.from_hardware(hardware))) == [P3, NC6]
    spot = hardware.model_copy(update={"spot": True})
    assert list(CATALOGUE.where(OfferFilter.from_hardware(spot))) == [P3_SPOT]


@pytest.mark.parametrize(
    ("wishes", "blamed"),
    [
        ({"gpu": "h100", "cpus": 2}, ("gpu",)),  # there is none at all
        ({"gpu": "v100", "max_price_usd_per_hour": 1.0}, ("gpu", "max_price_usd_per_hour")),  # not together
        ({"gpu": "h100", "region": "mars"}, ("gpu", "region")),
        ({"cpus": 4, "gpus": 0, "provider": "azure"}, ("gpus",)),  # without it there is one
        ({"gpus": 0, "provider": "azure", "spot": True}, ("gpus", "provider", "spot")),
    ],
)
def test_the_wish_that_nothing_meets_is_named(wishes, blamed):
    asked = OfferFilter(**wishes)
    assert not len(CATALOGUE.where(asked))
    assert asked.blamed(CATALOGUE) == blamed


@pytest.mark.parametrize(
    ("wish", "model", "same"),
    [
        ("a100", "A100-80GB", True),
        ("a100", "A100-SXM4-40GB", True),
        ("a100-80gb", "A100", False),
        ("a10", "A10G", False),
        ("nvidia-tesla-t4", "T4", True),
        ("t4", "", False),
        ("", "T4", False),
        ("GeForce RTX 3090", "RTX3090", True),
    ],
)
def test_models_of_gpus_as_people_write_them(wish, model, same):
    assert same_gpu(wish, model) is same


def test_columns_are_in_the_order_of_the_offers():
    columns = CATALOGUE.columns()
    assert columns is CATALOGUE.columns()
    assert columns.price_usd_per_hour.tolist() == [o.price_usd_per_hour for o in CATALOGUE]
    assert columns.vcpus.dtype == columns.memory_bytes.dtype == np.float64
    assert columns.spot.tolist() == [False, False, True, False]
    assert columns.instance_type[columns.accelerators > 0].tolist() == ["p3.2xlarge"] * 2 + [
        "Standard_NC6s_v3"
    ]
    assert np.isnan(columns.nic_burst_gbps).tolist() == [True, False, False, False]
    one = CATALOGUE.where(spot=True)
    assert one.columns().price_usd_per_hour.tolist() == [1.2]  # not those of the whole
    assert Catalogue("none", ()).columns().price_usd_per_hour.shape == (0,)


def test_the_cheapest_offer_of_a_type():
    dearer = replace(P3, region="ap-southeast-1", price_usd_per_hour=4.234)
    catalogue = Catalogue("test", (dearer, P3, P3_SPOT))
    assert catalogue.cheapest("P3.2XLARGE") is P3
    assert catalogue.cheapest("p3.2xlarge", spot=True) is P3_SPOT
    assert catalogue.cheapest("p9.large") is None


def test_old_prices_are_named():
    limit = TODAY + timedelta(days=STALE_DAYS)
    assert CATALOGUE.stale(limit) == ()
    assert len(CATALOGUE.stale(limit + timedelta(days=1))) == 4
    own = Catalogue("local", (replace(M4, provider="local", price_usd_per_hour=0.0),))
    assert own.stale(TODAY + timedelta(days=9999)) == ()
    assert own.as_of is None


def test_a_named_catalogue_is_the_users_choice():
    assert load_catalogue("fc2-2018").by_hand
    assert not load_catalogue().by_hand


def gathered(*offers):
    reading = LoadedFile("f.csv", [(offer, line) for line, offer in enumerate(offers, start=2)])
    kept, refused = gather(reading, TODAY)
    return list(kept), [str(refusal) for refusal in refused]


def test_two_prices_for_one_thing_refuse_both():
    kept, refused = gathered(M4, replace(M4, price_usd_per_hour=0.2), P3)
    assert kept == [P3]
    assert refused == [
        "f.csv:2: aws eu-west-1 m4.large: contradicted by line 3",
        "f.csv:3: aws eu-west-1 m4.large: the same as line 2 with another price: 0.2 instead of 0.111 USD",
    ]


def test_a_row_that_repeats_another_is_left_out():
    assert gathered(M4, M4, P3) == ([M4, P3], [])


def test_another_memory_is_a_contradiction():
    kept, refused = gathered(M4, replace(M4, memory_bytes=GIB))
    assert not kept
    assert "another memory" in refused[1]


@pytest.mark.parametrize("zone", ["", "eu-west-1a", "eu-west-1b"])
def test_spot_must_not_be_dearer_than_on_demand(zone):
    dear = replace(P3_SPOT, price_usd_per_hour=4.0)
    kept, refused = gathered(replace(P3, zone=zone), dear, M4)
    assert dear not in kept
    assert M4 in kept
    assert refused == [
        "f.csv:3: aws eu-west-1a p3.2xlarge spot: spot for 4 USD is dearer than on demand for 3.305"
    ]
    assert gathered(dear) == ([dear], [])  # nothing to compare it with
    assert gathered(P3, replace(P3_SPOT, price_usd_per_hour=3.305))[1] == []


def test_prices_of_the_future_are_refused():
    tomorrow = replace(M4, as_of=TODAY + timedelta(days=1))
    assert gathered(tomorrow) == ([tomorrow], [])
    kept, refused = gathered(replace(M4, as_of=TODAY + timedelta(days=2)))
    assert not kept
    assert refused == ["f.csv:2: aws eu-west-1 m4.large: its price is of 2026-06-03, which is in the future"]
