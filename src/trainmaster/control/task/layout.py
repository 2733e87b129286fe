"""Where things lie: `Home` for one user or team, `RunFiles` to look at, `AttemptPlace` for one attempt."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import UsageError, fails_as
from trainmaster.spec.private_files import create_private, make_private
from trainmaster.spec.units import parse_duration

#: A server that restarts is back much sooner; whoever waits longer wants to know.
PATIENCE_S = 60.0
#: In a run's directory: what its experiments take over from another, and its volumes.
INPUTS: Final = "inputs"
#: So begins the name of a log of a machine's operating system, not of a member: `system-i-07.log`.
SYSTEM: Final = "system-"

_IDENTITY: Final = re.compile(rb"[0-9A-Za-z._-]{1,64}")


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Where files of runs lie that may be looked at: logs, points, samples.

    Of a run that is driven elsewhere they are a replica: it has no machines, no keys, no working copy and no
    output, and nothing is written into it. What needs one of those asks for a `Home`.

    Attributes:
        root: below it each run has a directory.
    """

    root: Path

    def run_directory(self, run: str) -> Path:
        """Working copy, logs and output of one run."""
        return self.root / "runs" / run

    def code_directory(self, run: str) -> Path:
        """The working directory of a run's members."""
        return self.run_directory(run) / "code"

    def attempt(self, run: str, experiment: str, task: int, attempt: int) -> AttemptPlace:
        """The place of one attempt."""
        return AttemptPlace(self.run_directory(run) / "tasks" / experiment / str(task) / str(attempt))


@dataclass(frozen=True, slots=True)
class Home(RunFiles):
    """The directories and URLs that the ``TRAINMASTER_*`` variables name.

    Attributes:
        root: all state (``TRAINMASTER_HOME``).
        cache: what can be made again (``TRAINMASTER_CACHE``).
        store_url: models and checkpoints (``TRAINMASTER_STORE``).
        database_url: SQLite or PostgreSQL (``TRAINMASTER_DATABASE``).
        patience_s: how long what drives a run waits for a database that is away
            (``TRAINMASTER_DATABASE_PATIENCE``).
        volumes_in: the store of volumes that are named without one, and of other runs; empty for
            ``store_url``.
    """

    cache: Path
    store_url: str
    database_url: str
    patience_s: float = PATIENCE_S
    volumes_in: str = ""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, *, makes: bool = True) -> Home:
        """Read the variables, and make the home's directory.

        Args:
            environ: the variables; None for this process's.
            makes: False leaves a directory that is not there as it is.

        Raises:
            UsageError: the directory cannot be made or written.
        """
        environ = os.environ if environ is None else environ
        wanted = environ.get("TRAINMASTER_HOME") or "~/.trainmaster"
        root = _directory(wanted, "TRAINMASTER_HOME") if makes else Path(wanted).expanduser().absolute()
        cache = Path(environ.get("TRAINMASTER_CACHE") or "~/.cache/trainmaster").expanduser().absolute()
        if cache.is_dir():  # else what needs it first makes it
            make_private(cache)
        return cls(
            root=root,
            cache=cache,
            store_url=_url(environ.get("TRAINMASTER_STORE") or str(root / "store")),
            database_url=environ.get("TRAINMASTER_DATABASE") or sqlite_url(root / "trainmaster.db"),
            patience_s=seconds_of(environ, "TRAINMASTER_DATABASE_PATIENCE", PATIENCE_S),
        )

    @property
    def nothing_sent(self) -> Path:
        """The empty directory of recipes that were sent to a server without code."""
        return self.root / "uploads" / "empty"

    def identity(self) -> str:
        """A name that no other home has; written at its first use.

        Homes of several machines may share a database, and their paths may be the same.

        Raises:
            UsageError: it is damaged: with another name, the home would not know what it has rented.
        """
        path = self.root / "identity"
        if not path.exists():
            self.root.stat()  # a home whose disk is away gets no second name
            create_private(path, f"{secrets.token_hex(16)}\n".encode())  # of several at once one counts
        found = path.read_bytes().strip()
        if not _IDENTITY.fullmatch(found):
            raise UsageError(
                f"{path} is damaged: it says {found[:40]!r}, which names no home",
                "Machines, rows and claims of this home bear what it said. Write that there again: the "
                "database has it as `home_id` in its table `run`. Before, nothing is begun or ended.",
            )
        return found.decode()

    def at(self, root: Path, identity: str) -> Home | None:
        """The home with this identity: this one, or the one at ``root``; None if neither is."""
        for home in (self, replace(self, root=root)):
            with contextlib.suppress(OSError):
                if (home.root / "identity").read_text().strip() == identity:
                    return home
        return None

    @property
    def snapshots(self) -> Path:
        """Immutable copies of the users' code, by content."""
        return self.root / "snapshots"

    @property
    def secrets_file(self) -> Path:
        """Lines ``NAME=VALUE``, readable by the owner only."""
        return self.root / "secrets"

    @property
    def secrets_hint(self) -> str:
        """Where the owner puts the value of a secret; of a home on another machine, too."""
        file = f"add a line NAME=VALUE to {self.secrets_file} (chmod 600)"
        return f"Export it, or {file}; with a server, on its machine."

    def data_directory(self, run: str) -> Path:
        """What one experiment of a run takes over from another, and its volumes."""
        return self.run_directory(run) / INPUTS

    def model_uri(self, run: str, experiment: str, task: int, attempt: int = 1) -> str:
        """Where an attempt publishes the model of a task: none can be in the way of another one's."""
        name = str(task) if attempt == 1 else f"{task}-attempt-{attempt}"
        return f"{self.store_url.rstrip('/')}/models/{run}/{experiment}/{name}"

    def run_uris(self, run: str) -> tuple[str, str]:
        """Where all models and all checkpoints of a run are published."""
        store = self.store_url.rstrip("/")
        return f"{store}/models/{run}", f"{store}/checkpoints/{run}"

    def checkpoints_uri(self, run: str, experiment: str, task: int) -> str:
        """Where the numbered checkpoints of a task are published."""
        return f"{self.store_url.rstrip('/')}/checkpoints/{run}/{experiment}/{task}"


