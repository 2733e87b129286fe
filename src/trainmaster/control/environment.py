"""What a member finds in its environment: pure, but for the look at the caller's variables."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainmaster.launchers import Gang, Launcher, Member
from trainmaster.spec.private_files import require_private

# Settings of Trainmaster itself: a task that calls `trainmaster` means the same home.
_SETTINGS = frozenset(
    {
        "TRAINMASTER_HOME", "TRAINMASTER_CACHE", "TRAINMASTER_STORE", "TRAINMASTER_DATABASE",
        "TRAINMASTER_DATABASE_PATIENCE",
    }
)  # fmt: skip

#: Names those that a launcher has set: they are about this gang, and not for what a task runs in turn.
LAUNCHER_VARIABLES = "TRAINMASTER_LAUNCHER_VARIABLES"
#: Output goes through a pipe, where Python would hold it back for minutes.
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}


def base_environment(caller: Mapping[str, str], interpreter: str = sys.executable) -> dict[str, str]:
    """What `local` members inherit: the caller's variables, with the right Python first on PATH.

    An active VIRTUAL_ENV wins, else the ``bin`` of Trainmaster's own interpreter: ``python`` then
    starts that one, not a version manager's shim. Variables of a surrounding task are left out.

    Args:
        caller: environment of `run` or `resume`.
        interpreter: path of the Python that runs Trainmaster.

    >>> base_environment({"PATH": "/bin", "TRAINMASTER_TASK": "3"}, "/venv/bin/python")["PATH"]
    '/venv/bin:/bin'
    """
    env = {
        key: value for key, value in caller.items() if not key.startswith("TRAINMASTER_") or key in _SETTINGS
    }
    for name in caller.get(LAUNCHER_VARIABLES, "").split(","):  # who it is in the gang of that task
        env.pop(name, None)
    active = caller.get("VIRTUAL_ENV")
    first = Path(active) / "bin" if active else Path(interpreter).parent
    env["PATH"] = _prepend(str(first), env.get("PATH", os.defpath))
    return {**UNBUFFERED, **env}


def member_environment(
    *,
    gang: Gang,
    member: Member,
    launcher: Launcher,
    base: Mapping[str, str],
    identity: Mapping[str, str],
    places: Mapping[str, str],
    recipe_env: Mapping[str, str],
    values: Mapping[str, str],
    venv: Path | None,
) -> dict[str, str]:
    """The variables of one member that are added to the inherited ones.

    Args:
        gang: the whole gang, in rank order.
        member: the one that is meant.
        launcher: of the experiment.
        base: what it inherits, only to see what is set already.
        identity: ``TRAINMASTER_RUN``, ``_EXPERIMENT``, ``_TASK``, ``_ATTEMPT``.
        places: data, checkpoint, output and metrics paths.
        recipe_env: the recipe's ``env`` and secrets.
        values: parameters and lengths.
        venv: the experiment's cached virtual environment, first on PATH.
    """
    env = dict(identity)
    env["TRAINMASTER_ROLE"] = member.role
    env["TRAINMASTER_INDEX"] = str(member.index)
    env["TRAINMASTER_WORLD_SIZE"] = str(gang.world_size)
    env.update(values)
    env.update(recipe_env)
    env.update(places)
    defaults = launcher.defaults(gang, member)
    added = {key: value for key, value in defaults.items() if key not in env and key not in base}
    added |= launcher.environment(gang, member)
    env |= added
    env[LAUNCHER_VARIABLES] = ",".join(sorted(added))
    if venv is not None:
        env["PATH"] = _prepend(str(venv / "bin"), env.get("PATH") or base.get("PATH", os.defpath))
        env["VIRTUAL_ENV"] = str(venv)
    return env


def with_library(variables: Mapping[str, str], library: str, inherited: str | None = None) -> dict[str, str]:
    """The recipe's ``env`` and secrets where scripts can ``import trainmaster`` whatever their Python has.

    Args:
        variables: of the recipe.
        library: the directory that it is imported from.
        inherited: PYTHONPATH as the image or the caller sets it, if the recipe does not.

    >>> with_library({"PYTHONPATH": "lib"}, "/ours/lib")
    {'PYTHONPATH': 'lib:/ours/lib'}
    """
    own = variables.get("PYTHONPATH", inherited)
    return {**variables, "PYTHONPATH": f"{own}:{library}" if own else library}


def read_secrets(
    names: Sequence[str], caller: Mapping[str, str], file: Path
) -> tuple[dict[str, str], list[str]]:
    """Values of secrets, from the caller's environment or the home's secret file.

    Returns:
        The values found, and the names that are nowhere.

    Raises:
        UsageError: others can read the file.
    """
    found = {name: caller[name] for name in names if name in caller}
    missing = [name for name in names if name not in found]
    if missing and file.is_file():
        require_private(file)
        for line in file.read_text(encoding="utf-8").splitlines():
            name, separator, value = line.partition("=")
            if separator and name.strip() in missing:
                found[name.strip()] = value.strip()
        missing = [name for name in missing if name not in found]
    return found, missing


def _prepend(directory: str, path: str) -> str:
    rest = [part for part in path.split(os.pathsep) if part != directory]
    return os.pathsep.join([directory, *rest])
