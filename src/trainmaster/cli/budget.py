"""``trainmaster budget`` and ``trainmaster queue``: what may be spent, and what waits for that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.output import place_text, print_json, say, table
from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from trainmaster.service.teams.team_budget import TeamBudget

AsJson = Annotated[bool, typer.Option("--json", help="For machines.")]


def budget(
    monthly: Annotated[
        str | None, typer.Option(metavar="USD", help="What may be spent in a month, such as $200; or none.")
    ] = None,
    team: Annotated[str | None, typer.Option(help="Of a team; * for all together.")] = None,
    as_json: AsJson = False,
) -> None:
    """What was spent this month, is reserved and left; or set how much that may be."""
    import math
    import time

    from trainmaster.service import Service
    from trainmaster.service.teams.team_budget import OWNER, Budgets, set_budget
    from trainmaster.spec.units import parse_money

    database, now = Service.from_environment().database, time.time()
    if monthly is not None:
        try:
            limits = {"monthly_usd": math.inf if monthly == "none" else parse_money(monthly)}
        except ValueError as error:
            raise UsageError(f"--monthly: {error}", "Write an amount such as $200, or none.") from None
        found = set_budget(database, team, limits, now)
    else:
        found = Budgets(database.read, now)[team or OWNER]
    if as_json:
        print_json(found.as_dict())
    else:
        say(_words(found))


def queue(as_json: AsJson = False) -> None:
    """Runs that were sent to the server of this home and wait for their turn."""
    import time

    from trainmaster.service import Service
    from trainmaster.service.teams.admission import queue_of
    from trainmaster.spec.units import format_duration

    found = queue_of(Service.from_environment().database, None)
    if as_json:
        print_json({"queue": found})
        return
    if not found:
        say("no run waits for its turn")
        return
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


def _words(found: TeamBudget) -> str:
    spent = f"${found.spent_usd:.2f} spent this month, ${found.reserved_usd:.2f} reserved for runs that go on"
    if found.monthly_usd is None or found.left_usd is None:
        return f"{spent}; no limit: `trainmaster budget --monthly '$200'` sets one"
    return f"{spent}, ${max(0.0, found.left_usd):.2f} left of ${found.monthly_usd:.2f}"
