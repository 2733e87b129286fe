"""The recipe of a notebook on a rented machine has what the run had, and no more."""

from __future__ import annotations

import ast
import json
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from trainmaster.api.proxy.headers import UpstreamTarget
from trainmaster.api.results import Model, Watched
from trainmaster.artifacts.tree import parts_listing
from trainmaster.cli.rented_notebook import _models, _print_address, is_rented_notebook, lead_to_rented
from trainmaster.service.apps import notebook_program
from trainmaster.service.apps.app_access import NOTEBOOK_POLLS
from trainmaster.service.apps.rented_notebook import rented_notebook_recipe
from trainmaster.spec import Recipe
from trainmaster.spec.errors import RecipeError, RunError
from trainmaster.spec.states import State

RUN = """
name: shapes
provider: aws
env: {COLOUR: red, LR: "{{lr}}"}
secrets: [TOKEN]
experiments:
  first: {command: 'true'}
  train:
    setup: pip install torch
    parameters: {lr: [0.1]}
    data: {photos: {volume: photos@3}, old: {from: first}, near: {dir: images}, set: {url: "https://h/x.tar"}}
    command: python train.py
"""


def test_it_has_the_code_data_models_and_environment_of_the_last_experiment(tmp_path):
    run = Recipe.from_text(RUN, directory=tmp_path)
    text, notes = rented_notebook_recipe(
        "aws",
        {"gpu": "v100"},
        1800.0,
        run,
        ["s3://b/models/shapes-1a/train/0", "file:///store/models/shapes-1a/train/1"],
    )
    found = Recipe.from_text(text, directory=tmp_path)
    (notebook,) = found.experiments.values()
    assert (found.name, found.provider) == ("shapes-notebook", "aws")
    assert notebook.setup.startswith("pip install torch\npip install jupyterlab ||")
    assert notebook.env == {"COLOUR": "red"}
    assert notebook.secrets == ()
    assert {name: source.volume or source.url or source.model for name, source in notebook.data.items()} == {
        "photos": "photos@3",
        "set": "https://h/x.tar",
        "model": "s3://b/models/shapes-1a/train/0",
        "model1": "file:///store/models/shapes-1a/train/1",
    }
    assert [note.split(":")[0] for note in notes] == ["data.old", "data.near"]
    assert (notebook.hardware.gpu, notebook.hardware.spot) == ("v100", False)
    assert (notebook.checkpoint.every_s, notebook.checkpoint.keep_after) == (60.0, 0)
    assert "shutdown_no_activity_timeout=1800 " in notebook.command


def test_models_of_a_server_are_named_by_their_versions(tmp_path):
    """Members are told no place that a recipe could name."""
    places = ("store:/models/r/train/0", "store:/models/r/train/1", "file:///store/models/r/train/2")
    models = [Model("r", "train", task, uri, {}, {}) for task, uri in enumerate(places)]
    version = {"name": "shapes", "version": 3, "model": "r/train/0"}
    registry = SimpleNamespace(models=lambda: [{"name": "shapes"}], show=lambda _: {"versions": [version]})
    client = SimpleNamespace(models=lambda _: models, registry=registry)
    found, notes = _models(client, "r", at_server=True)
    assert found == ["shapes@3", places[2]]
    assert [note.partition(":")[0] for note in notes] == ["model r/train/1 stays there"]
    assert _models(client, "r", at_server=False) == ([*places], [])
    run = Recipe.from_text(RUN, directory=tmp_path)
    text, _ = rented_notebook_recipe("aws", {}, 60.0, run, found)
    data = Recipe.from_text(text, directory=tmp_path).experiments["notebook"].data
    assert (data["model"].model, data["model1"].url) == tuple(found)


def test_variables_are_added_and_names_alone_are_secrets(tmp_path):
    run = Recipe.from_text(RUN, directory=tmp_path)
    given = ["PIP_INDEX_URL=https://pypi.example.org/simple?a=b", "COLOUR=", "TOKEN", "LEVEL"]
    text, _ = rented_notebook_recipe("aws", {}, 1800.0, run, variables=given)
    (notebook,) = Recipe.from_text(text, directory=tmp_path).experiments.values()
    assert notebook.env == {"PIP_INDEX_URL": "https://pypi.example.org/simple?a=b", "COLOUR": ""}
    assert notebook.secrets == ("TOKEN", "LEVEL")


