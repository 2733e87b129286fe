"""Logging in by single sign-on as a browser does, against a provider over TCP."""

from __future__ import annotations

import warnings
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("authlib", reason="the extra `server` is not installed")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    mock = pytest.importorskip("oidc_provider_mock", reason="it is for development only")
    import httpx2
from test_roles import Office

from trainmaster.service.users.single_sign_on import Group, SignOnSettings, SingleSignOn

#: The provider of the tests uses what its libraries will give up.
pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_browser_logs_in_at_the_provider_and_comes_back_to_its_page(tmp_path):
    office = Office(tmp_path)
    assert office.ask(None, "GET", "/login/oidc").status_code == 404, "there is none yet"
    with mock.run_server_in_thread() as server:
        provider = f"http://localhost:{server.server_port}"
        httpx2.put(f"{provider}/users/ann", json={"preferred_username": "ann", "groups": ["lab"]})
        settings = SignOnSettings(provider, "trainmaster", "s", {"lab": Group("red", "member")})
        sign_on = SingleSignOn(settings, office.service.database)
        office.app.state.server = replace(office.state, single_sign_on=sign_on)
        assert "/login/oidc?next=/models" in office.ask(None, "GET", "/login?next=/models").text
        begun = office.ask(None, "GET", "/login/oidc?next=/models")
        assert "Path=/login/oidc; SameSite=lax" in begun.headers["set-cookie"]
        cookie = begun.headers["set-cookie"].partition(";")[0]
        back = urlsplit(httpx2.post(begun.headers["location"], data={"sub": "ann"}).headers["location"])
        assert back.path == "/login/oidc/answer"
        path = f"{back.path}?{back.query}"
        for other in ({}, {"cookie": "trainmaster-sign-on=other"}):
            answer = office.ask(None, "GET", path, headers=other)
            assert (answer.status_code, "was not begun in this browser" in answer.text) == (401, True)
        answer = office.ask(None, "GET", path, headers={"cookie": cookie})
        assert (answer.status_code, answer.headers["location"]) == (303, "/models")
        session = answer.cookies[office.state.cookie]
        who = office.state.access.by_session(session)
        assert (who.account, who.team, who.roles) == ("ann", "red", {"red": "member"})
        assert office.ask(None, "GET", path, headers={"cookie": cookie}).status_code == 401, "it works once"
    office.service.close()
