"""Every route: who may use it, what it is answered with, and what it refuses. In this process, over ASGI."""

from __future__ import annotations

import functools
import io
import json
import os
import re
import warnings
import zipfile

import pytest

from trainmaster import __version__
from trainmaster.advisor.model.measurement import Measurement
from trainmaster.advisor.model.profile import Point
from trainmaster.artifacts import publish
from trainmaster.control.layout import Home
from trainmaster.db import (
    ClosedAttempt,
    NewMeasurement,
    NewRun,
    RunChange,
    Submission,
    TaskChange,
    quote_requests,
    tables,
)
from trainmaster.service import Service
from trainmaster.service.caller import caller
from trainmaster.service.quote_requests import QuoteAsk
from trainmaster.spec import Recipe, Strategy
from trainmaster.spec.states import EndReason, State

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

from trainmaster.api.rest.app import make_app, make_state
from trainmaster.web.pages import add_pages

RECIPE = "name: job\nexperiments:\n  main: {command: 'true'}\n"
QUOTED = """\
name: job
provider: aws
experiments:
  main:
    command: python train.py
    steps: 1000
    batch: {global: 64}
    distributed: {strategy: ps-async, workers: 4}
"""


class Served:
    """A server with two teams, a token of each kind, and a run of each team that has ended."""

    def __init__(self, root):
        home = Home(root, root / "cache", f"file://{root}/store", f"sqlite:///{root / 'trainmaster.db'}")
        self.service = Service(home)
        self.state = make_state(self.service, {"PATH": os.environ["PATH"]})
        self.app = make_app(self.state)
        add_pages(self.app)
        self.state.access.make_team("red", 100.0)
        self.state.access.make_team("blue", None)
        self.tokens = {
            f"{team}-{scope}": self.state.access.create_token(f"{team}-{scope}", [scope], team)["token"]
            for team in ("red", "blue")
            for scope in ("read", "run", "infer", "manage")
        }
        self.tokens["red-user"] = self.state.access.create_token("u", ["read", "run"], "red")["token"]
        self.tokens["blue-user"] = self.state.access.create_token("b", ["read", "run"], "blue")["token"]
        self.tokens["owner"] = self.state.access.create_token("o", ["read", "run"])["token"]
        self.tokens["admin"] = self.state.access.create_token("root", ["admin"])["token"]
        for team in ("red", "blue"):
            self.run(f"job-{team}", team)
        self.run("job-own", None)
        self.browser = TestClient(self.app, raise_server_exceptions=False, follow_redirects=False)

    def run(self, run, team):
        recipe = Recipe.from_text(RECIPE, directory=self.service.home.root).model_dump_json()
        new = NewRun(
            run, "job", recipe, "r.yaml", "local", "code", "file:///s", [("main", 1)],
            home=str(self.service.home.root),
            home_id=self.service.home.identity(),
            submission=Submission("x", team),
        )  # fmt: skip
        lease = self.service.database.create_run(new, 1.0)
        place = self.service.home.attempt(run, "main", 0, 1)
        place.make_directories(["worker-0"])
        place.metrics("worker-0").write_text(json.dumps({"step": 1, "loss": 0.5}) + "\n")
        place.log("worker-0").write_text("hello\n")
        folder = self.service.home.root / "model"
        folder.mkdir(exist_ok=True)
        (folder / "<b> ü.txt").write_text("weights")
        publish({"": folder}, self.service.home.model_uri(run, "main", 0), kind="model")
        closes = ClosedAttempt(1, EndReason.SUCCEEDED, "", 1.0, 2.0, None, "[]")
        uri = {"model_uri": self.service.home.model_uri(run, "main", 0)}
        self.service.database.commit(
            lease,
            [
                TaskChange("main", 0, 1, State.WAITING, State.RUNNING, creates=True, opens=True, fields=uri),
                TaskChange("main", 0, 1, State.RUNNING, State.DONE, EndReason.SUCCEEDED, closes=closes),
                RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED),
            ],
            3.0,
        )
        self.service.database.release(lease, 4.0)

    def ask(self, who, method, path, **more):
        headers = {"authorization": f"Bearer {self.tokens[who]}"} if who else {}
        headers |= more.pop("headers", {})
        self.browser.cookies.clear()  # else what one test has logged in is known in the next one
        return self.browser.request(method, path, headers=headers, **more)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    found = Served(tmp_path_factory.mktemp("served"))
    yield found
    found.service.close()