def test_a_variable_of_the_run_may_be_given_as_a_secret(tmp_path):
    run = Recipe.from_text(RUN, directory=tmp_path)
    text, _ = rented_notebook_recipe("aws", {}, 1800.0, run, variables=["COLOUR"])
    (notebook,) = Recipe.from_text(text, directory=tmp_path).experiments.values()
    assert (notebook.env, notebook.secrets) == ({}, ("COLOUR",))


def test_variables_with_wrong_names_are_refused(tmp_path):
    text, _ = rented_notebook_recipe("aws", {}, 1800.0, variables=["9=1"])
    with pytest.raises(RecipeError, match="9"):
        Recipe.from_text(text, directory=tmp_path)


@pytest.mark.parametrize("hardware", [{}, {"instance": "g5.xlarge"}, {"cpus": 4, "memory": "16GB"}])
def test_without_a_run_it_is_empty(tmp_path, hardware):
    text, notes = rented_notebook_recipe("lab", hardware, 60.0)
    found = Recipe.from_text(text, directory=tmp_path)
    assert (found.name, notes) == ("notebook", [])
    assert json.loads(text)["experiments"]["notebook"].get("data") is None


@pytest.mark.parametrize("as_json", [False, True])
def test_its_address_is_printed_with_the_token_that_it_needs(capsys, as_json):
    address = "http://127.0.0.1:8888/lab?token=0a1b"
    _print_address("notebook-1", address, 3.06, as_json=as_json)
    said = capsys.readouterr().out
    assert (json.loads(said)["url"] if as_json else said.strip()) == address


class Handler:
    """As those of Jupyter's server, as far as this goes."""

    def __init__(self, method, path):
        self.request = SimpleNamespace(method=method, path=f"/{path}")
        self.uses = 0

    def update_api_activity(self):
        self.uses += 1


@pytest.mark.parametrize(
    ("method", "path", "uses"),
    [
        ("GET", "api/kernels", 0),
        ("GET", "api/contents?content=1", 0),
        ("PUT", "lab/api/workspaces/default", 0),
        ("GET", "lab/api/workspaces", 0),
        ("PUT", "api/contents/Untitled.ipynb", 1),
        ("POST", "api/sessions", 1),
        ("GET", "lab/api/settings", 1),
        ("PUT", "lab/api/settings/theme", 1),
    ],
)
def test_what_its_pages_ask_for_by_themselves_is_no_use(ran, method, path, uses):
    assert UpstreamTarget("nb-1", 8888, polls=NOTEBOOK_POLLS).is_poll(method.encode(), path.encode()) == (
        not uses
    )
    ran(lambda: None)
    handler = sys.modules["jupyter_server.base.handlers"].APIHandler(method, path)
    handler.update_api_activity()
    assert handler.uses == uses


