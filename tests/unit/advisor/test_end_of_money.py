"""A quote says that a cluster fits ``budget.total`` exactly where its driver does not end the run for it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from quote_world import knowledge, market, measured, offer, workload

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.market.hourly_cost import Bill
from trainmaster.advisor.market.machines import Machines
from trainmaster.advisor.quote.choosing import QuoteLimits
from trainmaster.advisor.quote.infeasible import NoFeasibleQuote
from trainmaster.advisor.quote.joint import plan
from trainmaster.advisor.quote.quoting import Subject, make_quote
from trainmaster.advisor.quote.turns import Option
from trainmaster.cluster.record import Machine, new_record
from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan
from trainmaster.control.decide.budget import USUAL_LEASE_S, Publishing
from trainmaster.control.decide.effects import Policy
from trainmaster.control.loop.jobs import THREADS
from trainmaster.service.driving.execution_backend import meter_of
from trainmaster.service.quotes.quote_record import cap_words, run_end_s
from trainmaster.spec import Recipe

RECIPE = """
name: r
provider: aws
budget: {{total: ${cap:.9f}}}
experiments:
  train: {{command: python t.py, grace: {grace}s}}
"""


def recipe_of(cap: float = 1.0, grace: int = 20) -> Recipe:
    return Recipe.from_text(RECIPE.format(cap=cap, grace=grace))


def record_of(one, count: int, started_at: float = 0.0, ended_at: float | None = None):
    """As a run's driver writes it of machines of one offer."""
    rental = Rental(
        one.instance_type,
        usd_per_hour=one.price_usd_per_hour,
        most_usd_per_hour=one.most_usd_per_hour(),
        quantum_s=one.billing_quantum_s,
        minimum_s=one.billing_minimum_s,
    )
    found = new_record("r", ClusterPlan("c", ("train",), "aws", (RolePlan("worker", count, (rental,)),)), "h")
    machines = tuple(
        Machine(f"worker-{n}", "worker", "t", rental, f"i-{n}", started_at=started_at, ended_at=ended_at)
        for n in range(count)
    )
    return replace(found, machines=machines, leased_until=1e9)


def driver_meter(recipe: Recipe, most_bytes: float, tasks: int):
    """What the driver of a run has: see `opened_world` and `ClusterExecutor`."""
    meter = meter_of(recipe, {"train": Policy(grace_s=recipe.experiments["train"].grace_s)}, USUAL_LEASE_S)
    meter.publishing = Publishing(most_bytes=most_bytes, rounds=max(math.ceil(tasks / THREADS), 1))
    return meter


clusters = st.builds(
    lambda price, spot, quantum, minimum: offer(
        "m", price, gpus=0.0, gpu="", spot=spot, billing_quantum_s=quantum, billing_minimum_s=minimum
    ),
    st.floats(0.01, 9.0),
    st.booleans(),
    st.sampled_from([1.0, 60.0, 3600.0]),
    st.sampled_from([0.0, 60.0, 600.0]),
)


@given(
    clusters,
    st.integers(1, 40),
    st.integers(1, 30),
    st.integers(5, 20_000),
    st.sampled_from([0, 20, 300]),
    st.sampled_from([0.0, 5e7, 4e9]),
    st.sampled_from([0.5, 0.9, 1 - 1e-6, 1 + 1e-6, 1.1, 2.0]),
)
@example(offer("m", 0.4, gpus=0.0, gpu=""), 1, 1, 3600, 20, 0.0, 1.0001)
@settings(deadline=None)
def test_a_cluster_fits_exactly_if_the_driver_does_not_end_its_run(
    one, count, tasks, time_s, grace, most_bytes, share
):
    machines = Machines.of(market(one).catalogue.columns(), np.ones(1))
    job, known = workload(tasks=tasks, most=1), knowledge(measured(1, 32))
    bill = Bill(job, known, machines, machines[:0], (one,), data_leaves=False)
    at_once = float(tasks)
    some = Candidates.of(job, machines, machines[:0], None)[:1]
    some = replace(some, at_once=np.array([at_once]), machines=np.array([float(count)]))
    end_s = run_end_s(recipe_of(grace=grace), most_bytes)
    needed = float(bill.needed_usd(np.array([[float(time_s)]]), some, end_s)[0, 0])
    recipe = recipe_of(needed * share, grace)
    meter = driver_meter(recipe, most_bytes, tasks)
    record = record_of(one, count)
    ended = []
    for now in {0.0, time_s / 3, float(time_s)}:
        meter.bill = lambda until, now=now: record.most_usd(now, until)
        ended.append(meter.must_end(now))
    assert any(ended) is (needed > meter.cap_usd), (needed, meter.cap_usd)


