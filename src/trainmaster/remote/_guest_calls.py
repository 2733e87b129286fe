"""Our programs in `guest/`, run on a host with the Python that is there."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable
from importlib import resources
from typing import Any, Final

from trainmaster.remote._calls import Exchange, Result
from trainmaster.remote.connection import Connection

#: A shell's exit code of what a signal has ended is this and the signal's number.
_SIGNALLED: Final = 128


def ask_guest(
    connection: Connection,
    python: str,
    program: str,
    order: dict[str, Any],
    timeout_s: float,
    answer: Callable[[str], Iterable[bytes] | None] = lambda _: None,
) -> Result:
    """Run one of our programs in `guest/` on a host.

    Args:
        connection: to it.
        python: an interpreter there.
        program: file name.
        order: its arguments, of which nothing shows in a list of processes.
        timeout_s: after which it is ended.
        answer: see `Exchange`.
    """
    source = (resources.files("trainmaster.remote") / "guest" / program).read_bytes()
    boot = "import sys; f = sys.stdin.buffer; exec(f.read(int(f.readline())).decode())"
    command = f"exec {shlex.quote(python)} -I -u -c {shlex.quote(boot)}"
    lead = b"%d\n%s%s\n" % (len(source), source, json.dumps(order).encode())
    return connection.exchange(Exchange(command, answer, lead=lead, expects="@@"), timeout_s)


def guest_words(result: Result) -> str:
    """The last word of such a program: ``done``, ``have``, or what went wrong."""
    said = [line[2:].strip() for line in result.out.splitlines() if line.startswith("@@")]
    if result.code == 0 and said:
        return said[-1]
    if said and said[-1].startswith("error "):
        return said[-1].removeprefix("error ").strip()
    if result.err.strip():
        return result.err.strip().splitlines()[-1]
    if result.code > _SIGNALLED:
        return f"it was killed there by signal {result.code - _SIGNALLED}"
    return f"it ended there with exit code {result.code}"
