"""``trainmaster clusters``."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import typer

from trainmaster.cli._groups import DefaultGroup

app = typer.Typer(
    cls=DefaultGroup, help="List what is rented now, or end what no run uses.", invoke_without_command=True
)

_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("list", hidden=True)
def list_clusters(as_json: _Json = False) -> None:
    """List clusters that have machines: those of runs, and those that are kept warm."""
    from trainmaster.cli.output import print_json, say, show
    from trainmaster.service import Service

    found = Service.from_environment().clusters()
    if as_json:
        print_json({"clusters": found})
    elif found:
        show(_table(found))
    else:
        say("nothing is rented: `run --keep 30m` would keep machines warm")


@app.command()
def end(
    clusters: Annotated[Optional[list[str]], typer.Argument(metavar="ID...", help="As listed.")] = None,  # noqa: UP045
    everything: Annotated[bool, typer.Option("--all", help="All that no run uses.")] = False,
    as_json: _Json = False,
) -> None:
    """Give back machines that are kept warm, or that a run has left."""
    import os

    from trainmaster.cli.output import print_json, say
    from trainmaster.service import Service
    from trainmaster.spec.errors import UsageError

    if bool(clusters) == everything:
        raise UsageError("which clusters?", "Name them, or write `--all`; `trainmaster clusters` lists them.")
    wanted = None if everything else clusters
    ended = Service.from_environment().end_clusters(wanted, os.environ, say)
    if as_json:
        print_json({"ended": ended})
    elif not ended and everything:
        say("no machines are rented that no run uses")


def _table(found: list[dict[str, Any]]) -> str:
    import time

    from trainmaster.cli.output import bill, duration, table

    def row(one: dict[str, Any]) -> list[str]:
        if "problem" in one:
            return [one["id"], one["provider"], "unknown", "unknown", one["problem"]]
        kinds: dict[str, int] = {}
        for machine in one["machines"]:
            kind = machine["type"] + " (spot)" * machine["spot"]
            kinds[kind] = kinds.get(kind, 0) + 1
        since = f"{bill(one['idle_usd'])} since then"
        how = {
            "used": f"used by {one['run']}",
            "left": f"left by {one['run']}, which is over, {since}",
        }.get(one["state"])
        if how is None:
            left = duration(max(one["kept_until"] - time.time(), 0.0))
            how = f"kept warm for {left} more by {one['run']}, which is over, {since}"
        machines = ", ".join(f"{count} x {kind}" for kind, count in kinds.items()) or "none yet"
        return [one["id"], one["provider"], machines, f"${one['usd_per_hour']:.4g}", how]

    return table(["cluster", "provider", "machines", "per hour", ""], [row(one) for one in found])
