"""What a quote for other machines rests on, and how many workers are taken where no quote can be made."""

from __future__ import annotations

import json
from datetime import date
from types import SimpleNamespace

import pytest

from trainmaster.advisor.model.devices import Device, Ratio, speed_ratio
from trainmaster.advisor.model.knowledge import Knowledge
from trainmaster.advisor.model.measurement import Measurement, Point
from trainmaster.advisor.quote.choosing import QuoteLimits
from trainmaster.advisor.quote.infeasible import no_feasible
from trainmaster.db import Database
from trainmaster.providers import Catalogue, load_catalogue
from trainmaster.service.quotes.candidate_offers import measured_elsewhere, measured_for
from trainmaster.service.quotes.fingerprint import Fingerprint
from trainmaster.service.quotes.history import History
from trainmaster.service.quotes.job_knowledge import JobKnowledge, _elsewhere, is_elsewhere
from trainmaster.service.quotes.knowledge_builder import KnowledgeBuilder
from trainmaster.service.quotes.quote_options import QuoteOptions
from trainmaster.service.quotes.quote_service import Quoter
from trainmaster.service.quotes.worker_counts import allowed_workers, with_fewest
from trainmaster.spec import Strategy, read_recipe
from trainmaster.spec.errors import UsageError


def offers(*names, provider="aws"):
    found = [SimpleNamespace(instance_type=name, provider=provider) for name in names]
    return Catalogue("some", tuple(found))


def test_what_was_measured_there_counts_before_what_was_measured_here():
    here, there, elsewhere = (
        Measurement(None, duration_s=1.0, offer=name) for name in ("local", "m4.large", "c4.large")
    )
    everything = [here, there, elsewhere]
    assert measured_for(everything, offers("laptop", provider="local")) == [here]
    assert measured_for(everything, offers("m4.large", "t2.small")) == [there]
    assert measured_for(everything, offers("t2.small", "t2.large")) == [here]
    small = Measurement(None, duration_s=8.0, offer="lab:m4.large")  # an eighth of what it is called after
    assert measured_for([here, small], offers("m4.large")) == [here]
    (found,) = measured_for([here, there, small], offers("m4.large", provider="lab"))
    assert (found.offer, found.duration_s) == ("m4.large", 8.0)


def test_what_was_measured_in_another_place_only_says_little_of_how_fast_this_one_is():
    """But that is more than nothing: its machines can be compared with those that are known."""
    measured = [Measurement(None, duration_s=9.0, offer="m4.large")]
    lab = offers("m4.large", provider="lab")
    found = measured_elsewhere(measured, lab)
    assert (found[0].offer, found[0].duration_s) == ("elsewhere:m4.large", 9.0)
    assert measured_elsewhere(measured, offers("laptop", provider="local")) == []
    known = Knowledge.of(found, [], {}, {})
    assert is_elsewhere(known)
    both = measured_elsewhere([*measured, Measurement(None, duration_s=8.0, offer="hosts:host")], lab)
    assert _elsewhere(Knowledge.of(both, [], {}, {})).startswith("it ran on m4.large and hosts:host only;")
    assert speed_ratio(Device("", 64.0, "m4.large"), known.measured) == Ratio(0.0, 1.0)


@pytest.fixture
def flexible(tmp_path):
    def make(provider, workers="2..8"):
        keys = {"distributed": {"workers": workers}, "batch": {"global": 6}, "steps": 9, "command": "true"}
        path = tmp_path / "recipe.yaml"
        path.write_text(json.dumps({"name": "j", "provider": provider, "experiments": {"main": keys}}))
        return read_recipe(path)

    return make


def test_only_numbers_that_share_the_batch_are_allowed(flexible):
    recipe = flexible("aws")
    assert allowed_workers(recipe.experiments["main"]) == [2, 3, 6]
    assert with_fewest(recipe).experiments["main"].distributed.workers == 2
    fixed = with_fewest(recipe)
    assert with_fewest(fixed) is fixed


class Failing(Quoter):
    """Can quote nothing."""

    def __init__(self, error):
        super().__init__(SimpleNamespace(), self.told().append)
        self.error = error

    def told(self):
        self.lines = []
        return self.lines

    def quote(self, *_):
        raise self.error


def settled(error, recipe):
    quoter = Failing(error)
    return quoter.settle(recipe, {}).experiments["main"].distributed.workers, quoter.lines


@pytest.mark.parametrize("provider", ["aws", "lab", "hosts"])
def test_without_a_quote_the_fewest_are_taken_off_this_machine(flexible, provider):
    count, lines = settled(UsageError("shows no steps"), flexible(provider))
    assert count == 2
    assert any("shows no steps" in line for line in lines)


def test_what_is_not_feasible_is_not_rented(flexible):
    error = no_feasible(QuoteLimits(deadline_s=5), None, 60.0, (60.0, 0.1))
    with pytest.raises(UsageError, match="no cluster keeps"):
        settled(error, flexible("aws"))
    assert settled(error, flexible("hosts"))[0] == 2
    assert settled(error, flexible("local"))[0] in (2, 3, 6)


@pytest.mark.parametrize(("same", "bytes_needed"), [(True, 846e6), (False, None)])
def test_only_the_memory_of_the_very_same_job_rules_machines_out(tmp_path, same, bytes_needed):
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps({"name": "j", "experiments": {"main": {"command": "true"}}}))
    measured = [Measurement(None, duration_s=9.0, memory_bytes=846e6, offer="local")]
    some, others = (measured, []) if same else ([], measured)
    history = History(Fingerprint("f", "f"), some, others)
    database = Database(f"sqlite:///{tmp_path / 'trainmaster.db'}")
    service = SimpleNamespace(measurements=lambda *_: {"main": history}, database=database)
    candidate_offers = SimpleNamespace(catalogue=Catalogue("some", ()), shares=None)
    found = Quoter(service, print, candidate_offers=candidate_offers).memory(read_recipe(path), {})
    database.close()
    assert {name: memory.main for name, memory in found.items()} == ({"main": bytes_needed} if same else {})


def test_a_gang_without_a_length_goes_by_runs_of_other_versions_and_is_not_measured(tmp_path, monkeypatch):
    """A minute of it might show no length, and would hide those that are known."""
    path = tmp_path / "recipe.yaml"
    gang = {"command": "true", "framework": "plain", "distributed": {"strategy": "allreduce", "workers": 2}}
    path.write_text(json.dumps({"name": "j", "experiments": {"main": gang}}))
    recipe = read_recipe(path)
    point = Point(Strategy.ALLREDUCE, 2, nodes=1, step_time_s=0.1)
    history = History(Fingerprint("f", "f"), [], [Measurement(point, duration_s=60.0, held=0.9)])
    database = Database(f"sqlite:///{tmp_path / 'trainmaster.db'}")
    home = SimpleNamespace(root=tmp_path)
    service = SimpleNamespace(measurements=lambda *_: {"main": history}, database=database, home=home)
    told: list[str] = []
    jobs = JobKnowledge(service, told.append, None)
    monkeypatch.setattr(
        "trainmaster.service.quotes.profiling.Profiler.measure", lambda *_: pytest.fail("measured")
    )
    builder = KnowledgeBuilder(load_catalogue("local", today=date(2026, 11, 1)))
    found, missing = jobs.gather(recipe, {}, builder, QuoteOptions(), costs=False)
    database.close()
    assert (found["main"].duration_s, found["main"].similar, missing) == (60.0, 1, {})
    assert told == ["main: 1 measurement of earlier runs used, which say how long it is"]
