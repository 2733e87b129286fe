"""A joint plan is no worse than what planning each change anew gives, by a plain greedy search."""

from __future__ import annotations

import math
from dataclasses import replace
from graphlib import TopologicalSorter

import numpy as np
import pytest

from trainmaster.advisor.market.hourly_cost import ancestors, most_at_once
from trainmaster.advisor.quote import joint
from trainmaster.advisor.quote.choosing import QuoteLimits
from trainmaster.advisor.quote.joint import plan
from trainmaster.advisor.quote.turns import Option, schedule, together

DRAWS = 20


def plain_turns(takes_s, after, fills, sharing):
    waits_for = {name: [a for a in after.get(name, ()) if a in takes_s] for name in takes_s}
    beside = {name: [] for name in takes_s}
    begins, _ = schedule({name: np.array([each]) for name, each in takes_s.items()}, waits_for)
    order = sorted(TopologicalSorter(waits_for).static_order(), key=lambda name: float(begins[name][0]))
    group = {name: names for names in sharing for name in names}
    ends = {}
    for name in order:
        begin = max((ends[each] for each in waits_for[name]), default=0.0)
        there = [each for each in group.get(name, ()) if ends.get(each, 0.0) > begin]
        there.sort(key=ends.__getitem__, reverse=True)
        while there and fills[name] + sum(fills[each] for each in there) > (1 + 1e-9):
            waits_for[name].append(there.pop())
            begin = ends[waits_for[name][-1]]
        ends[name] = begin + takes_s[name]
        for each in there:
            beside[name].append(each)
            beside[each].append(name)
    return waits_for, beside


def plainly_shared(chosen, after):
    clusters = {}
    for name, option in chosen.items():
        if option.cluster is not None:
            clusters.setdefault(option.cluster, []).append(name)
    groups = [names for names in clusters.values() if len(names) > 1]
    work_s = {n: np.maximum(one.time_s - one.coming_s - one.leaving_s, 0.0) for n, one in chosen.items()}
    fills, busy = dict.fromkeys(chosen, 1.0), dict.fromkeys(chosen, 1.0)
    for names in groups:
        machines = max(chosen[name].machines for name in names)
        for name in names:
            fills[name], busy[name] = (each / machines for each in (chosen[name].fills, chosen[name].busy))
    typical_s = {name: float(np.median(each)) for name, each in work_s.items()}
    waits_for, beside = plain_turns(typical_s, after, fills, groups)

    found, ends, first = {}, {}, {}
    for name in TopologicalSorter(waits_for).static_order():
        option, begin = (
            chosen[name],
            np.max([ends[a] for a in waits_for[name]] or [0.0 * work_s[name]], axis=0),
        )
        time_s, members = option.time_s, next((names for names in groups if name in names), [])
        if members:
            since, come_s = first.setdefault(option.cluster, (begin, option.coming_s))
            coming_s = come_s - np.clip(begin - since, 0.0, come_s)
            slower = max(busy[name] + sum(busy[each] for each in beside[name]), 1.0)
            are_later = {each for each in members if each not in found} - {name, *beside[name]}
            time_s = coming_s + work_s[name] * slower + (0.0 if are_later else option.leaving_s)
        found[name] = replace(option, time_s=time_s)
        ends[name] = begin + time_s
    begins, _ = schedule({name: option.time_s for name, option in found.items()}, waits_for)
    for names in groups:
        rent_usd = max((chosen[name] for name in names), key=lambda option: sum(option.usd_per_hour)).rent_usd
        if rent_usd is None:
            continue
        # they are there from the first one's begin to the last one's end
        until = np.max([ends[name] for name in names], axis=0) - chosen[names[-1]].leaving_s
        usd = rent_usd(until - np.min([begins[name] for name in names], axis=0)) / len(names)
        for name in names:
            option = chosen[name]
            alone = option.rent_usd and option.rent_usd(np.maximum(option.time_s - option.leaving_s, 0.0))
            cost_usd = option.cost_usd - (0.0 if alone is None else alone) + usd
            found[name] = replace(found[name], cost_usd=np.maximum(cost_usd, 0.0))
    return found, waits_for


