from __future__ import annotations

import pytest

from trainmaster.lab.links import OUTSIDE, End, Link, Links
from trainmaster.lab.netem import commands
from trainmaster.spec.errors import UsageError

ONE = End("i-1", "a", ("10.0.0.1", "20.0.0.1"))
TWO = End("i-2", "b", ("10.0.0.2", ""))
ROOT = End(OUTSIDE, "", ("10.0.0.9",))


def test_the_narrowest_counts_and_then_the_latest() -> None:
    links = Links()
    links.set("all", "all", 0.001, 0)
    links.set("a", "b", 0.002, 0)
    links.set("i-1", "all", 0.003, 0)
    assert links.between(ONE, TWO).delay_s == 0.003
    links.set("i-1", "i-2", 0.004, 0, one_way=True)
    assert links.between(ONE, TWO).delay_s == 0.004
    assert links.between(TWO, ONE).delay_s == 0.003
    links.unset("i-1", "i-2")
    links.forget("i-1")
    assert links.between(ONE, TWO).delay_s == 0.002
    links.set("b", "a", 0.005, 0)
    assert links.between(ONE, TWO).delay_s == 0.005


def test_outside_is_not_among_all_hosts() -> None:
    links = Links()
    links.set("all", "all", 0.01, 0)
    assert links.between(ROOT, ONE).is_plain
    links.set(OUTSIDE, "all", 0.02, 0)
    assert links.between(ROOT, ONE).delay_s == links.between(ONE, ROOT).delay_s == 0.02


def test_tables_have_every_address_of_a_sender_and_nothing_plain() -> None:
    links = Links()
    links.set("i-1", "i-2", 0.01, 0.5)
    assert links.tables([ONE, TWO, ROOT]) == {
        "i-2": {"10.0.0.1": Link(0.01, 0.5), "20.0.0.1": Link(0.01, 0.5)},
        "i-1": {"10.0.0.2": Link(0.01, 0.5)},
    }
    links.set("i-1", "i-2", 0, 0)
    assert links.tables([ONE, TWO, ROOT]) == {}


@pytest.mark.parametrize(("delay_s", "loss"), [(-1, 0), (11, 0), (float("nan"), 0), (0, 1.1), (0, -0.1)])
def test_nonsense_is_refused(delay_s: float, loss: float) -> None:
    with pytest.raises(UsageError):
        Links().set("all", "all", delay_s, loss)


def test_netem_has_a_class_per_kind_of_link_under_the_rate_of_the_card() -> None:
    slow, leaky = Link(0.01, 0.0), Link(0.0, 0.25)
    lines = commands("p1", 100.0, {"10.0.0.1": slow, "10.0.0.2": leaky, "10.0.0.3": slow})
    assert lines[0] == "qdisc replace dev p1 root handle 1: htb default 10"
    assert "class add dev p1 parent 1: classid 1:1 htb rate 100000kbit ceil 100000kbit" in lines[1]
    assert "qdisc add dev p1 parent 1:b netem delay 10000us limit 20000" in lines
    assert "qdisc add dev p1 parent 1:c netem loss 25% limit 20000" in lines
    filters = [line for line in lines if line.startswith("filter")]
    assert [line.split("src ")[1] for line in filters] == [
        "10.0.0.1/32 flowid 1:b",
        "10.0.0.3/32 flowid 1:b",
        "10.0.0.2/32 flowid 1:c",
    ]
