from __future__ import annotations

import pytest

from trainmaster.lab.instance_types import MEMORY_FLOOR_BYTES, TYPES, SizeScale, find_type
from trainmaster.providers import load_catalogue
from trainmaster.spec.errors import UsageError


def test_one_factor_keeps_the_balance_of_computing_and_communicating() -> None:
    scale = SizeScale.of_machine(0.125)
    large, xlarge = (scale.limits(TYPES[name], cores=16) for name in ("m4.large", "m4.xlarge"))
    assert xlarge.cpu_cores / large.cpu_cores == 2
    assert large.cpu_cores == 2 * 0.125
    assert large.nic_mbps == 450 * 0.125
    assert xlarge.memory_bytes == 16 * 2**30 / 8


def test_a_host_has_no_more_than_the_machine_and_no_less_than_it_needs() -> None:
    scale = SizeScale.of_machine(0.125)
    assert scale.limits(TYPES["m4.16xlarge"], cores=2).cpu_cores == 2
    assert scale.limits(TYPES["m4.16xlarge"], cores=2).cpus == 2
    nano = scale.limits(TYPES["t2.nano"], cores=2)
    assert nano.memory_bytes == MEMORY_FLOOR_BYTES
    assert nano.cpus == 1
    assert nano.nic_mbps >= 5


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_factor_is_a_positive_number(value: float) -> None:
    with pytest.raises(UsageError, match="--cpu-scale"):
        SizeScale.of_machine(cpu=value)


def test_a_type_that_is_not_there_is_named_with_its_neighbour() -> None:
    with pytest.raises(UsageError, match=r"p2\.xlarge"):
        find_type("p2.xlage")


def test_published_sizes_agree_with_the_catalogue() -> None:
    offers = {o.instance_type: o for o in load_catalogue("builtin").where(provider="aws", region="us-east-1")}
    common = offers.keys() & TYPES.keys()
    assert len(common) > 15
    for name in common:
        kind, offer = TYPES[name], offers[name]
        assert (kind.vcpus, kind.memory_gib * 2**30) == (offer.vcpus, offer.memory_bytes), name
        assert kind.price_usd_per_hour == pytest.approx(offer.price_usd_per_hour), name
        assert (kind.gpu, kind.gpus) == (offer.accelerator, offer.accelerators), name
        assert kind.spot_price_usd_per_hour < kind.price_usd_per_hour
