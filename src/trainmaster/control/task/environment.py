"""What a member finds in its environment: pure, but for the look at the caller's variables."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from trainmaster.launchers import Gang, Launcher, Member
from trainmaster.spec.private_files import require_private

if TYPE_CHECKING:
    from trainmaster.control.task.job_context import TaskContext

# Settings of Trainmaster itself: a task that calls `trainmaster` means the same home.
_SETTINGS = frozenset(
    {
        "TRAINMASTER_HOME", "TRAINMASTER_CACHE", "TRAINMASTER_STORE", "TRAINMASTER_DATABASE",
        "TRAINMASTER_DATABASE_PATIENCE",
    }
)  # fmt: skip

#: Names those that a launcher has set: they are about this gang, and not for what a task runs in turn.
LAUNCHER_VARIABLES = "TRAINMASTER_LAUNCHER_VARIABLES"
#: Under this name replicas of a service find its model among their data.
SERVED_MODEL = "trainmaster_model"
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
    for name in caller.get(LAUNCHER_VARIABLES, "").split(","):  # which member of the gang of that task
        env.pop(name, None)
    active = caller.get("VIRTUAL_ENV")
    first = Path(active) / "bin" if active else Path(interpreter).parent
    env["PATH"] = _prepend(str(first), env.get("PATH", os.defpath))
    return {**UNBUFFERED, **env}


def gang_environments(context: TaskContext, gang: Gang) -> dict[str, dict[str, str]]:
    """The variables of each member, by its name.

    Args:
        context: the attempt.
        gang: its members, with addresses and ports as far as they are known.
    """
    experiment, place, site = context.experiment, context.place, context.site
    identity = {
        "TRAINMASTER_RUN": context.run,
        "TRAINMASTER_EXPERIMENT": experiment.name,
        "TRAINMASTER_TASK": str(context.task),
        "TRAINMASTER_ATTEMPT": str(context.attempt),
    }
    data = {f"TRAINMASTER_DATA_{name.upper()}": site.path(at) for name, at in context.data_places.items()}
    if context.staged:
        from trainmaster.control.attempt.staged_data import addresses

        data |= addresses(context)
    base, added = site.environment(experiment), site.additions(experiment)
    venv = Path(site.path(context.venv)) if context.venv is not None else None
    variables = context.variables
    if library := site.library(context):
        variables = with_library(variables, library, base.get("PYTHONPATH"))
    if SERVED_MODEL in experiment.data:
        data["TRAINMASTER_MODEL_DIR"] = data.pop(f"TRAINMASTER_DATA_{SERVED_MODEL.upper()}")
    if experiment.silence_s is not None:
        identity["PYTHONFAULTHANDLER"] = "1"  # see `Executor.stop`
    variables = {**identity, **experiment.environment(context.parameters), **variables, **data}
    return {
        member.name: {
            **added,
            **member_environment(
                gang,
                member,
                context.launcher,
                base,
                {
                    **variables,
                    "TRAINMASTER_CHECKPOINT_DIR": site.path(place.checkpoint),
                    "TRAINMASTER_OUTPUT_DIR": site.path(place.output(member.name, first=rank == 0)),
                    "TRAINMASTER_METRICS": site.path(place.metrics(member.name)),
                    **_port_of(context, member),
                },
                venv,
                _aliases_of(context, gang, member),
            ),
        }
        for rank, member in enumerate(gang.members)
    }


def _aliases_of(context: TaskContext, gang: Gang, member: Member) -> dict[str, str]:
    """What other tools call what it is told, where the experiment asks for that."""
    experiment = context.experiment
    if not experiment.aliases:
        return {}
    from trainmaster.control.task.gangs import slots_per_machine, workers_per_node
    from trainmaster.launchers.aliases import AliasFacts, alias_variables

    facts = AliasFacts(
        context.run,
        experiment.name,
        context.task,
        context.attempt,
        workers_per_node(experiment),
        slots_per_machine(experiment),
        experiment.environment(context.parameters).get("TRAINMASTER_PARAM_SLURM_ARRAY_TASK_ID", ""),
        len(experiment.tasks(context.recipe.seed)),
        context.site.path(context.home.code_directory(context.run)),
    )
    return alias_variables(experiment.aliases, gang, member, facts)


def _port_of(context: TaskContext, member: Member) -> dict[str, str]:
    """Where a replica has to listen: the last port that is held for it."""
    serve = context.experiment.serve
    if serve is None or not (serve.port or member.ports):
        return {}
    return {"TRAINMASTER_PORT": str(serve.port or member.ports[-1])}


def member_environment(
    gang: Gang,
    member: Member,
    launcher: Launcher,
    base: Mapping[str, str],
    variables: Mapping[str, str],
    venv: Path | None,
    aliases: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """The variables of one member that are added to the inherited ones.

    Args:
        gang: the whole gang, in rank order.
        member: the one that is meant.
        launcher: of the experiment.
        base: what it inherits, only to see what is set already.
        variables: which member it is, parameters and lengths, the recipe's ``env`` and secrets, places.
        venv: the experiment's cached virtual environment, first on PATH.
        aliases: variables of other tools; the recipe's own win.
    """
    env = {
        **aliases,
        "TRAINMASTER_ROLE": member.role,
        "TRAINMASTER_INDEX": str(member.index),
        "TRAINMASTER_WORLD_SIZE": str(gang.world_size),
        **variables,
    }
    defaults = launcher.defaults(gang, member)
    added = {key: value for key, value in defaults.items() if key not in env and key not in base}
    added |= launcher.environment(gang, member)
    env |= added
    env[LAUNCHER_VARIABLES] = ",".join(sorted(added.keys() | aliases.keys()))
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
    names: Sequence[str], caller: Mapping[str, str], file: Path, env_files: Sequence[str] = ()
) -> tuple[dict[str, str], list[str]]:
    """Values of secrets, from the caller's environment, the home's secret file or a recipe's ``env_file``.

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
    for env_file in map(Path, env_files) if missing else ():
        from trainmaster.spec.including import dotenv

        if env_file.is_file():
            lines = dict(dotenv(env_file.read_text(encoding="utf-8-sig")))
            found |= {name: lines[name][1] for name in missing if name in lines}
            missing = [name for name in missing if name not in found]
    return found, missing


def _prepend(directory: str, path: str) -> str:
    rest = [part for part in path.split(os.pathsep) if part != directory]
    return os.pathsep.join([directory, *rest])
