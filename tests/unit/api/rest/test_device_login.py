"""A command line logs in: a person confirms its code on a page, and it gets a token, once."""

from __future__ import annotations

import json
import time
import warnings

import pytest

from trainmaster.service import Service
from trainmaster.service.users import device_login as module
from trainmaster.service.users.access import ATTEMPTS

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

from trainmaster.api.rest import guards
from trainmaster.api.rest.app import make_app, make_state
from trainmaster.api.rest.limits import LOGINS_BURST, STRANGERS_PER_S
from trainmaster.web.pages import add_pages


@pytest.fixture
def state(home):
    service = Service(home)
    yield make_state(service, {})
    service.close()


@pytest.fixture
def anybody(state):
    app = make_app(state)
    add_pages(app)
    return TestClient(app, follow_redirects=False)


@pytest.fixture
def ann(state, anybody):
    """Somebody with a session in a browser."""
    state.access.make_team("red")
    secret = state.access.create_token("ann", ["read", "run", "manage"], "red")["token"]
    browser = TestClient(anybody.app, follow_redirects=False, headers={"sec-fetch-site": "same-origin"})
    assert browser.post("/login", data={"token": secret}).status_code == 303
    return browser


def begin(anybody):
    return anybody.post("/device/code", json={"client": "lap<b>top"}).json()


def test_a_confirmed_code_becomes_a_token_once(anybody, ann, state):
    asked = begin(anybody)
    ask = {"device_code": asked["device_code"]}
    assert anybody.post("/device/token", json=ask).json() == {"token": None}
    assert anybody.get("/device").headers["location"].startswith("/login")
    shown = ann.post("/device", data={"code": asked["user_code"].lower()})
    assert "<b>lap-b-top</b> asks to see and send runs as ann, for team red." in shown.text
    assert anybody.post("/device/token", json=ask).json() == {"token": None}, "looking at it confirms nothing"
    done = ann.post("/device", data={"code": asked["user_code"], "client": "lap-b-top"})
    assert "is logged in as ann" in done.text
    secret = anybody.post("/device/token", json=ask).json()["token"]
    who = anybody.get("/api/v1/info", headers={"authorization": f"Bearer {secret}"}).json()["caller"]
    assert (who["team"], who["scopes"]) == ("red", ["read", "run"])
    made = {each["name"]: each["expires_at"] for each in state.access.tokens()}
    assert len(made) == 2
    assert len(set(made.values())) == 1, "it ends with the token, and not with the session of the browser"
    assert anybody.post("/device/token", json=ask).status_code == 404
    state.access.revoke_token("ann")
    assert anybody.get("/api/v1/info", headers={"authorization": f"Bearer {secret}"}).status_code == 401


def test_a_code_that_was_confirmed_with_a_token_is_worth_nothing_once_that_is_revoked(anybody, ann, state):
    asked = begin(anybody)
    ann.post("/device", data={"code": asked["user_code"], "client": "lap-b-top"})
    state.access.revoke_token("ann")
    answer = anybody.post("/device/token", json={"device_code": asked["device_code"]})
    assert (answer.status_code, "token" in answer.json()) == (401, False)


def test_wrong_late_and_guessed_codes_are_refused(anybody, ann, monkeypatch):
    asked = begin(anybody)
    assert ann.post("/device", data={"code": "BBBB-BBBB"}).status_code == 404
    assert anybody.post("/device/token", json={"device_code": "x"}).status_code == 404
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + module.EXPIRES_S + 1)
    assert ann.post("/device", data={"code": asked["user_code"]}).status_code == 404
    assert anybody.post("/device/token", json={"device_code": asked["device_code"]}).status_code == 404
    answers = [ann.post("/device", data={"code": "CCCC-CCCC"}).status_code for _ in range(ATTEMPTS + 1)]
    assert answers[-1] == 429


def test_others_pages_confirm_nothing_and_only_so_many_wait(anybody, ann, monkeypatch):
    asked = begin(anybody)
    body = {"code": asked["user_code"], "client": "lap-b-top"}
    assert ann.post("/device", data=body, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    monkeypatch.setattr(module, "_MOST", 1)
    refused = anybody.post("/device/code", json={})
    assert (refused.status_code, refused.headers["content-type"]) == (429, "application/problem+json")
    assert "hint" in json.loads(refused.text)


def test_one_address_does_not_take_all_places(anybody, state, monkeypatch):
    assert LOGINS_BURST + STRANGERS_PER_S * module.EXPIRES_S < module._MOST
    monkeypatch.setattr(state.logins, "_clock", lambda: 0.0)
    for _ in range(int(LOGINS_BURST)):
        state.logins.take("testclient")
    for method, path in (("POST", "/device/code"), ("GET", "/login/oidc")):
        refused = anybody.request(method, path, json={})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "10")
    state.logins.take("another")


def test_who_is_refused_does_not_fill_the_audit(anybody, state, monkeypatch):
    monkeypatch.setattr(guards, "STRANGERS_BURST", 3)
    monkeypatch.setattr(guards, "STRANGERS_PER_S", 1e-9)
    secret = state.access.create_token("root", ["admin"])["token"]
    known = {"authorization": f"Bearer {secret}"}
    for method, path in 2 * (("GET", "/api/v1/runs"), ("POST", "/nothing"), ("POST", "/device/code")):
        assert anybody.request(method, path, json=[]).status_code in (401, 404, 422)
    assert anybody.delete("/api/v1/tokens/nobody", headers=known).status_code == 404
    reads = state.access.create_token("reader", ["read"])["token"]
    for _ in range(5):
        refused = anybody.post("/api/v1/runs", headers={"authorization": f"Bearer {reads}"}, json={})
        assert refused.status_code == 403
    found = anybody.get("/api/v1/audit", headers=known).json()["audit"]
    assert [row["name"] for row in found] == [*3 * ["reader"], "root", "", "", ""]
