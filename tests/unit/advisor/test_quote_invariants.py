"""What must hold of any recipe on any offers: no NaN, quantiles in order, a bill of price x billed time."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from quote_world import GB, knowledge, market, measured, offer, own_machine, training, workload

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.market.credits import with_credits
from trainmaster.advisor.market.machines import Machines
from trainmaster.advisor.market.workload import Length, Workload
from trainmaster.advisor.model.knowledge import Knowledge
from trainmaster.advisor.model.measurement import Measurement
from trainmaster.advisor.quote.choosing import QuoteLimits, SampledCandidates, choose, pick
from trainmaster.advisor.quote.infeasible import NoFeasibleQuote
from trainmaster.advisor.quote.quantiles import sure
from trainmaster.advisor.quote.quoting import Subject, make_quote
from trainmaster.advisor.quote.supply import Supply
from trainmaster.advisor.quote.timing import Timing
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.spec import Strategy
from trainmaster.spec.errors import UsageError
from trainmaster.spec.hardware import Hardware

V100 = offer("p3.2xlarge", 3.06)

machines = st.builds(
    offer,
    st.sampled_from(["a", "b", "p3.2xlarge"]),
    st.floats(0.001, 50),
    vcpus=st.sampled_from([0.5, 2.0, 96.0]),
    gpu=st.sampled_from(["V100", "v100-32gb", "nobody's"]),
    gpus=st.sampled_from([0.0, 1.0, 8.0]),
    nic=st.sampled_from([None, 0.1, 100.0]),
    nic_burst_gbps=st.sampled_from([None, 100.0]),
    cpu_baseline_share=st.sampled_from([None, 0.05, 1.0]),
    billing_quantum_s=st.sampled_from([1.0, 60.0, 3600.0]),
    billing_minimum_s=st.sampled_from([0.0, 60.0, 3600.0]),
    region=st.sampled_from(["", "eu-west-1", "us-east-1"]),
    provider=st.sampled_from(["aws", "own", "im"]),
)


@st.composite
def subjects(draw):
    """A recipe's experiment with what was measured of it: with and without batch, steps, servers, memory."""
    sync = draw(st.sampled_from(list(Strategy)))
    most = draw(st.sampled_from([1, 3, 8]))
    batch = draw(st.sampled_from([None, 1, 64]))
    has_steps = sync.has_servers or most > 1 or draw(st.booleans())
    memory = draw(st.sampled_from([None, 2.0 * GB]))
    facts = {
        "memory_bytes": memory,
        "device_memory_bytes": draw(st.sampled_from([None, 4.0 * GB])),
        "cores": draw(st.sampled_from([None, 0.2, 2.0])),
        "pause_s": draw(st.sampled_from([None, 1.5])),
        "tail_s": draw(st.sampled_from([None, 0.0])),
    }
    if has_steps:
        found = [measured(1, batch or 32, offer="local", sync=sync, **facts)]
        found = [replace(m, point=replace(m.point, local_batch=batch)) for m in found]
    else:
        found = [Measurement(None, duration_s=draw(st.floats(0, 1e5)), **facts)]
    steps = draw(st.sampled_from([1, 10_000])) if has_steps else None
    hardware = Hardware(
        gpus=draw(st.sampled_from([None, 0, 1])),
        cpus=draw(st.sampled_from([None, 1])),
        spot=draw(st.booleans()),
    )
    work = Workload(
        name="train",
        sync=sync,
        tasks=draw(st.sampled_from([1, 5, 1000])),
        lengths={n: Length(steps, draw(st.integers(1, 3)), batch) for n in range(1, most + 1)},
        spread=draw(st.sampled_from([None, 1, 4])),
        servers=2 if sync.has_servers else 0,
        chief=int(sync.has_servers),
        per_node=draw(st.sampled_from([None, 2])),
        hardware=hardware,
        checkpoint_every_s=draw(st.sampled_from([None, 60.0])),
        most_workers=most,
    )
    return Subject(work, knowledge(*found))


