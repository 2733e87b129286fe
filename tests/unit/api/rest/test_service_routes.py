"""Services on a server: who sees them, what pages and routes say, and a request from the page."""

from __future__ import annotations

import html
import http.server
import json
import threading
from dataclasses import replace

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
from served_home import Served
from served_services import add_service
from sqlalchemy import event

from trainmaster.api.proxy.services import ServiceProxy
from trainmaster.db import AcceptedRun, RunChange, Submission, tables
from trainmaster.db.changes import ExperimentChange, ReplicaChange
from trainmaster.db.endpoint_changes import close, write_replica
from trainmaster.service.endpoints import endpoint_access
from trainmaster.service.endpoints.endpoint_access import EndpointAccess
from trainmaster.service.teams.team_runs import TeamRuns
from trainmaster.service.users.caller import ForbiddenError, UnknownCallerError
from trainmaster.spec import Recipe
from trainmaster.spec.errors import NotFoundError
from trainmaster.spec.states import EndReason, State

ASLEEP = """
name: nap
experiments:
  main: {serve: {command: "true", replicas: {min: 0, max: 2}, scale: {in_flight: 4}}}
"""


@pytest.fixture(autouse=True)
def _has_our_server(monkeypatch):
    """The run that stands for services does nothing; a model is asked as our server has it."""
    where = "trainmaster.service.endpoints.endpoint_summaries.path_of_model"
    monkeypatch.setattr(where, lambda _: "v2/models/red-digits")


