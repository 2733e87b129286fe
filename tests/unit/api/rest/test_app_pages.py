"""The routes and pages of apps: opened by a click, waited for, entered on another origin, ended."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from trainmaster.db import apps
from trainmaster.db.leases import this_process
from trainmaster.spec.errors import UsageError
from trainmaster.spec.states import State


@pytest.fixture(autouse=True)
def installed():
    pytest.importorskip("tensorboard", reason="the extra `apps` is not installed")


def opened(served, who="red-user", run="job-red"):
    answer = served.ask(who, "POST", "/api/v1/apps", json={"kind": "tensorboard", "runs": [run]})
    assert answer.status_code in (200, 201), answer.text
    return answer.json()["app"]


def ready(served, app):
    apps.claim(served.service.database, app, this_process(), time.time() + 60)
    apps.change(served.service.database, app, state=State.RUNNING, port=1)


def test_an_app_is_opened_shown_entered_and_ended(served):
    app = opened(served)
    assert opened(served) == app
    assert served.ask("red-user", "GET", f"/api/v1/apps/{app}").json()["state"] == "WAITING"
    assert served.ask("red-user", "POST", f"/api/v1/apps/{app}/ticket").status_code == 422
    ready(served, app)
    served.app.state.server = replace(served.state, apps_port=8471)
    url = served.ask("red-read", "POST", f"/api/v1/apps/{app}/ticket").json()["url"]
    assert url.startswith("http://testserver:8471/enter/")
    served.app.state.server = replace(served.state, apps_url="https://apps.example.org")
    url = served.ask("red-read", "POST", f"/api/v1/apps/{app}/ticket").json()["url"]
    assert url.startswith("https://apps.example.org/enter/")
    served.app.state.server = served.state
    for who, status in (("blue-user", 404), ("red-read", 403)):
        assert served.ask(who, "DELETE", f"/api/v1/apps/{app}").status_code == status
    assert served.ask("blue-user", "POST", f"/api/v1/apps/{app}/ticket").status_code == 404
    assert served.ask("red-user", "DELETE", f"/api/v1/apps/{app}").status_code == 204
    assert apps.find(served.service.database, app)["ends"]
    apps.end(served.service.database, app, "ended by hand", 1.0)
    (found,) = served.ask("red-read", "GET", "/api/v1/apps").json()["apps"]
    assert (found["state"], found["reason"]) == ("DONE", "ended by hand")


def test_what_cannot_be_opened_is_refused(served):
    for body, status in (
        ({"kind": "tensorboard", "runs": []}, 422),
        ({"kind": "tensorboard", "runs": ["job-blue"]}, 404),
        ({"kind": "shell", "runs": ["job-red"]}, 422),
    ):
        assert served.ask("red-user", "POST", "/api/v1/apps", json=body).status_code == status


def test_the_page_waits_and_leads_to_the_other_origin(served):
    form = {"data": {"run": "job-blue"}, "headers": {"sec-fetch-site": "same-origin"}}
    answer = served.ask("blue-user", "POST", "/apps", **form)
    assert answer.status_code == 303
    path = answer.headers["location"]
    app = path.rpartition("/")[2]
    waits = served.ask("blue-user", "GET", path)
    assert ("It starts" in waits.text, waits.headers["refresh"]) == (True, "1")
    ready(served, app)
    shown = served.ask("blue-user", "GET", path)
    assert ("It is open" in shown.text, shown.headers["refresh"]) == (True, f"0; url={path}/open")
    entry = served.ask("blue-user", "GET", f"{path}/open")
    assert (entry.status_code, "/enter/" in entry.headers["location"]) == (303, True)
    for site in ("cross-site", "same-site"):
        answer = served.ask("blue-user", "GET", f"{path}/open", headers={"sec-fetch-site": site})
        assert answer.status_code == 403, "an app's page must not open another app"
    assert served.ask("red-user", "GET", path).status_code == 404
    assert path in served.ask("blue-user", "GET", "/apps").text
    apps.end(served.service.database, app, "<b>", 1.0)
    assert "&lt;b&gt;" in served.ask("blue-user", "GET", path).text


def test_an_app_that_was_told_to_end_is_open_no_more(served):
    app = opened(served)
    ready(served, app)
    assert served.ask("red-user", "DELETE", f"/api/v1/apps/{app}").status_code in (200, 202, 204)
    told = served.ask("red-user", "GET", f"/api/v1/apps/{app}").json()
    assert (told["state"], told["reason"]) == ("STOPPING", None), "its process ends it"
    assert ">ends<" in served.ask("red-user", "GET", "/apps").text
    assert "It ends." in served.ask("red-user", "GET", f"/apps/{app}").text
    assert f"{app} ends" in served.ask("red-user", "POST", f"/api/v1/apps/{app}/ticket").text
    other = opened(served)
    assert other != app, "one that ends is not opened again"
    for each in (app, other):
        apps.end(served.service.database, each, "ended by hand", 1.0)


def test_a_notebook_on_the_machine_of_a_shared_server_is_for_its_admin(served, monkeypatch):
    from trainmaster.api.rest import apps

    def need_part(_):
        raise UsageError("JupyterLab is not installed", "Install it.")

    monkeypatch.setattr(apps, "need_part", need_part)
    body = {"kind": "notebook", "runs": ["job-red"]}
    refused = served.ask("red-user", "POST", "/api/v1/apps", json=body)
    assert refused.status_code == 403
    assert "--local notebook" in refused.json()["hint"], "what to install would not help"
    monkeypatch.setattr(apps, "need_part", lambda _: None)
    opened = served.ask("admin", "POST", "/api/v1/apps", json=body)
    assert (opened.status_code, opened.json()["kind"]) == (201, "notebook")
    assert opened.json()["directory"].endswith("job-red")
    two = {"kind": "notebook", "runs": ["job-red", "job-blue"]}
    assert served.ask("admin", "POST", "/api/v1/apps", json=two).status_code == 422
    assert 'kind" value="notebook' not in served.ask("red-user", "GET", "/runs/job-red").text
    assert 'kind" value="notebook' in served.ask("admin", "GET", "/runs/job-red").text
