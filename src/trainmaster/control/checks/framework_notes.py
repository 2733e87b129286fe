"""`framework_notes`: the framework that a recipe names, and whether its machines have it."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trainmaster.control.task.environment import base_environment
from trainmaster.providers.capabilities import Installed, capabilities_of
from trainmaster.spec import Experiment, Recipe
from trainmaster.spec.frameworks import image_of_framework, image_variable, packages_of

#: A Python that has not said by then what it has is not waited for.
_ANSWER_S: Final = 10.0
_AS_ROOT: Final = re.compile(r"^\s*sudo\s", re.MULTILINE)
# First of all the present directory goes from the path: what lies beside a recipe is not to run.
_LOOK: Final = (
    "import sys; sys.path[:] = filter(None, sys.path); import importlib.util; "
    "sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
)


def framework_notes(recipe: Recipe, environ: Mapping[str, str]) -> list[str]:
    """Which image ``container: auto`` is, and where a framework is missing on the machines.

    A note and no refusal: a command may start a Python that is unknown here.

    Args:
        recipe: as read.
        environ: of whoever starts the tasks.
    """
    notes = []
    for name, experiment in recipe.experiments.items():
        if experiment.chooses_image:
            variable = image_variable(experiment.framework or "")
            notes.append(f"{name}: container: auto is {experiment.container} ({variable} names another)")
        elif missing := _missing((experiment.provider or (recipe.provider,))[0], experiment, environ):
            notes.append(f"{name}: {missing}")
        if experiment.container and experiment.setup and _AS_ROOT.search(experiment.setup):
            notes.append(
                f"{name}: `sudo` in `setup`: what root installs goes with the container that makes the "
                "environment; have it in the image"
            )
    return notes


def _missing(provider: str, experiment: Experiment, environ: Mapping[str, str]) -> str:
    packages, can = packages_of(experiment.framework), capabilities_of(provider)
    brings = (experiment.container, experiment.setup, experiment.roles)
    if packages is None or any(each is not None for each in brings):
        return ""
    if can.installed is Installed.UNKNOWN or (can.image_variable and environ.get(can.image_variable)):
        return ""
    if can.installed is Installed.NOTHING:
        where = f"machines of {provider} have no {packages.module}"
    elif _has(_python(environ) if can.is_here else sys.executable, packages.module, environ):
        return ""
    else:
        where = f"this machine's Python has no {packages.module}"
        where += "" if can.is_here else f", nor have machines of {provider}"
    image = image_of_framework(experiment.framework, environ, gpus=bool(experiment.hardware.gpu_count))
    setup = f"`setup: pip install {packages.package}`"
    return f"{where}: `container: auto` takes {image}, or {setup}" if image else f"{where}: {setup} brings it"


def _python(environ: Mapping[str, str]) -> str:
    """What ``python`` means in a task here."""
    path = base_environment(environ)["PATH"]
    return shutil.which("python", path=path) or shutil.which("python3", path=path) or sys.executable


def _has(python: str, module: str, environ: Mapping[str, str]) -> bool:
    """Whether a Python finds a module; True, too, if it does not say."""
    if Path(python).parent == Path(sys.executable).parent and not environ.get("PYTHONPATH"):
        return importlib.util.find_spec(module) is not None
    return _asked(python, module, environ.get("PYTHONPATH", ""))


@functools.lru_cache(maxsize=64)
def _asked(python: str, module: str, search_path: str) -> bool:
    env = {"PATH": os.defpath, "PYTHONPATH": search_path} if search_path else {"PATH": os.defpath}
    try:
        done = subprocess.run(
            [python, "-c", _LOOK, module],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=env,
            timeout=_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    return done.returncode != 1