def attempt(subject, place, limits):
    """The quote as `--json` prints it, or why there is none."""
    try:
        return make_quote([subject], place, limits).as_dict(), None
    except UsageError as error:
        return None, error


def numbers(value):
    """All numbers in what `--json` prints."""
    if isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from numbers(each)
    elif isinstance(value, float):
        yield value


@settings(max_examples=40, deadline=None)
@given(
    subject=subjects(),
    offers=st.lists(machines, min_size=1, max_size=6, unique_by=lambda o: o.instance_type),
    own=st.booleans(),
    budget=st.sampled_from([math.inf, 1.0]),
)
def test_no_quote_has_a_nan_and_quantiles_are_in_order(subject, offers, own, budget):
    spot = bool(subject.workload.hardware.spot)
    offers = [replace(each, spot=spot) for each in offers] + [replace(each, spot=False) for each in offers]
    place = own_machine(2) if own else market(*dict.fromkeys(offers))
    made, refused = attempt(subject, place, QuoteLimits(budget_usd=budget))
    if refused is not None:
        assert "nan" not in str(refused)
        assert refused.hint
        return
    json.dumps(made, allow_nan=False)
    assert all(math.isfinite(number) for number in numbers(made))
    for key in ("time_s", "cost_usd", "step_time_s"):
        if made[key] is not None:
            assert 0 <= made[key]["p5"] <= made[key]["p50"] <= made[key]["p95"]
    assert made["cost_usd"]["p50"] <= budget


def drawn(subject, *offers):
    place = market(*offers)
    found = Machines.of(place.catalogue.columns(), np.ones(len(offers)))
    timing = Timing(subject.workload, subject.knowledge, found, found[:0], place.catalogue.offers)
    some = Candidates.of(subject.workload, found, found[:0], None)
    return timing, some, timing.outcomes(some)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.1, 20), st.floats(1, 4), st.booleans())
def test_a_higher_price_changes_the_bill_and_not_the_time(price, times, spot):
    subject = training(most=4, epochs=2)
    _, _, cheap = drawn(subject, offer("m", price, spot=spot))
    _, _, dear = drawn(subject, offer("m", price * times, spot=spot))
    assert (cheap.time_s == dear.time_s).all()
    assert dear.cost_usd == pytest.approx(cheap.cost_usd * times)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.1, 20), st.sampled_from([1.0, 60.0, 3600.0]), st.sampled_from([0.0, 60.0, 7200.0]))
def test_the_bill_is_price_times_billed_time(price, quantum, minimum):
    facts = {"billing_quantum_s": quantum, "billing_minimum_s": minimum}
    _, some, found = drawn(training(most=4, epochs=2), offer("m", price, **facts))
    there_s = np.maximum(found.time_s - capabilities_of("aws").giving_back_s.median, minimum)
    billed = np.ceil(there_s / quantum - 1e-9) * quantum
    assert found.cost_usd == pytest.approx(billed / 3600 * price * some.machines)


@settings(max_examples=20, deadline=None)
@given(st.floats(60, 5000), st.floats(1, 3), st.floats(0.2, 20))
def test_a_later_deadline_is_never_dearer(deadline, times, price):
    timing, some, _ = drawn(training(), V100, offer("t4", price, gpu="T4"))
    least = []
    for limit in (deadline, deadline * times):
        limits = QuoteLimits(deadline_s=limit)
        everything = SampledCandidates.of(some, timing)
        row = pick(everything, timing, limits)
        least.append(math.inf if row is None else everything.cost_usd[row, 1])
    assert least[1] <= least[0] * 1.02 + 1e-9  # within 2 % fewer machines win


