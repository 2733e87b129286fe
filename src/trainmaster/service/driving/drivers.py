"""`Drivers`: sees to it that processes are there that drive what was sent to a server. They outlive it.

`RunMonitor`: brings on the runs of its home that machines of their own drive.
"""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Final

from trainmaster.dataclass import dataclass, field
from trainmaster.db import run_transfer
from trainmaster.db.held_runs import add_note, count_open, undriven
from trainmaster.executors.supervisor.processes import give_back
from trainmaster.service.background import begun, begun_apart
from trainmaster.service.driving.background import go_on_here
from trainmaster.service.driving.driver import DRIVERS, end_other_versions, is_taken
from trainmaster.service.driving.wake_pipes import wake_all
from trainmaster.service.on_cluster.away import AwayRuns
from trainmaster.service.on_cluster.driver_store import BEAT_S
from trainmaster.service.server_loops import ServerLoop
from trainmaster.service.service import Service
from trainmaster.service.teams.admission import admit_waiting
from trainmaster.service.teams.team_logins import TeamLogins
from trainmaster.spec.errors import TrainmasterError

#: Undriven runs are looked for so often, in seconds.
LOOK_S: Final = 2.0
#: One that has ended at once is not started again before that.
_AGAIN_S: Final = 10.0
#: There is a driver more for so many runs, until there is one for each core.
RUNS_EACH: Final = 50

log = logging.getLogger(__name__)


@dataclass
class Drivers(ServerLoop):
    """The driver processes of a home.

    Args:
        service: of the home.
        environ: of those processes.
        most: how many there are at most; 0 is one per core.
    """

    service: Service
    environ: Mapping[str, str]
    most: int = 0
    _started_at: dict[int, float] = field(default_factory=dict, init=False)
    _processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """It does not look yet; drivers and their runs go on when it is stopped."""
        super().__init__("drivers", LOOK_S)

    def start(self) -> None:
        """Look from now on; what another version has begun ends before."""
        end_other_versions(self.service.home.root)
        super().start()

    def turn(self) -> None:
        """Admit what waits where there is room again, and look."""
        self.service.database.check_schema()  # said in the log, also while there is nothing to write
        admit_waiting(self.service.database, self.service.database.clock_s())
        TeamLogins(self.service.database, self.service.home.root, self.environ).forget_earlier()
        self.look()

    def look(self) -> list[int]:
        """Start the drivers that are missing; their numbers.

        Raises:
            StoreError: the database cannot be used.
        """
        identity = self.service.home.identity()
        if not undriven(self.service.database, identity, 1):
            return []
        wake_all(self.service.home.root / DRIVERS, "look")
        most = self.most or len(os.sched_getaffinity(0))
        wanted = min(most, 1 + count_open(self.service.database, identity) // RUNS_EACH)
        missing = wanted - sum(self._is_there(number) for number in range(most))
        free = [number for number in range(most) if not self._is_there(number) and self._may_start(number)]
        for number in free[: max(0, missing)]:
            self._start(number)
        return free[: max(0, missing)]

    def _is_there(self, number: int) -> bool:
        process = self._processes.get(number)
        if process is not None and process.poll() is None:  # it may not have taken its place yet
            return True
        return is_taken(self.service.home.root, number)

    def _may_start(self, number: int) -> bool:
        return time.monotonic() - self._started_at.get(number, -_AGAIN_S) >= _AGAIN_S

    def _start(self, number: int) -> None:
        log = self.service.home.root / DRIVERS / f"{number}.log"
        self._started_at[number] = time.monotonic()
        self._processes[number] = begun_apart("_driver", str(number), environ=self.environ, log=log)
        give_back(self._processes[number].pid)


class RunMonitor(ServerLoop):
    """Brings on the runs of a home that are away while a server shows it; goes on with one that is lost.

    Args:
        service: of the home.
        environ: of the server: credentials.
    """

    def __init__(self, service: Service, environ: Mapping[str, str]) -> None:
        super().__init__("runs away", BEAT_S, is_awaited=False)
        self._service, self._environ = service, environ
        self.away = AwayRuns(service, environ, go_on=self._go_on)
        self._looks: dict[str, Future[None]] = {}
        self._noted: dict[str, str] = {}

    def turn(self) -> None:
        """Look at each of them; what cannot be read stays as it was. None waits for a store that stalls.

        Else all others would be taken for undriven.
        """
        errors = [look.exception() for look in self._looks.values() if look.done()]
        self._looks = {run: look for run, look in self._looks.items() if not look.done()}
        for run in run_transfer.runs_away(self._service.database, self._service.home.identity()):
            if run not in self._looks:
                self._looks[run] = begun(partial(self.away.look, run), f"looks at {run}")
        for error in errors:
            if error is not None and not isinstance(error, TrainmasterError):
                raise error  # it is logged

    def _go_on(self, run: str) -> None:
        why = go_on_here(self._service, self._environ, log.warning, run)
        if why and self._noted.get(run) != why:  # each reason once; tried again by `AwayRuns`
            words = (
                f"its driver on its machine is gone; cannot be driven from here, and is tried again: {why}"
            )
            add_note(self._service.database, run, words, self._service.database.clock_s())
            self._noted[run] = why
