"""`AppHost`: the process that looks after one app: starts it, sees whether it is used, ends it.

It is no child of the server, which finds it again after a restart. If it is killed, the app dies with it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Final

from sqlalchemy.engine import RowMapping

from trainmaster.db import accounts, apps
from trainmaster.db.leases import LEASE_S, this_process
from trainmaster.service.apps.apps import IDLE_S
from trainmaster.service.service import Service
from trainmaster.service.users.caller import ROLES
from trainmaster.spec.clocks import boot_s
from trainmaster.spec.errors import StoreError
from trainmaster.spec.private_files import make_private
from trainmaster.spec.states import State

LOOK_S: Final = 1.0
#: Its lease is renewed, and rights are looked at, so often.
_RENEW_S: Final = 10.0
#: It answers after so long, or never.
_READY_S: Final = 180.0
#: After SIGTERM it is given so long.
_GRACE_S: Final = 10.0
_ANSWER_S: Final = 5.0
#: A log that is larger is begun again.
_LOG_BYTES: Final = 8 << 20
_PARENT_DEATH_SIGNAL: Final = 1


class AppKind(ABC):
    """What the processes of one kind of app are.

    Args:
        service: of the home.
        row: of the app.
        directory: of the app, that has no other writer.
    """

    def __init__(self, service: Service, row: RowMapping, directory: Path) -> None:
        self.service, self.row, self.directory = service, row, directory

    @property
    def prefix(self) -> str:
        """What paths of the app begin with."""
        return f"/apps/{self.row['id']}/"

    @abstractmethod
    def command(self, port: int, token: str) -> tuple[list[str], dict[str, str]]:
        """What starts it, and its environment.

        Args:
            port: to listen at, on the machine's own address.
            token: what it should want to be told, if it can.
        """

    def look(self) -> None:  # noqa: B027 - most kinds have nothing to do
        """Called before it starts, and again and again while it runs."""

    def is_busy(self, port: int, token: str) -> bool:
        """Whether it computes without a viewer."""
        return False


def app_directory(home: Path, app: str) -> Path:
    """Where what belongs to an app lies."""
    return home / "apps" / app


def app_directories(home: Path) -> list[Path]:
    """Those that are there, of apps that are over, too, if they were killed."""
    return list((home / "apps").glob("*"))


def token_of(home: Path, app: str) -> str:
    """What an app wants to be told, as the process that looks after it has written it down."""
    return (app_directory(home, app) / "token").read_text()


class AppHost:
    """One app.

    Args:
        service: of the home.
        app: its id.
        kinds: classes by kind.
    """

    def __init__(self, service: Service, app: str, kinds: Mapping[str, type[AppKind]]) -> None:
        self._service, self._app, self._kinds = service, app, kinds
        self._directory = app_directory(service.home.root, app)
        self._token = secrets.token_hex(24)
        self._stopped = False
        self._renew_at = 0.0

    def work(self) -> None:
        """Until it is over; nothing if somebody else looks after it.

        Raises:
            StoreError: the database cannot be used.
        """
        database = self._service.database
        if not apps.claim(database, self._app, this_process(), database.clock_s() + LEASE_S):
            return
        signal.signal(signal.SIGTERM, self._stop)
        reason = "it was ended with its process"
        try:
            reason = self._hosted()
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)
            apps.end(database, self._app, reason, time.time())

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopped = True

    def _hosted(self) -> str:
        """Why it is over."""
        row = apps.find(self._service.database, self._app)
        assert row is not None
        make_private(self._directory.parent)
        make_private(self._directory)
        (self._directory / "token").touch(0o600)
        (self._directory / "token").write_text(self._token)
        kind = self._kinds[row["kind"]](self._service, row, self._directory)
        kind.look()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        command, environment = kind.command(port, self._token)
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                preexec_fn=_die_with_parent,
            )
        try:
            return self._watched(kind, process, port)
        finally:
            _end(process)

    def _watched(self, kind: AppKind, process: subprocess.Popen[bytes], port: int) -> str:
        is_ready, begun, look_at = False, boot_s(), 0.0
        while True:
            if process.poll() is not None:
                return f"it has ended by itself: {self._last_words()}"
            if not is_ready and answers(port, kind.prefix, self._token):
                is_ready = apps.change(self._service.database, self._app, state=State.RUNNING, port=port)
            if not is_ready and boot_s() - begun > _READY_S:
                return f"it did not answer within {_READY_S:.0f} s: {self._last_words()}"
            with contextlib.suppress(StoreError):  # it is back soon
                if (why := self._why_over(kind, port)) is not None:
                    return why
            if boot_s() >= look_at:
                begin = boot_s()
                kind.look()
                look_at = boot_s() + 5 * LOOK_S + 9 * (boot_s() - begin)
            if self._log.stat().st_size > _LOG_BYTES:
                os.truncate(self._log, 0)
            time.sleep(LOOK_S if is_ready else LOOK_S / 5)

    def _why_over(self, kind: AppKind, port: int) -> str | None:
        database = self._service.database
        row = apps.find(database, self._app)
        if self._stopped or row is None:
            return "it was ended with its process"
        if row["ends"] or row["state"] == State.DONE:
            return "ended by hand"
        if boot_s() < self._renew_at:
            return None
        self._renew_at = boot_s() + _RENEW_S
        apps.change(database, self._app, expires_at=database.clock_s() + LEASE_S)
        for run in json.loads(row["runs"]):
            if not database.has_run(run):
                return f"{run} was removed"
        if row["account"] is not None:
            account, roles = accounts.account_roles(database, row["account"])
            is_admin = account is not None and account["admin_by"] is not None
            may = ROLES.get(roles.get(row["team"] or "", ""), frozenset())
            if account is None or account["disabled_at"] is not None or not (is_admin or "run" in may):
                return f"{row['account']} may not run what is the team's any more"
        if kind.is_busy(port, self._token):
            apps.note_use(database, self._app, time.time())
        elif time.time() - row["used_at"] > IDLE_S:
            return "nobody used it any more"
        return None

    @property
    def _log(self) -> Path:
        return self._directory / "log"

    def _last_words(self) -> str:
        lines = self._log.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else "it said nothing"


def answers(port: int, path: str, token: str) -> bool:
    """Whether something answers at a port."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S)
    try:
        connection.request("GET", path, headers={"authorization": f"token {token}"})
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def without_tensorflow(module: str) -> list[str]:
    """What runs a module of Python without loading TensorFlow, where that is installed."""
    run = f"runpy.run_module({module!r}, run_name='__main__')"
    return [sys.executable, "-P", "-c", f"import runpy, sys; sys.modules['tensorflow'] = None; {run}"]


def _die_with_parent() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
