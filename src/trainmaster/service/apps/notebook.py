"""`Notebook`: the app that is a JupyterLab, with what a run has beside it.

`prepare_notebook` puts what a run has beside its notebook: code to change, data, models, checkpoints, Python.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from sqlalchemy.engine import RowMapping

from trainmaster import library
from trainmaster.control.task.environment import base_environment, with_library
from trainmaster.control.task.job_context import TaskContext
from trainmaster.dataclass import dataclass, field
from trainmaster.db import queries
from trainmaster.executors.supervisor.processes import kept_environment
from trainmaster.service.apps.app_host import AppKind
from trainmaster.service.service import Service
from trainmaster.spec.errors import MissingPartError, RunError, TrainmasterError
from trainmaster.spec.private_files import make_private

#: So much of models and checkpoints is brought to one notebook; what is larger is named.
MOST_BYTES: Final = 2 << 30
#: Of a run with more tasks, the first ones.
_MOST_TASKS: Final = 100


@dataclass
class NotebookInputs:
    """What a notebook of a run is started with.

    Attributes:
        pythons: of environments that a ``setup`` has made here, by experiment.
        variables: what the recipe sets, and where data lie, as tasks find them; no secrets.
        notes: what is where, and what is not, a line each.
    """

    pythons: dict[str, Path] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def prepare_notebook(
    service: Service, run: str, directory: Path, *, most_bytes: int = MOST_BYTES
) -> NotebookInputs:
    """Put what a run has into a directory. What is there already stays: it is somebody's work.

    Args:
        service: of the home.
        run: its id.
        directory: of the notebook.
        most_bytes: of models and checkpoints.

    Raises:
        TrainmasterError: the run's code cannot be had.
    """
    from trainmaster.artifacts import materialise
    from trainmaster.control.loop.attempt_actions import AttemptActions
    from trainmaster.control.loop.run_state import Task
    from trainmaster.service.runs.run_names import owner_of

    row, found = service.database.run_row(run), NotebookInputs()
    # Of one that is elsewhere, models and checkpoints are on its store, and no data are here.
    home = service.home_if_here(run) or service.own_home_for(row)
    recipe = service.replicas.recipe(row)
    materialise(service.replicas.code(row), directory / "code")
    found.notes.append("`code/`: a copy of the run's code. Change it as you like: the run keeps its own.")
    actions = AttemptActions(
        home=home, run=run, recipe=recipe, secrets={},
        find_models=lambda *_: [], owner=owner_of(row, home),
    )  # fmt: skip
    for name, experiment in recipe.experiments.items():
        context = actions.context(Task(name, 0, attempt=1))
        if row["team"] is None:
            found.variables.update(experiment.env)
        elif experiment.env:
            found.notes.append(f"`env` of {name} is not set: others wrote it, and it says what Python loads.")
        _link_data(context, directory / "data", found)
        if experiment.container is None and (venv := context.venv) is not None:
            if (venv / "ready").exists():
                found.pythons[name] = venv / "bin" / "python"
            else:
                found.notes.append(
                    f"`setup` of {name} was not run on this machine, so what it installs is missing: "
                    f"`trainmaster notebook {run} --provider ...` rents one on which it is."
                )
    left_bytes = most_bytes
    for task in queries.tasks(service.database, run, limit=_MOST_TASKS):
        context = actions.context(Task(task["experiment"], task["number"], attempt=max(1, task["attempt"])))
        left_bytes -= _bring_results(context, task, directory, left_bytes, found)
    found.notes.append("`data/`: what tasks read, and not a copy: what you write there is seen by others.")
    return found


def _link_data(context: TaskContext, directory: Path, found: NotebookInputs) -> None:
    for name, place in context.data_places.items():
        if not place.exists():
            found.notes.append(f"`data/{name}` is missing: it is not on this machine, or no longer.")
            continue
        directory.mkdir(exist_ok=True)
        link = directory / name
        if not link.is_symlink() and not link.exists():
            link.symlink_to(place)
        found.variables[f"TRAINMASTER_DATA_{name.upper()}"] = str(place)


def _bring_results(
    context: TaskContext, task: RowMapping, directory: Path, left_bytes: int, found: NotebookInputs
) -> int:
    """Bring the model of a task, or its newest checkpoint as long as there is none; how many bytes."""
    from trainmaster.artifacts import fetch, read_manifest

    with suppress(TrainmasterError, OSError):
        kind, uri = "models", task["model_uri"]
        if uri is None:
            newest = context.checkpoints.newest()
            if newest is None:
                return 0
            kind, uri = "checkpoints", context.checkpoints.uri_of(newest)
        target = directory / kind / task["experiment"] / str(task["number"])
        manifest = read_manifest(uri)
        if target.exists() or manifest is None:
            return 0
        if manifest.total_bytes > left_bytes:
            found.notes.append(f"{uri} is left out: there is no room for its {manifest.total_bytes} bytes.")
            return 0
        target.parent.mkdir(parents=True, exist_ok=True)
        fetch(uri, target)
        return manifest.total_bytes
    found.notes.append(f"what {task['experiment']}/{task['number']} has saved could not be brought.")
    return 0


_ANSWER_S: Final = 5.0
#: A terminal that has been silent for so long is in nobody's use.
_TERMINAL_S: Final = 300.0
#: Jupyter does not ask whether to fetch news from elsewhere.
_SETTINGS: Final = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false"}}
_ABOUT: Final = "ABOUT-THIS-NOTEBOOK.md"
# What a kernel needs comes last, so that everything that the Python itself has wins.
_KERNEL: Final = """\
import runpy, sys
sys.path.append(sys.argv.pop(1))
runpy.run_module("ipykernel_launcher", run_name="__main__", alter_sys=True)
"""
_FACTS: Final = """\
import json, sys, sysconfig
from importlib.util import find_spec
has = find_spec("ipykernel") is not None
print(json.dumps([list(sys.version_info[:2]), has, sysconfig.get_path("platlib")]))
"""


@dataclass(frozen=True, slots=True)
class NotebookPython:
    """Of a Python.

    Attributes:
        version: such as ``(3, 11)``.
        has_kernel: whether ipykernel is installed there.
        packages: where what is installed lies.
    """

    version: tuple[int, int]
    has_kernel: bool
    packages: str


class Notebook(AppKind):
    """A JupyterLab. It wants the token: other users of this machine do not get in."""

    def command(self, port: int, token: str) -> tuple[list[str], dict[str, str]]:
        """JupyterLab itself, in the directory that its user keeps."""
        work = Path(self.row["directory"])
        make_private(work)
        runs = json.loads(self.row["runs"])
        found = prepare_notebook(self.service, runs[0], work) if runs else NotebookInputs()
        jupyter = jupyter_python()
        base = base_environment(os.environ)
        own = Path(shutil.which("python", path=base["PATH"]) or sys.executable)
        self._write_kernels(found, {**found.pythons} or {"": own}, jupyter)
        if runs:
            (work / _ABOUT).write_text(_about(runs[0], found), encoding="utf-8")
        settings = {
            "ServerApp.ip": "127.0.0.1",
            "ServerApp.port": str(port),
            "ServerApp.port_retries": "0",
            "ServerApp.base_url": self.prefix,
            "ServerApp.root_dir": str(work),
            "ServerApp.open_browser": "False",
            "ServerApp.quit_button": "False",
            "LabApp.check_for_updates_class": "jupyterlab.handlers.announcements.NeverCheckForUpdate",
        }
        usual = self.directory / "settings" / "labconfig" / "default_setting_overrides.json"
        usual.parent.mkdir(parents=True)
        usual.write_text(json.dumps(_SETTINGS))
        if os.geteuid() == 0:
            settings["ServerApp.allow_root"] = "True"
        words = [f"--{name}={value}" for name, value in settings.items()]
        kept = kept_environment() | {key: base[key] for key in ("PATH", "VIRTUAL_ENV") if key in base}
        own_places = {
            "JUPYTER_TOKEN": token,  # not in the arguments, which everybody reads
            "JUPYTER_NO_CONFIG": "1",
            "JUPYTER_PATH": str(self.directory / "jupyter"),
            "JUPYTER_RUNTIME_DIR": str(self.directory / "runtime"),
            "JUPYTER_CONFIG_DIR": str(self.directory / "settings"),
        }
        return [str(jupyter), "-P", "-m", "jupyterlab", *words], kept | own_places

    def is_busy(self, port: int, token: str) -> bool:
        """Whether a kernel computes, or something was written in a terminal just now, by whomever."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S)

        def listed(what: str) -> list[dict[str, Any]]:
            connection.request("GET", f"{self.prefix}api/{what}", headers={"authorization": f"token {token}"})
            found: list[dict[str, Any]] = json.loads(connection.getresponse().read())
            return found

        try:
            if any(each.get("execution_state") == "busy" for each in listed("kernels")):
                return True
            now = datetime.now(UTC)
            used = [datetime.fromisoformat(each["last_activity"]) for each in listed("terminals")]
            return any((now - at).total_seconds() < _TERMINAL_S for at in used)
        except (OSError, http.client.HTTPException, ValueError, AttributeError, TypeError, KeyError):
            return False
        finally:
            connection.close()

    def _write_kernels(self, found: NotebookInputs, pythons: Mapping[str, Path], jupyter: Path) -> None:
        """Say which Pythons there are to choose from; the first one is the usual one."""
        of_jupyter = python_facts(jupyter)
        variables = with_library(found.variables, library.DIRECTORY)
        for number, (experiment, python) in enumerate(pythons.items()):
            facts = python_facts(python)
            if not facts.has_kernel and facts.version != of_jupyter.version:
                found.notes.append(
                    f"{python} has no ipykernel, and JupyterLab's is for another Python: "
                    f"`pip install ipykernel` there, or in the `setup` of {experiment}."
                )
                continue
            folder = (
                self.directory / "jupyter" / "kernels" / ("python3" if not number else f"python-{number}")
            )
            folder.mkdir(parents=True)
            argv = [str(python), "-c", _KERNEL, of_jupyter.packages, "-f", "{connection_file}"]
            path = os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])
            name = f"Python of {experiment}" if experiment else "Python"
            spec = {
                "argv": argv,
                "display_name": name,
                "language": "python",
                "env": {"PATH": path, **variables},
            }
            (folder / "kernel.json").write_text(json.dumps(spec))