@settings(max_examples=15, deadline=None)
@given(st.floats(0.01, 0.6), st.one_of(st.just(math.inf), st.floats(200, 2000)))
def test_the_nearest_budget_is_feasible(budget, deadline):
    subject, limits = training(), QuoteLimits(deadline_s=deadline, budget_usd=budget)
    _, error = attempt(subject, market(V100), limits)
    assume(error is not None)
    nearest_usd, nearest_s = error.nearest_budget_usd, error.nearest_deadline_s
    if (nearest_usd, nearest_s) == (None, None):
        assert deadline < math.inf, "more money alone would do"
        assert "The cluster that misses least" in error.hint
    if nearest_usd is not None:
        assert nearest_usd > budget
        make_quote([subject], market(V100), replace(limits, budget_usd=nearest_usd))
        _, still = attempt(subject, market(V100), replace(limits, budget_usd=nearest_usd * 0.9))
        assert still is not None, "there is none much nearer"
    if nearest_s is not None:
        assert nearest_s > deadline
        make_quote([subject], market(V100), replace(limits, deadline_s=nearest_s))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_what_is_sure_is_held_by_nine_of_ten(draws):
    values = np.array(draws)
    held = float(sure(values))
    assert (values <= held).mean() >= 0.9 - 1e-12
    assert (values < held).mean() < 0.9


def test_where_nothing_will_do_the_nearest_is_near():
    """Among many clusters that look good without communication, the one that misses least is named."""
    offers = [offer(f"t{i}", 0.02 + 0.001 * i, gpu="K80", nic=0.001) for i in range(40)]
    timing, some, _ = drawn(training(), *offers, V100)
    limits = QuoteLimits(deadline_s=30, budget_usd=0.01)
    choice = choose(some, timing, limits)
    assert choice.best is None
    everything = SampledCandidates.of(some, timing)
    over = np.maximum(everything.sure_time / 30, everything.sure_need / 0.01)
    found = max(choice.drawn.sure_time[choice.nearest] / 30, choice.drawn.sure_need[choice.nearest] / 0.01)
    assert found <= over.min() * 1.25


def test_parameter_servers_are_in_the_workers_region():
    points = [measured(n, 64, sync=Strategy.PS_ASYNC) for n in (1, 2)]
    subject = Subject(workload(sync=Strategy.PS_ASYNC, servers=1), knowledge(*points))
    here, there = {"region": "eu-west-1"}, {"region": "us-east-1"}
    quote = make_quote(
        [subject],
        market(
            offer("gpu", 3.0, **here),
            offer("cpu-here", 0.5, gpus=0.0, **here),
            offer("cpu-there", 0.01, gpus=0.0, nic=100, **there),
        ),
        QuoteLimits(),
    )
    for each in [quote.main.cluster, *(a.cluster for a in quote.main.pareto)]:
        assert each.server.region == each.worker.region == "eu-west-1"
    nowhere = market(offer("gpu", 3.0, **here), offer("cpu", 0.1, gpus=0.0, **there))
    apart = replace(subject, workload=replace(subject.workload, server_hardware=Hardware(region="us-*")))
    with pytest.raises(UsageError, match="no region"):
        make_quote([apart], nowhere, QuoteLimits())


def test_credits_are_given_once_for_all_tasks_of_a_machine():
    assert with_credits(np.array([7200.0]), 0.25)[0] == pytest.approx(
        4 * with_credits(np.array([1800.0]), 0.25, 1800.0 / 4)[0]
    )
    found = [Measurement(None, duration_s=1800.0, offer="local") for _ in range(3)]
    burst = offer("t2", 0.1, gpus=0.0, vcpus=2.0, cpu_baseline_share=0.2)
    times = []
    for tasks in (1, 8):
        work = workload("shard", most=1, tasks=tasks, spread=1, hardware=Hardware())
        work.lengths[1] = Length(None, 1, None)
        quote = make_quote([Subject(work, knowledge(*found))], market(burst), QuoteLimits())
        times.append(quote.main.time_s.p50 - 90)
    assert times[1] > 8 * 1.5 * times[0]