class Replica(http.server.BaseHTTPRequestHandler):
    """Says what it was asked."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{self.path} <b>{body.decode()}</b>".encode())

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        inputs = [{"name": "x", "datatype": "INT64", "shape": [-1, 3]}, {"name": "of", "datatype": "BYTES"}]
        inputs[1]["shape"] = [-1]
        self.wfile.write(json.dumps({"inputs": inputs}).encode())

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def port():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Replica)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def served(tmp_path_factory, port):
    found = Served(tmp_path_factory.mktemp("served"))
    for team in ("red", "blue"):
        add_service(found.service.database, f"job-{team}", f"{team}-digits", port)
    access = EndpointAccess(found.service, found.state.members, found.state.access)
    found.state = replace(found.state, services=ServiceProxy(access), apps_url="https://apps.example.org")
    found.app.state.server = found.state
    yield found
    found.service.close()


def test_a_service_says_where_it_is_asked_and_what_it_does(served):
    (found,) = served.ask("red-read", "GET", "/api/v1/services").json()["services"]
    assert (found["name"], found["state"], found["version"]) == ("red-digits", "READY", "digits@1")
    assert found["url"] == "https://apps.example.org/services/red-digits/"
    assert found["measured"]["requests_per_s"] == 0
    assert served.ask("red-read", "GET", "/api/v1/services/red-digits").json() == found
    missing = served.ask("red-read", "GET", "/api/v1/services/blue-digits")
    assert (missing.status_code, "there is no service 'blue-digits'" in missing.text) == (404, True)
    assert served.ask("red-infer", "GET", "/api/v1/services").status_code == 403


def test_pages_show_services_and_ask_them(served, monkeypatch):
    text = served.ask("red-read", "GET", "/services").text
    assert '<a href="/services/red-digits">red-digits</a>' in text
    assert "blue-digits" not in text
    text = served.ask("red-read", "GET", "/services/red-digits").text
    assert "curl https://apps.example.org/services/red-digits/v2/models/red-digits/infer" in text
    assert "<button" not in text.partition("<h1>")[2], "who only reads asks nothing"
    form = {"path": "/v2/models/digits/infer", "body": "{1}"}
    served.tokens["red-asks"] = served.state.access.create_token("asks", ["read", "infer"], "red")["token"]
    text = html.unescape(served.ask("red-asks", "GET", "/services/red-digits").text)
    example = json.loads(
        text.partition('<textarea name="body"')[2].partition(">")[2].partition("</textarea>")[0]
    )
    assert [(each["name"], each["shape"], each["data"]) for each in example["inputs"]] == [
        ("x", [1, 3], [0, 0, 0]),
        ("of", [1], ["text"]),
    ]
    answer = served.ask("red-asks", "POST", "/services/red-digits", data=form)
    assert (answer.status_code, "Status 200, by digits@1" in answer.text) == (200, True)
    assert "/v2/models/digits/infer &lt;b&gt;{1}&lt;/b&gt;" in answer.text
    wrong = served.ask("red-asks", "POST", "/services/red-digits", data={**form, "path": "no path"})
    assert "is no path" in wrong.text
    assert served.ask("red-asks", "POST", "/services/blue-digits", data=form).status_code == 404
    monkeypatch.setattr(endpoint_access, "_places", threading.BoundedSemaphore(1))
    with endpoint_access._places:
        full = served.ask("red-asks", "POST", "/services/red-digits", data=form)
        assert "asked from too many pages just now" in full.text
    assert "Status 200" in served.ask("red-asks", "POST", "/services/red-digits", data=form).text
    assert served.ask("red-read", "POST", "/services/red-digits", data=form).status_code == 403
    assert served.ask("blue-read", "GET", "/services/red-digits").status_code == 404


@pytest.mark.parametrize("said", ["[" * 5000, '{"inputs": [{"shape": [1e999]}]}'])
def test_whatever_a_replica_says_of_its_model_its_page_is_there(served, monkeypatch, said):
    served.tokens["red-asks"] = served.state.access.create_token(
        f"asks-{len(said)}", ["read", "infer"], "red"
    )["token"]
    monkeypatch.setattr(Replica, "do_GET", lambda self: (self.send_response(200), self.end_headers(),
                                                         self.wfile.write(said.encode())))  # fmt: skip
    answer = served.ask("red-asks", "GET", "/services/red-digits")
    assert (answer.status_code, "FP32" in answer.text) == (200, True)


def test_the_page_of_a_service_is_renewed(served):
    part = {"headers": {"hx-request": "true"}}
    same = served.ask("red-read", "GET", "/services/red-digits?was=READY", **part)
    assert ("hx-refresh" in same.headers, "<h1>" in same.text, ">ready<" in same.text) == (False, False, True)
    assert 'hx-get="/services/red-digits?was=READY"' in same.text
    came = served.ask("red-read", "GET", "/services/red-digits?was=STARTING", **part)
    assert came.headers["hx-refresh"] == "true", "what can be asked now is told"


def test_the_proxy_lets_in_who_may_infer_and_nobody_else(served):
    gate = served.state.services.gate
    (found,) = gate.targets("red-digits", served.tokens["red-infer"], "")
    assert (found.is_here, found.version, found.in_flight) == (True, "digits@1", 0)
    gate.report({found.replica: 3})
    assert gate.targets("red-digits", served.tokens["red-infer"], "")[0].in_flight == 3
    assert gate.targets("red-digits", served.tokens["admin"], "")
    with pytest.raises(NotFoundError, match="there is no service 'red-digits'"):
        gate.targets("red-digits", served.tokens["blue-infer"], "")
    with pytest.raises(ForbiddenError, match="may not ask models that are served"):
        gate.targets("red-digits", served.tokens["red-read"], "")
    with pytest.raises(UnknownCallerError):
        gate.targets("red-digits", "tm_wrong", "")
    with pytest.raises(NotFoundError):
        gate.targets("red-digits", served.tokens["red-infer"], "blue")


def test_a_model_is_deployed_by_a_recipe_that_its_page_writes(served):
    named = {"model": "job-red", "name": "birds", "alias": "production"}
    served.ask("red-user", "POST", "/registry", data=named)
    assert "Deploy" in served.ask("red-user", "GET", "/registry/birds").text
    assert 'href="/new?serve=job-red/main/0"' in served.ask("red-user", "GET", "/models/job-red/main/0").text
    for asked, model in (("birds%40production", "birds@production"), ("job-red/main/0", "job-red/main/0")):
        text = served.ask("red-user", "GET", f"/new?serve={asked}").text
        assert f"model: {model}" in text
        assert "python -m trainmaster.inference --port {{port}}" in text
        assert "it cannot be served" in text
        assert "Send code with a serve.py" in text
        assert ">Run it<" in text
        assert ">Quote it first<" not in text, "it has no end"
    assert served.ask("red-user", "GET", "/new?serve=job-blue/main/0").status_code == 404


def test_a_service_that_is_over_is_told_so(served):
    add_service(served.service.database, "job-own", "old-digits", 1)
    served.service.database.write(lambda connection, _: close(connection, "job-own", "main", 9.0))
    with pytest.raises(NotFoundError, match="the service 'old-digits' is over"):
        served.state.services.gate.targets("old-digits", served.tokens["admin"], "")
    assert served.ask("admin", "GET", "/api/v1/services/old-digits").json()["state"] == "DONE"
    assert "Ask it" not in served.ask("admin", "GET", "/services/old-digits").text
    listed = served.ask("admin", "GET", "/services").text
    assert "/services/old-digits" not in listed, "what is over stays off the list"
    assert 'href="/services?all=1"' in listed
    assert "/services/old-digits" in served.ask("admin", "GET", "/services?all=1").text


def test_a_service_that_has_scaled_to_zero_is_asleep(served):
    recipe = Recipe.from_text(ASLEEP, directory=served.service.home.root)
    team = Submission("x", "red")
    new = AcceptedRun("nap-1", "nap", recipe.model_dump_json(), "r", "local", "c", "file:///s", [("main", 0)],
                 home=str(served.service.home.root), submission=team)  # fmt: skip
    database = served.service.database
    lease = database.create_run(new, 1.0)
    add_service(database, "nap-1", "nap", 1)
    told = lambda: served.ask("red-read", "GET", "/api/v1/services/nap").json()  # noqa: E731
    assert (told()["state"], told()["asleep"]) == ("READY", False)
    gone = ReplicaChange("main", 0, {"state": "GONE"})
    database.write(lambda connection, _: write_replica(connection, "nap-1", gone, 2.0))
    assert (told()["state"], told()["asleep"]) == ("STARTING", False), "it has not begun"
    database.commit(lease, [ExperimentChange("main", State.WAITING, State.RUNNING)], 3.0)
    assert (told()["state"], told()["asleep"]) == ("STARTING", True)
    assert ">asleep<" in served.ask("red-read", "GET", "/services").text
    assert ">asleep<" in served.ask("red-read", "GET", "/services/nap").text
    link = '<a class="button main" href="/services/nap">Service nap: asleep</a>'
    assert link in served.ask("red-user", "GET", "/runs/nap-1").text
    starts = ReplicaChange("main", 1, {"state": "STARTING"})
    database.write(lambda connection, _: write_replica(connection, "nap-1", starts, 4.0))
    assert (told()["state"], told()["asleep"]) == ("STARTING", False)


def test_a_service_is_ended_by_its_name(served, port, monkeypatch):
    ended = []
    monkeypatch.setattr(TeamRuns, "cancel", lambda _, run, environ: ended.append(run))
    served.run("job-brief", "red")
    add_service(served.service.database, "job-brief", "brief", port)
    assert served.ask("blue-user", "DELETE", "/api/v1/services/brief").status_code == 404
    assert served.ask("red-read", "DELETE", "/api/v1/services/brief").status_code == 403
    answer = served.ask("red-user", "DELETE", "/api/v1/services/brief")
    assert (answer.status_code, answer.json(), ended) == (202, {"run": "job-brief"}, ["job-brief"])


def test_answers_to_files_are_downloaded_and_not_deployed(served):
    recipe = Recipe.from_text(
        "experiments: {main: {command: python -m trainmaster.inference --files a --model-dir b}}",
        directory=served.service.home.root,
    )
    row = tables.run.update().where(tables.run.c.id == "job-own").values(recipe=recipe.model_dump_json())
    served.service.database.write(lambda connection, _: connection.execute(row))
    for page in ("/models/job-own/main/0", "/runs/job-own"):
        text = served.ask("owner", "GET", page).text
        assert "/api/v1/models/job-own/main/0.zip" in text
        assert "Deploy" not in text
    assert "Download answers" in text


def test_machines_that_have_not_come_are_not_said_to_be_unwanted(served):
    home = served.service.home.root
    recipe = Recipe.from_text("provider: aws\nexperiments: {main: {command: ls}}", directory=home)
    new = AcceptedRun(
        "waits-1", "waits", recipe.model_dump_json(), "r.yaml", "aws", str(home), "file:///s", [("main", 1)],
        submission=Submission("x", "red"),
    )  # fmt: skip
    lease = served.service.database.create_run(new, 3.0)
    page = ("red-read", "GET", "/runs/waits-1/machines")
    assert "No machine is there yet." in served.ask(*page).text
    ended = RunChange(State.WAITING, State.DONE, EndReason.CANCELLED)
    served.service.database.commit(lease, [ended], 4.0)
    assert "No machine was taken." in served.ask(*page).text
    assert "runs on the server" in served.ask("red-read", "GET", "/runs/job-red/machines").text


def test_a_list_of_services_asks_as_often_for_many_as_for_one(tmp_path):
    served, asked = Served(tmp_path), []
    event.listen(served.service.database.engine, "before_cursor_execute", lambda *told: asked.append(told[2]))
    numbers = []
    for number in range(4):
        served.run(f"job-{number}", "red")
        add_service(served.service.database, f"job-{number}", f"one-{number}", 8000 + number)
        asked.clear()
        assert len(served.ask("red-read", "GET", "/api/v1/services").json()["services"]) == number + 1
        numbers.append(len(asked))
    assert numbers[1] == numbers[3]
    served.service.close()
