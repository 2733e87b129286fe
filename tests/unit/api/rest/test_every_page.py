"""Every page: small, without scripts, styles and paths of the disk, and only of what one sees."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("pyarrow", reason="the extra `volumes` is not installed")
from served_home import RECIPE
from served_office import Office
from test_routes import filled

from trainmaster.web.pages import _ROUTERS
from trainmaster.web.rendering import HERE

#: What they are asked with beside what stands in their paths.
QUERIES = {
    "/compare": "?run=job-blue",
    "/remove": "?run=job-blue",
    "/again": "?run=job-blue&run=job-blue",
}
#: What forms say beside that.
FORMS = {
    "again": {"recipe": RECIPE, "act": "run"},
    "approval": {"experiment": "main", "say": "approve"},
    "services": {"path": "predict"},
    "measure": {"max_usd": "1"},
    "registry": {"version": "1", "expected": "1", "alias": "production"},
    "volumes": {"version": "1"},
    "workflows": {"do": "remove"},
    "members": {"role": "viewer"},
    "/runs/label": {"run": "job-blue", "label": "a=b"},
    "/runs/cancel": {"run": "job-blue"},
    "/again": {"run": ["job-blue", "job-blue"]},
    "/remove": {"run": "job-blue"},
    "/apps": {"run": "job-blue"},
    "/clusters/end": {"cluster": "c-theirs"},
    "/registry": {"model": "job-blue", "name": "mine"},
}
MOST_BYTES = 60_000
#: For who is not logged in, or comes from elsewhere.
APART = {"/setup", "/login", "/login/oidc", "/login/oidc/answer", "/join"}
#: Leads to where the app is.
LEADS_ON = "/apps/{app}/open"


@pytest.fixture(scope="module")
def office(tmp_path_factory):
    found = Office(tmp_path_factory.mktemp("office"))
    yield found
    found.service.close()


def routes(method):
    return {each.path for router in _ROUTERS for each in router.routes if method in each.methods}


def pages():
    found = routes("GET")
    assert found >= APART | {LEADS_ON}
    return sorted(path.replace(":path}", "}") for path in found - APART - {LEADS_ON})


def theirs(office, path):
    names = {"services": office.blue["service"], "quotes": office.blue["quote"]}
    blue = {**office.blue, "name": names.get(path.split("/")[1], "theirs-all")}
    return filled(path, "job-blue", **blue)


def test_every_page_is_small_and_safe_and_anothers_is_not_there(office):
    paths, wrong = pages(), []
    assert {"/", "/services/{name}", "/workflows/{name}", "/registry/{name}"} <= set(paths)
    for path in paths:
        asked = theirs(office, path) + QUERIES.get(path, "")
        answer = office.ask("theirs", "GET", asked)
        if (
            answer.status_code != 200
            or len(answer.content) > MOST_BYTES
            or "unsafe" in answer.headers["content-security-policy"]
            or str(office.service.home.root) in answer.text
            or re.search(r"<script(?! src=)|<style| style=|\son\w+=\"|javascript:|<b> ü", answer.text)
        ):
            wrong.append((path, answer.status_code, answer.text[-500:]))
        is_theirs = "{" in path or path in QUERIES
        answer = office.ask("manager", "GET", asked)
        told = () if is_theirs else ("job-blue", "theirs-digits", "theirs-all", "c-theirs")
        if answer.status_code != (404 if is_theirs else 200) or any(text in answer.text for text in told):
            wrong.append((path, answer.status_code, answer.text[-500:]))
    assert not wrong


def test_no_form_reaches_what_is_anothers(office):
    """Nothing of it is changed, nothing is said of it: it is not there."""
    paths = {each.replace(":path}", "}") for each in routes("POST") if "{" in each or each in FORMS}
    assert FORMS.keys() - paths == {each for each in FORMS if "/" not in each}
    found = {}
    for path in sorted(paths):
        form = {}
        for part in {path, *path.split("/")}:
            form |= FORMS.get(part, {})
        answer = office.ask("manager", "POST", theirs(office, path), data=form)
        if answer.status_code != 404:
            found[path] = answer.status_code, answer.headers.get("location"), answer.text[-300:]
    assert not found


def test_what_cannot_be_undone_is_asked_again():
    """R10: `danger` has our script ask; what a person has just been asked on a page is sure."""
    found = []
    for file in sorted((HERE / "templates").glob("*.html")):
        for form in re.finditer(r'<form[^>]* action="([^"]*)"[^>]*>(.*?)</form>', file.read_text(), re.S):
            acts = form[1].rpartition("/")[2] in {"remove", "end", "revoke", "delete", "disable", "cancel"}
            if (acts or 'value="remove"' in form[2]) and "danger" not in form[2]:
                found.append(form[1])
    assert found == ["/quotes/{{ found.id }}/cancel"], "nothing is lost there"
