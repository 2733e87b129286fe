"""``trainmaster export``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from trainmaster.cli.opening import open_client
from trainmaster.cli.options import RunId
from trainmaster.cli.output import say


def export(
    run: RunId,
    file: Annotated[Path, typer.Argument(help="The file to be made, such as digits.capsule.")],
) -> None:
    """Write a run into one file: code, recipe, data versions, environment, results. `run FILE` runs it."""
    from trainmaster.service.runs.capsule import needs_of

    client = open_client()
    run = client.resolve(run)
    client.export(run, file)
    again = f"`trainmaster run {shlex.quote(str(file))}` runs it again anywhere"
    say(f"{run} is in {file}, {file.stat().st_size:,} bytes; {again}")
    for need in needs_of(file):
        say(f"note: it needs there: {need}")
