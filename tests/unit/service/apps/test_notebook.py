"""Notebooks: what a run's has beside it, which Python it is given, and who gets in."""

from __future__ import annotations

import json
import stat
import sys
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from trainmaster.artifacts import publish
from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, Submission, TaskChange, apps
from trainmaster.service import Service
from trainmaster.service.apps import notebook
from trainmaster.service.apps.app_access import AppAccess
from trainmaster.service.apps.apps import Apps
from trainmaster.service.apps.notebook import (
    Notebook,
    NotebookPython,
    jupyter_python,
    prepare_notebook,
    python_facts,
)
from trainmaster.service.users.access import Access
from trainmaster.service.users.caller import ForbiddenError, caller
from trainmaster.spec import Recipe
from trainmaster.spec.errors import MissingPartError, NotFoundError, RunError
from trainmaster.spec.states import State

RECIPE = """
name: job
env: {COLOUR: red}
experiments:
  main: {command: 'true', data: {d: {dir: data}, gone: {from: other}}}
  other: {command: 'true', setup: make-it}
"""
ANN = caller("ann", "red", ["read", "run"])


class Place:
    """A home with a run whose task has a model."""

    def __init__(self, root, team="red"):
        home = Home(root, root / "cache", f"file://{root}/store", f"sqlite:///{root / 'trainmaster.db'}")
        self.service = Service(home)
        self.access = Access(self.service.database)
        self.access.make_team("red", None)
        code = root / "snapshot"
        (code / "data").mkdir(parents=True)
        (code / "train.py").write_text("pass")
        (code / "data" / "x").write_text("1")
        recipe = Recipe.from_text(RECIPE, directory=code).model_dump_json()
        new = AcceptedRun(
            "job-a", "job", recipe, "r.yaml", "local", str(code), home.store_url, [("main", 1), ("other", 1)],
            home=str(root), home_id=home.identity(), submission=Submission("x", team),
        )  # fmt: skip
        uri = home.model_uri("job-a", "main", 0)
        publish({"": code / "data"}, uri, kind="model")
        lease = self.service.database.create_run(new, 1.0)
        opened = {"creates": True, "opens": True, "fields": {"model_uri": uri}}
        begins = TaskChange("main", 0, 1, State.WAITING, State.RUNNING, **opened)
        self.service.database.commit(lease, [begins], 2.0)

    def row(self, **more):
        app = Apps(self.service, ANN).notebook(**more)["app"]
        return apps.find(self.service.database, app)


@pytest.fixture
def place(tmp_path):
    found = Place(tmp_path)
    yield found
    found.service.close()


def test_a_notebook_of_a_run_has_its_code_data_and_models(place, tmp_path):
    work = tmp_path / "work"
    found = prepare_notebook(place.service, "job-a", work)
    assert (work / "code/train.py").read_text() == "pass"
    assert (work / "data/d/x").read_text() == "1"
    assert (work / "models/main/0/x").read_text() == "1"
    assert found.variables == {"TRAINMASTER_DATA_D": str(tmp_path / "snapshot/data")}
    assert any("data/gone" in note for note in found.notes)
    assert any("`env` of main is not set: others wrote it" in note for note in found.notes)


def test_an_environment_that_was_made_elsewhere_is_said_not_to_be_here(place, tmp_path):
    found = prepare_notebook(place.service, "job-a", tmp_path / "work")
    assert not found.pythons
    assert any("`setup` of other was not run on this machine" in note for note in found.notes)
    assert not any("of main was" in note for note in found.notes)


def test_the_environment_of_ones_own_recipe_is_that_of_the_notebook(tmp_path):
    own = Place(tmp_path, team=None)
    assert prepare_notebook(own.service, "job-a", tmp_path / "work").variables["COLOUR"] == "red"
    own.service.close()


def test_what_was_written_in_a_notebook_stays(place, tmp_path):
    work = tmp_path / "work"
    prepare_notebook(place.service, "job-a", work)
    (work / "code/train.py").write_text("mine")
    (work / "models/main/0/x").write_text("mine")
    prepare_notebook(place.service, "job-a", work)
    assert (work / "code/train.py").read_text() == (work / "models/main/0/x").read_text() == "mine"
    assert (tmp_path / "snapshot/train.py").read_text() == "pass"


def test_models_that_are_too_large_are_named(place, tmp_path):
    found = prepare_notebook(place.service, "job-a", tmp_path / "work", most_bytes=0)
    assert not (tmp_path / "work/models").exists()
    assert any("no room" in note for note in found.notes)


