"""``trainmaster label`` and ``note``; and how other verbs are told which runs are meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from trainmaster.cli.opening import open_client
from trainmaster.cli.options import RunId, condition
from trainmaster.cli.output import print_json, say, show
from trainmaster.spec.errors import NotFoundError, TrainmasterError, UsageError
from trainmaster.spec.units import counted

if TYPE_CHECKING:
    from trainmaster.api import ClientProtocol

#: Of one condition that are looked for, and runs whose names may be meant instead.
_MOST_NAMES: Final = 8
_NEWEST: Final = 8


def label(
    run: RunId,
    change: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE|KEY-]...", help="What to write, or take away.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the run's line as JSON.")] = False,
) -> None:
    """Change the labels of a run: KEY=VALUE writes one, KEY- takes it away; without any, show them."""
    from trainmaster.spec.labels import parsed_changes

    changes = parsed_changes(change or ())
    client = open_client()
    run = client.resolve(run)
    line = client.describe(run, changes) if changes else client.brief(run)
    print_json(line) if as_json else show(labels_text(line) or f"{run} has no labels")


def note(
    run: RunId,
    text: Annotated[str | None, typer.Argument(help="What to write; an empty text takes it away.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the run's line as JSON.")] = False,
) -> None:
    """Write a note on a run, instead of the one that it has; without a text, show it."""
    client = open_client()
    run = client.resolve(run)
    line = client.brief(run) if text is None else client.describe(run, {}, text)
    print_json(line) if as_json else show(line.get("note", f"{run} has no note"))


def labels_text(line: Mapping[str, Any]) -> str:
    """The labels of a run, for people; empty without any."""
    return ", ".join(f"{key}={value}" for key, value in line.get("labels", {}).items())


def none_fits(client: ClientProtocol, where: str) -> str:
    """That no run fits a condition; and which of its names no run has, with the nearest that one has."""
    from trainmaster.spec.node import nearest
    from trainmaster.spec.where import FIELDS, names_in, parse_where

    said = f"no run fits: {where}"
    asked = names_in(parse_where(where))[:_MOST_NAMES]
    unknown = [each.name for each in asked if not client.listed(1, where=str(each))["runs"]]
    known = [*FIELDS, *_names_there(client)] if unknown else []
    for name in unknown:
        near = "state" if name == "reason" else nearest(name, known)  # that is what JSON calls it
        said += f"\nno run has {name!r}" + (f": did you mean {near!r}?" if near else "")
    return said


def _names_there(client: ClientProtocol) -> list[str]:
    """Labels, and the metrics and parameters with curves, of the newest runs."""
    names: dict[str, None] = {}
    for line in client.listed(_NEWEST)["runs"]:
        names |= dict.fromkeys(line.get("labels", {}))
        with suppress(TrainmasterError):  # what it reported is gone
            for curve in client.curves(line["run"], points=4):
                names |= dict.fromkeys((curve["key"], *curve["parameters"]))
    return list(names)


def selected(
    client: ClientProtocol,
    run: str | None,
    labels: Sequence[str] | None,
    where: str | None,
    *,
    goes_on: bool = False,
) -> list[str]:
    """Ids of the runs that are meant, newest first: one that is named, or all that options choose.

    Args:
        client: that has them.
        run: id of one, a beginning of it, or ``latest``.
        labels: as of ``--label``.
        where: as of ``--where``.
        goes_on: of those that options choose only the ones that are not over; there may be none.

    Raises:
        UsageError: neither is given, or both, or one is wrong.
        NotFoundError: there is none.
    """
    wanted = condition(labels, where)
    if run is None and not wanted:
        raise UsageError("which run?", "Name one, or choose some by --label KEY=VALUE or --where CONDITION.")
    if run is not None and wanted:
        raise UsageError(f"{run}, and --label or --where", "Name a run, or choose by options; not both.")
    if run is not None:
        return [client.resolve(run)]
    rows = client.listed(where=wanted)["runs"]
    if not rows:
        raise NotFoundError(none_fits(client, wanted), "`trainmaster status` lists the runs.")
    found = [row["run"] for row in rows if not goes_on or row["state"] != "DONE"]
    if not found:
        say(f"{counted(len(rows), 'run')} {'fits' if len(rows) == 1 else 'fit'}, and had ended already")
        return []
    say(f"{counted(len(found), 'run')}: {', '.join(found[:10])}{' ...' * (len(found) > 10)}")
    return found
