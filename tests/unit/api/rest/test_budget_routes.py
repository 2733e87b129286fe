"""Budgets, their ledger, the queue and webhooks by REST and on pages: of what one sees."""

from __future__ import annotations

import time

import pytest
from fastapi.testclient import TestClient

from trainmaster.api.rest.app import make_app, make_state
from trainmaster.api.rest.limits import TESTS_BURST
from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, RunChange, Submission
from trainmaster.service import Service
from trainmaster.service.driving import sessions
from trainmaster.service.teams.admission import Application, entrance
from trainmaster.spec import Recipe
from trainmaster.spec.states import EndReason, State
from trainmaster.web.pages import add_pages


class Served:
    """A server with two teams."""

    def __init__(self, root):
        home = Home(root, root / "cache", f"file://{root}/store", f"sqlite:///{root / 'trainmaster.db'}")
        self.service = Service(home)
        self.database = self.service.database
        state = make_state(self.service, {})
        app = make_app(state)
        add_pages(app)
        state.access.make_team("red", 100.0)
        state.access.make_team("blue", None)
        teams = {
            "red-manage": "red",
            "blue-manage": "blue",
            "red-read": "red",
            "blue-read": "blue",
            "owner": None,
            "admin": None,
        }
        self.tokens = {
            name: state.access.create_token(
                name, [name if name == "admin" else name.partition("-")[2] or "read"], team
            )["token"]
            for name, team in teams.items()
        }
        self.tokens["red-run"] = state.access.create_token("red-run", ["read", "run"], "red")["token"]
        self.browser = TestClient(app, raise_server_exceptions=False)

    def ask(self, who, method, path, **more):
        headers = {"authorization": f"Bearer {self.tokens[who]}"}
        return self.browser.request(method, path, headers=headers, **more)


@pytest.fixture
def served(tmp_path):
    found = Served(tmp_path)
    yield found
    found.service.close()


def test_budgets_ledger_and_queue_are_of_what_one_sees(served):
    def ask(who, path):
        return served.ask(who, "GET", f"/api/v1/{path}").json()

    assert [(b["team"], b["monthly_usd"]) for b in ask("red-read", "budgets")["budgets"]] == [("red", 100.0)]
    assert [b["team"] for b in ask("owner", "budgets")["budgets"]] == [None]
    assert [b["team"] for b in ask("admin", "budgets")["budgets"]] == ["blue", "red", None, "*"]
    limits = {"team": "blue", "monthly_usd": 5.0, "runs_at_once": 1}
    assert served.ask("admin", "PUT", "/api/v1/budgets", json=limits).json()["left_usd"] == 5.0
    assert served.ask("admin", "PUT", "/api/v1/budgets", json={"team": "nobody"}).status_code == 404
    refused = served.ask("red-manage", "PUT", "/api/v1/budgets", json=limits | {"team": "red"})
    assert refused.status_code == 403
    assert refused.json()["title"] == "red-manage may not do what admins do: everything, in every team"
    refused = served.ask("red-run", "PUT", "/api/v1/secrets/X", json={"value": "v"}).json()["title"]
    assert "its members, tokens, secrets, notifications and audit" in refused
    assert "budget" not in refused
    for run, most_usd in (("paid", 4.0), ("waits", 3.0)):
        new = AcceptedRun(
            run, "job", "{}", "r.yaml", "aws", "code", "file:///s", [("main", 1)], home_id="elsewhere",
            submission=Submission("x", "blue"),
        )  # fmt: skip
        admit = entrance(run, "blue", most_usd, Application(0, 0.0, waits=True), time.time())
        served.database.create_run(new, time.time(), admit, waits=True)
    (entry,) = ask("blue-read", "ledger?limit=1")["entries"]
    assert (entry["run"], entry["kind"], entry["usd"]) == ("paid", "reserve", 4.0)
    (waiting,) = ask("blue-read", "queue")["queue"]
    assert (waiting["run"], waiting["place"], waiting["priority"]) == ("waits", 1, "normal")
    shown = ask("blue-read", "runs/waits")
    assert shown["queued"]["waits_for"].startswith("$3.00 of the month's budget: team blue has $1.00 left")
    assert ask("red-read", "ledger")["entries"] == ask("red-read", "queue")["queue"] == []
    page = served.ask("blue-read", "GET", "/team").text
    assert "waits" in page
    assert "of the month" in page


