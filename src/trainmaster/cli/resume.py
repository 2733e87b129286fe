"""``trainmaster resume``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.completing import run_ids
from trainmaster.cli.output import print_json, say


def resume(
    run: Annotated[str, typer.Argument(autocompletion=run_ids, help="Id of the run, or `latest`.")],
    detach: Annotated[bool, typer.Option(help="Drive the run in the background and return at once.")] = False,
    lend_keys: Annotated[
        bool,
        typer.Option("--lend-keys", help="Give nodes your own keys of object stores, not narrower ones."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Go on with a run: what succeeded stays, all else is done again; attaches to a run that is alive."""
    from trainmaster.cli.driving import attach, see_to_end
    from trainmaster.cli.models import show_saved
    from trainmaster.cli.opening import open_client, refuse_on_server

    if lend_keys:
        refuse_on_server("--lend-keys")
        from trainmaster.service import give_whole_keys

        give_whole_keys()
    client = open_client(starts=True, goes_on=False)
    run = client.resolve(run)
    if not client.brief(run)["driven"]:
        show_saved(client.save_models(run))
    accepted = client.take_run(run)
    if accepted is not None:
        told = f"{run} goes on in the background; `trainmaster status {run}` shows it"
        raise typer.Exit(see_to_end(client, accepted, told if detach else "", as_json=as_json))
    brief = client.brief(run)
    if brief["driven"]:
        what = "left to it" if detach else "attached to it (Ctrl-C detaches)"
        say(f"{run} is driven by another process; {what}")
    elif brief["state"] == "DONE":
        say(client.deliver_left(run) or f"{run} has ended already: nothing is left to be done")
    if not detach:
        client = open_client()  # what it is attached to goes on if its driver elsewhere is lost
        raise typer.Exit(attach(client, client.resolve(run), as_json=as_json))
    if as_json:
        print_json(client.status(run).json)
