"""`Bootstrap`: from hosts that let us in to nodes on which a supervisor can start.

Each host goes through the phases by itself, several at a time. A phase that was done before is found to be,
and costs a question; one that was cut short is done again. A host that fails is named with the phase and the
reason; whether the run does without it is for the caller to say (`usable`).
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from trainmaster.cluster.bootstrap.facts import (
    HostFacts,
    PythonFacts,
    internet_command,
    parse_facts,
    parse_still_there,
    probe_script,
    still_there_command,
)
from trainmaster.cluster.bootstrap.host_result import (
    BootstrapPhase,
    HostOutcome,
    HostResult,
    PhaseReport,
    program_answer,
    run_host_program,
)
from trainmaster.cluster.bootstrap.plan import (
    BootstrapPlan,
    BootstrapStep,
    UnfitHost,
    choose_python,
    make_plan,
    needs_internet,
)
from trainmaster.cluster.bootstrap.runtime_package import RuntimeLayer, RuntimePackage, pieces
from trainmaster.dataclass import dataclass, field
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.units import counted
from trainmaster.transport.base import Connection, Target, Transport

log = logging.getLogger(__name__)
#: Imports modules, and loads the libraries of those that take long to import.
_CHECK: Final = """\
import ctypes, importlib, importlib.util, sys
for name in sys.argv[1:]:
    package, _, library = name.partition("/")
    if library:
        (place,) = importlib.util.find_spec(package).submodule_search_locations
        ctypes.CDLL(f"{place}/{library}")
    else:
        importlib.import_module(name)
print(42)
"""


@dataclass(frozen=True, slots=True)
class BootstrapSettings:
    """How patient we are, and how many hosts are done at the same time.

    Attributes:
        at_once: hosts.
        probe_timeout_s, install_timeout_s, check_timeout_s: of these phases.
        wait_s: for another process that installs the same thing on the host.
        patience_s: the host gives an upload up after so long without a byte.
        share_files: libraries that the host sees at the same path (a common file system, a host of the lab)
            are used where they are, and not sent.
    """

    probe_timeout_s: float = 30.0
    install_timeout_s: float = 900.0
    check_timeout_s: float = 60.0
    wait_s: int = 600
    patience_s: int = 60
    share_files: bool = True


class _Failed(Exception):  # noqa: N818 - becomes a result
    """A phase does not work."""

    def __init__(self, reason: str, hint: str = "") -> None:
        self.reason, self.hint = reason, hint
        super().__init__(reason)


Listener = Callable[[PhaseReport], None]


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Makes nodes of hosts.

    Attributes:
        transport: connects.
        runtime_packages: our runtime for hosts without and with GPUs.
        cache: where archives are kept here.
        settings: how patient we are.
        listener: hears of each phase, in any thread.
    """

    transport: Transport
    runtime_packages: tuple[RuntimePackage, RuntimePackage]
    cache: Path
    settings: BootstrapSettings = BootstrapSettings()
    listener: Listener | None = None

    def one(
        self,
        target: Target,
        code: RuntimeLayer | None = None,
        known: HostFacts | None = None,
        over: Connection | None = None,
    ) -> HostResult:
        """Bootstrap a host. May be repeated at any time, and done for several hosts at the same time.

        Args:
            target: the host.
            code: the user's files.
            known: what it was when it was bootstrapped last, if it was. As long as it has not booted since
                and has what we need, it is asked no more than that.
            over: a login there that is open, which stays so; without, there is one for this.
        """
        return _HostBootstrap(self, target).go(code, known, over)


