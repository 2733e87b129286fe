"""``trainmaster _drive``: the background process of ``--detach``."""

from __future__ import annotations

import gc
import os
from typing import Annotated

import typer


def drive(run: Annotated[str, typer.Argument()]) -> None:
    """Drive an accepted run to its end, showing nothing."""
    from trainmaster.cli.driving import catch_signals
    from trainmaster.service import Service

    service = Service.from_environment()
    session = service.take(run, os.environ)
    if session is not None:
        gc.freeze()
        gc.enable()  # `main` turned it off for quick verbs
        service.drive(session, os.environ, on_start=lambda controller: catch_signals(controller.interrupt))
