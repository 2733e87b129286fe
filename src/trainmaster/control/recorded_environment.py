"""With which Python and packages the members of a run on this machine work, written down by experiment."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trainmaster.control.job_context import TaskContext
    from trainmaster.control.layout import Home

_SITES: Final = ("site-packages", "dist-packages")


def note_environment(context: TaskContext) -> None:
    """Write down what members find, unless that was done; containers and nodes have their own."""
    if context.site is not None or context.images is not None:
        return
    file = _file(context.home, context.run, context.experiment.name)
    if file.exists() or not file.parent.is_dir():
        return
    found = environment_at(context.venv)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    with suppress(OSError):  # nothing is trained less for it
        draft.write_text(json.dumps(found))
        draft.replace(file)


def environment_at(venv: Path | None = None) -> dict[str, Any]:
    """``python``, ``platform`` and ``packages`` (versions by name) of a virtual environment, or our own."""
    sites = [Path(place) for place in sys.path if place.endswith(_SITES)]
    if venv is not None:
        sites = list(venv.glob("lib/python3*/site-packages"))
    names = [path.name for site in sites if site.is_dir() for path in site.glob("*.dist-info")]
    pairs = (name.removesuffix(".dist-info").partition("-") for name in names)
    system = os.uname()
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "platform": f"{system.sysname} {system.machine}",
        "packages": dict(sorted((name.lower(), version) for name, _, version in pairs)),
    }


def noted_environment(home: Home, run: str, experiment: str) -> dict[str, Any] | None:
    """What was written down; None if that was nothing, or is not here."""
    try:
        found: dict[str, Any] = json.loads(_file(home, run, experiment).read_text())
    except (OSError, ValueError):
        return None
    return found


def _file(home: Home, run: str, experiment: str) -> Path:
    return home.run_directory(run) / f"environment-{experiment}.json"
