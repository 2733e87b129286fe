"""`Driver`: drives hundreds of runs that were sent to a server, each in a thread of one process.

It may be killed at any line, as the driver of one run may: what it held is taken over by the next one, which
sees that this process is gone. So nothing here needs to end in order.
"""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from trainmaster import __version__
from trainmaster.control.loop.controller import Controller, LoopIntervals
from trainmaster.dataclass import dataclass, field
from trainmaster.db import RetryPolicy
from trainmaster.db.held_runs import HeldDatabase, HeldRuns, add_note, undriven
from trainmaster.executors.supervisor.processes import forbid_core_dumps, raise_limit
from trainmaster.service.driving.driving import Driving
from trainmaster.service.driving.execution_backend import Session
from trainmaster.service.driving.moving import moved
from trainmaster.service.driving.wake_pipes import SUFFIX, WakePipe, wait_for, wake_all
from trainmaster.service.full_disks import full_disk
from trainmaster.service.service import Service
from trainmaster.service.teams.team_logins import TeamLogins
from trainmaster.spec.clocks import boot_s
from trainmaster.spec.errors import LeaseLostError, OtherVersionError, StoreError, TrainmasterError, one_line

#: How often it is looked for runs to take, and for those that are to stop.
LOOK_S: Final = 0.4
#: How long a thread computes at most while others could; and more for each run: all that wait for their turn
#: ask that often, and a thousand that ask 2,000 times a second leave no time for anything else.
SWITCH_S, _SWITCH_EACH_S = 0.0005, 10e-6
#: Garbage is looked for after so many new objects; among older ones after so many times.
COLLECT: Final = (50_000, 20, 20)
#: A driver without a run ends itself after so long.
IDLE_S: Final = 60.0
#: So many runs are driven at once, and so many are taken at each look: others take their share.
MOST_RUNS: Final = 1000
_AT_ONCE: Final = 16
#: A run that cannot be driven is tried again after 5 s, 10 s, 20 s ... up to ten minutes.
_RETRY_S, _LONGEST_RETRY_S = 5.0, 600.0
#: Machines of another version of us have ended then, as no driver has renewed their lease.
_LEFT_ALONE_S = 1200.0
#: A run of many: what it does by itself can wait half a second, and its pages read files, not rows.
PACE: Final = LoopIntervals(idle_s=0.5, progress_s=1.0, stored_s=5.0)

#: Where the pipes of drivers are, and of servers, in a home.
DRIVERS, SERVERS = "drivers", "servers"

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Failure:
    """What has come of driving a run.

    Attributes:
        times: it failed, one after the other.
        try_at: seconds of `boot_s`.
        said: what the run's user has read about it.
    """

    times: int = 0
    try_at: float = 0.0
    said: str = ""


