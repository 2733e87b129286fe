"""``trainmaster cancel``."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from trainmaster.cli.completing import run_ids
from trainmaster.cli.output import driver_line, print_json, say


def cancel(
    run: Annotated[str, typer.Argument(autocompletion=run_ids, help="Id of the run, or `latest`.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the run as JSON.")] = False,
) -> None:
    """End a run: its members get SIGTERM, time to save, then SIGKILL. It can be resumed."""
    from trainmaster.cli.opening import open_client

    client = open_client(goes_on=False)
    run = client.resolve(run)
    ended_before = client.status(run).json["state"] == "DONE"
    client.cancel(run)
    told = False
    while (summary := client.status(run).json)["state"] != "DONE":
        client.cancel(run)  # again: its driver may have died, and a `resume` just now takes the wish back
        if not told and summary["driver"] is not None and (trouble := driver_line(summary)):
            told = True
            say(f"{run}: {trouble}")
        time.sleep(0.1)
    say(f"{run} had ended already: {summary['reason']}" if ended_before else f"{run}: {summary['reason']}")
    if as_json:
        for _ in client.watch_run(run):  # until its driver has let go of it, its time grows
            pass
        print_json(client.status(run).json)