def test_memory_of_tasks_whose_batch_nobody_knows_is_what_was_seen():
    known = knowledge(Measurement(None, duration_s=10.0, memory_bytes=2.0 * GB))
    assert known.memory_at(np.array([np.nan, 1.0, 512.0]), device=False).tolist() == [2.0 * GB] * 3


def test_single_processes_that_share_a_node_share_its_memory():
    found = [Measurement(None, duration_s=100.0, memory_bytes=20.0 * GB)]
    work = workload("shard", most=1, tasks=8, hardware=Hardware(cpus=1))
    work.lengths[1] = Length(None, 1, None)
    node = offer("m", 0.4, gpus=0.0, vcpus=8.0)  # 61 GB: two of them fit with room to spare
    quote = make_quote([Subject(work, knowledge(*found))], market(node), QuoteLimits()).main
    assert quote.cluster.at_once <= 2
    assert quote.memory_headroom >= 0.08


def test_machines_too_small_for_what_was_measured_are_counted_and_explained():
    found = [Measurement(None, duration_s=100.0, memory_bytes=0.846 * GB)]
    work = workload("one", most=1, hardware=Hardware(instance=("m*",)))
    work.lengths[1] = Length(None, 1, None)
    small = offer("m.small", 0.01, gpus=0.0, memory_bytes=int(0.9 * GB))  # 94 % of it
    large = offer("m.large", 0.4, gpus=0.0, memory_bytes=2 * GB)
    quote = make_quote([Subject(work, knowledge(*found))], market(small, large), QuoteLimits()).main
    assert quote.cluster.worker.instance == "m.large"
    (note,) = (note for note in quote.notes if "left out" in note)
    assert "1 kinds of machines entirely" not in note
    assert "1 kind of machine" in note
    assert "846 MB" in note
    with pytest.raises(UsageError, match="846 MB"):
        make_quote([Subject(work, knowledge(*found))], market(small), QuoteLimits())


def test_unlengthed_tasks_are_known_by_their_durations():
    found = [replace(measured(1, 32, offer="local"), duration_s=d) for d in (60.0, 61.0)]
    whole = knowledge(*found).as_whole_tasks()
    assert whole.model is None
    assert whole.duration_s == 60.5
    assert knowledge(measured(1, 32, offer="local")).as_whole_tasks() is None


def test_of_two_offers_measured_as_often_the_newer_counts():
    found = [measured(1, 32, offer="p3.2xlarge"), measured(1, 32, offer="local")]
    assert Knowledge.of(found, [], {}, {}).measured.offer == "p3.2xlarge"
    assert Knowledge.of(found[::-1], [], {}, {}).measured.offer == "local"


def test_spot_servers_can_be_taken_back_too():
    points = [measured(n, 64, sync=Strategy.PS_ASYNC) for n in (1, 2)]
    work = workload(sync=Strategy.PS_ASYNC, servers=4, most=1, epochs=2000)
    subject = Subject(replace(work, server_hardware=Hardware(spot=True)), knowledge(*points))
    safe = Subject(work, knowledge(*points))
    server = {"gpus": 0.0, "nic": 10.0}
    place = market(V100, offer("s", 0.1, **server), offer("s", 0.1, spot=True, **server))
    lost, calm = (make_quote([each], place, QuoteLimits()).main for each in (subject, safe))
    assert lost.cluster.server.spot
    assert not calm.cluster.server.spot
    assert lost.time_s.p95 > calm.time_s.p95