def jupyter_python() -> Path:
    """The Python that has JupyterLab: ours, or that of the `jupyter-lab` on PATH.

    Raises:
        MissingPartError: there is none.
    """
    if find_spec("jupyterlab") is not None:
        return Path(sys.executable)
    command = shutil.which("jupyter-lab")
    python = Path(command).resolve().parent / "python" if command else None
    if python is None or not python.exists():
        raise MissingPartError(
            "JupyterLab is not installed",
            "Run: pip install 'trainmaster[notebook]', or have any `jupyter-lab` on PATH.",
        )
    return python


def python_facts(python: Path) -> NotebookPython:
    """What a Python says of itself.

    Raises:
        RunError: it does not work.
    """
    try:
        done = subprocess.run(
            [str(python), "-c", _FACTS], capture_output=True, timeout=60, check=True, stdin=subprocess.DEVNULL
        )
        version, has_kernel, packages = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise RunError(f"{python} does not work: {error}", "Its setup has to make it anew.") from None
    return NotebookPython(tuple(version), has_kernel, packages)


def _about(run: str, found: NotebookInputs) -> str:
    lines = "\n".join(f"- {note}" for note in found.notes)
    return f"""\
# A notebook of {run}

{lines}
- `models/` and `checkpoints/`: copies of what tasks have saved.
- What you write in this directory stays on this machine when the notebook ends.
"""
