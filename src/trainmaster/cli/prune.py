"""``trainmaster prune``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.opening import open_client
from trainmaster.cli.output import parsed, print_json, say, show, table
from trainmaster.cli.removing import agree_to_remove
from trainmaster.spec.units import format_bytes, parse_duration


def prune(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KIND]...", help="Such as checkpoints or environments; all by default."),
    ] = None,
    unused: Annotated[
        str, typer.Option(metavar="TIME", help="Caches that were not used for so long.")
    ] = "1d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before it goes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what went as JSON.")] = False,
) -> None:
    """Remove what nothing needs any more: code, environments, checkpoints beyond those kept, caches."""
    client, unused_s = open_client(goes_on=False), parsed("--unused", parse_duration, unused)
    found = client.storage.prune(kinds or (), unused_s=unused_s, dry_run=True)
    count = sum(each["count"] for each in found["kinds"].values())
    if not (dry_run and as_json):
        rows = [
            [kind, str(each["count"]), format_bytes(each["bytes"]), each.get("trouble", "")]
            for kind, each in found["kinds"].items()
            if each["count"] or "trouble" in each
        ]
        if rows:
            (say if as_json else show)(table(["kind", "how many", "goes", ""], rows))
        for stays in (each for kind in found["kinds"].values() for each in kind.get("stays", ())):
            (say if as_json else show)(f"stays: {stays}")
    if not dry_run:
        if count:
            agree_to_remove(f"{count} of these, {format_bytes(found['bytes'])}", yes=yes)
        # Without any, too: what was marked by a command that was killed goes on.
        found = client.storage.prune(kinds or (), unused_s=unused_s)
    if as_json:
        print_json(found)
    elif not count:
        say("nothing is left that nothing needs; `trainmaster rm --older-than 30d` removes old runs")
    elif not dry_run:
        say(f"removed: {format_bytes(found['bytes'])}")