def routes():
    """Every route with the scope that it asks for: the table that a new route has to be put in."""
    return {
        ("GET", "/api/v1/info"): "read",
        ("GET", "/api/v1/readyz"): "read",
        ("GET", "/api/v1/openapi.json"): "read",
        ("POST", "/api/v1/runs"): "run",
        ("POST", "/api/v1/recipes/check"): "read",
        ("GET", "/api/v1/runs"): "read",
        ("GET", "/api/v1/runs/{run}"): "read",
        ("GET", "/api/v1/runs/{run}/recipe"): "read",
        ("POST", "/api/v1/runs/{run}/cancel"): "run",
        ("POST", "/api/v1/runs/{run}/resume"): "run",
        ("POST", "/api/v1/runs/cancel"): "run",
        ("GET", "/api/v1/runs/{run}/events"): "read",
        ("GET", "/api/v1/runs/{run}/metrics"): "read",
        ("GET", "/api/v1/runs/{run}/logs"): "read",
        ("GET", "/api/v1/runs/{run}/stream"): "read",
        ("GET", "/api/v1/runs/{run}/graph"): "read",
        ("GET", "/api/v1/runs/{run}/attempts"): "read",
        ("GET", "/api/v1/runs/{run}/machines"): "read",
        ("GET", "/api/v1/runs/{run}/usage"): "read",
        ("GET", "/api/v1/runs/{run}/checkpoints"): "read",
        ("GET", "/api/v1/runs/{run}/searches"): "read",
        ("GET", "/api/v1/compare"): "read",
        ("GET", "/api/v1/find-run"): "read",
        ("GET", "/api/v1/runs/{run}/line"): "read",
        ("GET", "/api/v1/runs/{run}/highlights"): "read",
        ("GET", "/api/v1/runs/{run}/points"): "read",
        ("POST", "/api/v1/runs/{run}/models/save"): "run",
        ("GET", "/api/v1/find-model"): "read",
        ("GET", "/api/v1/score/line"): "read",
        ("HEAD", "/api/v1/code/{digest}"): "run",
        ("PUT", "/api/v1/code/{digest}"): "run",
        ("POST", "/api/v1/code/git"): "run",
        ("POST", "/api/v1/uploads"): "run",
        ("GET", "/api/v1/uploads"): "run",
        ("GET", "/api/v1/uploads/{upload}"): "run",
        ("HEAD", "/api/v1/uploads/{upload}"): "run",
        ("PATCH", "/api/v1/uploads/{upload}"): "run",
        ("DELETE", "/api/v1/uploads/{upload}"): "run",
        ("POST", "/api/v1/uploads/{upload}/finish"): "run",
        ("GET", "/api/v1/volumes"): "read",
        ("GET", "/api/v1/volumes/{name}"): "read",
        ("DELETE", "/api/v1/volumes/{name}"): "run",
        ("GET", "/api/v1/models"): "read",
        ("GET", "/api/v1/models/{run}/{experiment}/{task}"): "read",
        ("GET", "/api/v1/models/{run}/{experiment}/{task}.zip"): "read",
        ("GET", "/api/v1/models/{run}/{experiment}/{task}/files/{path}"): "read",
        ("GET", "/api/v1/recommend"): "read",
        ("POST", "/api/v1/quotes"): "run",
        ("GET", "/api/v1/quotes/{quote}"): "read",
        ("GET", "/api/v1/quotes/{quote}/stream"): "read",
        ("DELETE", "/api/v1/quotes/{quote}"): "run",
        ("POST", "/api/v1/plans"): "run",
        ("GET", "/api/v1/plans/{plan}"): "read",
        ("GET", "/api/v1/plans/{plan}/stream"): "read",
        ("DELETE", "/api/v1/plans/{plan}"): "run",
        ("GET", "/api/v1/score"): "read",
        ("GET", "/api/v1/offers"): "read",
        ("POST", "/api/v1/offers/refresh"): "run",
        ("GET", "/api/v1/clusters"): "read",
        ("POST", "/api/v1/clusters/end"): "run",
        ("DELETE", "/api/v1/clusters/{cluster}"): "run",
        ("GET", "/metrics"): "read",
        ("GET", "/api/v1/budgets"): "read",
        ("PUT", "/api/v1/budgets"): "admin",
        ("GET", "/api/v1/ledger"): "read",
        ("GET", "/api/v1/queue"): "read",
        ("GET", "/api/v1/teams"): "manage",
        ("PUT", "/api/v1/teams"): "admin",
        ("GET", "/api/v1/tokens"): "manage",
        ("POST", "/api/v1/tokens"): "manage",
        ("DELETE", "/api/v1/tokens/{name}"): "manage",
        ("GET", "/api/v1/audit"): "manage",
        ("GET", "/api/v1/me"): "known",
        ("GET", "/api/v1/secrets"): "run",
        ("PUT", "/api/v1/secrets/{secret}"): "manage",
        ("DELETE", "/api/v1/secrets/{secret}"): "manage",
        ("GET", "/api/v1/users"): "admin",
        ("POST", "/api/v1/users"): "admin",
        ("PATCH", "/api/v1/users/{user}"): "admin",
        ("GET", "/api/v1/teams/{team}/members"): "read",
        ("PUT", "/api/v1/teams/{team}/members/{user}"): "manage",
        ("DELETE", "/api/v1/teams/{team}/members/{user}"): "manage",
        ("GET", "/api/v1/invites"): "manage",
        ("POST", "/api/v1/invites"): "manage",
        ("DELETE", "/api/v1/invites/{invite}"): "manage",
        ("GET", "/api/v1/service-accounts"): "manage",
        ("POST", "/api/v1/service-accounts"): "manage",
        ("DELETE", "/api/v1/service-accounts/{account}"): "manage",
        ("GET", "/api/v1/sessions"): "read",
        ("DELETE", "/api/v1/sessions/{session}"): "read",
    }


