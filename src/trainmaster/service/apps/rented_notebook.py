"""The recipe of a JupyterLab on a rented machine: an ordinary run, which is quoted, billed and given back."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from trainmaster.spec.recipe import NOTEBOOK_LABELS

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
# A token that it is given is not in what it prints. Isolated, as modules of the user's code may be named like
# those that it imports.
_COMMAND: Final = """\
rm -rf {facts}
[ -n "$(ls -A "$TRAINMASTER_CHECKPOINT_DIR")" ] || cp -R . "$TRAINMASTER_OUTPUT_DIR/code"
umask 077
export JUPYTER_RUNTIME_DIR="$PWD/{facts}" JUPYTER_NO_CONFIG=1
JUPYTER_TOKEN="$(python -I -c 'import secrets; print(secrets.token_hex(24))')"
export JUPYTER_TOKEN
exec python -I -c {program} --no-browser --allow-root --ServerApp.ip=127.0.0.1 --ServerApp.port=0 \\
  --ServerApp.root_dir="$TRAINMASTER_OUTPUT_DIR" --ServerApp.shutdown_no_activity_timeout={idle_s:.0f} \\
  --ServerApp.terminals_enabled=False --MappingKernelManager.cull_idle_timeout={idle_s:.0f} \\
  --MappingKernelManager.cull_interval=5 --MappingKernelManager.cull_connected=True
"""
#: The copy changes more seldom: there is time to send it. At the end the model has all of it.
_CHECKPOINT: Final = {"every": "60s", "keep_after": 0}
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
    program = resources.files("trainmaster.service.apps").joinpath("notebook_program.py").read_text("utf-8")
    command = _COMMAND.format(facts=FACTS, program=shlex.quote(program), idle_s=idle_s)
    found: dict[str, Any] = {"command": command}
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
        "checkpoint": _CHECKPOINT,
        "env": {name: env[name] for name in env if name not in secrets},
        "secrets": secrets,
    }
    if hardware:
        found["hardware"] = {"spot": False, **hardware}
    recipe = {
        "name": "notebook" if of is None else f"{of.name[:50]}-notebook",
        "code": ".",
        "labels": NOTEBOOK_LABELS,
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
