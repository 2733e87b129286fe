"""Every route: who may use it, what it is answered with, and what it refuses. In this process, over ASGI."""

from __future__ import annotations

import io
import re
import zipfile
from dataclasses import replace

import pytest

from trainmaster.service.users.caller import TooOftenError, caller

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
from served_home import RECIPE

from trainmaster.api.rest.state import Reader, Routes, State


def routes():
    """Every route with the scope that it asks for: the table that a new route has to be put in."""
    return {
        ("GET", "/api/v1/info"): "read",
        ("GET", "/api/v1/readyz"): "read",
        ("GET", "/api/v1/openapi.json"): "read",
        ("POST", "/api/v1/runs"): "run",
        ("GET", "/api/v1/configuration"): "read",
        ("POST", "/api/v1/runs/dry-run"): "run",
        ("GET", "/api/v1/recipes/schema"): "read",
        ("POST", "/api/v1/recipes/check"): "read",
        ("GET", "/api/v1/runs"): "read",
        ("GET", "/api/v1/runs/{run}"): "read",
        ("GET", "/api/v1/runs/{run}/recipe"): "read",
        ("PATCH", "/api/v1/runs/{run}"): "run",
        ("GET", "/api/v1/cost"): "read",
        ("POST", "/api/v1/runs/{run}/cancel"): "run",
        ("POST", "/api/v1/runs/{run}/experiments/{experiment}/approval"): "run",
        ("POST", "/api/v1/runs/{run}/tasks/cancel"): "run",
        ("POST", "/api/v1/runs/{run}/resume"): "run",
        ("POST", "/api/v1/runs/cancel"): "run",
        ("POST", "/api/v1/doctor"): "admin",
        ("POST", "/api/v1/storage/remove-runs"): "run",
        ("POST", "/api/v1/storage/prune"): "run",
        ("GET", "/api/v1/storage"): "read",
        ("GET", "/api/v1/runs/{run}/events"): "read",
        ("GET", "/api/v1/runs/{run}/metrics"): "read",
        ("GET", "/api/v1/runs/{run}/targets"): "read",
        ("GET", "/api/v1/runs/{run}/logs"): "read",
        ("POST", "/api/v1/runs/{run}/logs/system"): "run",
        ("GET", "/api/v1/logs"): "read",
        ("GET", "/api/v1/runs/{run}/stream"): "read",
        ("GET", "/api/v1/runs/{run}/graph"): "read",
        ("GET", "/api/v1/runs/{run}/attempts"): "read",
        ("GET", "/api/v1/runs/{run}/capsule.zip"): "read",
        ("GET", "/api/v1/runs/{run}/machines"): "read",
        ("GET", "/api/v1/runs/{run}/usage"): "read",
        ("GET", "/api/v1/runs/{run}/checkpoints"): "read",
        ("GET", "/api/v1/runs/{run}/searches"): "read",
        ("GET", "/api/v1/runs/{run}/picture"): "read",
        ("GET", "/api/v1/compare"): "read",
        ("POST", "/api/v1/operations/volume-fsck"): "run",
        ("POST", "/api/v1/operations/volume-gc"): "manage",
        ("POST", "/api/v1/operations/models-fsck"): "run",
        ("GET", "/api/v1/operations/{operation}"): "read",
        ("GET", "/api/v1/operations/{operation}/stream"): "read",
        ("DELETE", "/api/v1/operations/{operation}"): "run",
        ("GET", "/api/v1/find-run"): "read",
        ("GET", "/api/v1/runs/{run}/line"): "read",
        ("GET", "/api/v1/runs/{run}/highlights"): "read",
        ("GET", "/api/v1/runs/{run}/points"): "read",
        ("POST", "/api/v1/runs/{run}/models/save"): "run",
        ("GET", "/api/v1/runs/{run}/models/check"): "read",
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
        ("GET", "/api/v1/volume-files/{name}"): "read",
        ("GET", "/api/v1/volume-content/{name}"): "read",
        ("GET", "/api/v1/volume-contents/{name}"): "read",
        ("GET", "/api/v1/volume-objects/{name}"): "read",
        ("GET", "/api/v1/models"): "read",
        ("GET", "/api/v1/models/{run}/{experiment}/{task}"): "read",
        ("GET", "/api/v1/models/{run}/{experiment}/{task}.zip"): "read",
        ("GET", "/api/v1/models/{run}/{experiment}/{task}/files/{path}"): "read",
        ("GET", "/api/v1/registry"): "read",
        ("POST", "/api/v1/registry"): "run",
        ("GET", "/api/v1/registry/{name}"): "read",
        ("PATCH", "/api/v1/registry/{name}"): "run",
        ("GET", "/api/v1/registry/{name}/versions/{version}"): "read",
        ("DELETE", "/api/v1/registry/{name}/versions/{version}"): "run",
        ("PUT", "/api/v1/registry/{name}/aliases/{alias}"): "run",
        ("POST", "/api/v1/registry/{name}/aliases/{alias}/rollback"): "run",
        ("DELETE", "/api/v1/registry/{name}/aliases/{alias}"): "run",
        ("GET", "/api/v1/models-diff"): "read",
        ("GET", "/api/v1/recommend"): "read",
        ("POST", "/api/v1/recommend"): "read",
        ("POST", "/api/v1/quotes"): "run",
        ("GET", "/api/v1/quotes/{quote}"): "read",
        ("GET", "/api/v1/quotes"): "read",
        ("GET", "/api/v1/quotes/{quote}/stream"): "read",
        ("GET", "/api/v1/quotes/{quote}/measure"): "read",
        ("POST", "/api/v1/quotes/{quote}/measure"): "run",
        ("DELETE", "/api/v1/quotes/{quote}"): "run",
        ("POST", "/api/v1/plans"): "run",
        ("GET", "/api/v1/plans/{plan}"): "read",
        ("GET", "/api/v1/plans/{plan}/stream"): "read",
        ("DELETE", "/api/v1/plans/{plan}"): "run",
        ("GET", "/api/v1/score"): "read",
        ("GET", "/api/v1/overview"): "read",
        ("GET", "/api/v1/offers"): "read",
        ("POST", "/api/v1/offers/refresh"): "run",
        ("GET", "/api/v1/clusters"): "read",
        ("POST", "/api/v1/clusters/end"): "run",
        ("DELETE", "/api/v1/clusters/{cluster}"): "run",
        ("GET", "/api/v1/images"): "read",
        ("DELETE", "/api/v1/images/{image}"): "run",
        ("GET", "/metrics"): "read",
        ("GET", "/api/v1/services"): "read",
        ("GET", "/api/v1/services/{service}"): "read",
        ("DELETE", "/api/v1/services/{service}"): "run",
        ("POST", "/api/v1/apps"): "run",
        ("GET", "/api/v1/apps"): "read",
        ("GET", "/api/v1/apps/{app}"): "read",
        ("DELETE", "/api/v1/apps/{app}"): "run",
        ("POST", "/api/v1/apps/{app}/ticket"): "read",
        ("GET", "/api/v1/views"): "read",
        ("PUT", "/api/v1/views/{view}"): "read",
        ("DELETE", "/api/v1/views/{view}"): "read",
        ("GET", "/api/v1/webhooks"): "manage",
        ("POST", "/api/v1/webhooks"): "manage",
        ("GET", "/api/v1/webhooks/{webhook}"): "manage",
        ("DELETE", "/api/v1/webhooks/{webhook}"): "manage",
        ("POST", "/api/v1/webhooks/{webhook}/rotate"): "manage",
        ("POST", "/api/v1/webhooks/{webhook}/enable"): "manage",
        ("POST", "/api/v1/webhooks/{webhook}/test"): "manage",
        ("GET", "/api/v1/webhooks/{webhook}/deliveries"): "manage",
        ("GET", "/api/v1/workflows"): "read",
        ("POST", "/api/v1/workflows"): "run",
        ("GET", "/api/v1/workflows/{name}"): "read",
        ("DELETE", "/api/v1/workflows/{name}"): "run",
        ("POST", "/api/v1/workflows/{name}/pause"): "run",
        ("POST", "/api/v1/workflows/{name}/resume"): "run",
        ("POST", "/api/v1/workflows/{name}/trigger"): "run",
        ("POST", "/api/v1/workflows/{name}/secret"): "run",
        ("GET", "/api/v1/budgets"): "read",
        ("PUT", "/api/v1/budgets"): "admin",
        ("GET", "/api/v1/wallet"): "read",
        ("POST", "/api/v1/recipes/convert"): "read",
        ("POST", "/api/v1/recipes/init"): "run",
        ("GET", "/api/v1/ledger"): "read",
        ("GET", "/api/v1/queue"): "read",
        ("GET", "/api/v1/teams"): "read",
        ("PUT", "/api/v1/teams"): "admin",
        ("GET", "/api/v1/tokens"): "manage",
        ("POST", "/api/v1/tokens"): "manage",
        ("DELETE", "/api/v1/tokens/{name}"): "manage",
        ("GET", "/api/v1/audit"): "manage",
        ("GET", "/api/v1/me"): "known",
        ("GET", "/api/v1/secrets"): "run",
        ("PUT", "/api/v1/secrets/{secret}"): "manage",
        ("DELETE", "/api/v1/secrets/{secret}"): "manage",
        ("GET", "/api/v1/team-logins"): "run",
        ("PUT", "/api/v1/team-logins/{provider}"): "manage",
        ("DELETE", "/api/v1/team-logins/{provider}"): "manage",
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
        ("DELETE", "/api/v1/runs/{run}"): "run",  # the last: what others ask for is gone then
    }


