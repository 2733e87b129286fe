"""`missing_scripts`: commands that start a Python file which is not in the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from trainmaster.spec import Experiment, Recipe

#: A file that Python is to run, after options without a value; no placeholder, variable, glob or quote.
_STARTS: Final = re.compile(
    r"(?:(?:exec|[A-Za-z_]\w*=[^\s$`]*)\s+)*python[\d.]*(?:\s+-[uBOIEsSbv]+)*\s+([\w./-]+\.py)(?=\s|$)"
)
#: What neither makes files nor goes elsewhere.
_HARMLESS: Final = re.compile(r"(?:set\s|export\s|[A-Za-z_]\w*=\S*$|echo\s[^>|]*$|:|#|true$)")
_ENDS: Final = re.compile(r"\n|;|&&")


def missing_scripts(recipe: Recipe) -> Iterator[tuple[str, str, bool]]:
    """Scripts that are not there: the experiment, the path, and whether nothing else could bring it.

    Only the first thing that a command does is judged: what comes later may find what was made before it.
    """
    code = recipe.directory / Path(recipe.code).expanduser()
    if not code.is_dir():  # what a wheel or a repository has is not known here
        return
    for name, experiment in recipe.experiments.items():
        script = _first_script(experiment.command)
        if script and not (code / script).exists() and not _leads_out(script):
            yield name, script, not _may_be_brought(experiment, script)


def _first_script(command: str) -> str:
    r"""The file that a command starts with.

    >>> _first_script("set -e; export A=1\npython -u train.py --lr {lr}"), _first_script("python -m train")
    ('train.py', '')
    >>> _first_script("cd src && python train.py"), _first_script("python {{script}}.py")
    ('', '')
    """
    for statement in map(str.strip, _ENDS.split(command.replace("\\\n", " "))):
        if statement and not _HARMLESS.match(statement):
            found = _STARTS.match(statement)
            return found[1] if found else ""
    return ""


def _leads_out(script: str) -> bool:
    """Whether it lies beside the code: an absolute path may be of an image, or of a node."""
    return script.startswith("/") or ".." in PurePosixPath(script).parts


def _may_be_brought(experiment: Experiment, script: str) -> bool:
    """Whether setup, roles, an image or data that lie in the code could have put it there."""
    is_placed = any(source.at is not None for source in experiment.data.values())
    brings = (experiment.setup, experiment.container, experiment.roles)
    return is_placed or "||" in experiment.command or any(each is not None for each in brings)