def test_other_processors_are_only_taken_by_name_or_for_want_of_others():
    arm, intel = offer("arm", 0.1, arch="arm64"), offer("intel", 1.0, arch="x86_64")
    subject = training(most=1)
    place = market(arm, intel, arch="x86_64")
    quote = make_quote([subject], place, QuoteLimits()).main
    assert quote.cluster.worker.instance == "intel"
    assert any("x86_64" in note for note in quote.notes)
    named = training(most=1, hardware=Hardware(gpus=1, instance=("arm", "intel")))
    assert make_quote([named], place, QuoteLimits()).main.cluster.worker.instance == "arm"
    only = replace(place, catalogue=replace(place.catalogue, offers=(arm,)))
    assert make_quote([subject], only, QuoteLimits()).main.cluster.worker.instance == "arm"


@pytest.mark.parametrize(("wish", "key"), [(None, "spot: true"), (True, "spot: false")])
def test_a_catalogue_of_the_other_kind_says_so(wish, key):
    place = market(offer("m", 1.0, spot=wish is None))
    with pytest.raises(UsageError) as caught:
        make_quote([training(hardware=Hardware(gpus=1, spot=wish))], place, QuoteLimits())
    assert key in caught.value.hint


def test_wishes_that_nothing_meets_are_named_by_their_keys():
    place: Supply = market(V100)
    with pytest.raises(UsageError) as caught:
        make_quote([training(hardware=Hardware(gpus=1, memory_bytes=10**13))], place, QuoteLimits())
    assert "Change memory." in caught.value.hint


def test_providers_have_their_own_waits():
    subject = training(most=1, epochs=1)
    timing, some, found = drawn(subject, offer("m", 1.0), offer("m", 1.0, provider="im"))
    first, second = (float(np.median(found.time_s[:, i])) for i in range(2))
    assert second - first > 700
    assert timing.outcomes(some[np.array([1])]).time_s[:, 0] == pytest.approx(found.time_s[:, 1])


def test_of_many_regions_the_cheap_and_the_only_ones_are_looked_at():
    points = [measured(n, 64, sync=Strategy.PS_ASYNC, offer="local") for n in (1, 2)]
    subject = Subject(workload(sync=Strategy.PS_ASYNC, servers=1), knowledge(*points))
    offers = []
    for i in range(8):
        facts = {"region": f"r{i}"}
        offers += [offer("gpu", 3.0 + i, **facts), offer("cpu", 0.1 + i, gpus=0.0, **facts)]
    offers.append(offer("fast", 90.0, gpu="H100", region="r7"))
    cheap = make_quote([subject], market(*offers), QuoteLimits()).main.cluster
    assert (cheap.worker.instance, cheap.worker.region, cheap.server.region) == ("gpu", "r0", "r0")
    fast = make_quote([subject], market(*offers), QuoteLimits(time_weight=1, cost_weight=0)).main.cluster
    assert fast.worker.region == fast.server.region
    if fast.worker.instance == "fast":
        assert fast.worker.region == "r7"


def test_the_nearest_limits_of_several_experiments_are_the_least():
    first, second = training(name="first"), training(name="second", after=("first",))
    dear = QuoteLimits(
        budget_usd=0.01, time_weight=1.0, cost_weight=0.0
    )  # the objective's own picks cost much
    with pytest.raises(NoFeasibleQuote) as caught:
        make_quote([first, second], market(V100), dear)
    least = caught.value.nearest_budget_usd
    assert least is not None
    make_quote([first, second], market(V100), replace(dear, budget_usd=least))
    cheapest = make_quote([first, second], market(V100), QuoteLimits()).cost_usd
    assert least < cheapest.p95 * 1.2


def test_the_measured_type_is_not_dropped_for_one_that_only_looks_alike():
    """Alike and a cent cheaper, but never measured: with a tight deadline the known one is the pick."""
    place = market(V100, offer("lookalike", 3.05))
    subject = training(most=1)
    _, _, found = drawn(subject, V100)
    limit = float(sure(found.time_s)[0]) * 1.001
    quote = make_quote([subject], place, QuoteLimits(deadline_s=limit)).main
    assert quote.cluster.worker.instance == "p3.2xlarge"