@given(st.data())
@settings(deadline=None)
def test_experiments_one_after_another_keep_only_the_end_of_what_is_there(data):
    names = ["a", "b", "c"]
    after = {
        "b": data.draw(st.sampled_from([[], ["a"]])),
        "c": data.draw(st.sampled_from([[], ["a"], ["b"]])),
    }
    took = {name: float(data.draw(st.integers(10, 5000))) for name in names}
    prices = {name: data.draw(st.floats(0.01, 9.0)) for name in names}
    recipe = recipe_of(100.0)
    end_s = run_end_s(recipe)(1)
    options = {
        name: [
            Option(
                np.full(4, took[name]),
                np.full(4, prices[name] * took[name] / 3600),
                end_usd=np.full(4, prices[name] * end_s / 3600),
            )
        ]
        for name in names
    }
    found = plan(options, dict.fromkeys(names, 0), after, QuoteLimits(budget_usd=1e9))
    begins: dict[str, float] = {}
    for name in names:
        begins[name] = max((begins[each] + took[each] for each in after.get(name, [])), default=0.0)
    share = data.draw(st.sampled_from([0.7, 1 - 1e-6, 1 + 1e-6, 1.3]))
    meter = driver_meter(recipe, 0.0, 1)
    meter.cap_usd = float(found.needed_usd[0]) * share
    is_ended = False
    for now in sorted({begins[name] + took[name] for name in names}):

        def bill(until, now=now):
            usd = 0.0
            for name in names:
                if begins[name] >= now:
                    continue
                ended = begins[name] + took[name]
                usd += prices[name] / 3600 * ((until if ended >= now else ended) - begins[name])
            return usd

        meter.bill = bill
        is_ended = is_ended or meter.must_end(now)
    assert is_ended is (share < 1)


def test_a_quote_refuses_a_budget_that_its_end_would_not_be_left_of():
    """To be ended by its cap in any case is no quote."""
    job, place = Subject(workload(most=1), knowledge(measured(1, 32))), market(offer("p3.2xlarge", 3.06))
    end_s = run_end_s(recipe_of())
    free = make_quote([job], place, QuoteLimits(end_s=end_s))
    assert free.end_usd == pytest.approx(3.06 * end_s(1) / 3600, abs=3.06 / 3600)  # by whole seconds
    least = free.cost_usd.p95
    make_quote([job], place, QuoteLimits(budget_usd=least))
    with pytest.raises(NoFeasibleQuote) as caught:
        make_quote([job], place, QuoteLimits(budget_usd=least, end_s=end_s))
    assert caught.value.hint.endswith(" That includes what a run keeps for its end.")
    enough = caught.value.nearest_budget_usd
    assert least < enough < least + free.end_usd
    made = make_quote([job], place, QuoteLimits(budget_usd=enough, end_s=end_s))
    assert made.cost_usd.p95 == least


def test_a_binding_quote_says_that_its_end_counts():
    quoted = make_quote(
        [Subject(workload(most=1), knowledge(measured(1, 32)))],
        market(offer("p3.2xlarge", 3.06)),
        QuoteLimits(),
    ).cost_usd
    assert cap_words(recipe_of(quoted.p95 + 1.0), quoted, 3.06, 3.06) == ""
    assert "of which it keeps for its end, may end it" in cap_words(
        recipe_of(quoted.p95 + 0.1), quoted, 3.06, 3.06
    )
    assert "of which it keeps for its end, will end it" in cap_words(
        recipe_of(quoted.p95 + 0.1), quoted, 9.0, 9.0
    )
    dear = cap_words(recipe_of(quoted.p95 + 0.2), quoted, 3.06, 2 * 3.06)
    assert "end it before" in dear, "its cap counts spot machines at their highest price"
    assert cap_words(recipe_of(quoted.p95 + 0.2), quoted, 3.06, 3.06) == ""
    assert "keeps" not in cap_words(recipe_of(quoted.p95 - 0.01), quoted, 3.06, 3.06)
