"""`HostResult`: what became of a host that was to become a node, phase by phase. Pure values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from trainmaster.cluster.bootstrap.facts import HostFacts
from trainmaster.cluster.bootstrap.plan import BootstrapPlan
from trainmaster.transport.base import Target


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
