"""``trainmaster budget`` and ``trainmaster queue``: what may be spent, and what waits for that."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from trainmaster.cli.opening import open_administration
from trainmaster.cli.options import AsJson
from trainmaster.cli.output import print_json, say, table, tell
from trainmaster.spec.errors import fails_as
from trainmaster.spec.units import dollars, format_duration, left_text, next_month, parse_money


def budget(
    monthly: Annotated[
        str | None, typer.Option(metavar="USD", help="What may be spent in a month, such as $200; or none.")
    ] = None,
    team: Annotated[str | None, typer.Option(help="Of a team; * for all together.")] = None,
    as_json: AsJson = False,
) -> None:
    """What was spent this month, is reserved and left; or set how much that may be."""
    import math

    if monthly is not None:
        with fails_as("--monthly", "Write an amount such as $200, or none.", on=ValueError):
            limits = {"monthly_usd": math.inf if monthly == "none" else parse_money(monthly)}
        found = open_administration().set_budget(team, limits)
    else:
        found = open_administration().budget(team)
    tell(found, _words(found), as_json=as_json)


def queue(as_json: AsJson = False) -> None:
    """Runs that were sent to the server in use, or of this home, and wait for their turn."""
    import time

    found = open_administration().queue()
    if as_json:
        print_json({"queue": found})
        return
    if not found:
        say("no run waits for its turn")
        return
    from trainmaster.service import place_text

    rows = [
        [
            each["run"],
            each["team"] or "",
            each["priority"],
            format_duration(time.time() - each["since"]),
            f"{each['waits_for']}; {place_text(each['place'])}",
        ]
        for each in found
    ]
    typer.echo(table(["run", "team", "priority", "waited", "waits for"], rows))


def _words(found: dict[str, Any]) -> str:
    spent = (
        f"{dollars(found['spent_usd'])} spent this month, "
        f"{dollars(found['reserved_usd'])} reserved for runs that go on"
    )
    if found["monthly_usd"] is None:
        return f"{spent}; no limit: `trainmaster budget --monthly '$200'` sets one"
    left = left_text(found["left_usd"], found["monthly_usd"])
    return f"{spent}, {left} until {next_month(time.time())} (UTC)"
