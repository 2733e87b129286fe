"""``trainmaster exec``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trainmaster.cli.opening import open_client
from trainmaster.cli.options import RunId
from trainmaster.cli.output import say
from trainmaster.spec.errors import UsageError


def execute(
    run: RunId,
    command: Annotated[
        list[str], typer.Argument(metavar="[MEMBER] -- COMMAND", help="What to run, after `--`.")
    ],
) -> None:
    """Run a command where a member works: its input, output, errors and exit code are this one's."""
    behind = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    before = command[: len(command) - len(behind)]
    if not behind or len(before) > 1:
        raise UsageError("exec needs a command", "Write `trainmaster exec RUN [MEMBER] -- COMMAND`.")
    client = open_client()
    member = before[0] if before else None
    raise typer.Exit(client.execute(client.resolve(run), member, behind, tell=say))
