"""What other numbers of workers and servers are expected to take, next to the present one."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from trainmaster.advisor.model.devices import Device
from trainmaster.advisor.model.measurement import Measurement, Point
from trainmaster.control.task.gangs import may_resize, resized
from trainmaster.providers import load_catalogue
from trainmaster.service.quotes.measured_now import MeasuredNow
from trainmaster.service.quotes.sizes import outlooks
from trainmaster.service.quotes.worker_counts import with_workers
from trainmaster.spec import Experiment, Recipe, Strategy

HERE = load_catalogue("local", today=date(2026, 11, 20))
DEVICE = Device("", 8.0, "local")


def experiment(
    workers: str = "1..8", batch: str = "global: 64", more: str = "", count: int = 2
) -> Experiment:
    recipe = Recipe.from_text(
        f"""
name: x
experiments:
  train: {{command: c, steps: 1000, adapt: true, batch: {{{batch}}},
           distributed: {{workers: {workers}{more}}}}}
"""
    )
    return with_workers(recipe, {"train": count}).experiments["train"]


def measured(workers: int, step_s: float, servers: int = 0) -> Measurement:
    sync = Strategy.PS_SYNC if servers else Strategy.ALLREDUCE
    point = Point(sync, workers, workers, servers, 64 / workers, step_time_s=step_s)
    return Measurement(point, offer="local")


def found(one: Experiment, *seen: Measurement, room: int = 64) -> dict[tuple[int, int], float]:
    some = outlooks(one, 0, seen, DEVICE, HERE, room, lambda each: int(each.distributed.workers))  # type: ignore[union-attr]
    assert all(each.sure >= each.usual for each in some)
    return {(each.workers, each.servers): each.usual for each in some}


def test_sizes_that_share_the_batch_are_looked_at_up_to_four_times_as_large():
    sizes = found(experiment(), measured(2, 0.5), measured(4, 0.25))
    assert set(sizes) == {(1, 0), (2, 0), (4, 0), (8, 0)}
    assert sizes[2, 0] == pytest.approx(1.0)
    assert sizes[4, 0] == pytest.approx(0.5, rel=0.1)
    assert sizes[1, 0] > 1.5
    assert sizes[8, 0] < sizes[4, 0]
    assert set(found(experiment("1..64", count=8), measured(8, 0.5))) == {(n, 0) for n in (2, 4, 8, 16, 32)}
    assert set(found(experiment(), measured(2, 0.5), room=4)) == {(1, 0), (2, 0), (4, 0)}


def test_another_global_batch_would_train_something_else():
    assert set(found(experiment(batch="per_worker: 32"), measured(2, 0.5))) == {(2, 0)}


def test_servers_that_the_recipe_leaves_out_may_be_more():
    one = experiment(more=", strategy: ps-sync", count=4)
    sizes = found(one, measured(4, 1.0, servers=1), measured(1, 0.9, servers=1))
    assert sizes[4, 2] < sizes[4, 1] == pytest.approx(1.0)
    assert (4, 2) not in found(one, measured(4, 1.0, servers=1), room=6), "there is a chief, too"
    fixed = experiment(more=", strategy: ps-sync, parameter_servers: 1", count=4)
    assert {servers for _, servers in found(fixed, measured(4, 1.0, servers=1))} == {1}


def test_nothing_is_said_of_what_was_not_measured():
    assert found(experiment()) == {}
    assert found(experiment(), Measurement(None, duration_s=3.0)) == {}


@pytest.mark.parametrize(
    ("one", "may"),
    [
        (experiment(), True),
        (experiment("auto"), True),
        (experiment("2"), False),
        (experiment("2", more=", strategy: ps-sync"), True),
        (experiment("2", more=", strategy: ps-sync, parameter_servers: 2"), False),
        (experiment().model_copy(update={"adapt": False}), False),
        (experiment().model_copy(update={"distributed": None}), False),
    ],
)
def test_only_what_the_recipe_leaves_open_is_changed(one, may):
    assert may_resize(one) is may
    if may:
        assert may_resize(resized(one, 1, 1)), "what it allows is known after a change, too"


def test_what_was_measured_earlier_with_the_present_size_does_not_count():
    now, before, other = measured(2, 0.5), measured(2, 0.1), measured(4, 0.2)
    known = MeasuredNow({"train": [before, other]}, live={"train": {0: now}})
    assert known.of_all_sizes("train") == [now, other]
    assert replace(known, live={}).of_all_sizes("train") == [before, other]