BODIES = {
    "/api/v1/code/git": {"url": "https://localhost/x"},
    "/api/v1/runs": {"recipe": RECIPE},
    "/api/v1/recipes/check": {"recipe": RECIPE},
    "/api/v1/runs/cancel": {"runs": []},
    "/api/v1/quotes": {"recipe": RECIPE},
    "/api/v1/plans": {"recipe": RECIPE},
    "/api/v1/offers/refresh": {},
    "/api/v1/clusters/end": {"clusters": None},
    "/api/v1/teams": {"team": "x"},
    "/api/v1/budgets": {"team": "red"},
    "/api/v1/tokens": {"name": "x", "scopes": ["read"]},
    "/api/v1/users": {"name": "x"},
    "/api/v1/secrets/{secret}": {"value": "v"},
    "/api/v1/users/{user}": {},
    "/api/v1/teams/{team}/members/{user}": {"role": "viewer"},
    "/api/v1/invites": {"role": "viewer"},
    "/api/v1/service-accounts": {"name": "x-bot", "role": "viewer"},
}


QUERIES = {
    "/api/v1/compare": "?run=job-red",
    "/api/v1/find-run": "?name={run}",
    "/api/v1/find-model": "?name={run}",
    "/api/v1/score/line": "?provider=aws",
    "/api/v1/recommend": "?batch=64000&latency_ms=0",
}


def filled(path, run, **more):
    path += QUERIES.get(path, "")
    values = {
        "team": "red",
        "user": "nobody",
        "invite": "blue-invite",
        "account": "blue-bot",
        "session": "blue-session",
        "secret": "BLUE_KEY",
        "run": run,
        "experiment": "main",
        "task": "0",
        "path": "x",
        "digest": "0" * 64,
        "upload": "0" * 32,
        "name": "blue-read",
        "quote": "quote-blue",
        "plan": "plan-blue",
        "cluster": "c-blue",
        **more,
    }
    return re.sub(r"\{(\w+)(:path)?\}", lambda found: values[found[1]], path)


#: What a route does not go without.
HEADERS = {
    ("PATCH", "/api/v1/uploads/{upload}"): {
        "content-type": "application/offset+octet-stream",
        "upload-offset": "0",
    }
}


def asked(served, who, method, path, run="job-red", **more):
    body = {"json": BODIES[path]} if method in ("POST", "PUT", "PATCH") and path in BODIES else {}
    headers = dict(HEADERS.get((method, path), {}))
    return served.ask(who, method, filled(path, run, **more), headers=headers, **body)


