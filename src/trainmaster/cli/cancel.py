"""``trainmaster cancel``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.completing import run_ids


def cancel(
    run: Annotated[str, typer.Argument(autocompletion=run_ids, help="Id of the run, or `latest`.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the run as JSON.")] = False,
) -> None:
    """End a run: its members get SIGTERM, time to save, then SIGKILL. It can be resumed."""
    import os
    import time

    from trainmaster.cli.output import driver_line, print_json, say
    from trainmaster.service import Service

    service = Service.from_environment()
    run = service.resolve(run)
    ended_before = service.status(run)["state"] == "DONE"
    if not service.cancel(run):
        service.finish_cancelled(run, os.environ)
    told = False
    while (summary := service.status(run))["state"] != "DONE":
        service.cancel(run)  # again: a `resume` at the same moment takes the wish back
        if not service.is_driven(run):  # its driver died just now
            service.finish_cancelled(run, os.environ)
        elif not told and (trouble := driver_line(summary)):
            told = True
            say(f"{run}: {trouble}")
        time.sleep(0.1)
    say(f"{run} had ended already: {summary['reason']}" if ended_before else f"{run}: {summary['reason']}")
    if as_json:
        print_json(summary)