@dataclass
class Driver:
    """Drives the runs of a home.

    Args:
        service: of the home.
        environ: of the server that has started this process.
        idle_s: how long to stay without any run.
        most_runs: how many to drive at once.
        on_start: called with each controller before it starts.
        wakes: tells it that there is a run to take; None: it looks from time to time.
    """

    service: Service
    environ: Mapping[str, str]
    idle_s: float = IDLE_S
    most_runs: int = MOST_RUNS
    on_start: Callable[[Controller], None] = lambda _: None
    wakes: WakePipe | None = None
    _threads: dict[str, threading.Thread] = field(default_factory=dict, init=False)
    _failures: dict[str, _Failure] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Nothing is held yet."""
        self._held = HeldRuns(self.service.database)

    def work(self) -> None:
        """Take runs and drive them until there has been nothing to do for a while."""
        raise_limit()
        forbid_core_dumps()
        # All threads wait for it: what imports made stays, and a look at many runs is no sign of garbage.
        gc.freeze()
        gc.set_threshold(*COLLECT)
        busy_at = boot_s()
        while self._threads or boot_s() - busy_at < self.idle_s:
            pause_s = LOOK_S
            # What comes back from the database gets on soon: it may hold the lock that all others wait for.
            sys.setswitchinterval(SWITCH_S + _SWITCH_EACH_S * len(self._threads))
            try:
                if self.look():
                    busy_at = boot_s()
            except StoreError:  # the database is away: each run waits for it as long as it may
                pass
            except Exception:  # too many threads or files, or a mistake of ours: runs that are driven go on
                pause_s = _RETRY_S
                log.exception("runs were not looked for; that is tried again in %.0f s", pause_s)
            wait_for(self.wakes, pause_s)

    def look(self) -> int:
        """Look once: which runs are to stop, and which can be taken; how many there are to see to.

        Raises:
            StoreError: the database cannot be used.
        """
        self._threads = {run: thread for run, thread in self._threads.items() if thread.is_alive()}
        self._held.look()
        self._held.release_all_but(self._threads)
        room = min(self.most_runs - len(self._threads), _AT_ONCE)
        if room > 0:
            # More than there is room for: some of them cannot be driven now.
            found = undriven(self.service.database, self.service.home.identity(), self.most_runs)
            # Threads write there meanwhile; what is driven is tried again now, and may fail once more.
            for run in list(self._failures):
                if run not in found and run not in self._threads:
                    self._failures.pop(run, None)
            for run in [run for run in found if self._may_try(run)][:room]:
                thread = threading.Thread(target=self._drive, args=(run,), name=run, daemon=True)
                thread.start()  # may raise: then it is found again
                self._threads[run] = thread
        return len({*self._threads, *list(self._failures)})

    # --- one run, in its thread -----------------------------------------------------------------

    def _may_try(self, run: str) -> bool:
        failure = self._failures.get(run)
        return run not in self._threads and (failure is None or boot_s() >= failure.try_at)

    def _drive(self, run: str) -> None:
        retry_policy = RetryPolicy(self.service.home.patience_s)
        database = HeldDatabase(self.service.database, retry_policy, self._held, self._moved)
        service = Service(self.service.home, database)
        session: Session | None = None
        try:
            session = service.take(run, self.environ)
            if session is not None:
                given = (service, session, self.environ)
                Driving(*given, on_start=self.on_start, pace=PACE, move=moved).run()
            self._failures.pop(run, None)
        except LeaseLostError:
            pass
        except TrainmasterError as error:
            is_other = isinstance(error, OtherVersionError)
            self._failed(service, run, one_line(error), _LEFT_ALONE_S if is_other else _LONGEST_RETRY_S)
        except Exception as error:  # noqa: BLE001 - a mistake of ours, or of a plug-in: it ends this run only
            if (full := full_disk(error, service.home)) is not None:
                self._failed(service, run, one_line(full))
                return
            with suppress(OSError, TrainmasterError):
                _tell(service, run, traceback.format_exc())
            self._failed(service, run, f"internal error: {type(error).__name__}: {error}")
        finally:
            if session is not None:  # this process lives on, and so would the lease
                with suppress(StoreError):
                    database.release(session.lease, patient=True)
                    TeamLogins(database, service.home.root, self.environ).forget_earlier()
            service.close()

    def _moved(self, run: str) -> None:
        """Tell the servers of this home, whose users may wait for that."""
        wake_all(self.service.home.root / SERVERS, run)

    def _failed(self, service: Service, run: str, why: str, longest_s: float = _LONGEST_RETRY_S) -> None:
        failure = self._failures.setdefault(run, _Failure())
        wait_s = min(_RETRY_S * 2.0 ** min(failure.times, 16), longest_s)
        failure.times += 1
        failure.try_at = boot_s() + wait_s
        log.warning("%s cannot be driven: %s; tried again in %.0f s", run, why, wait_s)
        if failure.said != why:
            with suppress(StoreError):  # told the next time, as when it is the database that has no room
                add_note(service.database, run, f"cannot be driven, and is tried again: {why}", time.time())
                failure.said = why


def _tell(service: Service, run: str, text: str) -> None:
    directory = (service.home_if_here(run) or service.home).run_directory(run)  # it may have to be taken over
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "control.log").open("a") as file:
        file.write(text)


# --- one process for each of a few places -----------------------------------------------------------


def take_place(home: Path, number: int, within_s: float = 1.0) -> int | None:
    """Be the driver with a number in a home, as long as this process lives; None if another one is.

    Args:
        home: its directory.
        number: from 0.
        within_s: a process that only looks may hold it for a moment.

    Returns:
        A descriptor; the kernel gives the place free when it is closed.
    """
    path = home / DRIVERS / f"{number}.lock"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                return None
            time.sleep(0.01)


def is_taken(home: Path, number: int) -> bool:
    """Whether a living process is the driver with that number."""
    descriptor = take_place(home, number, 0.0)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


def name_version(place: int) -> None:
    """Write down which version of us has taken a place, so that a later one knows."""
    os.ftruncate(place, 0)
    os.pwrite(place, __version__.encode(), 0)


def end_other_versions(home: Path) -> None:
    """End the drivers of another version of us, as after an upgrade; what they drove is taken over.

    What they have not imported yet is not on the disk any more. Those of 0.2.0 have written down no version.
    """
    for path in (home / DRIVERS).glob("*.lock"):
        with suppress(OSError):
            if path.read_text() != __version__:
                for pid in _drivers_at(path.resolve()):
                    os.kill(pid, signal.SIGTERM)


def _drivers_at(path: Path) -> list[int]:
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended, or is of another user
            if process.name.isdigit() and b"\0_driver\0" in (process / "cmdline").read_bytes():
                opened = {str(each.readlink()) for each in (process / "fd").iterdir()}
                found += [int(process.name)] if str(path) in opened else []
    return found


def pipe_of(home: Path, number: int) -> WakePipe | None:
    """By which the driver with a number hears of new runs; None where there can be no pipes."""
    with suppress(OSError):
        return WakePipe(home / DRIVERS / f"{number}{SUFFIX}")
    return None
