"""``trainmaster logs``."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from trainmaster.cli.completing import run_ids


def logs(
    run: Annotated[str, typer.Argument(autocompletion=run_ids, help="Id of the run, or `latest`.")],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the run has ended.")] = False,
    experiment: Annotated[str | None, typer.Option(help="Only this experiment.")] = None,
    task: Annotated[int | None, typer.Option(help="Only this task.")] = None,
    member: Annotated[str | None, typer.Option(help="Only this member, such as worker-0.")] = None,
    tail: Annotated[int | None, typer.Option(min=0, help="Only the last N lines of each member.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Only what was written since so long ago, such as 5m.")
    ] = None,
    grep: Annotated[str | None, typer.Option(help="Only lines with this regular expression.")] = None,
) -> None:
    """Print what the tasks wrote: every member and attempt, as it was written."""
    from trainmaster.api import LogQuery
    from trainmaster.cli.opening import open_client

    client = open_client()
    pieces = client.logs(client.resolve(run), LogQuery(follow, experiment, task, member, tail, grep, since))
    try:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
    except BrokenPipeError:  # `trainmaster logs RUN | head`: what is left is for nobody
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
