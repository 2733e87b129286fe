"""``trainmaster cost``: what runs have cost."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trainmaster.cli.opening import open_client
from trainmaster.cli.options import AsJson, Labels, WhereText, condition
from trainmaster.cli.output import print_json, say, show, table
from trainmaster.spec.errors import UsageError


def cost(
    by: Annotated[
        str, typer.Option(metavar="GROUP", help="month, provider, user, team, run or label:KEY.")
    ] = "month",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Spent within this time, such as 30d; since a day; or month.")
    ] = "",
    label: Labels = None,
    where: WhereText = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print it as CSV.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what runs have cost: by label, month, provider, user, team or run, beside their quotes."""
    if as_csv and as_json:
        raise UsageError("--csv and --json", "Leave out one of them.")
    found = open_client().cost(by, since, condition(label, where))
    if as_json:
        print_json(found)
    elif as_csv:
        from trainmaster.service.teams.spending import as_csv as written

        show(written(found).rstrip("\n"))
    elif found["rows"]:
        rows = [[each["key"] or "(none)", *_cells(each)] for each in found["rows"]]
        rows += [["all", *_cells(found["total"])]] if len(rows) > 1 else []
        quoted = "quoted p50 (p5 to p95)"
        show(table([by, "runs", "cost", "idle", "disks", quoted, "came to", "kept"], rows))
    else:
        say("no run fits" if label or where or since else "no runs yet: nothing was spent")


def _cells(row: dict[str, Any]) -> list[str]:
    from trainmaster.spec.units import dollars

    def usd(value: float | None) -> str:
        return "unknown" if value is None else dollars(value)

    spent, quoted = usd(row["usd"]), row["quoted"]
    if row["usd"] is not None and row["unknown_runs"]:
        spent += f" and unknown of {row['unknown_runs']}"
    cells = [str(row["runs"]), spent, usd(row["idle_usd"]), usd(row["storage_usd"])]
    if not quoted["runs"]:
        return [*cells, "-", "-", "-"]
    low, middle, high = (dollars(quoted[f"{name}_usd"]) for name in ("low", "middle", "high"))
    kept = f"{quoted['kept']} of {quoted['runs']}"
    return [*cells, f"{middle} ({low} to {high})", dollars(quoted["actual_usd"]), kept]
