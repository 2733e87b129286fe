"""`PrivatePostgres`: a PostgreSQL server of one's own, for tests and benchmarks."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from trainmaster.testing.private_server import START_TIMEOUT_S, PrivateServer, ending_with_us

_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "log_min_messages": "warning",
    "autovacuum_naptime": "1h",
}
#: These data are not needed after a power cut; a killed process loses nothing all the same.
NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}
#: In memory it lies only where there is far more room than it needs.
_ROOMY_BYTES = 4 << 30


class NoPostgresError(Exception):
    """There is no PostgreSQL server on this machine that could be started."""


def find_postgres() -> Path:
    """The directory of ``postgres`` and ``initdb``: on PATH, or where Debian keeps them.

    Raises:
        NoPostgresError: they are nowhere.
    """
    found = shutil.which("postgres")
    candidates = [Path(found).resolve().parent] if found else []
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    candidates += sorted(debian, key=lambda path: path.parent.name.zfill(4), reverse=True)
    for directory in candidates:
        if all(os.access(directory / name, os.X_OK) for name in ("postgres", "initdb")):
            return directory
    raise NoPostgresError("no postgres and initdb, neither on PATH nor in /usr/lib/postgresql/*/bin")


class PrivatePostgres(PrivateServer):
    """A server on a Unix socket in a directory of its own; it ends with its context or its process.

    Args:
        settings: of ``postgresql.conf``, beside those that make it small.
        place: a directory for its data that its user may enter; a temporary one by default.

    Attributes:
        directory: the socket and the data; short, as a socket's path must be.

    Raises:
        NoPostgresError: there is no PostgreSQL here.

    Example:
        >>> with PrivatePostgres(NOT_DURABLE) as server:  # doctest: +SKIP
        ...     Store(server.new_url())
    """

    def __init__(self, settings: Mapping[str, str] | None = None, place: Path | None = None) -> None:
        self._bin = find_postgres()
        self._settings = {**_SETTINGS, **(settings or {})}
        self._user = _unprivileged()
        self.directory = Path(tempfile.mkdtemp(prefix="tm-pg-", dir=_directory(self._settings)))
        self.data = (place or self.directory) / "data"
        self._log = self.directory / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        if self._user is not None:
            os.chown(self.directory, self._user.pw_uid, self._user.pw_gid)

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.directory / ".s.PGSQL.5432"

    @property
    def is_running(self) -> bool:
        """True between `start` and `stop`."""
        return self._process is not None and self._process.poll() is None

    @property
    def url(self) -> str:
        """The URL of its only database."""
        return f"postgresql://trainmaster@/postgres?host={self.directory}"

    def new_url(self) -> str:
        """The URL of a place in it that is still empty: a schema, much quicker made than a database."""
        name = f"place_{next(self._numbers)}"
        self.execute(f"CREATE SCHEMA {name}")
        return f"{self.url}&options=-csearch_path%3D{name}"

    def execute(self, sql: str) -> list[tuple[object, ...]]:
        """Run one statement as the superuser, outside a transaction."""
        import sqlalchemy as sa

        from trainmaster.db.engine import make_engine

        engine = make_engine(self.url).execution_options(isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                result = connection.execute(sa.text(sql))
                return [tuple(row) for row in result] if result.returns_rows else []
        finally:
            engine.dispose()

    def prepare(self) -> None:
        """Makes an empty database."""
        command = [str(self._bin / "initdb"), "-D", str(self.data), "-U", "trainmaster", "--auth=trust"]
        command += ["--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions", "--wal-segsize=1"]
        with self._log.open("ab") as log:
            if self._popen(command, log).wait() != 0:
                raise RuntimeError(f"initdb failed:\n{self.log()}")
        settings = {"unix_socket_directories": str(self.directory), **self._settings}
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{key} = '{value}'\n" for key, value in settings.items())

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = self._popen([str(self._bin / "postgres"), "-D", str(self.data)], log)
        deadline = time.monotonic() + START_TIMEOUT_S
        status = self.data / "postmaster.pid"
        while True:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL does not start:\n{self.log()}")
            with contextlib.suppress(OSError):
                lines = status.read_text().splitlines()
                # It is empty between its making and its first line.
                if lines[:1] == [str(self._process.pid)] and "ready" in lines[-1]:
                    return
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT cuts all connections, SIGQUIT also leaves the clean-up to the next start."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGQUIT)
                self._process.wait(20)
        self._process = None

    def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it and start it again."""
        self.stop(how)
        self.start()

    def cut_connections(self) -> int:
        """End every session of `Database`; how many there were."""
        rows = self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        return len(rows)

    def log(self) -> str:
        """What it has to say."""
        return self._log.read_text(errors="replace")[-4000:] if self._log.exists() else ""

    def close(self) -> None:
        """End it and remove its data."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.data, ignore_errors=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _popen(self, command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        user = self._user
        return subprocess.Popen(
            ending_with_us(command, "QUIT"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
            user=user.pw_uid if user else None,
            group=user.pw_gid if user else None,
            extra_groups=[] if user else None,
        )


def _directory(settings: Mapping[str, str]) -> str:
    """Where it lies: in memory if it need not last, as thousands of schemas are thousands of files each."""
    memory, disk = "/dev/shm", "/tmp"  # noqa: S108 - a directory of our own is made there
    if settings.get("fsync") != "off" or not Path(memory).is_dir():
        return disk
    return memory if shutil.disk_usage(memory).free > _ROOMY_BYTES else disk


def _unprivileged() -> pwd.struct_passwd | None:
    """Whom to be instead of root; None if we are somebody else already."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise NoPostgresError("PostgreSQL refuses to run as root, and there is no user postgres or nobody")
