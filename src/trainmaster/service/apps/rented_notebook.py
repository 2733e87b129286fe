"""The recipe of a JupyterLab on a rented machine: an ordinary run, which is quoted, billed and given back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trainmaster.spec import Recipe
    from trainmaster.spec.experiment import Experiment

#: Where its server says how to reach it, in the directory of the code there.
FACTS: Final = ".notebook"
_SETUP: Final = """\
pip install jupyterlab || {
  echo "JupyterLab cannot be installed there: name an index that the machine reaches, --env PIP_INDEX_URL=URL"
  exit 1
}
"""
#: In quotation marks of the shell. What open pages ask for again and again is no use, or it would
#: never end. Jupyter itself looks once a minute whether nothing was done, and the machine costs meanwhile.
#: A model with links that lead out of it cannot be saved; the copy of the code has those to data.
PROGRAM: Final = """
import os
from jupyter_server.base.handlers import APIHandler
from jupyter_server.serverapp import ServerApp
from jupyterlab.labapp import main
from tornado.ioloop import PeriodicCallback

note_use = APIHandler.update_api_activity
here = os.path.realpath(".")


def note_what_users_do(handler):
    asked = handler.request
    looks = asked.method in ("GET", "HEAD") and asked.path.startswith("/api/")
    if not looks and not asked.path.startswith("/lab/api/workspaces"):
        note_use(handler)


def leads_out(link):
    is_inside = os.path.realpath(link).startswith(here + os.sep)
    return os.path.islink(link) and (os.path.isabs(os.readlink(link)) or not is_inside)


APIHandler.update_api_activity = note_what_users_do
ServerApp.init_shutdown_no_activity = lambda app: PeriodicCallback(app.shutdown_no_activity, 5000).start()
try:
    main()
finally:
    for place, folders, files in os.walk(here):
        for link in filter(leads_out, [os.path.join(place, name) for name in folders + files]):
            print("not kept, as it leads elsewhere:", link, flush=True)
            os.unlink(link)
"""
# A token that it is given is not in what it prints. Isolated, as modules of the user's code may be named like
# those that it imports.
_COMMAND: Final = """\
cp -R . "$TRAINMASTER_OUTPUT_DIR/code"
umask 077
export JUPYTER_RUNTIME_DIR="$PWD/{facts}" JUPYTER_NO_CONFIG=1
JUPYTER_TOKEN="$(python -I -c 'import secrets; print(secrets.token_hex(24))')"
export JUPYTER_TOKEN
cd "$TRAINMASTER_OUTPUT_DIR"
exec python -I -c '{program}' --no-browser --allow-root --ServerApp.ip=127.0.0.1 --ServerApp.port=0 \\
  --ServerApp.root_dir="$PWD" --ServerApp.shutdown_no_activity_timeout={idle_s:.0f} \\
  --ServerApp.terminals_enabled=False --MappingKernelManager.cull_idle_timeout={idle_s:.0f} \\
  --MappingKernelManager.cull_interval=5 --MappingKernelManager.cull_connected=True
"""
_SOURCES: Final = {"volume": "volume", "url": "url", "sha256": "sha256", "model": "model", "at": "at"}


def rented_notebook_recipe(
    provider: str,
    hardware: Mapping[str, Any],
    idle_s: float,
    of: Recipe | None = None,
    models: Sequence[str] = (),
    variables: Sequence[str] = (),
) -> tuple[str, list[str]]:
    """A recipe in YAML, and what of the run could not be brought.

    Args:
        provider: of the machine.
        hardware: as in a recipe: which machine is wished.
        idle_s: it ends when nothing was done for so long.
        of: the recipe of the run whose notebook it is; its last experiment says what is there.
        models: of that run: where they are on its object store, or as which version they are registered.
        variables: more of them, ``NAME=VALUE``, or ``NAME`` for a secret; its ``setup`` has them, too.
    """
    notes: list[str] = []
    found: dict[str, Any] = {"command": _COMMAND.format(facts=FACTS, program=PROGRAM, idle_s=idle_s)}
    setup, env = _SETUP, {}
    if of is not None:
        experiment = list(of.experiments.values())[-1]
        setup = f"{experiment.setup.rstrip()}\n{setup}" if experiment.setup else setup
        env = {name: value for name, value in experiment.env.items() if "{{" not in value}
        data = _data(experiment, notes)
        data |= {f"model{number or ''}": _source(each) for number, each in enumerate(models)}
        found |= {"data": data} if data else {}
    env |= {name: value for name, is_plain, value in _split(variables) if is_plain}
    secrets = [name for name, is_plain, _ in _split(variables) if not is_plain]
    found |= {
        "setup": setup,
        "env": {name: env[name] for name in env if name not in secrets},
        "secrets": secrets,
    }
    if hardware:
        found["hardware"] = {"spot": False, **hardware}
    recipe = {
        "name": "notebook" if of is None else f"{of.name[:50]}-notebook",
        "code": ".",
        "provider": provider,
        "experiments": {"notebook": found},
    }
    return json.dumps(recipe, indent=2), notes


def _source(model: str) -> dict[str, str]:
    return {"url" if "://" in model else "model": model}


def _split(variables: Sequence[str]) -> list[tuple[str, str, str]]:
    return [each.partition("=") for each in variables]


def _data(experiment: Experiment, notes: list[str]) -> dict[str, Any]:
    found = {}
    for name, source in experiment.data.items():
        told = {
            key: value for field, key in _SOURCES.items() if (value := getattr(source, field)) is not None
        }
        if "volume" in told or "url" in told or "model" in told:
            found[name] = told
        else:
            notes.append(f"data.{name}: only volumes, URLs and models come to another machine")
    return found
