"""``trainmaster approve``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.opening import open_client
from trainmaster.cli.options import RunId
from trainmaster.cli.output import driver_line, print_json, say


def approve(
    run: RunId,
    experiment: Annotated[
        str | None, typer.Argument(help="Its name; without, the only one that waits.")
    ] = None,
    deny: Annotated[bool, typer.Option("--deny", help="It does not begin, and ends as DENIED.")] = False,
    why: Annotated[str, typer.Option("--why", help="Kept with the answer.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the run as JSON.")] = False,
) -> None:
    """Say yes to an experiment with `approval: required`, or no: it waits for that."""
    from trainmaster.spec.errors import UsageError

    client = open_client()
    run = client.resolve(run)
    if experiment is None:
        found = client.status(run).json["experiments"]
        waiting = [name for name, each in found.items() if each.get("approval") == {"state": "awaited"}]
        if len(waiting) != 1:
            what = f"{', '.join(waiting) or 'nothing'} waits for approval"
            raise UsageError(f"{run}: {what}", f"Write `trainmaster approve {run} EXPERIMENT`.")
        experiment = waiting[0]
    client.answer(run, experiment, is_given=not deny, why=why)
    say(f"{run}: {experiment} is {'denied' if deny else 'approved'}")
    summary = client.status(run).json
    if trouble := driver_line(summary):
        say(f"{run}: {trouble}")
    if as_json:
        print_json(summary)
