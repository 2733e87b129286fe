"""Pages of workflows: what starts them, what came of it, and their buttons, all with plain forms."""

from __future__ import annotations

import json
import re
import time
from html import unescape

import pytest
import sqlalchemy as sa

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("cronsim", reason="the extra `server` is not installed")

from served_home import Served

from trainmaster.cli.status import _overview_lines
from trainmaster.db import tables as t
from trainmaster.service.runs.run_details import RunDetails
from trainmaster.service.teams.team_runs import TeamRuns

RECIPE = """name: nightly
provider: lab
on: [webhook, {schedule: "0 3 * * *"}, {volume: pets}]
experiments: {main: {command: 'echo <b>'}}
"""


@pytest.fixture
def served(tmp_path):
    found = Served(tmp_path)
    made = found.ask("red-user", "POST", "/api/v1/workflows", json={"recipe": RECIPE, "max_usd": 5}).json()
    found.hook, found.secret = made["hook"], made["secret"]
    yield found
    found.service.close()


def test_a_workflow_is_shown_and_changed_by_forms(served):
    def post(do, who="red-user"):
        return served.ask(who, "POST", "/workflows/nightly", data={"do": do})

    listed = served.ask("red-read", "GET", "/workflows").text
    assert '<a href="/workflows/nightly">nightly</a>' in listed
    assert "webhook, schedule 0 3 * * * UTC, volume pets" in listed
    shown = served.ask("red-read", "GET", "/workflows/nightly").text
    assert "Nothing has started it yet" in shown
    assert "echo &lt;b&gt;" in shown
    assert "<form" not in shown.split("<main")[1], "who only reads has no buttons"
    assert "Pause" in served.ask("red-user", "GET", "/workflows/nightly").text
    assert post("start").status_code == 303
    started = served.ask("red-user", "GET", "/workflows/nightly").text
    assert '<td data-label="Trigger">by hand</td><td data-label="Cause">–</td>' in started
    assert post("pause").headers["location"] == "/workflows/nightly"
    shown = served.ask("red-user", "GET", "/workflows/nightly").text
    assert "Go on" in shown
    assert "the workflow was paused" in shown
    assert "whsec_" in post("secret").text
    assert post("resume", "red-read").status_code == 403
    assert served.ask("blue-user", "GET", "/workflows/nightly").status_code == 404
    assert post("remove").headers["location"] == "/workflows"
    assert "The server starts nothing by itself yet" in served.ask("red-user", "GET", "/workflows").text


def test_a_new_run_with_on_becomes_a_workflow(served):
    text = RECIPE.replace("nightly", "weekly")
    made = served.ask("red-user", "POST", "/new", data={"recipe": text, "max_usd": "5"})
    assert (made.status_code, "The secret of the webhook of weekly." in made.text) == (200, True)
    again = served.ask("red-user", "POST", "/new", data={"recipe": text, "max_usd": "5"})
    assert (again.status_code, again.headers["location"]) == (303, "/workflows/weekly")
    assert "was not agreed to" in served.ask("red-user", "POST", "/new", data={"recipe": text}).text
    assert served.ask("red-read", "POST", "/new", data={"recipe": text}).status_code == 403


def test_a_workflow_is_registered_again_on_its_page_once_who_did_it_has_left(served):
    served.state.access.revoke_token("u")
    served.tokens["red-both"] = served.state.access.create_token("v", ["read", "run"], "red")["token"]
    refused = served.ask("red-both", "POST", "/workflows/nightly", data={"do": "start"})
    assert refused.status_code == 422
    assert "register it again" in refused.text
    assert "*Change it* on its page does that." in refused.text
    shown = served.ask("red-both", "GET", "/workflows/nightly").text
    assert 'href="/new?workflow=nightly">Change it</a>' in shown
    filled = served.ask("red-both", "GET", "/new?workflow=nightly").text
    assert "on: [webhook, {schedule: " in filled
    made = served.ask("red-both", "POST", "/new", data={"recipe": RECIPE, "max_usd": "5"})
    assert (made.status_code, made.headers["location"]) == (303, "/workflows/nightly")
    assert "by v, " in served.ask("red-both", "GET", "/workflows/nightly").text
    assert served.ask("blue-user", "GET", "/new?workflow=nightly").status_code == 404


