"""Tools of assistants: on a home, without the SDK."""

from __future__ import annotations

import json

import pytest

from client_contract_home import LOG, record_run
from trainmaster.api.embedded import EmbeddedClient
from trainmaster.api.mcp.tool_context import LocalToolContext, ServerToolContext
from trainmaster.api.mcp.tools import MAX_PAGE_BYTES, TOOLS, UNTRUSTED, bounded, harmless, paged
from trainmaster.api.remote.connection import RestConnection
from trainmaster.api.rest.bodies import NewRun
from trainmaster.service.renting import provider_check
from trainmaster.service.renting.offer import RentalOffer
from trainmaster.service.run_planning import PlannedRun, RunPlanner
from trainmaster.service.users.caller import Wallet
from trainmaster.spec.errors import AccessError, TrainmasterError, UsageError

RECIPE = "name: job\nprovider: aws\nexperiments: {main: {command: 'true'}}\n"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """One whose plans cost at most $3.60 an hour, and whose runs nothing drives."""

    def plan(self, recipe, *, measure_first=False, **_):
        if measure_first:
            self.measured_first(recipe)
        return PlannedRun(recipe, RentalOffer(recipe, (), 2.0, 3.6))

    monkeypatch.setattr(RunPlanner, "plan", plan)
    monkeypatch.setattr(RunPlanner, "measured_first", lambda *_: "measured")
    monkeypatch.setattr(provider_check, "check_with_provider", lambda *_: [])
    monkeypatch.setattr(EmbeddedClient, "detach_run", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    found = EmbeddedClient(tmp_path / "home", wallet=Wallet("mcp", 20.0))
    record_run(found._service, "job-aaaa000001", 1000.0)
    yield found
    found.close()


def call(context, name, **arguments):
    return TOOLS[name].call(context, arguments)


def test_a_start_is_paid_from_the_wallet_or_refused_with_the_numbers(home):
    context = LocalToolContext(home)
    started = call(context, "run", recipe=RECIPE, max_usd=12.0)
    assert started["wallet"]["left_usd"] == 8.0
    quoted = call(context, "quote", recipe=RECIPE + "budget: {total: $7}\n")
    assert (quoted["plan"] != "", quoted["wallet"]["left_usd"]) == (True, 8.0)
    with pytest.raises(TrainmasterError, match=r"may cost \$9.00, and the wallet 'mcp' has \$8.00"):
        call(context, "run", recipe=RECIPE, max_usd=9.0)
    assert call(context, "run", plan=quoted["plan"])["wallet"]["left_usd"] == 1.0
    with pytest.raises(TrainmasterError, match="there is no plan"):
        call(context, "run", plan=quoted["plan"])
    with pytest.raises(UsageError, match="known price only"):
        call(context, "run", recipe=RECIPE)
    with pytest.raises(UsageError, match="a recipe or a plan"):
        call(context, "run", recipe=RECIPE, plan="x")
    assert call(context, "status")["wallet"]["reserved_usd"] == 19.0


def test_a_file_that_is_given_as_a_text_is_told_where_it_goes(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    with pytest.raises(UsageError, match=r"recipe.yaml is a file") as refused:
        call(LocalToolContext(home), "check", recipe="recipe.yaml")
    assert "as `file`" in refused.value.hint
    assert call(LocalToolContext(home), "check", file="recipe.yaml")


def test_what_cannot_be_measured_is_bounded_by_its_recipe(home, monkeypatch):
    def refuse(*_):
        raise UsageError("main cannot be measured: this machine has 0 GPUs")

    monkeypatch.setattr(RunPlanner, "measured_first", refuse)
    started = call(LocalToolContext(home), "run", recipe=RECIPE + "budget: {total: $7}\n")
    assert started["wallet"]["left_usd"] == 13.0
    assert any("cannot be measured" in note for note in started["notes"])
    with pytest.raises(TrainmasterError):
        call(LocalToolContext(home), "run", recipe=RECIPE)


def test_without_a_wallet_nothing_that_costs_is_started(home):
    home._wallet = None
    with pytest.raises(UsageError, match="was not agreed to") as refused:
        call(LocalToolContext(home), "run", recipe=RECIPE, max_usd=1.0)
    assert "--at-most 20" in refused.value.hint


def test_whoever_may_look_changes_nothing(home):
    context = LocalToolContext(home, is_reading=True)
    for name in ("run", "quote", "cancel"):
        with pytest.raises(AccessError, match="needs the scope 'run'"):
            call(context, name, run="latest")
    assert call(context, "status", run="latest")["reason"] == "SUCCEEDED"


def test_logs_come_in_pages_of_bytes(home):
    context, found, begin = LocalToolContext(home), "", 0
    while begin is not None:
        page = call(context, "logs", run="latest", begin=begin, limit=9)
        assert page["untrusted"] == UNTRUSTED
        found, begin = found + page["text"], page["next"]
    assert found == LOG
    assert call(context, "logs", run="latest", tail=1)["text"] == "step 3\n"
    assert call(context, "logs", run="latest", grep="2")["text"] == "step 2\n"
    with pytest.raises(UsageError, match="limit"):
        call(context, "logs", run="latest", limit=MAX_PAGE_BYTES + 1)


def test_a_line_without_an_end_is_cut_and_nothing_is_lost_or_said_twice():
    pieces = [b"a" * 100, b"b" * 7, b"\nend"]
    whole, found, begin, more = b"".join(pieces), b"", 0, True
    while more:
        page, more = paged(iter(pieces), begin, 10)
        found, begin = found + page, begin + len(page)
    assert found == whole


def test_what_programs_wrote_is_bounded_and_acts_on_nothing():
    evil = "\x1b]0;title\x07a\x1b[2Jb\x00\x9b31m\u202ec\r\n"
    assert harmless(evil) == "ab31mc\n"
    found = bounded({"message": "x" * 5000, "runs": [{evil: evil}] * 150, "n": 1.5})
    assert found["untrusted"] == UNTRUSTED
    assert found["cut"] == ["message", "runs"]
    assert (len(found["message"]), len(found["runs"]), found["n"]) == (2004, 100, 1.5)
    assert "\x1b" not in json.dumps(found, ensure_ascii=False)
    assert len(json.dumps(bounded({"runs": [{"m": "x" * 2000}] * 100}))) < 50_000


def test_tools_take_what_rest_takes(home):
    given = TOOLS["run"].takes_of(LocalToolContext(home))["properties"]
    for key in ("recipe", "provider", "plan", "max_usd"):
        assert given[key]["description"] == NewRun.model_fields[key].description
    at_server = ServerToolContext(RestConnection("http://127.0.0.1:1", "t"), frozenset({"read"}))
    assert "file" not in TOOLS["run"].takes_of(at_server)["properties"]
    with pytest.raises(UsageError, match="a recipe is needed"):
        at_server.recipe({"file": "/etc/passwd"})
    with pytest.raises(UsageError, match="a recipe is needed"):
        call(LocalToolContext(home), "check")
    assert call(LocalToolContext(home), "check", recipe=RECIPE)["order"] == ["main"]
    assert call(LocalToolContext(home), "metrics", run="latest", keys=["loss"])["metrics"][0]["values"] == [
        1.0,
        0.5,
    ]
    assert call(LocalToolContext(home), "models", run="latest")["models"][0]["task"] == 0