def test_jupyterlab_gets_its_token_by_its_environment_alone(place, tmp_path, monkeypatch):
    monkeypatch.setattr(notebook, "jupyter_python", lambda: Path(sys.executable))
    kind = Notebook(place.service, place.row(run="job-a"), tmp_path / "app")
    command, environment = kind.command(1234, "secret-token")
    assert environment["JUPYTER_TOKEN"] == "secret-token"
    assert "secret-token" not in " ".join(command)
    assert f"--ServerApp.base_url={kind.prefix}" in command
    assert "--ServerApp.ip=127.0.0.1" in command
    work = tmp_path / "notebooks" / f"of-{Path(kind.row['directory']).parent.name[3:]}" / "job-a"
    assert work == Path(kind.row["directory"])
    assert stat.S_IMODE(work.stat().st_mode) == 0o700
    assert "data/gone" in (work / "ABOUT-THIS-NOTEBOOK.md").read_text()
    spec = json.loads((tmp_path / "app/jupyter/kernels/python3/kernel.json").read_text())
    assert "COLOUR" not in spec["env"]
    assert spec["argv"][-1] == "{connection_file}"


def test_a_python_without_a_kernel_for_its_version_is_named(place, tmp_path, monkeypatch):
    own = tmp_path / "python"
    facts = {own: NotebookPython((3, 9), False, "p"), Path("j"): NotebookPython((3, 11), True, "q")}
    monkeypatch.setattr(notebook, "python_facts", facts.__getitem__)
    kind = Notebook(place.service, place.row(run="job-a"), tmp_path / "app")
    found = notebook.NotebookInputs()
    kind._write_kernels(found, {"main": own}, Path("j"))
    assert "has no ipykernel" in found.notes[0]
    assert not (tmp_path / "app/jupyter").exists()


def test_what_a_python_says_of_itself():
    facts = python_facts(Path(sys.executable))
    assert facts.version == sys.version_info[:2]
    assert Path(facts.packages).is_dir()
    with pytest.raises(RunError, match="does not work"):
        python_facts(Path("/none/python"))


def test_jupyterlab_is_found_on_path_or_said_to_be_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(notebook, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPartError, match="not installed"):
        jupyter_python()
    for name in ("python", "jupyter-lab"):
        (tmp_path / name).touch(0o700)
    assert jupyter_python() == tmp_path / "python"


def test_a_notebook_is_for_who_has_opened_it(place):
    row = place.row(run="job-a")
    assert place.row(run="job-a")["id"] == row["id"]
    ben = Apps(place.service, caller("ben", "red", ["read", "run"]))
    assert ben.notebook("job-a")["app"] != row["id"]
    with pytest.raises(ForbiddenError, match="notebook of ann"):
        ben.ticket(row["id"], None)
    with pytest.raises(NotFoundError):
        Apps(place.service, caller("eve", "blue", ["read", "run"])).notebook("job-a")
    with pytest.raises(ForbiddenError):
        Apps(place.service, caller("vic", "red", ["read"])).notebook("job-a")
    token = place.access.create_token("ben", ["read", "run"], "red")["token"]
    with pytest.raises(ForbiddenError, match="notebook of ann"):
        AppAccess(place.service, place.access, None).admit(row["id"], [], token)


def test_who_is_no_admin_any_more_is_not_let_in_to_his_notebook(place):
    row = place.row(run="job-a")
    apps.change(place.service.database, row["id"], state=State.RUNNING, port=1234)
    Apps(place.service, caller("ann", "red", ["read", "run", "admin"])).ticket(row["id"], None)
    with pytest.raises(ForbiddenError, match="for its admins"):
        Apps(place.service, ANN).ticket(row["id"], None)
    token = place.access.create_token("ann", ["read", "run"], "red")["token"]
    with pytest.raises(ForbiddenError, match="for its admins"):
        AppAccess(place.service, place.access, None).admit(row["id"], [], token)


@pytest.mark.parametrize(
    ("kernel", "silent_s", "busy"),
    [("busy", None, True), ("idle", None, False), ("idle", 5, True), ("idle", 3600, False)],
)
def test_what_computes_in_a_kernel_or_writes_in_a_terminal_keeps_it(place, tmp_path, kernel, silent_s, busy):
    used = [] if silent_s is None else [datetime.now(UTC) - timedelta(seconds=silent_s)]
    told = {
        "kernels": [{"execution_state": kernel}],
        "terminals": [{"name": "1", "last_activity": f"{at:%Y-%m-%dT%H:%M:%S.%fZ}"} for at in used],
    }

    class Jupyter(BaseHTTPRequestHandler):
        def do_GET(self):
            assert self.headers["authorization"] == "token secret"
            answer = json.dumps(told[self.path.rpartition("/api/")[2]]).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    kind = Notebook(place.service, place.row(run="job-a"), tmp_path / "app")
    with ThreadingHTTPServer(("127.0.0.1", 0), Jupyter) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert kind.is_busy(server.server_address[1], "secret") == busy
        server.shutdown()
