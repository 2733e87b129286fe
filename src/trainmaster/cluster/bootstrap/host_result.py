"""`HostResult`: what became of a host that was to become a node, phase by phase. Pure values."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import StrEnum
from importlib import resources
from typing import Any, Final

from trainmaster.cluster.bootstrap.facts import HostFacts
from trainmaster.cluster.bootstrap.plan import BootstrapPlan
from trainmaster.dataclass import dataclass
from trainmaster.transport.base import Connection, Exchange, Result, Target

#: A shell's exit code of what a signal has ended is this and the signal's number.
_SIGNALLED: Final = 128


class BootstrapPhase(StrEnum):
    """What is done to a host, in this order."""

    CONNECT = "connect"
    PROBE = "probe"
    PACKAGES = "packages"
    RUNTIME = "runtime"
    CHECK = "check"
    CODE = "code"


class HostOutcome(StrEnum):
    """How a phase went. REUSED: there was nothing to do."""

    STARTED = "started"
    DONE = "done"
    REUSED = "reused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PhaseReport:
    """A phase of a host.

    Attributes:
        host: its name. phase, outcome: see there.
        seconds: how long it took; 0 when it has just started.
        detail: what was found, or why it failed.
    """

    host: str
    phase: BootstrapPhase
    outcome: HostOutcome
    seconds: float = 0.0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class HostResult:
    """What became of a host.

    Attributes:
        target: the host. ok: whether it is a node now.
        phases: those that have ended, in order.
        failed: the phase that did not work; None if all did. reason, hint: why, and what to do.
        facts: what it is; None if it was not reached. plan: what was done.
        host_key: that it has shown.
    """

    target: Target
    ok: bool
    phases: tuple[PhaseReport, ...]
    failed: BootstrapPhase | None = None
    reason: str = ""
    hint: str = ""
    facts: HostFacts | None = None
    plan: BootstrapPlan | None = None
    host_key: str = ""

    @property
    def known(self) -> HostFacts | None:
        """What it is now, with all that was put there: for the next bootstrap. None if it did not work."""
        if not self.ok or self.facts is None or self.plan is None:
            return None
        steps = [step for step in (self.plan.packages, self.plan.runtime, self.plan.code) if step is not None]
        there = {f"{step.order['kind']}/{step.order['name']}" for step in steps}
        return replace(self.facts, have=self.facts.have | there)

    @property
    def was_known(self) -> bool:
        """Whether it was a node already, so that nothing but the code was brought to it."""
        return self.ok and all(report.phase is not BootstrapPhase.CHECK for report in self.phases)

    @property
    def seconds(self) -> float:
        """How long it took."""
        return sum(report.seconds for report in self.phases)


def run_host_program(
    connection: Connection,
    python: str,
    program: str | tuple[str, ...],
    order: dict[str, Any],
    timeout_s: float,
    answer: Callable[[str], Iterable[bytes] | None] = lambda _: None,
) -> Result:
    """Run one of our programs in `host_programs/` on a host.

    Args:
        connection: to it.
        python: an interpreter there.
        program: file name; of several, each finds the names of those before it.
        order: its arguments, of which nothing shows in a list of processes.
        timeout_s: after which it is ended.
        answer: see `Exchange`.
    """
    source = program_source((program,) if isinstance(program, str) else program)
    boot = "import sys; f = sys.stdin.buffer; exec(f.read(int(f.readline())).decode())"
    # To look for packages costs somebody else's Python a third of all that such a program takes, or more.
    command = f"exec {shlex.quote(python)} -ISu -c {shlex.quote(boot)}"
    lead = b"%d\n%s%s\n" % (len(source), source, json.dumps(order).encode())
    talk = Exchange(command, answer, lead=lead, expects="@@")
    return connection.exchange(talk, timeout_s)


def program_source(programs: tuple[str, ...]) -> bytes:
    """The text of programs, of which each finds the names of those before it, and of `answering`."""
    folder = resources.files("trainmaster.cluster.bootstrap") / "host_programs"
    texts = [(folder / name).read_text(encoding="utf-8") for name in ("answering.py", *programs)]
    return "".join(f"exec({text!r})\n" for text in texts).encode()


def program_answer(result: Result) -> str:
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