def test_the_table_has_every_route(served):
    document = served.app.openapi()
    found = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    is_open = {("GET", "/healthz"), ("POST", "/device/code"), ("POST", "/device/token")}
    assert found | {("GET", "/api/v1/openapi.json")} == {*routes(), *is_open}


@pytest.mark.parametrize(("method", "path"), routes(), ids=lambda part: part)
def test_nobody_gets_in_without_a_token_or_with_too_little(served, method, path):
    answer = asked(served, None, method, path)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    scope = routes()[method, path]
    if scope == "known":
        return
    too_little = {"read": "infer", "run": "read", "manage": "read", "admin": "manage"}[scope]
    answer = asked(served, f"red-{too_little}", method, path)
    assert answer.status_code == 403, answer.text
    if method != "HEAD":
        assert answer.json()["hint"]
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("method", "path"), [route for route in routes() if "{run}" in route[1]], ids=lambda part: part
)
def test_what_is_another_teams_is_not_there(served, method, path):
    for run in ("job-blue", "job-own", "job-nobody"):
        answer = asked(served, "red-user", method, path, run)
        assert answer.status_code == 404, answer.text
        assert answer.json()["title"] == f"there is no run '{run}'"


def test_lists_have_only_what_is_ones_own(served):
    def runs(who):
        return {found["run"] for found in served.ask(who, "GET", "/api/v1/runs").json()["runs"]}

    assert (runs("red-read"), runs("admin")) == ({"job-red"}, {"job-red", "job-blue", "job-own"})
    models = served.ask("red-read", "GET", "/api/v1/models").json()["models"]
    assert [model["run"] for model in models] == ["job-red"]
    tokens = served.ask("red-manage", "GET", "/api/v1/tokens").json()["tokens"]
    assert {token["team"] for token in tokens} == {"red"}
    teams = served.ask("red-manage", "GET", "/api/v1/teams").json()["teams"]
    assert [team["team"] for team in teams] == ["red"]
    assert served.ask("red-manage", "DELETE", "/api/v1/tokens/blue-read").status_code == 404
    assert served.ask("red-manage", "GET", "/api/v1/runs?cursor=job-blue").status_code == 404
    answer = served.ask("red-manage", "POST", "/api/v1/runs/cancel", json={"runs": ["job-blue"]})
    assert answer.status_code == 403


def test_offers_are_those_of_a_catalogue_by_name_with_the_dates_of_their_prices(served):
    def ask(query):
        return served.ask("red-read", "GET", f"/api/v1/offers?{query}")

    found = ask("catalogue=fc2-2018&instance=g3.4xlarge&instance=m4.large&limit=1").json()
    assert (len(found["offers"]), found["total"]) == (1, 2)
    assert found["offers"][0]["as_of"] == found["as_of"]
    assert ask("catalogue=/etc/passwd").status_code == 422
    assert ask("catalogue=fc2-2018&sort=beauty").status_code == 422
    assert ask("colour=red").status_code == 422


def test_clusters_are_those_of_ones_own_runs(served):
    row = {"provider": "aws", "home_id": served.service.home.identity(), "state": "UP", "data": "{"}
    for team in ("red", "blue"):
        values = {**row, "id": f"c-{team}", "run_id": f"job-{team}", "changed_at": 1.0}
        insert = tables.cluster.insert().values(**values)
        served.service.database.write(lambda connection, _, insert=insert: connection.execute(insert))
    found = served.ask("red-read", "GET", "/api/v1/clusters").json()["clusters"]
    assert [(each["id"], each["state"]) for each in found] == [("c-red", "damaged")]
    assert len(served.ask("admin", "GET", "/api/v1/clusters").json()["clusters"]) == 2
    assert served.ask("red-run", "DELETE", "/api/v1/clusters/c-red").status_code == 403, "needs read, too"
    for answer in (
        served.ask("red-user", "DELETE", "/api/v1/clusters/c-blue"),
        served.ask("red-user", "POST", "/api/v1/clusters/end", json={"clusters": ["c-blue"]}),
    ):
        assert answer.status_code == 404
    assert served.ask("owner", "POST", "/api/v1/clusters/end", json={"clusters": None}).json() == {
        "ended": [],
        "told": [],
    }