BODIES = {
    "/api/v1/code/git": {"url": "https://localhost/x"},
    "/api/v1/runs": {"recipe": RECIPE},
    "/api/v1/recipes/check": {"recipe": RECIPE},
    "/api/v1/runs/dry-run": {"recipe": RECIPE},
    "/api/v1/runs/cancel": {"runs": []},
    "/api/v1/runs/{run}": {"labels": {"a": "b"}},
    "/api/v1/runs/{run}/experiments/{experiment}/approval": {"approve": True},
    "/api/v1/runs/{run}/tasks/cancel": {"tasks": ["main/0"]},
    "/api/v1/quotes": {"recipe": RECIPE},
    "/api/v1/quotes/{quote}/measure": {"max_usd": 1.0},
    "/api/v1/plans": {"recipe": RECIPE},
    "/api/v1/operations/volume-fsck": {"volume": "pets"},
    "/api/v1/operations/volume-gc": {"volume": "pets"},
    "/api/v1/operations/models-fsck": {"runs": ["job-red"]},
    "/api/v1/offers/refresh": {},
    "/api/v1/storage/remove-runs": {"runs": ["job-red"], "dry_run": True},
    "/api/v1/storage/prune": {"kinds": ["models"], "dry_run": True},
    "/api/v1/clusters/end": {"clusters": None},
    "/api/v1/apps": {"kind": "tensorboard", "runs": ["job-red"]},
    "/api/v1/teams": {"team": "x"},
    "/api/v1/budgets": {"team": "red"},
    "/api/v1/views/{view}": {"query": "state=RUNNING"},
    "/api/v1/webhooks": {"target": "https://example.org/"},
    "/api/v1/tokens": {"name": "x", "scopes": ["read"]},
    "/api/v1/users": {"name": "x"},
    "/api/v1/secrets/{secret}": {"value": "v"},
    "/api/v1/team-logins/{provider}": {"files": {}, "variables": {}},
    "/api/v1/users/{user}": {},
    "/api/v1/teams/{team}/members/{user}": {"role": "viewer"},
    "/api/v1/invites": {"role": "viewer"},
    "/api/v1/service-accounts": {"name": "x-bot", "role": "viewer"},
    "/api/v1/workflows": {"recipe": RECIPE},
    "/api/v1/registry": {"model": "job-red", "name": "digits"},
    "/api/v1/registry/{name}": {},
    "/api/v1/registry/{name}/aliases/{alias}": {"version": "1"},
    "/api/v1/registry/{name}/aliases/{alias}/rollback": {},
}


