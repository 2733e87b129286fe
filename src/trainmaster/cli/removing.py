"""``trainmaster rm``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from trainmaster.cli.opening import open_client
from trainmaster.cli.options import Labels, WhereText, condition, run_ids
from trainmaster.cli.output import need_yes, parsed, print_json, say, show, table
from trainmaster.spec.errors import UsageError
from trainmaster.spec.units import counted, format_bytes, parse_duration

_WORDS = {"REMOVED": "", "TRIMMED": "its record stays", "KEPT": "stays"}


def rm(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN...", autocompletion=run_ids, help="Ids, or `latest`."),
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="TIME", help="Instead: all that ended so long ago, such as 30d.")
    ] = None,
    label: Labels = None,
    where: WhereText = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before it goes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what went as JSON.")] = False,
) -> None:
    """Remove runs that are over: logs, checkpoints, unnamed models, code that no other run has."""
    client = open_client(goes_on=False)
    age_s = None if older_than is None else parsed("--older-than", parse_duration, older_than)
    ids = list(dict.fromkeys(client.resolve(run) for run in runs or ()))
    chosen = condition(label, where)
    found = client.storage.remove_runs(ids, older_than_s=age_s, where=chosen, dry_run=True)
    going = [each["run"] for each in found["runs"] if each["outcome"] != "KEPT"]
    if not (dry_run and as_json):
        _show_plan(found, say if as_json else show)
    if not dry_run and going:
        agree_to_remove(f"{counted(len(going), 'run')}, {format_bytes(found['bytes'])}", yes=yes)
        removed = client.storage.remove_runs(going)
        stays = [each for each in found["runs"] if each["outcome"] == "KEPT"]
        found = {**removed, "bytes": found["bytes"], "runs": [*_with_sizes(removed, found), *stays]}
    if as_json:
        print_json(found)
    elif not found["runs"]:
        say("nothing to remove: no run that is over fits")
    elif not dry_run and going:
        say(f"removed: {counted(len(going), 'run')}, {format_bytes(found['bytes'])}")
    if not dry_run:
        _refuse_rest(found["runs"], named=bool(ids))


def agree_to_remove(
    what: str, *, yes: bool, hint: str = "`--yes` agrees; `--dry-run` only shows it."
) -> None:
    """Ask before something goes for good.

    Args:
        what: goes.
        yes: the user has agreed before.
        hint: how to agree, for who has no terminal.

    Raises:
        UsageError: the user does not want it, or there is no terminal to ask on; nothing went.
    """
    if yes:
        return
    need_yes(f"Remove {what}, for good?", f"this removes {what}", "not removed", "Nothing was removed.", hint)


def _show_plan(found: dict[str, Any], show: Callable[[str], None]) -> None:
    if not found["runs"]:
        return
    rows = []
    for each in found["runs"]:
        parts = ", ".join(f"{kind} {format_bytes(count)}" for kind, count in each["parts"].items())
        why = "; ".join(reason["why"] for reason in each["kept"])
        word = _WORDS[each["outcome"]]
        rows.append([each["run"], format_bytes(each["bytes"]), parts, ": ".join(filter(None, (word, why)))])
    show(table(["run", "goes", "", ""], rows))
    shared = ", ".join(f"{kind} {format_bytes(count)}" for kind, count in found["shared"].items() if count)
    if shared:
        show(f"and what no other run needs: {shared}")


def _with_sizes(removed: dict[str, Any], planned: dict[str, Any]) -> list[dict[str, Any]]:
    """What became of runs, with the sizes seen before: a request that is repeated finds nothing more."""
    sizes = {each["run"]: {key: each[key] for key in ("bytes", "parts")} for each in planned["runs"]}
    return [{**each, **sizes[each["run"]]} for each in removed["runs"]]


def _refuse_rest(runs: list[dict[str, Any]], *, named: bool) -> None:
    """A run that was named and stays is an error.

    Raises:
        UsageError: one is.
    """
    stays = [each for each in runs if each["outcome"] == "KEPT"]
    if named and stays:
        first = stays[0]["kept"][0]
        others = f", and {len(stays) - 1} more" if len(stays) > 1 else ""
        raise UsageError(f"{stays[0]['run']} stays{others}: {first['why']}", first["hint"])
