"""What lost machines take and cost: also before the work begins, and another machine has a minimum."""

from dataclasses import replace

import numpy as np
import pytest
from quote_world import knowledge, market, measured, offer, training

from trainmaster.advisor.market.phases import ClusterWait
from trainmaster.advisor.quote.choosing import QuoteLimits
from trainmaster.advisor.quote.interruptions import from_start_s, interrupted_s
from trainmaster.advisor.quote.quoting import make_quote
from trainmaster.spec.hardware import Hardware

WORK_S, EVERY_S = 600.0, 60.0


def simulated_s(rng, rate, before_s, restart_s):
    """Seconds beyond the work that a run takes: it begins again at its last checkpoint after each loss."""
    now, saved, left = 0.0, 0.0, before_s
    while True:
        loss = rng.exponential(1 / rate)
        if loss > left + (WORK_S - saved):
            return now + left + (WORK_S - saved) - before_s - WORK_S
        now += loss
        saved += max(loss - left, 0.0) // EVERY_S * EVERY_S
        left = restart_s


@pytest.mark.parametrize(("per_hour", "before_s"), [(2, 0.0), (2, 100.0), (6, 0.0), (6, 30.0)])
def test_what_is_drawn_is_what_a_run_takes_that_loses_machines_now_and_then(per_hour, before_s):
    rng, restart_s = np.random.default_rng(1), 40.0 + before_s
    real = np.mean([simulated_s(rng, per_hour / 3600, before_s, restart_s) for _ in range(4000)])
    one = np.ones((1152, 1))
    drawn = [
        interrupted_s(
            WORK_S * one, before_s * one, per_hour / 3600 * one, EVERY_S * one, restart_s * one, seed
        ).mean()
        for seed in range(8)
    ]
    assert np.mean(drawn) == pytest.approx(real, rel=0.12)


def test_the_minimum_of_a_machine_in_the_place_of_a_lost_one_is_in_the_quote():
    seen = ClusterWait(6.0, provider="lab", spot=True, used_s=200.0, lost=1)
    place = replace(market(offer("p3.2xlarge", 3.06, spot=True, provider="lab")), waited=(seen,) * 40)
    job = training(most=1, epochs=1, examples=2560, hardware=Hardware(gpus=1, spot=True))
    quote = make_quote([job], place, QuoteLimits())
    minute_usd = 3.06 / 60
    assert quote.main.time_s.p95 < 90
    assert quote.main.cost_usd.p95 >= 2 * minute_usd - 1e-6
    assert quote.cost_usd.p95 == quote.main.cost_usd.p95
    both = [replace(job, workload=replace(job.workload, name=name)) for name in ("a", "b")]
    assert make_quote(both, place, QuoteLimits()).cost_usd.p95 >= 2 * minute_usd - 1e-6, "on one machine"
    calm = make_quote([job], replace(place, waited=(replace(seen, lost=0, used_s=1e5),) * 40), QuoteLimits())
    assert calm.main.cost_usd.p95 < 2 * minute_usd


@pytest.mark.parametrize(("per_hour", "done_s"), [(0.5, 0.0), (6, 0.0), (6, 300.0), (10, 0.0)])
def test_without_checkpoints_each_loss_costs_all_work_since_the_start(per_hour, done_s):
    rng, restart_s, one = np.random.default_rng(2), 40.0, np.ones((1152, 1))

    def simulated():
        left, lost = WORK_S - done_s, 0.0
        while (loss := rng.exponential(3600 / per_hour)) < left:
            lost += WORK_S - left + loss + restart_s
            left = WORK_S
        return lost

    real = np.mean([simulated() for _ in range(20_000)])
    drawn = [
        from_start_s((WORK_S - done_s) * one, done_s, per_hour / 3600 * one, restart_s * one, seed).mean()
        for seed in range(16)
    ]
    assert np.mean(drawn) == pytest.approx(real, rel=0.1)
    if not done_s:
        expected = from_start_s(WORK_S * one, 0.0, per_hour / 3600 * one, restart_s * one, None)
        assert expected[0, 0] == pytest.approx(real, rel=0.1)


def test_a_quote_plays_losses_with_the_checkpoints_that_the_job_was_seen_to_write():
    place = market(offer("p3.2xlarge", 3.06, spot=True))

    def quoted(saves_every_s, **more):
        job = training(most=1, hardware=Hardware(gpus=1, spot=True), epochs=1000, **more)
        points = [measured(1, batch, saves_every_s=saves_every_s) for batch in (32, 128, 256)]
        return make_quote([replace(job, knowledge=knowledge(*points))], place, QuoteLimits()).main

    unknown, often, seldom, never = (quoted(each) for each in (None, 60.0, 7200.0, 0.0))
    assert unknown.time_s == often.time_s
    assert often.time_s.p50 < seldom.time_s.p50 < never.time_s.p50
    assert never.time_s.p95 > 2 * often.time_s.p95
    words = "it writes no checkpoint: work since the start is lost with a machine"
    told = [any(each.startswith(words) for each in one.notes) for one in (unknown, often, seldom, never)]
    assert told == [False, False, False, True]
    in_turn = quoted(0.0, tasks=40), quoted(60.0, tasks=40)
    assert in_turn[0].time_s.p50 < 3 * in_turn[1].time_s.p50, "tasks that are done stay so"
