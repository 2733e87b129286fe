from __future__ import annotations

import pytest

from trainmaster.lab.instance_types import TYPES
from trainmaster.lab.market import ANY, ApiRefusal, InjectedFault, Market, Running, check_max_price
from trainmaster.spec.errors import UsageError

ZONES = ("a", "b")


def market(most: int = 10) -> Market:
    return Market(ZONES, most)


def there(count: int, zone: str = "a", kind: str = "m4.large", spot: bool = False) -> list[Running]:
    return [Running(kind, zone, spot)] * count


def test_a_price_that_is_agreed_to_must_be_that_of_the_market() -> None:
    check_max_price("m4.large", "")
    price = TYPES["m4.large"].spot_price_usd_per_hour
    check_max_price("m4.large", f"{price:.6f}")
    for wrong, code in ((f"{price / 2:.6f}", "SpotMaxPriceTooLow"), ("much", "InvalidParameterValue")):
        with pytest.raises(ApiRefusal) as refused:
            check_max_price("m4.large", wrong)
        assert refused.value.code == code


def test_without_limits_everything_is_there_at_once() -> None:
    assert market().choose("m4.large", None, 1, 3, False, []) == ("a", 3)
    assert market().choose("m4.large", "b", 1, 3, False, []) == ("b", 3)


def test_a_zone_that_is_full_sends_to_the_next_and_a_named_one_refuses() -> None:
    full = market()
    full.limit("m4.large", "a", 2)
    assert full.choose("m4.large", None, 1, 3, False, there(1)) == ("b", 3)
    assert full.choose("m4.large", "a", 1, 3, False, there(1)) == ("a", 1)
    assert full.choose("c4.large", "a", 1, 3, False, there(2)) == ("a", 3)
    with pytest.raises(ApiRefusal) as refused:
        full.choose("m4.large", "a", 1, 1, False, there(2))
    assert (refused.value.code, refused.value.status) == ("InsufficientInstanceCapacity", 500)
    full.limit("m4.large", "a", None)
    assert full.choose("m4.large", "a", 1, 1, False, there(2)) == ("a", 1)


def test_a_limit_of_all_zones_counts_all() -> None:
    limited = market()
    limited.limit(ANY, ANY, 3)
    assert limited.choose("m4.large", None, 1, 9, False, there(1, "a") + there(1, "b", "c4.large"))[1] == 1


def test_the_machine_itself_has_a_limit() -> None:
    with pytest.raises(ApiRefusal, match="sufficient"):
        market(2).choose("m4.large", None, 1, 1, False, there(2))


def test_quotas_count_vcpus_of_their_kind() -> None:
    limited = market()
    limited.set_quota("on-demand", 4)
    assert limited.choose("m4.large", None, 1, 9, False, there(1) + there(5, spot=True))[1] == 1
    with pytest.raises(ApiRefusal) as refused:
        limited.choose("m4.xlarge", None, 1, 1, False, there(1))
    assert refused.value.code == "VcpuLimitExceeded"
    limited.set_quota("spot", 0)
    with pytest.raises(ApiRefusal) as refused:
        limited.choose("m4.large", None, 1, 1, True, [])
    assert refused.value.code == "MaxSpotInstanceCountExceeded"


def test_faults_hit_their_action_as_often_as_asked() -> None:
    faulty = market()
    faulty.add_fault(InjectedFault("RunInstances", "X", count=2))
    assert faulty.next_fault("DescribeInstances") is None
    hits = [faulty.next_fault("RunInstances") for _ in range(3)]
    assert [hit is not None for hit in hits] == [True, True, False]
    faulty.add_fault(InjectedFault(ANY, "Y", count=None))
    assert all(faulty.next_fault("Whatever") for _ in range(5))
    faulty.clear_faults()
    assert faulty.next_fault("Whatever") is None


def test_what_does_not_exist_cannot_be_limited() -> None:
    for arguments in (("m4.large", "z", 1), ("m4.larg", "a", 1), ("m4.large", "a", -1)):
        with pytest.raises(UsageError):
            market().limit(*arguments)
    with pytest.raises(UsageError):
        market().set_quota("gpus", 1)
