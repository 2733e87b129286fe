"""`AppHosts`: sees to it that apps of a home have their processes, and that those that died are over."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from sqlalchemy.engine import RowMapping

from trainmaster.dataclass import dataclass, field
from trainmaster.db import apps
from trainmaster.db.leases import is_alive
from trainmaster.executors.supervisor.processes import give_back
from trainmaster.service.apps.app_host import app_directories
from trainmaster.service.apps.apps import IDLE_S, NOTEBOOK, PORT
from trainmaster.service.apps.notebook import jupyter_python
from trainmaster.service.background import begun_apart
from trainmaster.service.server_loops import ServerLoop
from trainmaster.service.service import Service
from trainmaster.spec.errors import MissingPartError
from trainmaster.spec.states import State

LOOK_S: Final = 2.0


def need_part(kind: str) -> None:
    """Refuse what is not installed.

    Raises:
        MissingPartError: saying how it is.
    """
    if kind == NOTEBOOK:
        jupyter_python()
    elif find_spec("tensorboard") is None:
        raise MissingPartError("tensorboard is not installed", "Run: pip install 'trainmaster[apps]'")


@dataclass
class AppHosts(ServerLoop):
    """Those of a home.

    Args:
        service: of the home.
        environ: of their processes.
    """

    service: Service
    environ: Mapping[str, str]
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """It does not look yet; apps go on when it is stopped."""
        super().__init__("apps", LOOK_S)

    def turn(self) -> None:
        """Look."""
        self.look()

    def look(self) -> None:
        """Start what is missing; end what has lost its process; remove what that has left.

        Raises:
            StoreError: the database cannot be used.
        """
        database = self.service.database
        self._remove_left()
        self._processes = {app: each for app, each in self._processes.items() if each.poll() is None}
        for row in apps.open_here(database, self.service.home.identity()):
            app = row["id"]
            if row["kind"] == PORT:
                if (why := self._why_over(row)) is not None:
                    apps.end(database, app, why, time.time())
            elif row["owner"] is None:
                if app not in self._processes:
                    self._processes[app] = self._start(app)
            elif not is_alive(row["owner"], row["expires_at"], database.clock_s()):
                apps.end(
                    database, app, "its process was killed, or its machine was started anew", time.time()
                )

    def _why_over(self, row: RowMapping) -> str | None:
        """Of a port of a member, which has no process of ours."""
        if not self.service.database.has_run(row["run_id"]):
            return f"{row['run_id']} was removed"
        if self.service.database.run_row(row["run_id"])["state"] == State.DONE:
            return "its run is over"
        return "nobody used it any more" if time.time() - row["used_at"] > IDLE_S else None

    def _remove_left(self) -> None:
        """Directories of apps whose process was killed before it could."""
        for directory in app_directories(self.service.home.root):
            row = apps.find(self.service.database, directory.name)
            if row is not None and row["state"] == State.DONE:  # else it is of another database
                shutil.rmtree(directory, ignore_errors=True)

    def _start(self, app: str) -> subprocess.Popen[bytes]:
        process = begun_apart("_app", app, environ=self.environ)
        give_back(process.pid)
        return process
