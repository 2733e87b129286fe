"""``trainmaster resume``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.completing import run_ids


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
    import os

    from trainmaster.cli.driving import attach, drive_to_end
    from trainmaster.cli.models import show_saved
    from trainmaster.cli.output import print_json, say
    from trainmaster.service import Service
    from trainmaster.service.background import drive_in_background

    if lend_keys:
        from trainmaster.service import lend_whole_keys

        lend_whole_keys()
    service = Service.from_environment()
    run = service.resolve(run)
    if not service.is_driven(run):
        show_saved(service.save_kept(run))
    session = service.resume(run, os.environ)
    if session is None:
        if service.is_driven(run):
            what = "left to it" if detach else "attached to it (Ctrl-C detaches)"
            say(f"{run} is driven by another process; {what}")
        elif service.status(run)["state"] == "DONE":
            left = service.deliver_left(run, os.environ)
            say(left or f"{run} has ended already: nothing is left to be done")
        if detach:
            if as_json:
                print_json(service.status(run))
            return
        raise typer.Exit(attach(service, run, as_json=as_json))
    for note in session.notes:
        say(f"note: {note}")
    if detach:
        drive_in_background(service, session, os.environ)
        say(f"{run} goes on in the background; `trainmaster status {run}` shows it")
        if as_json:
            print_json(service.status(run))
        return
    raise typer.Exit(drive_to_end(service, session, as_json=as_json))