def test_prometheus_is_told_numbers_of_what_the_token_sees(served):
    pytest.importorskip("prometheus_client", reason="the extra `server` is of an earlier day")
    told = served.ask("red-read", "GET", "/metrics").text
    assert 'trainmaster_runs{state="DONE"} 1.0' in told
    assert 'trainmaster_runs{state="DONE"} 3.0' in served.ask("admin", "GET", "/metrics").text
    for name in ("usd_per_hour", "loop_lag_seconds", "runs_driven", 'quotes_kept{kind="binding"}'):
        assert f"trainmaster_{name} " in told
    assert "job-red" not in told


def test_clients_of_other_versions_are_told_so(served):
    def ask(version, path="/api/v1/info"):
        return served.ask("red-read", "GET", path, headers={"trainmaster-version": version})

    assert ask("999.0.1").status_code == 426
    assert "pip install" in ask("999.0.1").json()["hint"]
    assert ask("999.0.1").headers["upgrade"].startswith("trainmaster/")
    for version in (__version__, "", "newest"):
        assert ask(version).status_code == 200
        assert ask(version).headers["trainmaster-version"] == __version__
    assert ask("999.0.1", "/models").status_code == 200, "pages are of the server itself"


def test_the_score_counts_only_what_one_sees(served):
    found = served.ask("red-read", "GET", "/api/v1/score").json()
    assert found["estimate"]["runs"] == 0


def test_nobody_gives_what_it_has_not(served):
    for body in ({"name": "n", "scopes": ["run"]}, {"name": "n", "scopes": ["admin"]}):
        assert served.ask("red-manage", "POST", "/api/v1/tokens", json=body).status_code == 403
    body = {"name": "n", "scopes": ["read"], "team": "blue"}
    assert served.ask("red-manage", "POST", "/api/v1/tokens", json=body).status_code == 404
    made = served.ask("red-manage", "POST", "/api/v1/tokens", json={"name": "n", "scopes": ["read"]}).json()
    assert made["team"] == "red"
    assert served.state.access.by_token(made["token"]).team == "red"


def test_a_run_has_its_metrics_log_model_and_recipe(served):
    ask = lambda path: served.ask("red-read", "GET", f"/api/v1{path}")  # noqa: E731
    (curve,) = ask("/runs/job-red/metrics?keys=loss").json()["metrics"]
    assert (curve["steps"], curve["values"], curve["axis"]) == ([1.0], [0.5], "step")
    assert ask("/runs/job-red/metrics?keys=other").json() == {"metrics": []}
    assert ask("/runs/job-red/logs").text == "hello\n"
    assert ask("/runs/job-red/logs?member=nobody").status_code == 404
    assert ask("/runs/job-red/recipe").text == RECIPE
    (file,) = ask("/models/job-red/main/0").json()["files"]
    answer = ask("/models/job-red/main/0/files/%3Cb%3E%20%C3%BC.txt")
    assert (answer.text, answer.headers["content-security-policy"]) == (
        "weights",
        "sandbox; default-src 'none'",
    )
    assert answer.headers["content-disposition"].startswith("attachment; filename*=UTF-8''%3Cb%3E")
    with zipfile.ZipFile(io.BytesIO(ask("/models/job-red/main/0.zip").content)) as packed:
        assert [(entry.filename, packed.read(entry)) for entry in packed.infolist()] == [
            (file["path"], b"weights")
        ]
    for path in ("..%2f..%2fetc%2fpasswd", "/etc/passwd", "other"):
        assert ask(f"/models/job-red/main/0/files/{path}").status_code == 404


def test_mistakes_are_told_with_place_and_hint(served):
    answer = served.ask(
        "red-user", "POST", "/api/v1/recipes/check", json={"recipe": "name: x\nexperimentz: 1\n"}
    )
    assert answer.status_code == 422
    assert {"line": 2, "column": 1, "key": "experimentz"}.items() <= answer.json()["mistakes"][-1].items()
    answer = served.ask("red-user", "POST", "/api/v1/runs", json={"recipe": RECIPE})
    assert answer.status_code == 422
    assert "runs on rented machines only" in answer.json()["title"]
    for body in ({"recipe": RECIPE, "unknown": 1}, {"recipe": 3}, [], "x"):
        assert served.ask("red-user", "POST", "/api/v1/runs", json=body).status_code == 422
    assert served.ask("red-read", "GET", "/api/v1/runs?limit=100000").status_code == 422
    large = {"recipe": "#" * (1 << 20) + RECIPE}
    assert "1 MiB" in served.ask("red-user", "POST", "/api/v1/recipes/check", json=large).json()["title"]
    assert served.ask("red-user", "POST", "/api/v1/runs", content=b"x" * (5 << 20)).status_code == 413
    pieces = (b"x" * (1 << 20) for _ in range(6))
    assert served.ask("red-user", "POST", "/api/v1/runs", content=pieces).status_code == 413


