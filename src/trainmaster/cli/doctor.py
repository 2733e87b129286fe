"""``trainmaster doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trainmaster.cli.opening import open_administration, server_in_use, unpacked
from trainmaster.cli.output import print_json, show
from trainmaster.spec.errors import TrainmasterError


def doctor(
    recipe: Annotated[
        Path | None, typer.Argument(metavar="RECIPE", help="Look at the places where this one is to run.")
    ] = None,
    provider: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Look at this place; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look at this machine, home and server, or a place: what is there, what is missing, what to do."""
    findings = _of_places(provider or [], recipe) if provider or recipe else _of_this_machine()
    is_ok = all(each["ok"] for each in findings)
    if as_json:
        print_json({"findings": findings, "ok": is_ok})
    else:
        for each in findings:
            show(f"{'ok  ' if each['ok'] else 'FAIL'}  {each['what']}: {each['found']}")
            if each["advice"]:
                show(f"      {each['advice']}".replace("\n", "\n      "))
    if not is_ok:
        raise typer.Exit(1)


def _of_this_machine() -> list[dict[str, Any]]:
    from dataclasses import asdict

    from trainmaster.service import Home
    from trainmaster.service.doctor import checkup

    return [*_server(), *(asdict(each) for each in checkup(Home.from_environment()))]


def _server() -> list[dict[str, Any]]:
    """The one in use: runs go there, whatever is well here."""
    server = server_in_use()
    if server is None:
        return []
    found = {"what": "server in use", "ok": True, "advice": ""}
    try:
        who = server.get("/info")["caller"]
    except TrainmasterError as error:
        return [{**found, "found": error.args[0], "ok": False, "advice": error.hint}]
    team = f", team {who['team']}" if who["team"] else ""
    return [{**found, "found": f"{server.url} answers, as {who['name']}{team}; this home is not used"}]


def _of_places(places: list[str], recipe: Path | None) -> list[dict[str, Any]]:
    from trainmaster.spec import read_recipe

    found = None if recipe is None else read_recipe(unpacked(recipe))
    return open_administration().examine_places(places, found)
