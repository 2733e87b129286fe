"""`LocalRuns`: how a home runs tasks of teams on its own machine, apart from it; by default it runs none."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import unquote, urlsplit

from trainmaster.control.task.isolation import MOST_PROCESSES, Isolation
from trainmaster.dataclass import dataclass
from trainmaster.executors.containers import sandbox
from trainmaster.executors.supervisor.enclosures import Enclosure
from trainmaster.executors.supervisor.processes import attempt_group
from trainmaster.service import cloud_metadata
from trainmaster.spec.errors import UsageError, fails_as
from trainmaster.spec.private_files import write_private
from trainmaster.spec.redaction import redacted
from trainmaster.spec.units import format_duration, parse_duration

if TYPE_CHECKING:
    import subprocess

    from trainmaster.control.task.layout import Home
    from trainmaster.db import Database

VARIABLE: Final = "TRAINMASTER_LOCAL_RUNS"
#: What it is set to for no runs of teams at all.
NONE: Final = "none"
USER, CONTAINER = "user", "container"
USUAL_PATTERN: Final = "tm-{team}"
USUAL_IMAGE: Final = f"docker.io/library/python:{sys.version_info[0]}.{sys.version_info[1]}"
#: Behind the kind: users may reach what a cloud tells the machine of its credentials; the longest time.
_METADATA, _MOST = "metadata", "max="
HINT: Final = (
    "Write `user`, `user:PATTERN` such as `user:tm-{team}`, `user,metadata`, `container`, `container:IMAGE` "
    "or `none`; `,max=24h` behind it ends what takes longer."
)
#: In a container: a user that has nothing of its own, as on most machines.
_NOBODY: Final = 65534
#: Directories that tasks need, too.
_SHARED: Final = frozenset(
    map(Path, ("/", "/tmp", "/var/tmp", "/usr", "/var", "/etc", "/srv", "/home", "/opt"))  # noqa: S108
)
#: Of memory, for a trial.
_TRIED_BYTES: Final = 1 << 30
#: No engine takes this for the name of an image.
_NO_IMAGE: Final = "-"


@dataclass(frozen=True, slots=True)
class LocalRuns:
    """What `trainmaster server --local-runs` says.

    Attributes:
        kind: `USER` or `CONTAINER`.
        what: pattern of users' names, or an image.
        with_metadata: users may reach what the cloud tells this machine of its credentials.
        most_s: attempts are ended after so long, in seconds; 0 is never.
    """

    kind: str
    what: str
    with_metadata: bool = False
    most_s: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read it; None for `NONE`.

        Raises:
            UsageError: it means nothing.

        >>> LocalRuns.parse("user")
        LocalRuns(kind='user', what='tm-{team}', with_metadata=False, most_s=0.0)
        """
        first, *options = text.strip().split(",")
        with_metadata, most_s = _METADATA in options, 0.0
        for option in options:
            if option.startswith(_MOST):
                most_s = _longest(text, option.removeprefix(_MOST))
            elif option != _METADATA:
                raise UsageError(f"{text!r}: {option!r} is no part of it", HINT)
        kind, _, what = first.partition(":")
        if kind == NONE and not what and not options:
            return None
        if kind == USER:
            what = what or USUAL_PATTERN
            if what.count("{team}") != 1:
                raise UsageError(f"{text}: teams would not be apart: it has no {{team}}", HINT)
            return cls(kind, what, with_metadata, most_s)
        if kind == CONTAINER and not with_metadata:
            return cls(kind, what or USUAL_IMAGE, most_s=most_s)
        raise UsageError(f"{text!r} is no way to run tasks of teams", HINT)

    @classmethod
    def of(cls, home: Home) -> Self | None:
        """What a home keeps; None if it runs no tasks of teams."""
        with suppress(FileNotFoundError):
            return cls.parse(_file(home).read_text(encoding="utf-8"))
        return None

    def __str__(self) -> str:
        """As it is written."""
        options = [_METADATA] * self.with_metadata + [f"{_MOST}{self.most_s:g}s"] * bool(self.most_s)
        return ",".join([f"{self.kind}:{self.what}", *options])

    @property
    def words(self) -> str:
        """For people."""
        how = f"as the users {self.what}" if self.kind == USER else f"in containers of {redacted(self.what)}"
        return f"{how}, at most {format_duration(self.most_s)}" if self.most_s else how

    def isolation(self, home: Home, team: str) -> Isolation:
        """How a team's tasks run.

        Raises:
            UsageError: they cannot.
        """
        if self.kind == CONTAINER:
            uid, gid = (_NOBODY, _NOBODY) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
            return Isolation(uid, gid, image=self.what, most_s=self.most_s)
        _require_root()
        name = self.what.replace("{team}", team)
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            raise UsageError(
                f"provider: local; the server's machine has no user {name} for the team {team}",
                f"Who has that machine makes one: `useradd --system {name}`.",
            ) from None
        if found.pw_uid == 0 or found.pw_gid == 0:
            raise UsageError(f"provider: local; the user {name} is as mighty as the server", "Name another.")
        groups = tuple(group for group in os.getgrouplist(name, found.pw_gid) if group)
        ids = (found.pw_uid, found.pw_gid, groups)
        return Isolation(*ids, user=name, hidden=_hidden(home), most_s=self.most_s)

    def check(self, home: Home, environ: Mapping[str, str]) -> str:
        """What is found when it is tried; nothing of a team is started.

        Raises:
            UsageError: it is not possible here.
        """
        if self.kind == USER:
            return _try_user(home, with_metadata=self.with_metadata)
        return _try_container(self.what, environ)


