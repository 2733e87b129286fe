"""``trainmaster logs``."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from trainmaster.cli.completing import run_ids


def logs(
    run: Annotated[str, typer.Argument(autocompletion=run_ids, help="Id of the run, or `latest`.")],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the run has ended.")] = False,
    experiment: Annotated[Optional[str], typer.Option(help="Only this experiment.")] = None,  # noqa: UP045
    task: Annotated[Optional[int], typer.Option(help="Only this task.")] = None,  # noqa: UP045
    member: Annotated[Optional[str], typer.Option(help="Only this member, such as worker-0.")] = None,  # noqa: UP045
    tail: Annotated[Optional[int], typer.Option(min=0, help="Only the last N lines of each member.")] = None,  # noqa: UP045
    since: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Only what was written since so long ago, such as 5m."),
    ] = None,
    grep: Annotated[Optional[str], typer.Option(help="Only lines with this regular expression.")] = None,  # noqa: UP045
) -> None:
    """Print what the tasks wrote: every member and attempt, as it was written."""
    import gc
    import os
    import sys

    from trainmaster.cli.opening import open_client

    client = open_client()
    pieces = client.logs(
        client.resolve(run),
        follow=follow,
        experiment=experiment,
        task=task,
        member=member,
        tail=tail,
        grep=grep,
        since=since,
    )
    gc.enable()  # `main` turned it off for quick verbs; -f may take days
    try:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
    except BrokenPipeError:  # `trainmaster logs RUN | head`: what is left is for nobody
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
