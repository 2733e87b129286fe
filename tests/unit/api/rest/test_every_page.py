"""Every page: small, without scripts and styles of its own, without JavaScript, and only of what one sees."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("pyarrow", reason="the extra `volumes` is not installed")
from served_office import Office
from starlette.routing import Route
from test_routes import filled

#: What they are asked with beside what stands in their paths.
QUERIES = {"/compare": "?run=job-blue", "/new": "?run=job-blue"}
#: For who is not logged in, or comes from elsewhere.
APART = {"/healthz", "/metrics", "/setup", "/login", "/login/oidc", "/login/oidc/answer", "/join"}
#: Leads to where the app is.
LEADS_ON = "/apps/{app}/open"


@pytest.fixture(scope="module")
def office(tmp_path_factory):
    found = Office(tmp_path_factory.mktemp("office"))
    yield found
    found.service.close()


def pages(app):
    paths = {each.path for each in app.routes if isinstance(each, Route) and "GET" in each.methods}
    return sorted(path for path in paths - APART - {LEADS_ON} if not path.startswith(("/api/", "/static")))


def test_every_page_is_small_and_safe_and_anothers_is_not_there(office):
    paths = pages(office.app)
    assert {"/", "/services/{name}", "/workflows/{name}", "/registry/{name}"} <= set(paths)
    for path in paths:
        theirs = {**office.blue, "name": "theirs-digits" if path.startswith("/services/") else "theirs-all"}
        if path.startswith("/quotes/"):
            theirs["name"] = theirs["quote"]
        asked = filled(path, "job-blue", **theirs) + QUERIES.get(path, "")
        answer = office.ask("theirs", "GET", asked)
        assert answer.status_code == 200, (path, answer.text)
        assert len(answer.content) < 60_000, path
        assert "unsafe" not in answer.headers["content-security-policy"], path
        found = re.search(r"<script(?! src=)|<style| style=|\son\w+=\"|javascript:|<b> ü", answer.text)
        assert not found, (path, found)
        expected = 404 if "{" in path or path in QUERIES else 200
        answer = office.ask("manager", "GET", asked)
        assert answer.status_code == expected, (path, answer.status_code)
        for text in () if expected == 404 else ("job-blue", "theirs-digits", "theirs-all", "c-theirs"):
            assert text not in answer.text, (path, text)