def test_pages_of_other_sites_write_nothing(served):
    session = served.state.access.open_session(caller("ann", "red", ["read", "run"]))
    cookies = {"cookie": f"{served.state.cookie}={session}"}
    path = "/api/v1/runs/job-red/cancel"

    def post(**headers):
        return served.ask(None, "POST", path, headers=cookies | headers).status_code

    assert post(**{"sec-fetch-site": "same-origin"}) == 200
    assert post(origin="http://testserver") == 200
    for site in ("cross-site", "same-site"):
        assert post(**{"sec-fetch-site": site}) == 403
    assert post(origin="http://evil.example") == 403
    assert post(**{"sec-fetch-site": "same-origin", "origin": "http://evil.example"}) == 403
    assert post() == 403
    assert served.ask(None, "GET", "/api/v1/runs/job-red", headers=cookies).status_code == 200


def test_what_was_done_or_refused_is_in_the_audit(served):
    served.ask(None, "GET", "/api/v1/runs")
    served.ask("blue-read", "DELETE", "/api/v1/tokens/u")
    rows = served.ask("admin", "GET", "/api/v1/audit?limit=2").json()["audit"]
    assert [(row["name"], row["action"], row["status"]) for row in rows] == [
        ("blue-read", "DELETE /api/v1/tokens/u", 403),
        ("", "GET /api/v1/runs", 401),
    ]
    mine = served.ask("red-manage", "GET", "/api/v1/audit").json()["audit"]
    assert {row["team"] for row in mine} == {"red"}


def test_pages_ask_to_log_in_and_go_on_where_one_wanted(served):
    answer = served.ask(None, "GET", "/runs/job-red")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2Fruns%2Fjob-red")
    for wanted, comes in (("/models", "/models"), ("//evil.example", "/"), ("https://evil.example", "/")):
        answer = served.ask(None, "POST", "/login", data={"token": served.tokens["red-read"], "next": wanted})
        assert (answer.status_code, answer.headers["location"]) == (303, comes)
        assert "HttpOnly" in answer.headers["set-cookie"]
    answer = served.ask(None, "POST", "/login", data={"token": "tm_wrong"})
    assert (answer.status_code, "is not known" in answer.text) == (401, True)


def test_the_setup_link_works_once(served):
    served.state.setup.add("once")
    assert served.ask(None, "GET", "/setup?code=once").status_code == 200
    answer = served.ask(None, "POST", "/setup", data={"code": "once"})
    session = answer.cookies[served.state.cookie]
    assert served.state.access.by_session(session).scopes >= {"admin", "run"}
    assert served.ask(None, "POST", "/setup", data={"code": "once"}).status_code == 422
    assert served.ask(None, "POST", "/setup", data={"code": ""}).status_code == 422


@pytest.mark.parametrize(
    "path", ["/", "/runs/job-red", "/models", "/models/job-red/main/0", "/team", "/new", "/recommend"]
)
def test_pages_are_small_safe_and_only_ones_own(served, path):
    answer = served.ask("red-user", "GET", path)
    assert answer.status_code == 200
    assert len(answer.content) < 30_000
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert "job-blue" not in answer.text
    assert "<b> ü" not in answer.text, "names are text, not HTML"
    assert "<script>" not in answer.text
    assert served.ask("red-user", "GET", path.replace("red", "blue")).status_code == (
        404 if "red" in path else 200
    )


