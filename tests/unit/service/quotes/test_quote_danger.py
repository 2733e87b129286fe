"""A forecast that has left the quote: told once, when it grows, and after each change."""

from __future__ import annotations

import json

from test_quote_tracker import Store, World, promise

from trainmaster.advisor.quote.interval import Interval
from trainmaster.executors.telemetry.usage import SAMPLES_FILE
from trainmaster.service.quotes.quote_danger import QuoteDanger
from trainmaster.service.quotes.quote_record import QuoteRecord

FREE = Interval(0.0, 0.0, 0.0)


class Bench:
    """A run that was quoted to take 100 s at most."""

    def __init__(self, **what):
        self.binding = QuoteRecord("binding", 0.0, Interval(50.0, 60.0, 100.0), FREE)
        self.danger = QuoteDanger("r", **{"is_rented": False, "is_capped": False, "is_gang": False, **what})

    def tell(self, time_s):
        forecast = QuoteRecord("forecast", 1.0, Interval(time_s, time_s, time_s), FREE)
        return [each.message for each in self.danger.compare(self.binding, forecast, "", str)]


def test_what_is_late_is_told_once_and_when_it_has_grown():
    bench = Bench()
    assert bench.tell(90.0) == []
    (told,) = bench.tell(150.0)
    assert told.startswith("it will take longer than quoted: ")
    assert bench.tell(160.0) == []
    assert len(bench.tell(200.0)) == 1
    (told,) = bench.tell(90.0)
    assert told.startswith("again within the quote: ")


def test_another_cluster_is_chosen_by_a_key_that_the_recipe_may_have():
    for is_gang, keys in ((True, "and distributed.workers"), (False, "and workers")):
        (told,) = Bench(is_rented=True, is_gang=is_gang).tell(150.0)
        assert told.endswith(f"on another cluster: hardware.instance {keys} choose it")


def test_after_a_change_what_it_will_take_is_told_also_where_that_is_beyond_the_quote_still():
    bench = Bench()
    bench.tell(200.0)
    for change in (bench.danger.changed, lambda: bench.danger.upset(bench.binding)):
        change()
        (told,) = bench.tell(150.0)
        assert told.startswith("it will still take longer than quoted: ")
        assert bench.tell(150.0) == []


def test_what_an_earlier_driver_has_told_is_not_told_again_but_after_a_change():
    bench = Bench()
    bench.danger.resumed(bench.binding, 150.0, 0.0)
    bench.danger.upset(bench.binding)  # its members begin again
    assert bench.tell(150.0) == []
    bench.danger.changed()
    assert len(bench.tell(150.0)) == 1


def test_a_run_beyond_its_quote_from_the_first_step_on_says_that_others_hold_the_processors(tmp_path):
    """No step had become slower, so nothing was said of why."""
    world = World(tmp_path, Store(promise()), steps=400)
    rows = [
        {"member": "worker-0", "seconds": at, "cpu_seconds": at / 2, "peak_rss_bytes": 1}
        | {"cpu_wait_seconds": at / 2, "machine_cpu_seconds": 2 * at}
        for at in range(1, 60)
    ]
    (tmp_path / SAMPLES_FILE).write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    lines = world.look(60, step_s=0.5)
    (told,) = [line for line in lines if "longer than quoted" in line]
    assert "; other work holds its processors for 50 % of the time. Let it go on" in told
