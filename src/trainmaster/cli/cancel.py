"""``trainmaster cancel``."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from trainmaster.api import ClientProtocol
from trainmaster.cli.labels import selected
from trainmaster.cli.opening import open_client
from trainmaster.cli.options import Labels, RunOrNone, WhereText
from trainmaster.cli.output import driver_line, print_json, say


def cancel(
    run: RunOrNone = None,
    label: Labels = None,
    where: WhereText = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the run as JSON, of several a line each.")
    ] = False,
) -> None:
    """End a run: its members get SIGTERM, time to save, then SIGKILL. It can be resumed."""
    client = open_client(goes_on=False)
    found = selected(client, run, label, where)
    for each in found if len(found) > 1 else ():  # all begin to end before one is waited for
        client.cancel(each)
    for each in found:
        _end(client, each, was_asked=len(found) > 1)
        if as_json:
            for _ in client.watch_run(each):  # until its driver has let go of it, its time grows
                pass
            print_json(client.status(each).json)


def _end(client: ClientProtocol, run: str, *, was_asked: bool) -> None:
    ended_before = not was_asked and client.status(run).json["state"] == "DONE"
    client.cancel(run)
    told = False
    while (summary := client.status(run).json)["state"] != "DONE":
        client.cancel(run)  # again: its driver may have died, and a `resume` just now takes the wish back
        if not told and summary["driver"] is not None and (trouble := driver_line(summary)):
            told = True
            say(f"{run}: {trouble}")
        time.sleep(0.1)
    say(f"{run} had ended already: {summary['reason']}" if ended_before else f"{run}: {summary['reason']}")
