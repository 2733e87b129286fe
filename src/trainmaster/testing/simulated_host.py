"""Machines with clocks of their own, and processes that may be paused, suspended and killed on them.

While a simulation runs, the clocks of the `time` module are those of the process that is at work. So the real
code is stepped with the clocks that it reads in production, whichever those are.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from trainmaster.db import leases
from trainmaster.spec import clocks, processes
from trainmaster.testing.simulated_world import Killed, World

_REAL_TIME: Final = time.time
_REAL_MONOTONIC: Final = time.monotonic


class SimulatedHost:
    """A machine that processes run on.

    Args:
        world: the true time.
        name: of the machine.
        skew_s: how far its wall clock is ahead.

    Attributes:
        ahead_s: how far its wall clock is ahead now; setting it is setting the clock.
        slept_s: how long it was suspended in all.
        asleep_until: true time until which it is suspended.
    """

    def __init__(self, world: World, name: str, skew_s: float = 0.0) -> None:
        self.world = world
        self.name = name
        self.ahead_s = skew_s
        self.slept_s = 0.0
        self.asleep_until = 0.0
        self.processes: dict[tuple[str, int], SimulatedProcess] = {}
        self._booted_at = world.now - 1000.0

    def wall(self) -> float:
        """`time.time` there: may be set at any moment."""
        return self.world.now + self.ahead_s

    def boot(self) -> float:
        """`CLOCK_BOOTTIME` there."""
        return self.world.now - self._booted_at

    def monotonic(self) -> float:
        """`time.monotonic` there: it stands still while the machine is suspended."""
        return self.boot() - self.slept_s

    def suspend(self, for_s: float) -> None:
        """Close the lid."""
        if self.asleep_until <= self.world.now:
            self.world.note(f"{self.name} is suspended for {for_s:.0f} s")
            self.asleep_until = self.world.now + for_s
            self.slept_s += for_s


class SimulatedProcess:
    """One process: what it has begun happens while it lives, and waits while it is paused.

    Args:
        host: where it runs.
        name: for the schedule.
        namespace: of its process ids.

    Attributes:
        is_alive: it was not killed, and has not ended.
        paused_until: true time until which it stands still; infinite: until somebody lets it go on.
    """

    def __init__(self, host: SimulatedHost, name: str, namespace: str = "ns-1") -> None:
        self.host = host
        self.name = name
        self.namespace = namespace
        self.is_alive = True
        self.paused_until = 0.0
        self.began_at = self.woke_at = host.world.now
        self.pid = 101 + sum(of == namespace for of, _ in host.processes)
        self.started = round(self.began_at * 100) + len(host.processes)
        host.processes[namespace, self.pid] = self
        self.offset_s = host.wall() - host.boot()
        self._held: list[Callable[[], None]] = []

    @property
    def world(self) -> World:
        """Where it lives."""
        return self.host.world

    @property
    def still_until(self) -> float:
        """Until when nothing of it happens."""
        return max(self.paused_until, self.host.asleep_until)

    @property
    def awake_since(self) -> float:
        """Since when it has been at work without a break."""
        return max(self.woke_at, self.paused_until, self.host.asleep_until)

    @property
    def is_awake(self) -> bool:
        """Whether it lives and does not stand still."""
        return self.is_alive and self.still_until <= self.world.now

    def after(self, delay_s: float, happen: Callable[[], None]) -> None:
        """Let something of it happen later, if it lives then."""
        self.world.after(delay_s, lambda: self._happen(happen))

    def steady(self) -> float:
        """`steady_s` in it."""
        return self.host.boot() + self.offset_s

    def clocks_of(self, function: Callable[..., object]) -> dict[str, Any]:
        """The clocks that a function or class takes by default, by parameter, as they go in this process."""
        found = {
            _REAL_TIME: self.host.wall,
            _REAL_MONOTONIC: self.host.monotonic,
            clocks.boot_s: self.host.boot,
            clocks.steady_s: self.steady,
        }
        return {name: found[default] for name, default in _defaults(function) if default in found}

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Whatever is done in the body is done by this process."""
        with _current(self):
            yield

    def _happen(self, happen: Callable[[], None]) -> None:
        if not self.is_alive:
            return
        if self.still_until > self.world.now:
            if self.still_until < float("inf"):
                self.after(self.still_until - self.world.now, happen)
            else:
                self._held.append(happen)
            return
        with self.at_work():
            happen()

    def go_on(self) -> None:
        """Let it go on after a pause without end."""
        self.paused_until, self.woke_at = 0.0, self.world.now
        held, self._held = self._held, []
        for happen in held:
            self.after(0.0, happen)

    def check(self) -> None:
        """Stop where the process is dead.

        Raises:
            Killed: it is.
        """
        if not self.is_alive:
            raise Killed(self.name)


@cache
def _defaults(function: Callable[..., object]) -> list[tuple[str, Any]]:
    of = inspect.signature(function).parameters.items()
    return [(name, one.default) for name, one in of if callable(one.default)]


_working: list[SimulatedProcess] = []


@contextmanager
def _current(process: SimulatedProcess) -> Iterator[None]:
    _working.append(process)
    with_offset, clocks._OFFSET_S = clocks._OFFSET_S, process.offset_s  # type: ignore[misc]
    try:
        yield
    finally:
        _working.pop()
        clocks._OFFSET_S = with_offset  # type: ignore[misc]


def working() -> SimulatedProcess:
    """The process that is at work."""
    return _working[-1]


@contextmanager
def simulated_clocks(world: World, sleep: Callable[[float], None]) -> Iterator[None]:
    """In the body, the clocks of the `time` module are those of the process that is at work.

    Args:
        world: whose time it is where no process is.
        sleep: lets it wait.
    """
    nobody = SimulatedHost(world, "nobody")

    def clock_gettime(which: int) -> float:
        host = _working[-1].host if _working else nobody
        if which == time.CLOCK_REALTIME:
            return host.wall()
        return host.boot() if which == clocks._BOOT_CLOCK else host.monotonic()

    fakes: dict[str, Any] = {
        "time": lambda: (_working[-1].host if _working else nobody).wall(),
        "monotonic": lambda: (_working[-1].host if _working else nobody).monotonic(),
        "clock_gettime": clock_gettime,
        "sleep": sleep,
    }
    proc = {
        "Path": _ProcFile,
        "socket": SimpleNamespace(gethostname=lambda: working().host.name),
        "os": SimpleNamespace(
            getpid=lambda: working().pid, readlink=lambda _: working().namespace, kill=_no_signal
        ),
    }
    with ExitStack() as stack:
        stack.enter_context(patch.multiple(time, **fakes))
        for module in _ASK_THE_KERNEL:
            for name, fake in proc.items():
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, fake))
        yield


#: Modules that ask the kernel which process is which.
_ASK_THE_KERNEL: Final[tuple[ModuleType, ...]] = (leases, processes)


def _no_signal(pid: int, _: int) -> None:
    raise ProcessLookupError(pid)


class _ProcFile:
    """A file of `/proc`, as the process sees it that is at work."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read_text(self) -> str:
        process = working()
        if self._path.endswith("boot_id"):
            return f"boot-of-{process.host.name}\n"
        number = self._path.split("/")[2]
        found = process.host.processes.get((process.namespace, int(number) if number.isdigit() else 0))
        if found is None or not found.is_alive:
            raise FileNotFoundError(self._path)
        return f"{number} (trainmaster) S {' '.join(['0'] * 18)} {found.started} 0"
