"""``trainmaster run``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer


def run(
    recipe: Annotated[Path, typer.Argument(help="The YAML recipe.")],
    provider: Annotated[Optional[str], typer.Option(help="Where to run, instead of the recipe's.")] = None,  # noqa: UP045
    set_: Annotated[
        Optional[list[str]],  # noqa: UP045 - typer reads the annotation
        typer.Option("--set", metavar="PATH=VALUE", help="Change a key: --set experiments.train.retries=2"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before money is spent.")] = False,
    keep: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="TIME", help="Keep rented machines warm for the next run, such as 30m."),
    ] = None,
    allow_stale: Annotated[bool, typer.Option(help="Accept prices that are old.")] = False,
    measure_first: Annotated[
        bool, typer.Option("--measure-first", help="Measure on this machine and quote, then run.")
    ] = False,
    detach: Annotated[bool, typer.Option(help="Drive the run in the background and return at once.")] = False,
    lend_keys: Annotated[
        bool,
        typer.Option("--lend-keys", help="Give nodes your own keys of object stores, not narrower ones."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Run a recipe: quote, rent, run, keep the model, give the machines back."""
    import os
    import time

    from trainmaster.cli.driving import drive_to_end
    from trainmaster.cli.output import print_json, say
    from trainmaster.service import Service, capabilities_of
    from trainmaster.service.background import drive_in_background
    from trainmaster.spec import read_recipe

    keep_s = _keep_s(keep)
    if lend_keys:
        from trainmaster.service import lend_whole_keys

        lend_whole_keys()
    found = read_recipe(recipe, overrides=set_ or (), provider=provider)
    service = Service.from_environment()
    if measure_first:
        from trainmaster.cli.quote import measure_first as measure

        service.check(found, os.environ)  # what is wrong anyway is said before anything is measured
        measure(service, found, recipe)
    if capabilities_of(found.provider).is_here:
        if not detach:
            service.warm_up()
        for note in service.check_inputs(found, os.environ):
            say(f"note: {note}")
        if any(e.distributed and e.distributed.is_flexible for e in found.experiments.values()):
            from trainmaster.cli.measuring import settle_workers

            found = settle_workers(service, found, recipe)
        session = service.start(found, recipe, os.environ)
    else:
        from trainmaster.cli.renting import agree

        offer = agree(service, found, recipe, yes=yes, allow_stale=allow_stale)
        session = service.start(offer.recipe, recipe, os.environ, plans=offer.plans, keep_s=keep_s)
        offer.note_down(service.database, session.run, time.time())
    for note in session.notes:
        say(f"note: {note}")
    if detach:
        drive_in_background(service, session, os.environ)
        say(f"{session.run} runs in the background; `trainmaster logs -f {session.run}` shows its output")
        if as_json:
            print_json(service.status(session.run))
        return
    raise typer.Exit(drive_to_end(service, session, as_json=as_json))


def _keep_s(text: str | None) -> float:
    """Seconds of ``--keep``; 0 without."""
    from trainmaster.spec import parse_duration
    from trainmaster.spec.errors import UsageError

    try:
        return 0.0 if text is None else parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--keep: {error}") from None
