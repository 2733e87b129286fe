"""``trainmaster resume``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.labels import selected
from trainmaster.cli.opening import open_client, refuse_on_server
from trainmaster.cli.options import AsJson, Labels, LendKeys, RunOrNone, WhereText
from trainmaster.cli.output import print_json, say
from trainmaster.spec.errors import TrainmasterError, UsageError, fails_as
from trainmaster.spec.units import parse_money

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmaster.api import ClientProtocol


def resume(
    run: RunOrNone = None,
    label: Labels = None,
    where: WhereText = None,
    detach: Annotated[bool, typer.Option(help="Drive the run in the background and return at once.")] = False,
    total: Annotated[
        str | None,
        typer.Option(metavar="USD", help="Its `budget.total` from now on, also for what it has cost."),
    ] = None,
    provider: Annotated[str | None, typer.Option(hidden=True, help="Refused: it stays.")] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", hidden=True, help="Refused.")] = None,
    lend_keys: LendKeys = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a run: what succeeded stays, all else is done again; attaches to a run that is alive."""
    from trainmaster.cli.driving import attach, see_to_end
    from trainmaster.cli.models import show_saved

    if provider or changes:  # what `run` takes, and so is tried here
        raise UsageError(
            "a run stays where it was started, as its recipe was: `resume` takes no other place or key",
            "Start the recipe with it as a new run, from a model of this one if there is one (`trainmaster "
            "models register`). A run whose recipe lists places, as `provider: [hosts, aws]`, goes on in the "
            "next one by itself; `--total` gives it more money.",
        )
    if lend_keys:
        refuse_on_server("--lend-keys")
        from trainmaster.service import give_whole_keys

        give_whole_keys()
    with fails_as("--total", "Write an amount such as $20.", on=ValueError):
        max_usd = None if total is None else parse_money(total)
    client = open_client(starts=True, goes_on=False)
    found = selected(client, run, label, where)
    if run is None and max_usd is not None:
        raise UsageError("--total is that of one run", "Name it.")
    if run is None:
        _resume_all(client, found, as_json=as_json)
        return
    run = found[0]
    if not client.brief(run)["driven"]:
        show_saved(client.save_models(run))
    accepted = client.take_run(run, max_usd=max_usd)
    if accepted is not None:
        told = f"{run} goes on in the background; `trainmaster status {run}` shows it"
        raise typer.Exit(see_to_end(client, accepted, told if detach else "", as_json=as_json))
    brief = client.brief(run)
    if brief["driven"]:
        what = "left to it" if detach else "attached to it (Ctrl-C detaches)"
        say(f"{run} is driven by another process; {what}")
    elif brief["state"] == "DONE":
        left = client.deliver_left(run) or f"{run} has ended already: nothing is left to be done"
        searches = any("search" in each for each in client.status(run).json["experiments"].values())
        say(f"{left}. `search: {{from: {run}}}` in a recipe goes on with more tasks" if searches else left)
    if not detach:
        client = open_client()  # what it is attached to goes on if its driver elsewhere is lost
        raise typer.Exit(attach(client, client.resolve(run), as_json=as_json))
    if as_json:
        print_json(client.status(run).json)


def _resume_all(client: ClientProtocol, runs: Sequence[str], *, as_json: bool) -> None:
    """Go on in the background with all that have not succeeded; one that cannot is told, the others go on.

    Raises:
        Exit: some could not.
    """
    failed = 0
    for run in runs:
        try:
            accepted = client.take_run(run)
            if accepted is not None:
                client.detach_run(run)
        except TrainmasterError as error:
            failed += 1
            say(f"error: {run}: {error}")
            continue
        done = "has succeeded, or goes on already" if accepted is None else "goes on in the background"
        say(f"{run} {done}")
        if as_json:
            print_json(client.brief(run))
    if failed:
        raise typer.Exit(1)