def test_webhooks_are_made_shown_and_removed_by_those_who_manage_their_team(served):
    def ask(method, path="", who="red-manage", **more):
        return served.ask(who, method, f"/api/v1/webhooks{path}", **more)

    made = ask("POST", json={"target": "https://example.org/x", "topics": ["run.ended"]})
    assert made.status_code == 201
    assert made.json()["secret"].startswith("whsec_")
    hook = made.json()["id"]
    (listed,) = ask("GET").json()["webhooks"]
    assert (listed["id"], "secret" in listed) == (hook, False)
    assert ask("GET", who="blue-manage").json()["webhooks"] == []
    assert ask("DELETE", f"/{hook}", who="blue-manage").status_code == 404
    assert ask("POST", f"/{hook}/test").status_code == 202
    (told,) = ask("GET", f"/{hook}/deliveries").json()["deliveries"]
    assert (told["topic"], told["done_at"]) == ("test", None)
    assert ask("POST", f"/{hook}/rotate").json()["secret"] != made.json()["secret"]
    for body in ({"target": "http://example.org/"}, {"target": "https://a.org/", "topics": ["x"]}):
        assert ask("POST", json=body).status_code == 422
    page = served.ask("red-manage", "GET", "/notifications").text
    assert "https://example.org/x" in page
    assert "not sent yet" in page
    assert ask("DELETE", f"/{hook}").status_code == 204


def test_a_team_tries_its_webhooks_now_and_then_only(served, monkeypatch):
    made = served.ask("red-manage", "POST", "/api/v1/webhooks", json={"target": "https://example.org/y"})
    hook = made.json()["id"]
    monkeypatch.setattr(served.browser.app.state.server.tests, "_clock", lambda: 0.0)
    path = f"/api/v1/webhooks/{hook}/test"
    answers = [served.ask("red-manage", "POST", path) for _ in range(int(TESTS_BURST) + 1)]
    assert {answer.status_code for answer in answers[:-1]} == {202}
    assert (answers[-1].status_code, answers[-1].headers["retry-after"]) == (429, "60")
    assert served.ask("red-manage", "POST", f"/notifications/{hook}/test").status_code == 429
    assert served.ask("blue-manage", "POST", path).status_code == 404, "other teams have tests of their own"


def test_a_token_with_a_wallet_says_what_is_left(served):
    body = {"name": "bot", "scopes": ["read", "run"], "team": "red", "at_most_usd": 20.0}
    made = served.ask("admin", "POST", "/api/v1/tokens", json=body).json()
    assert made["at_most_usd"] == 20.0
    served.tokens["bot"] = made["token"]
    wallet = served.ask("bot", "GET", "/api/v1/wallet").json()["wallet"]
    assert (wallet["wallet"], wallet["left_usd"]) == ("token bot", 20.0)
    assert served.ask("red-read", "GET", "/api/v1/wallet").json() == {"wallet": None}
    for wrong in ({**body, "name": "a", "at_most_usd": -1}, {**body, "name": "b", "scopes": ["manage"]}):
        assert served.ask("admin", "POST", "/api/v1/tokens", json=wrong).status_code == 422


def test_a_run_that_ended_at_its_cap_goes_on_with_the_money_that_is_typed(served, monkeypatch):
    monkeypatch.setattr(sessions, "check_still_there", lambda *_: None)
    root, run = served.service.home.root, "capped-1"
    (root / "code").mkdir()
    recipe = Recipe.from_text(
        "name: capped\nexperiments: {main: {command: 'true'}}\n", directory=root / "code"
    )
    new = AcceptedRun(
        run, "capped", recipe.model_dump_json(), "r.yaml", "local", str(root / "code"),
        served.service.home.store_url, [("main", 1)], home=str(root), home_id=served.service.home.identity(),
        submission=Submission("red-manage", "red"),
    )  # fmt: skip
    lease = served.database.create_run(new, time.time())
    served.database.commit(lease, [RunChange(State.WAITING, State.DONE, EndReason.BUDGET)], time.time())
    served.database.release(lease, time.time())

    def ask(path, method="POST", **more):
        return served.ask("red-run", method, path, follow_redirects=False, **more)

    form = 'action="/runs/capped-1/resume" class="actions"><input name="max_usd"'
    assert form in ask(f"/runs/{run}", "GET").text
    refused = ask(f"/runs/{run}/resume", data={"max_usd": "much"})
    assert (refused.status_code, "is no amount of US dollars" in refused.text) == (422, True)
    assert ask(f"/api/v1/runs/{run}/resume", json={"max_usd": -1}).status_code == 422
    assert ask(f"/runs/{run}/resume", data={"max_usd": "$12"}).headers["location"] == f"/runs/{run}"
    assert 'total: "$12.0"' in ask(f"/api/v1/runs/{run}/recipe", "GET").text
    refused = ask(f"/api/v1/runs/{run}/resume", json={"max_usd": 13})
    assert "is not over: its budget.total stays until then" in refused.text
    assert form not in ask(f"/runs/{run}", "GET").text
