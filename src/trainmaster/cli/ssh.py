"""``trainmaster ssh``."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from trainmaster.cli.completing import run_ids


def ssh(
    run: Annotated[str, typer.Argument(autocompletion=run_ids, help="Id of the run, or `latest`.")],
    member: Annotated[
        Optional[str],  # noqa: UP045 - typer reads the annotation
        typer.Argument(help="A member such as worker-1, or a machine such as node-1; else the first member."),
    ] = None,
    command: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(help="A command to run there instead of a shell, after `--`."),
    ] = None,
) -> None:
    """Open a shell on the machine of a run's member, in the run's working directory."""
    import os
    import sys

    from trainmaster.cli.output import say
    from trainmaster.service import Service
    from trainmaster.service.shells import shell_command

    given = [word for word in (member, *(command or ())) if word is not None]
    if "--" in sys.argv:  # what stands behind it is the command, also where no member is named
        given_after = len(sys.argv) - sys.argv.index("--") - 1
        split = len(given) - given_after
        member, command = (given[0] if split else None), given[split:]
    service = Service.from_environment()
    words, place, environment = shell_command(
        service, service.resolve(run), member, command or (), os.environ, say
    )
    service.close()
    os.chdir(place)
    os.execvpe(words[0], words, environment)  # noqa: S606 - that is what was asked for
