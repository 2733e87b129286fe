"""What pages say of what has not come: messages that were not received, runs that left no model."""

from __future__ import annotations

import pytest
from test_pages import Site

from trainmaster.service.runs.highlights import Highlights
from trainmaster.service.teams.team_runs import TeamRuns
from trainmaster.web.quotes import _cap_usd
from trainmaster.web.rendering import for_waiting

FAILS = {"id": "m", "topic": "run.ended", "at": 5.0, "tries": 1, "due_at": 9.0, "done_at": None}
FAILS["status"] = "x.example cannot be reached"
GIVEN_UP = {**FAILS, "done_at": 9.0, "status": "HTTP 500"}


@pytest.fixture
def site(tmp_path):
    found = Site(tmp_path)
    yield found
    found.service.close()


@pytest.mark.parametrize(
    ("deliveries", "said"),
    [
        ([], "nothing sent yet"),
        ([FAILS, GIVEN_UP], "none of the last 2 was received"),
        ([FAILS, {**FAILS, "done_at": 6.0, "status": "HTTP 204"}], "last received <time"),
        ([FAILS, {**FAILS, "done_at": 6.0, "status": "sent"}], "last received <time"),
    ],
)
def test_what_was_not_received_is_not_said_to_be_sent(site, monkeypatch, deliveries, said):
    site.browser.post("/notifications", data={"target": "https://x.example/h", "kind": "webhook"})
    monkeypatch.setattr(site.state.webhooks, "deliveries", lambda *_: deliveries)
    assert said in site.page("/notifications")


def test_a_run_that_left_no_model_says_so_and_what_lies_beside_its_code(site, monkeypatch):
    left = ({"experiment": "train", "tasks": 1, "silent": 0, "metrics": {}},)
    monkeypatch.setattr(
        TeamRuns, "highlights", lambda *_: Highlights((), (), (), left, ("<m>.pt", "log.csv"))
    )
    page = site.page("/runs/digits-1")
    assert "train left no model: nothing was written into <code>TRAINMASTER_OUTPUT_DIR</code>." in page
    assert "Written beside the code, which keeps no model: &lt;m&gt;.pt, log.csv." in page


def test_a_member_is_not_told_of_an_admin_s_shell():
    words = "$1 of the month's budget: team a has $0, and an admin raises it: `trainmaster budget --team a`"
    assert for_waiting(words).endswith("and an admin raises it")
    own = "$1 of the month's budget: the owner has $0, and `trainmaster budget --monthly AMOUNT` raises it"
    assert "trainmaster" not in for_waiting(own)


@pytest.mark.parametrize(("most_usd", "cap_usd"), [(0.0050, 0.01), (0.02, 0.02), (2.7501, 2.76)])
def test_the_cap_that_a_quote_says_is_the_one_that_it_fills_in(most_usd, cap_usd):
    assert _cap_usd(most_usd) == cap_usd


SKYPILOT = "name: net\nnum_nodes: 2\nrun: |\n  python train.py\n"
RADL = "network public (outbound = 'yes')\nsystem node (cpu.count>=2)\ndeploy node 2\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SKYPILOT, "workers: 2"),
        ("#!/bin/sh\n#SBATCH --nodes=2\nsrun python train.py\n", "workers: 2"),
        (RADL, "provider: im"),
        ("torchrun --nproc_per_node=2 train.py\n", "framework: pytorch"),
    ],
)
def test_a_file_of_another_tool_becomes_a_recipe_by_a_button(site, text, said):
    button = '<button class="main" formaction="/new/convert">Make a recipe of it</button>'
    pasted = site.browser.post("/new/recipe", data={"recipe": text}).text
    assert button in pasted
    assert "trainmaster convert" not in pasted
    made = site.browser.post("/new/convert", data={"recipe": text, "max_usd": "3"}).text
    assert said in made
    assert 'name="max_usd" value="3"' in made
    assert button not in made


def test_what_no_tool_has_written_is_kept_and_what_is_wrong_is_said(site):
    answer = site.browser.post("/new/convert", data={"recipe": "type: fleet\nnodes: 2\n"})
    assert "nodes: 2" in answer.text
    assert 'class="mistakes"' in answer.text


def test_a_mistake_in_a_recipe_names_its_key_and_is_told_at_its_field(site):
    wrong = "distributed: {strategy: ps-sync, workers: 2, parameter_servers: 1..2}"
    text = f"name: a\nexperiments:\n  train:\n    command: x\n    batch: {{global: 8}}\n    {wrong}\n"
    found = site.browser.post("/new/recipe", data={"recipe": text}, headers={"hx-request": "true"}).json()
    assert "experiments.train.distributed.parameter_servers" in found["checked"]
    assert list(found["wrong"]) == ["servers"]


def test_who_may_not_send_runs_is_not_led_to_a_new_one(site):
    assert 'href="/new"' in site.page("/models")
    token = site.state.access.create_token("looks", ["read"])["token"]
    page = site.browser.get("/models", headers={"authorization": f"Bearer {token}", "cookie": ""}).text
    assert 'href="/runs"' in page
    assert 'href="/new"' not in page


def test_the_best_model_of_a_search_is_offered_however_many_came_before_it(site, monkeypatch):
    best = TeamRuns.status

    def status(self, run):
        found = best(self, run)
        found["experiments"]["tune"]["best"] = {"task": 20, "value": 0.1, "parameters": {}}
        return found

    listed = [{"model": f"digits-1/tune/{task}", "experiment": "tune", "task": task} for task in range(8)]
    monkeypatch.setattr(TeamRuns, "status", status)
    monkeypatch.setattr(TeamRuns, "models", lambda *_: {"models": listed, "next": "digits-1/tune/7"})
    monkeypatch.setattr(TeamRuns, "model", lambda _, run, of, task: {"model": f"{run}/{of}/{task}"})
    assert 'href="/api/v1/models/digits-1/tune/20.zip">Download the best<span' in site.page("/runs/digits-1")


def test_a_run_again_costs_what_its_recipe_allows_where_nothing_else_is_said(site, monkeypatch):
    sent, recipe = [], "name: a\nprovider: aws\nbudget: {total: $0.50}\nexperiments: {t: {command: x}}\n"
    monkeypatch.setattr(type(site.state.submissions), "submit", lambda _, who, asked, key: sent.append(asked))
    for typed in ("", "2"):
        site.browser.post("/runs/digits-1/again", data={"recipe": recipe, "max_usd": typed, "act": "run"})
    monkeypatch.setattr(TeamRuns, "recipe", lambda *_: recipe)
    site.browser.post("/again", data={"run": ["digits-1"]})
    assert [each.max_usd for each in sent] == [0.5, 2.0, 0.5]