def _longest(text: str, duration: str) -> float:
    with fails_as(repr(text), HINT, on=ValueError):
        found = parse_duration(duration)
    if found <= 0:
        raise UsageError(f"{text!r}: no task takes {duration}", HINT)
    return found


def isolation_of(home: Home, team: str, *, is_ending: bool = False) -> Isolation:
    """How a team's tasks run on this machine.

    Args:
        home: of the run.
        team: whose it is.
        is_ending: nothing begins any more, whatever the home says by now.

    Raises:
        UsageError: they do not.
    """
    if is_ending:
        return Isolation(_NOBODY, _NOBODY, image=_NO_IMAGE)
    local_runs = LocalRuns.of(home)
    if local_runs is None:
        raise UsageError(
            "provider: local; this server does not run the code of others on its own machine",
            "Who has it starts it with `--local-runs user` or `--local-runs container`.",
        )
    return local_runs.isolation(home, team)


def local_runs_of(home: Home, wanted: str | None, environ: Mapping[str, str], *, keeps: bool = True) -> str:
    """How a server runs tasks of teams here, in words; it is tried first. Empty if it runs none.

    Args:
        home: of the server.
        wanted: what it was started with, and keeps from now on; None for what it has kept.
        environ: of the server.
        keeps: False only tries it.

    Raises:
        UsageError: it means nothing, or is not possible here.
    """
    found = LocalRuns.of(home) if wanted is None else LocalRuns.parse(wanted)
    try:
        tried = "" if found is None else f"{found.words} ({found.check(home, environ)})"
        if wanted is not None and keeps:
            keep(home, wanted)
    finally:
        if wanted is not None and not _closes_metadata(home):
            cloud_metadata.let_through(home.root)
    return tried


def close_metadata(home: Home) -> None:
    """Before tasks of teams are driven: what has taken the rules away since the server began is undone.

    Raises:
        UsageError: they would reach it.
    """
    if _closes_metadata(home) and (trouble := cloud_metadata.keep_away(home.root)):
        with _TeamTaskProbe(home) as trial:
            trial.refuse_metadata(trouble)


def open_metadata(home: Home, database: Database) -> None:
    """At the end of a server: its rules go, unless a run of a team goes on, as it does without a server."""
    from trainmaster.db import queries

    if _closes_metadata(home):
        rows = queries.runs(database)
        if not any(row["team"] is not None and row["state"] != "DONE" for row in rows):
            cloud_metadata.let_through(home.root)


def _closes_metadata(home: Home) -> bool:
    found = LocalRuns.of(home)
    return found is not None and found.kind == USER and not found.with_metadata


def keep(home: Home, text: str) -> LocalRuns | None:
    """Have a home run tasks of teams so from now on, whichever process drives them.

    Raises:
        UsageError: it means nothing.
    """
    wanted = LocalRuns.parse(text)
    if wanted is None:
        _file(home).unlink(missing_ok=True)
        return None
    write_private(_file(home), f"{wanted}\n".encode())
    return wanted


def _file(home: Home) -> Path:
    return home.root / "local-runs"