def test_a_colleague_takes_over_what_somebody_has_left(served):
    """Unchanged: its code, its recipe, what was agreed to. Only who had the recipe's file could go on."""

    def ask(method, path, who="red-both"):
        return served.ask(who, method, f"/api/v1/workflows/nightly{path}")

    served.tokens["red-both"] = served.state.access.create_token("v", ["read", "run"], "red")["token"]
    assert "Go on in my name" not in served.ask("red-both", "GET", "/workflows/nightly").text
    served.state.access.revoke_token("u")
    assert [ask("POST", "/resume?take_over=true", who).status_code for who in ("red-read", "blue-user")] == [
        403, 404,
    ]  # fmt: skip
    refused = ask("POST", "/resume")
    assert (refused.status_code, "`trainmaster workflows resume nightly --take-over`" in refused.text) == (
        422,
        True,
    )
    assert ask("GET", "").json()["good_until"] <= time.time(), "it was revoked, and ends at no later time"
    shown = served.ask("red-both", "GET", "/workflows/nightly").text
    assert '<button name="do" value="take over">Go on in my name</button>' in shown
    found = ask("POST", "/resume?take_over=true").json()
    assert (found["state"], found["registered_by"], found["revision"]) == ("ENABLED", "v", 1)
    assert (found["replaced"]["registered_by"], found["new"]) == ("u", False)
    assert [sent(served, secret) for secret in (served.secret, found["secret"])] == [401, 202], "u has left"
    (row,) = served.service.database.read(sa.select(t.workflow))
    assert (row["token"], json.loads(row["request"])["max_usd"]) == ("v", 5.0)
    served.ask("red-both", "POST", "/workflows/nightly", data={"do": "pause"})
    paused = served.ask("red-both", "GET", "/workflows/nightly").text
    assert ('value="resume">Go on<' in paused, "Go on in my name" in paused) == (True, False), "by hand"
    again = served.ask("red-both", "POST", "/workflows/nightly", data={"do": "take over"})
    assert (again.status_code, again.headers["location"]) == (303, "/workflows/nightly")
    assert sent(served, found["secret"]) == 202, "it was his own"


def test_who_takes_over_on_the_page_is_shown_the_new_secret_once(served):
    served.tokens["red-both"] = served.state.access.create_token("v", ["read", "run"], "red")["token"]
    text = served.ask("red-both", "POST", "/workflows/nightly", data={"do": "take over"}).text
    assert "the one before, which u knows, is good no more: give this one to what sends to it" in text
    (secret,) = re.findall(r"whsec_[^<]+", text)
    assert [sent(served, each) for each in (served.secret, secret)] == [401, 202]


def sent(served, secret):
    """What a message to the webhook of it is answered that has a secret."""
    path = served.hook[served.hook.index("/api/") :]
    return served.browser.post(path, headers={"Authorization": f"Bearer {secret}"}).status_code


def test_a_run_of_a_workflow_runs_once_if_it_is_changed(served, monkeypatch):
    monkeypatch.setattr(TeamRuns, "recipe", lambda *_: RECIPE)
    for path in ("/runs/job-red/again", "/new?again=job-red"):
        text = served.ask("red-user", "GET", path).text
        assert "name: nightly\nprovider: lab\nexperiments:" in text


def test_the_page_of_a_model_says_what_it_was_made_of(served, monkeypatch):
    volume = {"name": "pets", "kind": "volume", "source": "pets@1"}
    made = {
        "code": "c0de",
        "seed": 7,
        "attempt": 1,
        "data": [volume, {**volume, "made_by": "clean-1"}],
        "workflow": None,
        "environment": {"python": "3.11.9", "platform": "Linux", "packages": {"numpy": "2.1.0"}},
    }
    monkeypatch.setattr(RunDetails, "lineage", lambda *_: made)
    text = served.ask("red-read", "GET", "/models/job-red/main/0").text
    assert text.count("pets@1") == 2
    assert text.count('made by <a href="/runs/clean-1">') == 1
    assert "Python 3.11.9, Linux, 1 packages" in text
    assert "numpy 2.1.0" in text


