"""``trainmaster port-forward``."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from trainmaster.cli.opening import open_client
from trainmaster.cli.options import RunId
from trainmaster.cli.output import say
from trainmaster.spec.errors import UsageError


def port_forward(
    run: RunId,
    ports: Annotated[
        str, typer.Argument(metavar="PORT[:LOCAL_PORT]", help="There, and here; the same without. 0: any.")
    ],
    member: Annotated[
        str | None, typer.Option(help="Such as worker-1, or a machine; the first member without.")
    ] = None,
) -> None:
    """Let a port of this machine lead to one of a member, until Ctrl-C."""
    there, _, here = ports.partition(":")
    if not there.isdecimal() or not (here or there).isdecimal():
        raise UsageError(f"{ports!r} are no ports", "Write such as 6006, or 6006:16006.")
    client, over = open_client(), threading.Event()
    found = client.resolve(run)
    with client.forward(found, member, int(there), int(here or there), say) as forward:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: over.set())
        say(f"http://127.0.0.1:{forward.port} is port {there} of {member or found}; Ctrl-C ends it")
        over.wait()
