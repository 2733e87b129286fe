"""Every page: small, without scripts and styles, and only of what one sees; no path of the server's disk."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("pyarrow", reason="the extra `volumes` is not installed")
from served_home import RECIPE
from served_office import Office
from test_routes import asked, filled
from test_routes import routes as of_rest

from trainmaster.api.rest.hidden_places import HiddenPlaces
from trainmaster.control.task.layout import Home
from trainmaster.db.events import event_row, insert_events
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
    "tasks": {"task": "main/0"},
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
#: For admins only: who is none is told so.
ADMINS = {"/places"}
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
    others = APART | ADMINS | {LEADS_ON}
    assert found >= others
    return sorted(path.replace(":path}", "}") for path in found - others)


def theirs(office, path):
    """A page of what is of team blue."""
    names = {"services": office.blue["service"], "quotes": office.blue["quote"]}
    blue = {**office.blue, "name": names.get(path.split("/")[1], "theirs-all")}
    return filled(path, "job-blue", **blue)


@pytest.mark.parametrize("path", sorted(ADMINS))
def test_pages_of_admins_are_refused_to_others(office, path):
    for who in ("theirs", "manager"):
        assert office.ask(who, "GET", path).status_code == 403


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


def test_no_answer_to_a_member_has_a_path_of_the_servers_disk(office):
    """R19: of pages and of REST; those who run the server see where things are."""
    home, told = office.service.home, {}
    said = f"no room: '{home.root}/runs/job-blue/code/x', {home.store_url}/models/job-blue, {home.root}-other"
    with office.service.database.engine.begin() as connection:
        insert_events(connection, [event_row("job-blue", 5.0, "run.note", message=said)])
    at = ("GET", "/api/v1/runs/job-blue/events")
    answers = [(at, office.ask("theirs", *at))]
    assert "no room: 'home:/runs/job-blue/code/x', store:/models/job-blue, " in answers[0][1].text
    assert f"{home.root}-other" in answers[0][1].text, "another directory is none of the server's"
    answers += [(("GET", path), office.ask("theirs", "GET", theirs(office, path))) for path in pages()]
    for method, path in of_rest():
        if method != "DELETE" and not path.endswith("/stream"):
            answers.append(((method, path), asked(office, "theirs", method, path, "job-blue", **office.blue)))
    for name in ("volumes/none", "models/job-blue/main/7", "volume-files/theirs-all?path=none"):
        answers.append(((name,), office.ask("theirs", "GET", f"/api/v1/{name}")))
    assert len(answers) > 120
    for at, answer in answers:
        text = answer.text.replace(f"{home.root}-other", "")
        if str(home.root) in text or str(home.cache) in text:
            told[at] = text[max(0, text.index(str(home.root)) - 80) :][:300]
    assert not told
    assert office.ask("theirs", "GET", "/api/v1/volumes/theirs-all").json()["url"] == "theirs-all"
    status = office.ask("theirs", "GET", "/api/v1/runs/job-blue").json()
    assert status["models"][0]["uri"] == "store:/models/job-blue/main/0"
    assert status["bound_to"].keys() == {"why"}
    seen = office.ask("chief", "GET", "/api/v1/runs/job-blue").json()
    assert seen["models"][0]["uri"] == f"{home.store_url}/models/job-blue/main/0"
    assert seen["bound_to"]["home"] == str(home.root)
    typed = f"name: x\nexperiments: {{t: {{command: 'true', env: {{HF_HOME: {home.cache}/hf}}}}}}\n"
    sent = {"data": {"recipe": typed}, "headers": {"hx-request": "true"}}
    answer = office.ask("theirs", "POST", "/new/recipe", **sent)
    assert answer.json()["recipe"] == typed, "what a person types stays"
    assert "trainmaster-typed" not in answer.headers


def test_what_a_person_types_stays_and_a_stream_is_not_held_back():
    home = Home(Path("/data"), Path("/data/cache"), "file:///data/store", "sqlite:///data/trainmaster.db")
    page = b"<textarea>path: /data/store/x</textarea> /data/imagenet, file:///data/store/models/a"
    hidden = b"<textarea>path: /data/store/x</textarea> /data/imagenet, store:/models/a"
    start = {"type": "http.response.start", "status": 200}

    def answered(kind, *pieces, length=None):
        """What a member gets, and after how many pieces the answer had begun."""
        sent, begun = [], []
        headers = [(b"content-type", kind), *([(b"content-length", length)] if length else [])]

        async def app(scope, receive, send):
            await send({**start, "headers": headers})
            for number, piece in enumerate(pieces, 1):
                begun.append(bool(sent))
                more = number < len(pieces)
                await send({"type": "http.response.body", "body": piece, "more_body": more})

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/"}
        asyncio.run(HiddenPlaces(app, home)(scope, None, send))
        lengths = [value for name, value in sent[0]["headers"] if name == b"content-length"]
        return b"".join(each.get("body", b"") for each in sent), lengths, begun

    cut = page[:60], page[60:]
    assert answered(b"text/html", *cut, length=b"1") == (hidden, [str(len(hidden)).encode()], [False, False])
    assert answered(b"text/event-stream", page, page) == (hidden * 2, [], [True, True])
    assert answered(b"application/yaml", page, length=b"9") == (page, [b"9"], [True]), "a person's own"
    log = b'<div class="log is-tall" id="log"><p>/data/cache/x</p></div>'
    kept = b'<input value="/data/store/x">' + log + b"/data/cache/y"
    assert answered(b"text/html", kept)[0] == kept.replace(b"/data/cache/y", b"cache:/y")
    said = b'id: 1\nevent: %s\ndata: {"text": "/data/cache/x"}\n\n'
    frames = said % b"log" + said % b"state" + said % b"log"
    assert answered(b"text/event-stream", frames)[0] == frames.replace(
        said % b"state", (said % b"state").replace(b"/data/cache/x", b"cache:/x")
    )


def test_no_page_sends_a_member_to_a_shell_or_to_the_docs(office):
    """R19; what is wrong in New run is told at its field: tests/unit/web/test_recipe_form.py."""
    office.add("reader", "blue", "member")
    none = ["runs", "quotes", "volumes", "services", "registry", "workflows", "apps", "models/none/main"]
    wrong = ["/runs?where=x+%3D%3D", "/offers?cpus=many", "/compare?run=none", "/runs/job-blue/logs?task=9"]
    known = [theirs(office, path) + QUERIES.get(path, "") for path in pages()]
    found = {}
    for path in (*known, *(f"/{each}/none" for each in none), *wrong):
        text = office.ask("reader", "GET", path).text
        text = re.sub(r"<(pre|textarea)\b.*?</\1>", "", text, flags=re.S)
        sends = r"(?:<code>|`)trainmaster [a-z]|docs/|aws configure|~/\."
        told = re.findall(rf".{{,60}}(?:{sends}).{{,40}}", text)
        if told and path != "/device":  # which is for the command line
            found[path] = told
    assert not found


def test_a_button_is_called_by_what_it_says():
    """Who speaks to a page says what stands on the button; axe sees only those that are there."""
    found, count = [], 0
    for file in sorted((HERE / "templates").glob("*.html")):
        for called, says in re.findall(
            r'<(?:button|a)\b[^>]* aria-label="([^"]*)"[^>]*>([^<{]+)</', file.read_text()
        ):
            count += 1
            if says.strip(" …").lower() not in called.lower():
                found.append((file.name, called, says))
    assert count > 15
    assert not found