def test_anwars_question_is_answered_for_his_job_and_ones_own(served):
    def ask(query, who="red-read"):
        return served.ask(who, "GET", f"/api/v1/recommend?{query}")

    assert ask("batch=64000&latency_ms=0").json()["workers"] == 4
    found = ask("batch=64000&latency_ms=20").json()
    assert (found["workers"], found["profile"], found["points"]) == (3, "anwar-2021", 113)
    assert [each["is_measured"] for each in found["candidates"]] == [True, True, True, False]
    cheap = ask("batch=64000&latency_ms=0&beta=200&usd_per_hour=1").json()
    assert cheap["workers"] == 3
    assert ask("batch=64000&latency_ms=0&usd_per_hour=1&max_usd_per_hour=2.5").json()["workers"] == 2
    assert ask("batch=64000&latency_ms=0&usd_per_hour=9&max_usd_per_hour=2.5").status_code == 422
    for workers, time_s in ((1, 0.02), (2, 0.2), (3, 0.3)):
        shape = {"nodes": workers, "local_batch": 64 / workers, "step_time_s": time_s}
        data = Measurement(Point(Strategy.ALLREDUCE, workers, **shape)).to_json()
        new = NewMeasurement(f"m-{workers}", "f", "s", "main", "job-red", data, float(workers))
        served.service.database.add_measurement(new)
    mine = ask("batch=64&profile=job-red").json()
    assert (mine["workers"], mine["points"]) == (1, 3), "this job does not scale"
    assert mine["candidates"][0]["low_s"] < mine["candidates"][0]["high_s"]
    assert ask("batch=64&profile=job-red", "blue-read").status_code == 404
    assert ask("batch=64&profile=job-blue", "blue-read").status_code == 404, "nothing was measured of it"
    assert ask("latency_ms=0").status_code == 422
    page = served.ask("red-read", "GET", "/recommend?batch=64000&latency_ms=20")
    assert "Take <strong>3</strong> machines" in page.text
    assert served.ask("red-read", "GET", "/recommend?batch=x").status_code == 422


def test_who_is_not_known_does_not_learn_what_there_is(served):
    assert served.ask(None, "GET", "/api/v1/nothing").status_code == 401
    assert served.ask("red-read", "GET", "/api/v1/nothing").status_code == 404
    assert served.ask(None, "PATCH", "/api/v1/runs").status_code == 401


def test_a_quote_is_asked_for_looked_at_and_streamed(served):
    body = {"recipe": QUOTED, "policy": "cost-opt", "catalogue": "fc2-2018"}
    asked = served.ask("red-user", "POST", "/api/v1/quotes", json=body)
    assert asked.status_code == 202, asked.text
    place = asked.headers["location"]
    assert served.ask("red-read", "GET", place).json() == asked.json()
    for who, method, path in (
        ("blue-user", "GET", place),
        ("blue-user", "GET", f"{place}/stream"),
        ("blue-user", "DELETE", place),
        ("red-user", "GET", place.replace("/quotes/", "/plans/")),
    ):
        assert served.ask(who, method, path).status_code == 404
    database = served.service.database
    served.state.quotes.work("w", quote_requests.claim(database, "w", database.clock_s(), 60.0))
    found = served.ask("red-read", "GET", place).json()
    assert (found["state"], found["answer"]["policy"]) == ("DONE", "cost-opt")
    stream = served.ask("red-read", "GET", f"{place}/stream").text
    assert json.loads(stream.partition("event: done\ndata: ")[2]) == found
    for _ in range(3):
        served.ask("red-user", "POST", "/api/v1/plans", json={"recipe": QUOTED})
    answer = served.ask("red-user", "POST", "/api/v1/quotes", json=body)
    assert (answer.status_code, "retry-after" in answer.headers) == (429, True)
    unknown = served.ask("red-user", "POST", "/api/v1/quotes", json={**body, "polizy": "x"})
    assert unknown.status_code == 422


def test_a_plan_is_accepted_once(served):
    service, state = served.service, served.state
    asked = state.quotes.send(caller("owner", None, ["run"]), "plan", QuoteAsk(QUOTED))["id"]
    end = functools.partial(quote_requests.end, service.database, quote_requests.named(asked), 1e12)
    assert served.ask("owner", "POST", "/api/v1/runs", json={"plan": asked}).status_code == 422
    end(answer=json.dumps({"id": asked, "most_usd_per_hour": 0.001}), error=None)
    answer = served.ask("owner", "POST", "/api/v1/runs", json={"plan": asked, "recipe": QUOTED})
    assert (answer.status_code, "a recipe or a plan" in answer.text) == (422, True)
    assert served.ask("blue-user", "POST", "/api/v1/runs", json={"plan": asked}).status_code == 404
