"""``trainmaster ssh``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trainmaster.cli.opening import open_client
from trainmaster.cli.options import RunId
from trainmaster.cli.output import say


def ssh(
    run: RunId,
    member: Annotated[
        str | None,
        typer.Argument(help="A member such as worker-1, or a machine such as node-1; else the first member."),
    ] = None,
    command: Annotated[
        list[str] | None, typer.Argument(help="A command to run there instead of a shell, after `--`.")
    ] = None,
) -> None:
    """Open a shell where a run's member works, in the run's working directory."""
    given = [word for word in (member, *(command or ())) if word is not None]
    if "--" in sys.argv:  # what stands behind it is the command, also where no member is named
        given_after = len(sys.argv) - sys.argv.index("--") - 1
        split = len(given) - given_after
        member, command = (given[0] if split else None), given[split:]
    client = open_client()
    is_terminal = not command and sys.stdin.isatty() and sys.stdout.isatty()
    raise typer.Exit(
        client.execute(client.resolve(run), member, command or (), is_terminal=is_terminal, tell=say)
    )