def plainly_needed(chosen, after):
    begins, ends = schedule({name: option.time_s for name, option in chosen.items()}, after)
    needed = np.sum([option.cost_usd for option in chosen.values()], axis=0)
    for at in ends.values() if any(np.any(option.end_usd) for option in chosen.values()) else ():
        usd = np.zeros_like(at)
        for name, option in chosen.items():
            share = np.clip((at - begins[name]) / np.maximum(option.time_s, 1e-9), 0.0, 1.0)
            is_there = (begins[name] < at) & (at <= ends[name])
            usd += option.cost_usd * share + np.where(is_there, option.end_usd, 0.0)
        needed = np.maximum(needed, usd)
    return needed


def plainly_whole(options, taken, after, limits, shares_machine):
    chosen = {name: options[name][row] for name, row in taken.items()}
    prices, serves, names = {}, {}, {}
    for name, option in chosen.items():
        cluster = name if option.cluster is None else names.setdefault(option.cluster, name)
        serves.setdefault(cluster, []).append(name)
    for cluster, members in serves.items():
        prices[cluster] = sum(max(chosen[name].usd_per_hour[role] for name in members) for role in (0, 1))
    hourly = most_at_once(prices, serves, ancestors({name: after.get(name, ()) for name in options}))
    load = {name: option.load for name, option in chosen.items()} if shares_machine else None
    chosen, waits_for = (chosen, after) if shares_machine else plainly_shared(chosen, after)
    time_s = together({name: option.time_s for name, option in chosen.items()}, waits_for, load)
    usd, needed = sum(option.cost_usd for option in chosen.values()), plainly_needed(chosen, waits_for)
    broken = (
        hourly > limits.usd_per_hour * (1 + 1e-9),
        (time_s <= limits.deadline_s).mean() < 0.9,
        (needed <= limits.budget_usd).mean() < 0.9,
    )
    return taken, time_s, usd, needed, hourly, broken


def plainly(options, start, after, limits, shares_machine):
    def whole(taken):
        return plainly_whole(options, taken, after, limits, shares_machine)

    def rate(now, then, aim):
        time_s, usd, needed = (float(np.median(now[i]) - np.median(then[i])) for i in (1, 2, 3))
        gains = ((now[4] - then[4], -time_s), (time_s, -usd), (needed, -time_s))
        gained, takes = gains[aim]
        return gained / max(takes, 1e-9) if gained > 1e-9 else 0.0

    best = whole(dict(start))
    for aim in range(3):
        while best[5][aim]:
            moves = [
                whole({**best[0], name: other})
                for name, row in best[0].items()
                for other in range(len(options[name]))
                if other != row
            ]
            if aim == 0 or not shares_machine:
                for most in sorted({sum(one.usd_per_hour) for each in options.values() for one in each}):
                    below = {
                        name: [row for row, one in enumerate(each) if sum(one.usd_per_hour) <= most]
                        for name, each in options.items()
                    }
                    if all(below.values()):
                        moves.append(
                            whole(
                                {
                                    name: min(rows, key=lambda row: np.median(options[name][row].time_s))
                                    for name, rows in below.items()
                                }
                            )
                        )
            most = max(best[4], limits.usd_per_hour) * (1 + 1e-9)
            rates = [rate(best, move, aim) if move[4] <= most else 0.0 for move in moves]
            if not any(rates):
                break
            best = moves[rates.index(max(rates))]
    return best


def rented(usd_per_s, least_s):
    return lambda there_s: np.maximum(there_s, least_s) * usd_per_s


def random_options(rng, name):
    for _ in range(int(rng.integers(1, 5))):
        coming_s, leaving_s = rng.uniform(0, 20, DRAWS), float(rng.choice([0, 5]))
        time_s = coming_s + rng.uniform(1, 200) * rng.uniform(0.8, 1.2, DRAWS) + leaving_s
        usd_per_s, machines = float(rng.choice([1, 2, 3, 5])) / 60, float(rng.choice([1, 1, 2, 4]))
        rent_usd = rented(usd_per_s, float(rng.choice([0, 60]))) if rng.random() < 0.9 else None
        usd = rent_usd(np.maximum(time_s - leaving_s, 0)) if rent_usd else np.zeros(DRAWS)
        yield Option(
            time_s,
            usd + float(rng.choice([0, 0.3])),
            float(rng.choice([0.3, 0.5, 1])),
            None if rng.random() < 0.15 else str(rng.choice(["x", "y", "z"])),
            (usd_per_s * 3600, 0.0),
            rng.uniform(0, 3, DRAWS) if rng.random() < 0.7 else 0.0,
            coming_s,
            leaving_s,
            rent_usd,
            machines,
            float(rng.choice([0.25, 0.5, 1])) * machines,
            float(rng.choice([0, 0.3, 1])) * machines,
        )


