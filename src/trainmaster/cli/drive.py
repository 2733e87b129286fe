"""The background processes: ``_drive`` of ``--detach``, ``_driver`` of a server, ``_app`` of an app."""

from __future__ import annotations

import gc
import os
from typing import Annotated

import typer


def drive(
    run: Annotated[str, typer.Argument()],
    on_cluster: Annotated[bool, typer.Option("--on-cluster")] = False,
    lost: Annotated[bool, typer.Option("--lost")] = False,
) -> None:
    """Drive a run to its end, showing nothing: one that was accepted, or whose driver elsewhere is lost."""
    from trainmaster.cli.driving import catch_signals
    from trainmaster.service import Service

    service = Service.from_environment()
    if lost:
        from trainmaster.cli.output import say
        from trainmaster.service.on_cluster.away import AwayRuns

        if not AwayRuns(service, os.environ).take_back(run):
            # Who has taken it back may have been told to stop since.
            say(f"{run}: another process has taken it back, or its machine drives it again")
            return
    session = service.take(run, os.environ)
    if session is not None:
        gc.freeze()
        if on_cluster:
            from trainmaster.service.on_cluster.hand_over import drive_away

            drive_away(service, session, os.environ, None, lambda it: catch_signals(it.interrupt), print)
        else:
            from trainmaster.service.driving.driving import Driving
            from trainmaster.service.driving.moving import moved

            given = (service, session, os.environ)
            Driving(*given, on_start=lambda it: catch_signals(it.interrupt), move=moved).run()


def drive_many(number: Annotated[int, typer.Argument()]) -> None:
    """Be the driver of a server with this number: drive runs that were sent to it, many at once."""
    import logging

    from trainmaster.service import Service
    from trainmaster.service.driving.driver import Driver, name_version, pipe_of, take_place

    service = Service.from_environment()
    place = take_place(service.home.root, number)
    if place is None:
        return
    name_version(place)
    logging.basicConfig(format="%(asctime)s %(message)s")
    gc.freeze()
    Driver(service, os.environ, wakes=pipe_of(service.home.root, number)).work()


def look_after_app(app: Annotated[str, typer.Argument()]) -> None:
    """Be the process of an app: start it, and end it when it is idle."""
    from trainmaster.service import Service
    from trainmaster.service.apps.app_host import AppHost
    from trainmaster.service.apps.apps import NOTEBOOK, TENSORBOARD
    from trainmaster.service.apps.notebook import Notebook
    from trainmaster.service.apps.tensorboard import TensorBoard

    gc.freeze()
    kinds = {TENSORBOARD: TensorBoard, NOTEBOOK: Notebook}
    AppHost(Service.from_environment(), app, kinds).work()
