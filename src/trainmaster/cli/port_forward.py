"""``trainmaster port-forward``."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Annotated

import typer

from trainmaster.cli.opening import open_client
from trainmaster.cli.options import RunId
from trainmaster.cli.output import say
from trainmaster.spec.errors import UsageError


def port_forward(
    run: RunId,
    ports: Annotated[
        str, typer.Argument(metavar="[LOCAL_PORT:]PORT", help="Here, and there; the same without. 0: any.")
    ],
    member: Annotated[
        str | None, typer.Option(help="Such as worker-1, or a machine; the first member without.")
    ] = None,
) -> None:
    """Let a port of this machine lead to one of a member, until Ctrl-C."""
    here, there = local_and_remote(ports, say)
    client, over = open_client(), threading.Event()
    found = client.resolve(run)
    with client.forward(found, member, there, here, say) as forward:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: over.set())
        say(f"http://127.0.0.1:{forward.port} is port {there} of {member or found}; Ctrl-C ends it")
        over.wait()


def local_and_remote(ports: str, tell: Callable[[str], None]) -> tuple[int, int]:
    """The port of this machine, and that of the member: in the order of ssh, kubectl and docker.

    >>> [local_and_remote(each, print) for each in ("6006", "16006:6006", ":6006", "0:6006")]
    note: since 0.3 the port of this machine comes first, as for ssh and kubectl
    [(6006, 6006), (16006, 6006), (0, 6006), (0, 6006)]
    >>> local_and_remote("6006:0", print)  # until 0.4, as it was before 0.3: no member listens at 0
    note: 6006:0 is read as 0:6006, until 0.4: the port of this machine comes first
    (0, 6006)
    """
    here, colon, there = ports.partition(":")
    here, there = (here or "0", there) if colon else (here, here)
    if not here.isdecimal() or not there.isdecimal():
        raise UsageError(f"{ports!r} are no ports", "Write such as 6006, or 16006:6006.")
    local, remote = int(here), int(there)
    if not remote:
        tell(f"note: {ports} is read as 0:{local}, until 0.4: the port of this machine comes first")
        return 0, local
    if local and local != remote:
        tell("note: since 0.3 the port of this machine comes first, as for ssh and kubectl")
    return local, remote
