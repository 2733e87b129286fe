"""``trainmaster clusters``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from trainmaster.cli._groups import DefaultGroup
from trainmaster.cli.opening import open_client
from trainmaster.cli.options import AsJson
from trainmaster.cli.output import bill, duration, print_json, say, show_list, table
from trainmaster.spec.errors import UsageError

app = typer.Typer(
    cls=DefaultGroup, help="List what is rented now, or end what no run uses.", invoke_without_command=True
)


@app.command("list", hidden=True)
def list_clusters(as_json: AsJson = False) -> None:
    """List clusters that have machines: those of runs, and those that are kept warm."""
    found = open_client().clusters()
    none = "nothing is rented: `run --keep 30m` would keep machines warm"
    show_list("clusters", found, _table, none, as_json=as_json)


@app.command()
def end(
    clusters: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="As listed.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that no run uses.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give back machines that are kept warm, or that a run has left."""
    if bool(clusters) == everything:
        raise UsageError("which clusters?", "Name them, or write `--all`; `trainmaster clusters` lists them.")
    wanted = None if everything else clusters
    ended: list[dict[str, Any]] = []
    for told in open_client().end_clusters(wanted):
        if isinstance(told, str):
            say(told)
        else:
            ended = told
    if as_json:
        print_json({"ended": ended})
    elif not ended and everything:
        say("no machines are rented that no run uses")


def _table(found: Sequence[dict[str, Any]]) -> str:
    def row(one: dict[str, Any]) -> list[str]:
        if "problem" in one:
            return [one["id"], one["provider"], "unknown", "unknown", one["problem"]]
        kinds: dict[str, int] = {}
        for machine in one["machines"]:
            kind = machine["type"] + " (spot)" * machine["spot"]
            kinds[kind] = kinds.get(kind, 0) + 1
        since = f"{bill(one['idle_usd'])} since then"
        how = {"used": f"used by {one['run']}", "left": f"left by {one['run']}, which is over, {since}"}.get(
            one["state"]
        )
        if how is None:
            left = duration(max(one["kept_until"] - time.time(), 0.0))
            how = f"kept warm for {left} more by {one['run']}, which is over, {since}"
        machines = ", ".join(f"{count} x {kind}" for kind, count in kinds.items()) or "none now"
        return [one["id"], one["provider"], machines, f"${one['usd_per_hour']:.4g}", how]

    return table(["cluster", "provider", "machines", "per hour", ""], [row(one) for one in found])
