"""With which Python and packages the members of a run work, written down by experiment."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.facts import Fact

if TYPE_CHECKING:
    from trainmaster.control.task.job_context import TaskContext

_SITES: Final = ("site-packages", "dist-packages")
#: For the Python of a machine that has none of ours; 3.6 will do.
PROGRAM: Final = """
import glob, json, os, sys
sites = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
files = [f for p in sites for f in glob.glob(glob.escape(p) + "/*.dist-info")]
names = [os.path.basename(f)[:-10].partition("-") for f in files]
system = os.uname()
print(json.dumps({"python": "%d.%d.%d" % sys.version_info[:3], "platform": system[0] + " " + system[4],
                  "packages": dict(sorted((n.lower(), v) for n, _, v in names))}))
"""


def note_found(context: TaskContext, find: Callable[[], dict[str, Any]]) -> None:
    """Write down the environment of an experiment, unless that was done.

    Args:
        context: of an attempt at one of its tasks.
        find: asked for it; what it has no answer for is left out.
    """
    with suppress(OSError, ValueError, TrainmasterError):  # nothing is trained less for it
        context.facts.settled(Fact.ENVIRONMENT, context.experiment.name, lambda: json.dumps(find()))


def environment_in(image: str, identity: str) -> dict[str, Any]:
    """``image`` and ``digest`` of a container; the rest is what the image has."""
    return {"python": "", "platform": "", "packages": {}, "image": image, "digest": identity}


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
