"""`gang_environments`: what the members of an attempt find in their environments, wherever they run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster import library
from trainmaster.control.environment import member_environment, with_library
from trainmaster.control.job_context import TaskContext
from trainmaster.launchers import Gang

if TYPE_CHECKING:
    from trainmaster.control.job_context import ImageSource


def gang_environments(
    context: TaskContext, gang: Gang, base: Mapping[str, str], images: ImageSource | None
) -> dict[str, dict[str, str]]:
    """The variables of each member, by its name.

    Args:
        context: the attempt.
        gang: its members, with addresses and ports as far as they are known.
        base: what members inherit on this machine; on nodes and in containers there is something else.
        images: where the image comes from that the experiment names as ``container``.
    """
    experiment, place, site = context.experiment, context.place, context.site

    def path(here: Path) -> str:
        return str(here) if site is None else site.path(here)

    identity = {
        "TRAINMASTER_RUN": context.run,
        "TRAINMASTER_EXPERIMENT": experiment.name,
        "TRAINMASTER_TASK": str(context.task),
        "TRAINMASTER_ATTEMPT": str(context.attempt),
    }
    data = {f"TRAINMASTER_DATA_{name.upper()}": path(at) for name, at in context.data_places.items()}
    values, venv = experiment.environment(context.parameters), context.venv
    added: dict[str, str] = {}
    variables = context.variables
    if images is not None and experiment.container is not None:
        base = images.environment(experiment.container)
        added = images.additions(experiment.container)
    elif site is not None:
        base = added = dict(site.environment(experiment.name))
    if site is not None:
        variables = with_library(variables, site.library, base.get("PYTHONPATH"))
        venv = Path(path(venv)) if venv is not None else None
    elif experiment.container is None and (
        venv is not None or base.get("VIRTUAL_ENV", sys.prefix) != sys.prefix
    ):
        # ``python`` is not the one that runs Trainmaster.
        variables = with_library(variables, library.DIRECTORY, base.get("PYTHONPATH"))
    return {
        member.name: added
        | member_environment(
            gang=gang,
            member=member,
            launcher=context.launcher,
            base=base,
            identity=identity,
            places={
                **data,
                "TRAINMASTER_CHECKPOINT_DIR": path(place.checkpoint),
                "TRAINMASTER_OUTPUT_DIR": path(place.output(member.name, first=rank == 0)),
                "TRAINMASTER_METRICS": path(place.metrics(member.name)),
            },
            recipe_env=variables,
            values=values,
            venv=venv,
        )
        for rank, member in enumerate(gang.members)
    }