def test_one_that_may_start_nothing_any_more_needs_somebody(served):
    def home():
        return served.ask("red-read", "GET", "/").text

    assert "Needs you" not in home()
    served.ask("red-user", "POST", "/workflows/nightly", data={"do": "pause"})
    assert "Needs you" not in home(), "somebody has paused it"
    served.ask("red-user", "POST", "/workflows/nightly", data={"do": "resume"})
    served.ask("admin", "DELETE", "/api/v1/tokens/u")
    [told] = served.ask("red-read", "GET", "/api/v1/overview").json()["needs_you"]["workflows"]
    assert (told["workflow"], told["team"]) == ("nightly", "red")
    shown = home()
    assert 'Needs you <span class="dim">1</span>' in shown
    assert 'workflow <a href="/workflows/nightly">nightly</a>' in shown
    assert told["why"] in unescape(shown)
    assert "Needs you" not in served.ask("blue-read", "GET", "/").text


def test_one_whose_token_ends_within_a_week_needs_somebody_before(served):
    """A schedule ended with its token after 90 days, and nobody was told before."""

    def lasts(seconds):
        over = t.token.update().where(t.token.c.name == "u").values(expires_at=now + seconds)
        served.service.database.write(lambda connection, _: connection.execute(over))
        return served.ask("red-read", "GET", "/api/v1/overview").json()["needs_you"]["workflows"]

    now = served.service.database.clock_s()
    assert lasts(8 * 86400) == []
    (told,) = lasts(3 * 86400 + 60)
    assert told["why"] == "its token u ends in 3 d: take it over with another one"
    assert "its token u ends in 3 d" in served.ask("red-read", "GET", "/").text
    assert "; that token ends" in served.ask("red-read", "GET", "/workflows/nightly").text
    assert "Go on in my name" in served.ask("red-user", "GET", "/workflows/nightly").text
    found = served.ask("red-read", "GET", "/api/v1/workflows/nightly").json()
    assert round(found["good_until"] - now) == 3 * 86400 + 60
    served.ask("red-user", "POST", "/workflows/nightly", data={"do": "pause"})
    assert lasts(3 * 86400) == [], "somebody has paused it"


def test_an_administrator_changes_that_of_a_team_on_its_page(served):
    address = "/workflows/nightly?team=red"
    assert f'href="{address}"' in served.ask("admin", "GET", "/workflows").text
    shown = served.ask("admin", "GET", address).text
    assert f'action="{address}"' in shown
    assert "/new?workflow=" not in shown, "it would be kept for another team"
    assert "Members of team red change it." in shown
    assert served.ask("admin", "POST", address, data={"do": "pause"}).headers["location"] == address
    assert f'href="{address}"' in served.ask("admin", "POST", address, data={"do": "secret"}).text


def test_more_workflows_that_may_start_nothing_than_are_shown_are_in_their_list(served):
    for number in range(5):
        text = RECIPE.replace("nightly", f"nightly-{number}")
        served.ask("red-user", "POST", "/api/v1/workflows", json={"recipe": text, "max_usd": 5})
    served.ask("admin", "DELETE", "/api/v1/tokens/u")
    shown = served.ask("red-read", "GET", "/").text
    needs = shown[shown.index('id="needs"') :].partition("</section>")[0]
    assert needs.count('href="/workflows/nightly') == 5
    assert '<a href="/workflows">All 6 workflows</a>' in needs
    assert "/runs?since=1d" not in needs, "these are no runs"
    told = served.ask("red-read", "GET", "/api/v1/overview").json()["needs_you"]
    assert (told["count"], told["workflow_count"], len(told["workflows"])) == (0, 6, 5)
    assert "needs you: 1 more workflow" in _overview_lines(
        served.ask("red-read", "GET", "/api/v1/overview").json()
    )