@dataclass(frozen=True, slots=True)
class AttemptPlace:
    """The directory of one attempt and what lies in it."""

    directory: Path

    @property
    def checkpoint(self) -> Path:
        """One checkpoint directory for all members of the node."""
        return self.directory / "checkpoint"

    @property
    def scratch(self) -> Path:
        """What members have as ``/tmp`` that run as a user of their own."""
        return self.directory / "tmp"

    @property
    def restored(self) -> Path:
        """What an attempt on nodes has begun with; see `control.restored`."""
        return self.directory / "restored.json"

    @property
    def shown(self) -> Path:
        """Up to which byte of the first member's log a driver has shown it."""
        return self.directory / "shown"

    @property
    def pace(self) -> Path:
        """How its steps went first; see `control.measure.drift`."""
        return self.directory / "pace.json"

    @property
    def members(self) -> Path:
        """Output directories of the members that are not rank 0."""
        return self.directory / "members"

    def output(self, member: str, *, first: bool) -> Path:
        """The output directory of a member; rank 0's (``first``) becomes the model."""
        return self.directory / "output" if first else self.members / member

    def log(self, member: str) -> Path:
        """First segment of a member's log."""
        return self.directory / f"{member}.log"

    def system_log(self, machine: str) -> Path:
        """What the operating system of a machine has said, by its id."""
        return self.directory / f"{SYSTEM}{re.sub(r'[^A-Za-z0-9.-]', '_', machine)}.log"

    def make_directories(self, members: Sequence[str]) -> None:
        """Make the checkpoint and output directories; ``members`` in rank order."""
        self.directory.parent.parent.mkdir(parents=True, exist_ok=True)
        for directory in (
            self.directory.parent,
            self.directory,
            self.checkpoint,
        ):  # top down: no call in vain
            directory.mkdir(exist_ok=True)
        for rank, name in enumerate(members):
            self.output(name, first=rank == 0).mkdir(parents=True, exist_ok=True)

    def clean_up(self, *, keep_output: bool, keep_checkpoint: bool) -> None:
        """Remove the working directories of an attempt whose end is recorded; logs and metrics stay.

        Args:
            keep_output: it left no published model: what it wrote stays for the user to look at.
            keep_checkpoint: its last checkpoint could not be published.
        """
        with contextlib.suppress(OSError):
            self.restored.unlink(missing_ok=True)
            self.pace.unlink(missing_ok=True)
        for directory, keep in (
            (self.checkpoint, keep_checkpoint),
            (self.output("", first=True), keep_output),
            (self.members, keep_output),
            (self.scratch, False),
        ):
            try:
                directory.rmdir()  # nearly always empty in a sweep: one call instead of a walk
            except OSError:
                if keep:
                    _remove_if_empty(directory)
                else:
                    shutil.rmtree(directory, ignore_errors=True)

    def metrics(self, member: str) -> Path:
        """What a member reports through ``TRAINMASTER_METRICS``."""
        return self.directory / f"{member}.metrics.jsonl"


def attempt_id(run: str, experiment: str, task: int, attempt: int) -> str:
    """The name of an attempt towards executors: ``digits-7f3a/train/0/1``."""
    return f"{run}/{experiment}/{task}/{attempt}"


def experiment_of(attempt: str) -> str:
    """The experiment of an attempt.

    >>> experiment_of("digits-7f3a/train/0/1")
    'train'
    """
    return attempt.split("/")[1]


def _remove_if_empty(directory: Path) -> None:
    for path, _, _ in os.walk(directory, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(path)  # noqa: PTH106 - it takes any text


def _url(text: str) -> str:
    # The same store must be meant from every directory.
    return text if "://" in text else f"file://{_escaped(Path(text).expanduser().absolute())}"


def sqlite_url(file: Path) -> str:
    """The database in a file, whatever its directories are called.

    >>> sqlite_url(Path("/homes/why?/50%/trainmaster.db"))
    'sqlite:////homes/why%3F/50%25/trainmaster.db'
    """
    return f"sqlite:///{_escaped(file).replace('?', '%3F')}"


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%25")


def seconds_of(environ: Mapping[str, str], variable: str, default_s: float) -> float:
    """The duration that a variable sets.

    Raises:
        UsageError: it is no time.
    """
    text = environ.get(variable)
    if not text:
        return default_s
    with fails_as(variable, on=ValueError):
        return parse_duration(text)


def _directory(text: str, variable: str) -> Path:
    path = Path(text).expanduser().absolute()
    with fails_as(
        f"{variable}: cannot make the directory {path}",
        f"Set {variable} to a directory that you can write, or free the disk.",
    ):
        make_private(path)
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(
            f"{variable}: {path} is not writable", f"Set {variable} to a directory that you can write."
        )
    return path


def has_entries(directory: Path) -> bool:
    """Whether there is anything in a directory."""
    try:
        with os.scandir(directory) as entries:
            return next(entries, None) is not None
    except FileNotFoundError:
        return False