def _hidden(home: Home) -> tuple[Path, ...]:
    """Where this server, and whoever runs it, keeps things; each once, with what lies in it."""
    urls = [urlsplit(url) for url in (home.store_url, home.volumes_in, home.database_url)]
    files = [Path(unquote(url.path)) for url in urls if url.scheme == "file"]
    files += [Path(unquote(url.path)[1:]).parent for url in urls if url.scheme == "sqlite"]
    wanted = [home.root, home.cache, *files, Path(os.path.expanduser("~"))]  # noqa: PTH111 - of nobody, "~"
    found = {_closed(path.resolve()) for path in wanted if path.is_absolute() and path.is_dir()}
    for path in wanted[:-1]:
        if path.resolve() in _SHARED:
            raise UsageError(
                f"{path} is shared by all of this machine, so what the server keeps there cannot be hidden",
                "Keep home, cache, store and database in directories of their own.",
            )
    found -= _SHARED
    return tuple(sorted(path for path in found if not any(each in found for each in path.parents)))


def _closed(path: Path) -> Path:
    """The first directory on the way to one that others may not pass through, else that one."""
    return next((each for each in reversed(path.parents) if not each.stat().st_mode & 1), path)


def _require_root() -> None:
    if os.geteuid() != 0:
        raise UsageError(
            "only root may start tasks as other users, and this server is not run by root",
            "Run it as root, or run tasks of teams in containers: `--local-runs container`.",
        )


class _TeamTaskProbe:
    """Runs programs as tasks of a team are run, by the user `nobody`.

    Attributes:
        is_bounded: memory is.

    Raises:
        UsageError: that is not possible here.
    """

    def __init__(self, home: Home) -> None:
        name = f"try-{os.getpid()}"
        wanted = asdict(Isolation(_NOBODY, _NOBODY, hidden=_hidden(home)).sandbox())
        self._wanted = {**wanted, "attempt_group": attempt_group(name, str(home.root))}
        self._enclosure = Enclosure.planned(name, str(home.root))

    def __enter__(self) -> Self:
        try:
            self._enclosure.open(_TRIED_BYTES, MOST_PROCESSES)
        except OSError as error:
            raise _no_sandbox(f"{error.strerror}: {error.filename}") from None
        done = self.run("/bin/sh", "-c", ":")
        if done.returncode:
            self.__exit__()
            raise _no_sandbox(done.stderr.decode(errors="replace").strip())
        self.is_bounded = bool(self._enclosure.places)
        return self

    def __exit__(self, *_: object) -> None:
        self._enclosure.close()
        self._enclosure.remove()

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """What has come of it."""
        import subprocess

        wanted = {**self._wanted, **self._enclosure.given()}
        return subprocess.run(
            sandbox.command(sys.executable),
            input=sandbox.order(wanted, "/", program, [program, *arguments], {}),
            capture_output=True,
            check=False,
            env={},
            pass_fds=self._enclosure.descriptors,
        )

    def refuse_metadata(self, trouble: str) -> None:
        """Raise UsageError where the metadata of a cloud is answered."""
        done = self.run("/bin/bash", "-c", cloud_metadata.TRIAL, "trial", *cloud_metadata.ADDRESSES)
        if answered := done.stdout.decode().split():
            why = f" ({trouble})" if trouble else ""
            raise UsageError(
                f"tasks of teams would reach {', '.join(answered)}, where a cloud tells this machine "
                f"its credentials{why}",
                "Install iptables with its match `owner`, and run the server with the right to use it "
                "(CAP_NET_ADMIN), or take the role away from the machine. `--local-runs user,metadata` "
                "runs them nevertheless.",
            )


def _try_user(home: Home, *, with_metadata: bool) -> str:
    _require_root()
    words = ["possible"]
    with _TeamTaskProbe(home) as trial:
        if trial.run(sys.executable, "-c", "").returncode:  # such as that of a pyenv in /root
            python = Path(sys.executable).resolve()
            words.append(f"without Trainmaster's Python: {python} is closed to others than its owner")
        if not trial.is_bounded:
            words.append("without bounds of memory: no control groups can be made here")
        if with_metadata:
            words.append("they reach what a cloud tells this machine of its credentials")
        else:
            trouble = cloud_metadata.keep_away(home.root)
            trial.refuse_metadata(trouble)
            if trouble:
                words.append(f"no rule keeps them from a cloud's metadata, of which none answers: {trouble}")
    return ", but ".join(words)


def _no_sandbox(said: str) -> UsageError:
    return UsageError(
        f"tasks cannot be run as other users here: {said}",
        "It needs the right to mount (CAP_SYS_ADMIN), which a container usually has not, a kernel with "
        "seccomp, and libseccomp (Debian: `apt install libseccomp2`).",
    )


def _try_container(image: str, environ: Mapping[str, str]) -> str:
    from trainmaster.executors.containers.engines import APART, find_engine

    engine = find_engine(environ, APART)
    where = "is here" if engine.image(image) is not None else "is fetched for the first run"
    return f"{engine.kind}; the image {redacted(image)} {where}"