QUERIES = {
    "/api/v1/compare": "?run=job-red",
    "/api/v1/find-run": "?name={run}",
    "/api/v1/find-model": "?name={run}",
    "/api/v1/score/line": "?provider=aws",
    "/api/v1/volume-objects/{name}": "?key=heads/000001.json",
    "/api/v1/models-diff": "?a={run}&b={run}",
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
        "path": "%3Cb%3E%20%C3%BC.txt",
        "digest": "0" * 64,
        "upload": "0" * 32,
        "name": "blue-read",
        "quote": "quote-blue",
        "plan": "plan-blue",
        "operation": "volume-fsck-blue",
        "cluster": "c-blue",
        "image": "ami-blue",
        "webhook": "hook-blue",
        "view": "mine",
        "version": "1",
        "alias": "production",
        "app": "te-blue",
        "service": "digits-blue",
        "provider": "ray",
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
    is_open.add(("POST", "/api/v1/hooks/{hook}"))  # who knows the secret of a workflow's webhook
    assert found | {("GET", "/api/v1/openapi.json")} == {*routes(), *is_open}
    told = {at: document["paths"][at[1]][at[0].lower()].get("x-scope", "known") for at in found - is_open}
    others = {path for (method, path), scope in told.items() if routes()[method, path] != scope}
    assert others == {"/api/v1/tokens", "/api/v1/tokens/{name}"}, "one's own are everybody's (`read`)"


def test_a_route_without_a_scope_is_refused_when_its_module_is_imported():
    def guarded(caller: Reader) -> None: ...

    def unguarded(state: State) -> None: ...

    router = Routes()
    router.get("/runs")(guarded)
    with pytest.raises(TypeError, match="unguarded: /runs has no scope"):
        router.get("/runs")(unguarded)


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


def test_a_run_that_is_not_there_is_answered_with_the_nearest_that_is_seen(served):
    red, blue = (served.ask(who, "GET", "/api/v1/runs/job-redd") for who in ("red-read", "blue-user"))
    assert (red.status_code, blue.status_code) == (404, 404)
    assert "did you mean job-red?" in red.json()["hint"]
    assert "job-red" not in blue.json()["hint"]


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
    seen = served.ask("red-read", "GET", "/api/v1/teams")
    assert [team["team"] for team in seen.json()["teams"]] == ["red"], (
        "what hints name is open to who reads them"
    )
    assert served.ask("red-manage", "DELETE", "/api/v1/tokens/blue-read").status_code == 404
    assert served.ask("red-manage", "GET", "/api/v1/runs?cursor=job-blue").status_code == 404
    answer = served.ask("red-manage", "POST", "/api/v1/runs/cancel", json={"runs": ["job-blue"]})
    assert answer.status_code == 403


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


def test_mistakes_are_told_with_place_and_hint(served, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    answer = served.ask(
        "red-user", "POST", "/api/v1/recipes/check", json={"recipe": "name: x\nexperimentz: 1\n"}
    )
    assert answer.status_code == 422
    assert {"line": 2, "column": 1, "key": "experimentz"}.items() <= answer.json()["mistakes"][-1].items()
    chosen = {
        "recipe": RECIPE.replace(
            "'true'", "'true', framework: pytorch, container: auto, hardware: {region: us-east-1}"
        )
    }
    chosen = served.ask("red-user", "POST", "/api/v1/recipes/check", json=chosen | {"provider": "aws"}).json()
    (image,) = {each["container"] for each in chosen["experiments"].values()}
    assert chosen["notes"] == [f"main: container: auto is {image} (TRAINMASTER_IMAGE_PYTORCH names another)"]
    answer = served.ask("red-user", "POST", "/api/v1/runs", json={"recipe": RECIPE})
    assert answer.status_code == 422
    assert "runs on rented machines only" in answer.json()["title"]
    for body in ({"recipe": RECIPE, "unknown": 1}, {"recipe": 3}, [], "x"):
        assert served.ask("red-user", "POST", "/api/v1/runs", json=body).status_code == 422
    assert served.ask("red-read", "GET", "/api/v1/runs?limit=100000").status_code == 422
    large = {"recipe": "#" * (100 << 10) + RECIPE}
    assert "100 KiB" in served.ask("red-user", "POST", "/api/v1/recipes/check", json=large).json()["title"]
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
    served.ask("red-manage", "DELETE", "/api/v1/tokens/nobodys")
    served.ask(None, "GET", "/api/v1/runs")
    served.ask("blue-read", "DELETE", "/api/v1/tokens/u")
    rows = served.ask("admin", "GET", "/api/v1/audit?limit=2").json()["audit"]
    assert [(row["name"], row["action"], row["status"]) for row in rows] == [
        ("blue-read", "DELETE /api/v1/tokens/u", 403),
        ("", "GET /api/v1/runs", 401),
    ]
    typed = {"recipe": "name: job\nexperiments: {train: {command: 'true'}}"}
    for path in ("/new/recipe", "/new/estimate"):
        assert served.ask("red-run", "POST", path, data=typed).status_code in (200, 204), "it changes nothing"
        assert served.ask("red-read", "POST", path, data=typed).status_code == 403
    first = served.ask("admin", "GET", "/api/v1/audit?limit=4").json()["audit"]
    assert [(row["name"], row["action"]) for row in first] == [
        ("red-read", "POST /new/estimate"),
        ("red-read", "POST /new/recipe"),
        ("blue-read", "DELETE /api/v1/tokens/u"),
        ("", "GET /api/v1/runs"),
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


def test_who_is_not_known_does_not_learn_what_there_is(served):
    assert served.ask(None, "GET", "/api/v1/nothing").status_code == 401
    assert served.ask("red-read", "GET", "/api/v1/nothing").status_code == 404
    assert served.ask(None, "PATCH", "/api/v1/runs").status_code == 401


def test_what_errors_are_answered_with():
    from trainmaster.api.rest import state

    assert {kind.__name__: status for kind, status in state._STATUS} == {
        "UnknownCallerError": 401, "ForbiddenError": 403, "NotFoundError": 404, "KeyUsedError": 409,
        "TooManyError": 429, "ClientVersionError": 426, "MissingPartError": 501, "TooOftenError": 429,
        "OverBudgetError": 409, "UploadConflictError": 409, "AliasMovedError": 409, "ModelInUseError": 409,
        "StartTakenError": 409, "TooMuchError": 413, "TeamQuotaError": 507, "FullStoreError": 507,
        "FullDiskError": 507, "LeaseLostError": 409, "UsageError": 422, "StoreError": 503,
        "ProviderError": 502, "PublishError": 502, "TooMuchWorkError": 422,
    }  # fmt: skip
    for number, (kind, status) in enumerate(state._STATUS):
        earlier = [
            each for each, other in state._STATUS[:number] if issubclass(kind, each) and other != status
        ]
        assert not earlier, f"{kind.__name__} would be answered as {earlier[0].__name__}"
    for status, header in (
        (401, "www-authenticate"),
        (429, "retry-after"),
        (503, "retry-after"),
        (500, None),
    ):
        found = {"www-authenticate", "retry-after"} & set(state.problem(status, "t").headers)
        assert found == ({header} if header else set())
    answer = state.told(TooOftenError("too often", 7.2))
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "8")


@pytest.mark.parametrize(
    ("url", "headers", "taken"),
    [
        ("", {"origin": "http://testserver"}, True),
        ("", {"origin": "https://tm.example.org"}, False),
        ("https://tm.example.org", {"origin": "https://tm.example.org"}, True),
        ("https://tm.example.org", {"origin": "http://testserver"}, True),
        ("https://tm.example.org", {"origin": "https://evil.example.org"}, False),
        ("", {"origin": "null"}, False),
        ("", {"sec-fetch-site": "none"}, True),
        ("", {"sec-fetch-site": "same-site"}, False),
        ("", {"sec-fetch-site": "same-origin", "origin": "https://evil.example.org"}, False),
        ("", {"sec-fetch-site": "cross-site", "origin": "http://testserver"}, False),
        ("", {}, False),
    ],
)
def test_whose_pages_may_write(served, url, headers, taken):
    who = served.state.access.by_token(served.tokens["red-user"])
    cookie = f"{served.state.cookie}={served.state.access.open_session(who)}"
    served.app.state.server = replace(served.state, url=url)
    answer = served.ask(
        None, "POST", "/team/choose", data={"team": "none"}, headers={"cookie": cookie, **headers}
    )
    served.app.state.server = served.state
    assert answer.status_code == (404 if taken else 403), answer.text
