"""``trainmaster df``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.opening import open_client
from trainmaster.cli.output import print_json, say, show, table
from trainmaster.spec.units import counted, format_bytes


def df(
    limit: Annotated[int, typer.Option(min=1, help="Runs that are shown, the largest first.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as one JSON object.")] = False,
) -> None:
    """Show what lies where and how much room it takes: runs, checkpoints, models, code, caches, volumes."""
    found = open_client().storage.usage(None if as_json else limit)
    if as_json:
        print_json(found)
        return
    places = found.get("places", {})
    rows = [[each["kind"], format_bytes(each["bytes"]), each["where"]] for each in found["kinds"]]
    show(table(["what", "room", "where"], [*rows, ["together", format_bytes(found["bytes"]), ""]]))
    for where, place in places.items():
        show(f"{where}: {place}")
    if found["runs"]:
        show("")
        shown = [
            [
                each["run"],
                format_bytes(each["bytes"]),
                ", ".join(f"{k} {format_bytes(n)}" for k, n in each["parts"].items() if n),
            ]
            for each in found["runs"]
        ]
        show(table(["run", "room", ""], shown))
    if found["more_runs"]:
        say(f"{counted(found['more_runs'], 'more run')}; `--limit` shows more")
    if "trouble" in found:
        say(f"warning: {found['trouble']}")
    say("`trainmaster rm RUN` removes a run, `trainmaster prune` what nothing needs")
