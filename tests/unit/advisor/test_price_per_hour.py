"""``budget.per_hour`` holds for all machines that may be there at the same time."""

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quote_world import market, offer, training

from trainmaster.advisor.market.hourly_cost import ancestors, least_cap, most_at_once
from trainmaster.advisor.quote.choosing import QuoteLimits
from trainmaster.advisor.quote.infeasible import NoFeasibleQuote
from trainmaster.advisor.quote.quoting import make_quote
from trainmaster.spec.hardware import Hardware

V100, T4 = offer("p3.2xlarge", 3.06), offer("t4", 0.5, gpu="T4")
FASTEST = {"time_weight": 1.0, "cost_weight": 0.0}


def two(after=(), **more):
    """Experiments that cannot share machines, as they ask for different ones."""
    small, large = Hardware(gpus=1, cpus=2), Hardware(gpus=1, cpus=4)
    return [
        training(name="a", hardware=small, **more),
        training(name="b", hardware=large, after=after, **more),
    ]


def per_hour(quote):
    return {name: each.cluster.usd_per_hour for name, each in quote.experiments.items()}


def test_experiments_side_by_side_share_what_is_allowed():
    free = make_quote(two(), market(V100, T4), QuoteLimits(**FASTEST))
    assert sum(per_hour(free).values()) > 10
    capped = make_quote(two(), market(V100, T4), QuoteLimits(usd_per_hour=10, **FASTEST))
    assert sum(per_hour(capped).values()) <= 10
    assert capped.time_s.p50 > free.time_s.p50


def test_one_after_the_other_each_may_have_all():
    quote = make_quote(two(after=("a",)), market(V100, T4), QuoteLimits(usd_per_hour=10, **FASTEST))
    assert all(usd <= 10 for usd in per_hour(quote).values())
    assert sum(per_hour(quote).values()) > 10


def test_what_is_too_little_for_both_names_what_would_do():
    with pytest.raises(NoFeasibleQuote, match="at the same time") as caught:
        make_quote(two(), market(V100), QuoteLimits(usd_per_hour=4))
    assert "$6.12" in caught.value.hint
    make_quote(two(), market(V100), QuoteLimits(usd_per_hour=6.12))


def test_experiments_with_equal_needs_take_turns_on_the_same_machines():
    alike = [training(name=name, most=1) for name in ("a", "b")]
    quote = make_quote(alike, market(V100), QuoteLimits(usd_per_hour=4))
    assert per_hour(quote) == {"a": 3.06, "b": 3.06}


def test_a_deadline_is_kept_within_the_price_per_hour():
    free = make_quote(two(), market(V100, T4), QuoteLimits(usd_per_hour=20))
    limits = QuoteLimits(usd_per_hour=20, deadline_s=free.time_s.p50 * 0.7)
    quote = make_quote(two(), market(V100, T4), limits)
    assert sum(per_hour(quote).values()) <= 20
    assert quote.time_s.p50 < free.time_s.p50 * 0.7


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=6), st.data())
def test_what_is_there_at_the_same_time_costs_no_more_than_all_and_no_less_than_one(prices, data):
    names = [f"e{i}" for i in range(len(prices))]
    after = {
        name: data.draw(st.sets(st.sampled_from(names[:i]))) if i else () for i, name in enumerate(names)
    }
    usd = dict(zip(names, prices, strict=True))
    most = most_at_once(usd, {name: [name] for name in names}, ancestors(after))
    assert max(prices) <= most <= sum(prices) * (1 + 1e-9)
    if not any(after.values()):
        assert most == pytest.approx(sum(prices))


def test_many_short_chains_side_by_side_are_summed_chain_by_chain():
    """Thirty recipes' worth of `prepare`, then `train`: to look at each pair for itself takes no time."""
    names = [f"{step}{i}" for i in range(30) for step in ("a", "b")]
    after = ancestors({name: [f"a{name[1:]}"] if name.startswith("b") else [] for name in names})
    usd = {name: 1.0 + (name.startswith("b") != (int(name[1:]) % 2 == 0)) for name in names}
    assert most_at_once(usd, {name: [name] for name in names}, after) == pytest.approx(2.0 * 30)


def test_three_machines_at_ten_cents_cost_thirty_cents():
    """As a sum of floats they cost a little more."""
    one = training(most=4, total_batch=258)
    three = replace(one, workload=replace(one.workload, lengths={3: one.workload.lengths[3]}))
    quote = make_quote([three], market(offer("p3.2xlarge", 0.1)), QuoteLimits(usd_per_hour=0.3)).main
    assert quote.cluster.usd_per_hour > 0.3
    with pytest.raises(NoFeasibleQuote, match=r"\$0.299 per hour"):
        make_quote([three], market(offer("p3.2xlarge", 0.1)), QuoteLimits(usd_per_hour=0.299))


@given(st.integers(1, 99), st.integers(1, 9999))
def test_what_would_do_is_no_more_than_what_machines_cost(count, ten_thousandths):
    """To a computer 3 x $0.2 are $0.6000000000000001."""
    assert least_cap(sum([ten_thousandths / 1e4] * count)) == count * ten_thousandths / 1e4


def test_what_is_too_late_is_not_said_to_be_too_dear():
    """Ten and twenty cents are thirty; it is the deadline that cannot be kept."""
    cheap, dear = offer("p3.2xlarge", 0.1, vcpus=2.0), offer("p3.8xlarge", 0.2, vcpus=4.0)
    with pytest.raises(NoFeasibleQuote) as caught:
        make_quote(two(most=1), market(cheap, dear), QuoteLimits(usd_per_hour=0.3, deadline_s=1.0))
    assert "deadline" in str(caught.value)
    assert "at the same time" not in str(caught.value)


def test_any_graph_costs_what_the_dearest_set_side_by_side_does():
    """Each of one row waits for all but one of the other: there are very many such sets."""
    names = [f"{row}{n}" for row in "ab" for n in range(60)]
    before = ancestors(
        {f"b{n}": [f"a{m}" for m in range(60) if m != n] for n in range(60)} | dict.fromkeys(names[:60], ())
    )
    usd = {name: 1.0 + (name[0] == "b") for name in names}
    assert most_at_once(usd, {name: [name] for name in names}, before) == pytest.approx(120.0)


@pytest.mark.parametrize("seed", range(40))
def test_the_price_of_what_is_side_by_side_is_that_of_trying_all_sets(seed):
    rng = random.Random(seed)
    names = [f"e{i}" for i in range(rng.randint(1, 9))]
    before = ancestors(
        {name: [each for each in names if each < name and rng.random() < 0.3] for name in names}
    )
    serves = {}
    for name in names:
        serves.setdefault(rng.choice("abcdefgh"), []).append(name)
    usd = {cluster: rng.choice([0.0, 0.1, 1.0, 3.0]) for cluster in serves}

    def follows(later, earlier):
        return all(set(serves[earlier]) <= before[name] for name in serves[later])

    sets = (some for count in range(len(usd) + 1) for some in itertools.combinations(usd, count))
    apart = [some for some in sets if not any(follows(*pair) for pair in itertools.permutations(some, 2))]
    most = max(sum(usd[cluster] for cluster in some) for some in apart)
    assert most_at_once(usd, serves, before) == pytest.approx(most)
