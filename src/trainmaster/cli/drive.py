"""``trainmaster _drive``: the background process of ``--detach``."""

from __future__ import annotations

from typing import Annotated

import typer


def drive(run: Annotated[str, typer.Argument()]) -> None:
    """Drive an accepted run to its end, showing nothing."""
    import os
    import time

    from trainmaster.cli.driving import _catch_signals
    from trainmaster.control.layout import Home
    from trainmaster.server import Service, Session
    from trainmaster.spec import Recipe

    service = Service(Home.from_environment())
    lease = service.store.acquire(run, time.time())
    if lease is None:
        return  # somebody was quicker
    recipe = Recipe.model_validate_json(service.store.run_row(run)["recipe"])
    service.drive(Session(run, lease, recipe, []), os.environ, on_start=_catch_signals)
