"""`furnish`: what a notebook of a run has: its code to change, data, models, checkpoints, Python."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.db import queries
from trainmaster.spec.errors import TrainmasterError

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.control.task.job_context import TaskContext
    from trainmaster.service.service import Service

#: So much of models and checkpoints is brought to one notebook; what is larger is named.
MOST_BYTES: Final = 2 << 30
#: Of a run with more tasks, the first ones.
_MOST_TASKS: Final = 100


@dataclass
class Furnished:
    """What a notebook finds.

    Attributes:
        pythons: of environments that a ``setup`` has made here, by experiment.
        variables: what the recipe sets, and where data lie, as tasks find them; no secrets.
        notes: what is where, and what is not, a line each.
    """

    pythons: dict[str, Path] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def furnish(service: Service, run: str, directory: Path, *, most_bytes: int = MOST_BYTES) -> Furnished:
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

    row, found = service.database.run_row(run), Furnished()
    # Of one that is elsewhere, models and checkpoints are on its store, and no data are here.
    home = service.home_if_here(run) or service.own_home_for(row)
    recipe = service.replicas.recipe(row)
    materialise(service.replicas.code(row), directory / "code")
    found.notes.append("`code/`: a copy of the run's code. Change it as you like: the run keeps its own.")
    actions = AttemptActions(
        home=home, run=run, recipe=recipe, secrets={},
        find_models=lambda *_: [], slots=1, owner=owner_of(row, home),
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


def _link_data(context: TaskContext, directory: Path, found: Furnished) -> None:
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
    context: TaskContext, task: RowMapping, directory: Path, left_bytes: int, found: Furnished
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