@pytest.mark.parametrize("seed", range(60))
def test_a_plan_is_no_worse_than_planning_each_change_anew(seed):
    rng = np.random.default_rng(seed)
    names = [f"e{i}" for i in rng.permutation(int(rng.integers(1, 7)))]
    after = {one: [each for each in names if each < one and rng.random() < 0.25] for one in names}
    options = {name: list(random_options(rng, name)) for name in names}
    start = {name: int(rng.integers(0, len(options[name]))) for name in names}
    shares_machine = bool(rng.random() < 0.15)
    _, time_s, _, needed, hourly, _ = plainly(options, start, after, QuoteLimits(), shares_machine)
    alone = (float(np.median(time_s)), float(np.median(needed)), hourly)
    limits = QuoteLimits(*(rng.uniform(0.3, 1.2) * one if rng.random() < 0.6 else math.inf for one in alone))
    for each in (QuoteLimits(), limits):
        plain, found = (
            plainly(options, start, after, each, shares_machine),
            plan(options, start, after, each, shares_machine),
        )
        its = plainly_whole(options, found.taken, after, each, shares_machine)
        for one, other in zip((found.time_s, found.cost_usd, found.needed_usd), its[1:4], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9)
        assert math.isclose(found.usd_per_hour, its[4], rel_tol=1e-9)
        assert found.feasible == (not any(plain[5])) == (not any(its[5]))
        if found.feasible:
            values = [each.objective(*(np.median(of[i])[None] for i in (1, 2)))[0] for of in (its, plain)]
            assert values[0] <= values[1] * (1 + 1e-9)


def many_experiments(number, clusters, chain):
    rng = np.random.default_rng(0)
    options = {}
    for i in range(number):
        base_s, options[f"e{i}"] = rng.uniform(100, 1000), []
        for row in reversed(range(6)):
            time_s = 50 + base_s / (1 + 0.35 * row) * rng.lognormal(0, 0.1, 1152) + 5
            rent_usd = rented(0.1 * (1 + row) ** 1.2 * rng.uniform(0.9, 1.1) / 3600, 60.0)
            one = Option(
                time_s, rent_usd(time_s - 5), cluster=f"c{row % clusters}", coming_s=50.0, leaving_s=5.0
            )
            options[f"e{i}"].append(replace(one, usd_per_hour=(rent_usd(3600.0), 0.0), rent_usd=rent_usd))
    return options, {f"e{i}": [f"e{i - 1}"] if i % chain else [] for i in range(number)}


@pytest.mark.parametrize(("clusters", "chain"), [(6, 5), (1, 100), (6, 100)])
def test_a_plan_of_a_hundred_experiments_looks_at_a_part_of_all_changes(clusters, chain):
    options, after = many_experiments(100, clusters, chain)
    start = dict.fromkeys(options, 5)
    alone = plan(options, start, after, QuoteLimits())
    found = plan(options, start, after, QuoteLimits(deadline_s=alone.typical_s / 10))
    assert found.of.reckoned < 220_000, "which takes 4 to 6 s; it took minutes"
    assert found.typical_s < alone.typical_s * (0.5 if chain == 100 else 0.25)
    assert found.is_cut != found.of.is_too_soon, "whether it cannot be, or is not known"


def test_what_gained_most_before_is_as_good_as_looking_at_all_changes_each_time(monkeypatch):
    options, after = many_experiments(25, 6, 5)
    start = dict.fromkeys(options, 5)
    limits = QuoteLimits(deadline_s=plan(options, start, after, QuoteLimits()).typical_s / 5)
    few = plan(options, start, after, limits)
    monkeypatch.setattr(joint, "_STILL", math.inf)
    full = plan(options, start, after, limits)
    assert full.feasible
    assert few.feasible
    assert few.typical_usd < full.typical_usd * 1.5


def test_what_no_plan_keeps_is_told_apart_from_what_was_not_looked_at(monkeypatch):
    options, after = many_experiments(8, 6, 4)
    start = dict.fromkeys(options, 5)
    monkeypatch.setattr(joint, "_LOOKS_AT_MOST", 0.0)
    typical_s = plan(options, start, after, QuoteLimits()).typical_s
    assert not plan(options, start, after, QuoteLimits(deadline_s=typical_s / 50)).is_cut
    assert plan(options, start, after, QuoteLimits(deadline_s=typical_s / 5)).is_cut
