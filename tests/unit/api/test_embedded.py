"""Runs are started from what was planned, and only at a price that somebody has agreed to."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from trainmaster.api.embedded import EmbeddedClient
from trainmaster.api.results import RunPlan
from trainmaster.service.run_planning import PlannedRun, RunPlanner
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError

RECIPE = Recipe.from_dict({"name": "job", "provider": "aws", "experiments": {"main": {"command": "true"}}})
OFFER = SimpleNamespace(
    costs=True, most_usd_per_hour=0.4, lines=["main: 1 x m5.large"], notes=("spot",), quote=None, plans=()
)


@pytest.fixture
def client(tmp_path):
    client = EmbeddedClient(tmp_path / "home")
    yield client
    client.close()


def planned(client, monkeypatch):
    def plan(self, recipe, *, allow_stale, can_agree, measure_first, keep_s):
        self._tell("note: one")
        return PlannedRun(recipe, OFFER)

    monkeypatch.setattr(RunPlanner, "plan", plan)
    note, plan = client.plan_run(RECIPE, "r.yaml", can_agree=False)
    assert note == "note: one"
    assert isinstance(plan, RunPlan)
    return plan


def test_a_plan_is_data_and_costs_must_be_agreed_to(client, monkeypatch):
    plan = planned(client, monkeypatch)
    assert (plan.provider, plan.most_usd_per_hour) == ("aws", 0.4)
    assert plan.lines == ("main: 1 x m5.large",)
    assert plan.notes[0] == "spot"
    with pytest.raises(UsageError, match=r"at most \$0\.4 per hour, which was not agreed to"):
        client.accept_run(plan.id, agreed_usd_per_hour=0.39)


def test_a_home_has_no_queue(client, monkeypatch):
    plan = planned(client, monkeypatch)
    with pytest.raises(UsageError, match="only a server has a queue"):
        client.accept_run(plan.id, agreed_usd_per_hour=9.0, queue=True)


def test_a_port_that_is_taken_is_known_before_a_service_starts(client):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot listen at port {port}"):
            client.services.listen(port)


def test_of_several_places_a_plan_names_the_one_that_was_chosen(client, monkeypatch):
    recipe = Recipe.from_text("provider: [hosts, aws]\nexperiments: {main: {command: 'true'}}")
    monkeypatch.setattr(RunPlanner, "plan", lambda *_, **__: PlannedRun(RECIPE, OFFER))
    (plan,) = client.plan_run(recipe, "r.yaml")
    assert plan.provider == "aws"
