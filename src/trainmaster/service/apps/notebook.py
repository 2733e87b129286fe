"""`Notebook`: the app that is a JupyterLab, with what a run has beside it."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainmaster import library
from trainmaster.control.task.environment import base_environment, with_library
from trainmaster.executors._processes import kept_environment
from trainmaster.service.apps.app_host import AppKind
from trainmaster.service.apps.notebook_files import Furnished, furnish
from trainmaster.spec.errors import MissingPartError, RunError
from trainmaster.spec.private_files import make_private

_ANSWER_S: Final = 5.0
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

if TYPE_CHECKING:
    from collections.abc import Mapping


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
        found = furnish(self.service, runs[0], work) if runs else Furnished()
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
        """Whether a kernel computes, or a terminal was used just now."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S)
        try:
            connection.request(
                "GET", f"{self.prefix}api/kernels", headers={"authorization": f"token {token}"}
            )
            kernels: list[dict[str, Any]] = json.loads(connection.getresponse().read())
            return any(each.get("execution_state") == "busy" for each in kernels)
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            return False
        finally:
            connection.close()

    def _write_kernels(self, found: Furnished, pythons: Mapping[str, Path], jupyter: Path) -> None:
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


def _about(run: str, found: Furnished) -> str:
    lines = "\n".join(f"- {note}" for note in found.notes)
    return f"""\
# A notebook of {run}

{lines}
- `models/` and `checkpoints/`: copies of what tasks have saved.
- What you write in this directory stays on this machine when the notebook ends.
"""
