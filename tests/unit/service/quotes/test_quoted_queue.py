"""A quote for hosts that other runs hold says so, and how long these still take."""

import json
from types import SimpleNamespace

import pytest

from trainmaster.providers.base import NoCapacityError, NodeRequest
from trainmaster.service.quotes import quoted_queue as module
from trainmaster.spec.errors import ProviderError

NOW = 1_000.0
HELD = (
    "2 hosts are needed, none is free: a: it is used by ada (first-1.train); "
    "b: it is used by ada (other-2.train)"
)


class Hosts:
    def __init__(self, error):
        self.error = error

    def queue_wait_s(self, requests):
        if self.error is not None:
            raise self.error
        return 0.0

    def close(self):
        pass


def told(p50, took_s):
    interval = {"p5": p50 - 10, "p50": p50, "p95": p50 + 10}
    data = json.dumps({"time_s": interval, "cost_usd": interval})
    return [{"kind": "binding", "made_at": NOW, "data": data}], {"created_at": NOW - took_s}


def waits(monkeypatch, error=None, *, needed=1, runs=None):
    runs = {"first-1": told(100.0, 30.0), "other-2": told(300.0, 30.0)} if runs is None else runs
    monkeypatch.setattr("trainmaster.providers.get_provider", lambda *_: Hosts(error))
    monkeypatch.setattr("trainmaster.service.renting.cheapest.plans_of", lambda *_: ["train"])
    request = NodeRequest("worker", needed)
    monkeypatch.setattr("trainmaster.service.renting.provider_check.requests_of", lambda _: [request])
    monkeypatch.setattr(module, "readable", lambda rows, _: [SimpleNamespace(machines=["one"]) for _ in rows])
    living = [{"id": f"{run}.train", "run_id": run} for run in runs]
    database = SimpleNamespace(
        clock_s=lambda: NOW,
        living_clusters=lambda *_, **__: living,
        quotes_of=lambda run: runs[run][0],
        run_row=lambda run: runs[run][1],
    )
    home = SimpleNamespace(identity=lambda: "home")
    service = SimpleNamespace(place=lambda *_: None, database=database, home=home)
    return module.held_hosts(service, SimpleNamespace(provider="hosts"), SimpleNamespace(is_unknown=True), {})


def test_free_hosts_and_hosts_that_do_not_answer_are_no_wait(monkeypatch):
    assert waits(monkeypatch) is None
    assert waits(monkeypatch, ProviderError("a: it does not answer")) is None


@pytest.mark.parametrize(
    ("needed", "lacking", "p50"), [(1, 0, 70.0), (2, 0, 270.0), (2, 1, 70.0), (3, 2, 270.0)]
)
def test_held_hosts_are_waited_for_until_enough_of_their_runs_have_ended(monkeypatch, needed, lacking, p50):
    queue = waits(monkeypatch, NoCapacityError(HELD, lacking=lacking), needed=needed)
    assert (queue.time_s.p5, queue.time_s.p50, queue.time_s.p95) == (p50 - 10, p50, p50 + 10)
    assert queue.words.startswith("for hosts that others hold, ")
    assert "first-1" in queue.words


@pytest.mark.parametrize("runs", [{}, {"first-1": told(100.0, 200.0)}, {"first-1": ([], None)}])
def test_of_others_runs_and_of_runs_beyond_their_quote_nothing_says_how_long(monkeypatch, runs):
    queue = waits(monkeypatch, NoCapacityError(HELD), runs=runs)
    assert queue.time_s is None
    assert queue.words == f"for hosts that others hold, nothing says how long ({HELD})"