def test_links_that_lead_elsewhere_go_at_its_end(ran, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    output = tmp_path / "output"
    (output / "code" / "part").mkdir(parents=True)
    (output / "code" / "train.py").touch()

    def write():
        (output / "code" / "photos").symlink_to(tmp_path / "photos")
        (output / "near").symlink_to("../photos")
        (output / "own").symlink_to(output / "code" / "train.py")
        (output / "round").symlink_to("round")
        (output / "code" / "part" / "same.py").symlink_to("../train.py")
        raise SystemExit(0)

    with pytest.raises(SystemExit):
        ran(write)
    assert below(output) == ["code", "code/part", "code/part/same.py", "code/train.py", "round"]
    assert (tmp_path / "photos" / "a.jpg").exists()


def test_only_links_are_followed_to_where_they_lead(ran, tmp_path, monkeypatch):
    """To look is slow, and an environment has a hundred thousand files."""
    looked, look = [], os.path.realpath
    monkeypatch.setattr(
        os.path, "realpath", lambda path, **more: looked.append(str(path)) or look(path, **more)
    )

    def write():
        (tmp_path / "output" / "many").mkdir()
        for name in "abc":
            (tmp_path / "output" / "many" / name).touch()
        (tmp_path / "output" / "link").symlink_to("many")

    ran(write)
    assert {Path(path).name for path in looked} <= {"link", "output", "kept"}


def test_what_is_written_is_kept_meanwhile_and_the_next_attempt_begins_with_it(ran, tmp_path):
    output, kept = tmp_path / "output", tmp_path / "kept"
    (tmp_path / "photos").mkdir()
    (tmp_path / "work" / "photos").symlink_to(tmp_path / "photos")
    (output / "code").mkdir()
    (output / "code" / "photos").symlink_to(tmp_path / "photos")
    for name in ("train.py", "old.py"):
        (output / "code" / name).write_text(name)

    def write():
        assert below(kept) == ["code", "code/old.py", "code/train.py"]
        (output / "code" / "old.py").unlink()
        (output / "code" / "train.py").write_text("changed")
        (output / "mine").mkdir()
        (output / "mine" / "a.ipynb").write_text("cells")
        (output / "mine" / "same").symlink_to("a.ipynb")
        os.mkfifo(output / "pipe")

    ran(lambda: (ran.keep(), write(), ran.keep(), ran.keep()))
    assert below(kept) == ["code", "code/train.py", "mine", "mine/a.ipynb", "mine/same"]
    before = parts_listing({"": kept})
    shutil.rmtree(output)
    output.mkdir()

    def look():
        assert below(output) == ["code", "code/photos", "code/train.py", "mine", "mine/a.ipynb", "mine/same"]
        assert (output / "code" / "train.py").read_text() == "changed"
        assert (output / "mine" / "same").read_text() == "cells"
        ran.keep()
        assert parts_listing({"": kept}) == before  # nothing is to be published again
        (output / "mine" / "a.ipynb").unlink()
        (output / "mine" / "same").unlink()
        (output / "mine").rmdir()
        (output / "mine").write_text("a file now")
        ran.keep()

    ran(look)
    assert below(kept) == ["code", "code/train.py", "mine"]


def test_what_is_too_much_is_kept_at_the_end_only(ran, tmp_path, capsys):
    def write():
        (tmp_path / "work" / "part").mkdir()
        (tmp_path / "work" / "part" / "of.py").touch()
        for folder in ("code/part", "env/lib"):
            (tmp_path / "output" / folder).mkdir(parents=True)
        (tmp_path / "output" / "code" / "part" / "of.py").write_text("changed")
        for name, size in (("a", 900), ("b", 60), ("env/c", 30), ("env/lib/d", 1), ("env/lib/e", 1)):
            (tmp_path / "output" / name).write_bytes(b"x" * size)
        ran.keep()
        ran.keep()

    ran(write, MOST_BYTES=100, MOST_FILES=4)
    kept = below(tmp_path / "kept")
    assert kept == ["b", "code", "code/part", "code/part/of.py", "env", "env/c", "env/lib", "env/lib/d"]
    (said,) = capsys.readouterr().out.splitlines()
    assert said.startswith("too much to keep before the end: 2 files, such as ")


def test_a_file_that_is_written_meanwhile_stays_as_it_was_kept(ran, tmp_path, monkeypatch):
    log, copy = tmp_path / "output" / "log", shutil.copy2

    def slow(source, target, **options):
        copy(source, target, **options)
        if source == log:
            log.write_text("half of what")

    def write():
        log.write_text("first")
        ran.keep()
        log.write_text("half")
        (tmp_path / "output" / "other").touch()
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(shutil, "copy2", slow)
            ran.keep()
        assert below(tmp_path / "kept") == ["log", "other"]
        assert (tmp_path / "kept" / "log").read_text() == "first"

    ran(write)
    assert (tmp_path / "kept" / "log").read_text() == "half of what"  # at its end: it may be told to stop


def below(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


class Server:
    """What Jupyter starts."""

    def shutdown_no_activity(self):
        """Ends it if nothing was done for as long as it was told."""


class Periodic:
    """A callback of Tornado's event loop."""

    started = ()

    def __init__(self, work, every_ms):
        self.what = (work.__name__, every_ms)

    def start(self):
        Periodic.started += (self.what,)


def test_its_end_is_looked_for_often(ran, monkeypatch):
    monkeypatch.setattr(Periodic, "started", ())
    ran(lambda: sys.modules["jupyter_server.serverapp"].ServerApp().init_shutdown_no_activity())
    assert Periodic.started == (("shutdown_no_activity", 5000),)


class Ran:
    """Has its program run with a server that is none.

    Attributes:
        keep: of the files that are written.
    """

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch

    def __call__(self, main, **limits):
        def written_files(*places):
            found = written(*places)
            self.keep = found.keep
            return found

        written, sys.modules["jupyterlab.labapp"].main = notebook_program.WrittenFiles, main
        with self._monkeypatch.context() as meanwhile:
            for name, value in {**limits, "WrittenFiles": written_files}.items():
                meanwhile.setattr(notebook_program, name, value)
            meanwhile.chdir(Path(os.environ["TRAINMASTER_OUTPUT_DIR"]).parent / "work")
            notebook_program.main()


@pytest.fixture
def ran(monkeypatch, tmp_path):
    for name, variable in (("work", ""), ("output", "OUTPUT"), ("kept", "CHECKPOINT")):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(f"TRAINMASTER_{variable}_DIR", os.fspath(tmp_path / name))
    server, others = "jupyter_server", ("jupyterlab", "jupyterlab.labapp", "tornado", "tornado.ioloop")
    names = (server, f"{server}.base", f"{server}.base.handlers", f"{server}.serverapp")
    modules = {name: ModuleType(name) for name in (*names, *others)}
    modules["jupyter_server.base.handlers"].APIHandler = type("Ours", (Handler,), {})
    modules["jupyter_server.serverapp"].ServerApp = type("OurServer", (Server,), {})
    modules["tornado.ioloop"].PeriodicCallback = Periodic
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return Ran(monkeypatch)


def test_its_program_is_one_word_of_its_command_for_all_pythons_that_have_jupyterlab(tmp_path):
    program = Path(notebook_program.__file__).read_text()
    text, _ = rented_notebook_recipe("aws", {}, 60.0)
    (notebook,) = Recipe.from_text(text, directory=tmp_path).experiments.values()
    (line,) = [part for part in notebook.command.split("exec ")[1:] if part.startswith("python -I -c ")]
    assert shlex.split(line)[3] == program
    ast.parse(program, feature_version=(3, 9))


class Rented:
    """A `ClientProtocol` whose only run is a notebook that loses its first machine, then ends.

    Args:
        interrupted: the signal that comes when it is open.
    """

    def __init__(self, interrupted=None, labels=()):
        self.labels = dict(labels)
        self.interrupted, self.ports, self.attempt, self.cancelled = interrupted, [], 0, False

    def brief(self, run):
        return {"state": "RUNNING", "driver": None, "labels": self.labels}

    def status(self, run):
        task = {"reason": "SUCCEEDED", "seconds": 9.0, "cost_usd": 0.1, "models": []}
        return SimpleNamespace(json={"experiments": {"notebook": {}}, **task})

    def highlights(self, run):
        return SimpleNamespace(without_model=(), beside=())

    def watch_run(self, run):
        lost = SimpleNamespace(
            kind="task", after=State.RECOVERING, reason=None, message="", attempt=1, task=0, experiment="n"
        )
        if not self.cancelled:
            for attempt, events in ((0, ()), (1, ()), (1, ()), (0, (lost,)), (2, ())):
                self.attempt = attempt
                yield Watched(events, self.brief(run), True)
                if self.interrupted and attempt:
                    os.kill(os.getpid(), self.interrupted)
        yield Watched((), {"state": "DONE", "driver": None}, True)

    def execute(self, run, member, words, files):
        if not self.attempt:
            raise RunError("it has no machines now", "Wait.")
        os.write(files[1], json.dumps({"port": 8880 + self.attempt, "token": f"t{self.attempt}"}).encode())
        return 0

    def forward(self, run, member, port, local, tell):
        self.ports.append(port)
        return SimpleNamespace(port=1, close=lambda: self.ports.append(-port))

    def cancel(self, run):
        self.cancelled = True


@pytest.fixture
def signals_as_before():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as if who has started it had left it so
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals_as_before")
def test_another_machine_has_another_address(capsys):
    client = Rented()
    assert lead_to_rented(client, "n-1", 0.5, as_json=False) == 0
    assert client.ports == [8881, -8881, 8882, -8882]
    said = capsys.readouterr().out.splitlines()
    assert said == ["http://127.0.0.1:1/lab?token=t1", "http://127.0.0.1:1/lab?token=t2"]


@pytest.mark.usefixtures("signals_as_before")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_that_does_not_answer_at_its_end_is_cancelled(number):
    """Nothing listens at port 1."""
    client = Rented(interrupted=number)
    lead_to_rented(client, "n-1", 0.5, as_json=False)
    assert client.cancelled


def test_a_notebook_on_a_machine_is_known_by_its_label(tmp_path):
    text, _ = rented_notebook_recipe("aws", {}, 60.0)
    client = Rented(labels=Recipe.from_text(text, directory=tmp_path).labels)
    assert is_rented_notebook(client, "notebook-1a")
    assert not is_rented_notebook(Rented(), "my-notebook-1a"), (
        "of the user's own, with an experiment `notebook`"
    )
