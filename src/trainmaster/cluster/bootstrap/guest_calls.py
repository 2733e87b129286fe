"""Our programs in `guest/`, run on a host with the Python that is there."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable
from importlib import resources
from typing import Any, Final

from trainmaster.transport.base import Connection, Exchange, Result

#: A shell's exit code of what a signal has ended is this and the signal's number.
_SIGNALLED: Final = 128


def ask_guest(
    connection: Connection,
    python: str,
    program: str | tuple[str, ...],
    order: dict[str, Any],
    timeout_s: float,
    answer: Callable[[str], Iterable[bytes] | None] = lambda _: None,
    sink: Callable[[bytes], None] | None = None,
) -> Result:
    """Run one of our programs in `guest/` on a host.

    Args:
        connection: to it.
        python: an interpreter there.
        program: file name; of several, each finds the names of those before it.
        order: its arguments, of which nothing shows in a list of processes.
        timeout_s: after which it is ended.
        answer: see `Exchange`.
        sink: takes what it says piece by piece; nothing is awaited or kept then.
    """
    source = guest_source((program,) if isinstance(program, str) else program)
    boot = "import sys; f = sys.stdin.buffer; exec(f.read(int(f.readline())).decode())"
    # To look for packages costs somebody else's Python a third of all that such a program takes, or more.
    command = f"exec {shlex.quote(python)} -ISu -c {shlex.quote(boot)}"
    lead = b"%d\n%s%s\n" % (len(source), source, json.dumps(order).encode())
    talk = Exchange(command, answer, lead=lead, reads_first=sink is None, expects="@@", sink=sink)
    return connection.exchange(talk, timeout_s)


def guest_source(programs: tuple[str, ...]) -> bytes:
    """The text of programs, of which each finds the names of those before it, and of `answering`."""
    guest = resources.files("trainmaster.cluster.bootstrap") / "guest"
    texts = [(guest / name).read_text(encoding="utf-8") for name in ("answering.py", *programs)]
    return "".join(f"exec({text!r})\n" for text in texts).encode()


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