@dataclass(slots=True)
class _HostBootstrap:
    """One host on its way."""

    bootstrap: Bootstrap
    target: Target
    reports: list[PhaseReport] = field(default_factory=list)
    facts: HostFacts | None = None
    plan: BootstrapPlan | None = None
    host_key: str = ""

    def go(self, code: RuntimeLayer | None, known: HostFacts | None, over: Connection | None) -> HostResult:
        failed: BootstrapPhase | None = None
        reason = hint = ""
        try:
            with contextlib.ExitStack() as stack:
                with self._phase(BootstrapPhase.CONNECT):
                    connection = over or stack.enter_context(self.bootstrap.transport.connection(self.target))
                self.host_key = connection.host_key
                plan = None if known is None else self._as_before(connection, known, code)
                if plan is None:
                    self._phases(connection, code)
                elif plan.code is not None:
                    self._layer(BootstrapPhase.CODE, connection, plan, plan.code)
        except _Failed as error:
            failed, reason, hint = self.reports[-1].phase, error.reason, error.hint
        return HostResult(
            target=self.target,
            ok=failed is None,
            phases=tuple(self.reports),
            failed=failed,
            reason=reason,
            hint=hint,
            facts=self.facts,
            plan=self.plan,
            host_key=self.host_key,
        )

    def _as_before(
        self, connection: Connection, known: HostFacts, code: RuntimeLayer | None
    ) -> BootstrapPlan | None:
        """The plan for a host that has our runtime from an earlier time; None if that must be looked into."""
        package = self.bootstrap.runtime_packages[bool(known.gpus)]
        plan = make_plan(known, package, code)
        if isinstance(plan, UnfitHost) or not (known.boot and plan.packages.present and plan.runtime.present):
            return None
        with self._phase(BootstrapPhase.PROBE) as detail:
            steps = [step for step in (plan.packages, plan.runtime, plan.code) if step is not None]
            keys = [f"{step.order['kind']}/{step.order['name']}" for step in steps]
            command = still_there_command(known.root, keys)
            result = connection.run(command, timeout_s=self.bootstrap.settings.probe_timeout_s)
            boot, have = parse_still_there(result.out)
            if boot != known.boot or not have.issuperset(keys[:2]):
                detail.append("it is not as it was")
                return None
            detail[:] = [HostOutcome.REUSED, "as it was"]
        self.facts = replace(known, have=(known.have - set(keys)) | have)
        found = make_plan(self.facts, package, code)
        self.plan = None if isinstance(found, UnfitHost) else found
        return self.plan

    def _phases(self, connection: Connection, code: RuntimeLayer | None) -> None:
        with self._phase(BootstrapPhase.PROBE) as detail:
            self.facts = facts = self._probe(connection)
            package = self.bootstrap.runtime_packages[bool(facts.gpus)]
            if needs_internet(facts, package):
                self.facts = facts = replace(
                    facts, internet=self._reaches_internet(connection, facts, package)
                )
            plan = make_plan(facts, package, code)
            if isinstance(plan, UnfitHost):
                raise _Failed(plan.reason, plan.hint)
            self.plan = plan
            detail.append(
                f"{facts.os}, {facts.arch}, {counted(facts.cpus, 'CPU')}, {facts.memory_bytes / 1e9:.1f} GB, "
                f"{counted(len(facts.gpus), 'GPU')}, Python {plan.host_python.version}"
                + "".join(f"; {n}" for n in plan.notes)
            )
        self._layer(BootstrapPhase.PACKAGES, connection, plan, plan.packages)
        self._layer(BootstrapPhase.RUNTIME, connection, plan, plan.runtime)
        with self._phase(BootstrapPhase.CHECK) as detail:
            said = self._try(connection, plan, package)
            if said and (plan.packages.present or plan.runtime.present):
                # What was there is broken: somebody has tidied up, or the host's Python was exchanged.
                log.warning("%s: the runtime is broken (%s), it is installed again", self.target.name, said)
                for step in (plan.packages, plan.runtime):
                    self._install(connection, plan, replace(step, present=False), again=True)
                said = self._try(connection, plan, package)
                detail.append("it was broken, and installed again")
            if said:
                raise _Failed(
                    f"the runtime does not work there: {said}", "Is it the same kind of Linux as here?"
                )
        if plan.code is not None:
            self._layer(BootstrapPhase.CODE, connection, plan, plan.code)

    def _probe(self, connection: Connection) -> HostFacts:
        tops = (
            self.bootstrap.runtime_packages[0].packages.tops() if self.bootstrap.settings.share_files else {}
        )
        shared = next(iter(tops.values()), "")
        script = probe_script(self.target.directory, self.target.python, shared)
        asked_at = time.time()
        result = connection.shell(script, timeout_s=self.bootstrap.settings.probe_timeout_s)
        facts = parse_facts(result.out, asked_at, time.time())
        if facts is None:
            raise _Failed(
                f"it does not say what it is: {result.last_words}",
                f"Try: ssh {self.target.login}@{self.target.address} -p {self.target.port} /bin/sh -c true",
            )
        return facts

    def _reaches_internet(self, connection: Connection, facts: HostFacts, package: RuntimePackage) -> bool:
        python = choose_python(facts, package)
        assert isinstance(python, PythonFacts), "only known Pythons are asked for"
        command = internet_command(python.path)
        return connection.run(command, timeout_s=self.bootstrap.settings.probe_timeout_s).code == 0

    def _layer(
        self, phase: BootstrapPhase, connection: Connection, plan: BootstrapPlan, step: BootstrapStep
    ) -> None:
        with self._phase(phase) as detail:
            said = "have" if step.present else self._install(connection, plan, step)
            if said == "linked":
                detail.append(f"{step.order['name']}, the host sees the very files")
            elif said == "done":
                size = f", {step.layer.size_bytes / 1e6:.0f} MB" if step.layer else " by pip"
                detail.append(f"{step.order['name']}{size}")
            else:
                detail.insert(0, HostOutcome.REUSED)

    def _install(
        self, connection: Connection, plan: BootstrapPlan, step: BootstrapStep, *, again: bool = False
    ) -> str:
        """Put a layer there: ``done``, ``linked`` or, if somebody else has done so meanwhile, ``have``."""
        assert self.facts is not None
        shared = bool(step.layer and step.order.get("tops") and not again)
        order = {
            **step.order,
            "same": step.layer.stamps() if step.layer and shared else [],
            "root": self.facts.root,
            "again": again,
            "wait_s": self.bootstrap.settings.wait_s,
            "patience_s": self.bootstrap.settings.patience_s,
        }

        def answer(line: str) -> Iterator[bytes] | None:
            if line != "@@want" or step.layer is None:
                return None
            return pieces(step.layer.archive(self.bootstrap.cache))

        if step.layer is not None and not shared:
            step.layer.archive(self.bootstrap.cache)  # before anything is held there
        result = run_host_program(
            connection,
            plan.host_python.path,
            "install.py",
            order,
            self.bootstrap.settings.install_timeout_s,
            answer,
        )
        said = program_answer(result)
        if shared and said == "done":
            log.info("%s: what is there cannot be used in place: %s", self.target.name, result.err.strip())
        if said not in ("have", "done", "linked"):
            raise _Failed(said, "It is safe to try again.")
        return said

    def _try(self, connection: Connection, plan: BootstrapPlan, package: RuntimePackage) -> str:
        """Why the runtime does not work; empty if it does."""
        command = shlex.join([plan.python, "-I", "-c", _CHECK, "trainmaster", *package.imports])
        result = connection.run(f"exec {command}", timeout_s=self.bootstrap.settings.check_timeout_s)
        return "" if result.code == 0 and result.out.strip().endswith("42") else result.last_words

    @contextlib.contextmanager
    def _phase(self, phase: BootstrapPhase) -> Iterator[list[str]]:
        """Time a phase and say how it went; what is put into the list becomes its detail."""
        self._tell(PhaseReport(self.target.name, phase, HostOutcome.STARTED))
        started = time.monotonic()
        detail: list[str] = []

        def ended(outcome: HostOutcome, text: str) -> None:
            report = PhaseReport(self.target.name, phase, outcome, time.monotonic() - started, text)
            self.reports.append(report)
            self._tell(report)

        try:
            yield detail
        except _Failed as error:
            ended(HostOutcome.FAILED, error.reason)
            raise
        except TrainmasterError as error:
            reason = Exception.__str__(error).removeprefix(f"{self.target.shown}: ")
            ended(HostOutcome.FAILED, reason)
            raise _Failed(reason, error.hint) from error
        except OSError as error:  # on this side: the cache, for one
            ended(HostOutcome.FAILED, f"here: {error}")
            raise _Failed(f"here: {error}", "Is there room in TRAINMASTER_CACHE?") from error
        reused = detail[:1] == [HostOutcome.REUSED]
        ended(HostOutcome.REUSED if reused else HostOutcome.DONE, "; ".join(detail[reused:]))

    def _tell(self, report: PhaseReport) -> None:
        if report.outcome is not HostOutcome.STARTED:
            log.info(
                "%s: %s %s in %.2f s %s",
                *(report.host, report.phase, report.outcome),
                report.seconds,
                report.detail,
            )
        if self.bootstrap.listener is not None:
            self.bootstrap.listener(report)
