"""`LocalRuns`: how a home runs tasks of teams on its own machine, apart from it; by default it runs none."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import unquote, urlsplit

from trainmaster.control.isolation import Isolation
from trainmaster.spec.errors import UsageError
from trainmaster.spec.redaction import redacted

if TYPE_CHECKING:
    from trainmaster.control.layout import Home

VARIABLE: Final = "TRAINMASTER_LOCAL_RUNS"
#: What it is set to for no runs of teams at all.
NONE: Final = "none"
USER, CONTAINER = "user", "container"
USUAL_PATTERN: Final = "tm-{team}"
USUAL_IMAGE: Final = f"docker.io/library/python:{sys.version_info[0]}.{sys.version_info[1]}"
HINT: Final = (
    "Write `user`, `user:PATTERN` such as `user:tm-{team}`, `container`, `container:IMAGE` or `none`."
)
#: In a container: a user that has nothing of its own, as on most machines.
_NOBODY: Final = 65534
#: Directories that tasks need, too.
_SHARED: Final = frozenset(
    map(Path, ("/", "/tmp", "/var/tmp", "/usr", "/var", "/etc", "/srv", "/home", "/opt"))  # noqa: S108
)
#: No engine takes this for the name of an image.
_NO_IMAGE: Final = "-"


@dataclass(frozen=True, slots=True)
class LocalRuns:
    """What `trainmaster server --local-runs` says.

    Attributes:
        kind: `USER` or `CONTAINER`.
        what: pattern of users' names, or an image.
    """

    kind: str
    what: str

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read it; None for `NONE`.

        Raises:
            UsageError: it means nothing.

        >>> LocalRuns.parse("user")
        LocalRuns(kind='user', what='tm-{team}')
        """
        kind, _, what = text.strip().partition(":")
        if kind == NONE and not what:
            return None
        if kind == USER:
            what = what or USUAL_PATTERN
            if what.count("{team}") != 1:
                raise UsageError(f"{text}: teams would not be apart: it has no {{team}}", HINT)
            return cls(kind, what)
        if kind == CONTAINER:
            return cls(kind, what or USUAL_IMAGE)
        raise UsageError(f"{text!r} is no way to run tasks of teams", HINT)

    @classmethod
    def of(cls, home: Home) -> Self | None:
        """What a home keeps; None if it runs no tasks of teams."""
        with suppress(FileNotFoundError):
            return cls.parse(_file(home).read_text(encoding="utf-8"))
        return None

    def __str__(self) -> str:
        """As it is written."""
        return f"{self.kind}:{self.what}"

    @property
    def words(self) -> str:
        """For people."""
        return f"as the users {self.what}" if self.kind == USER else f"in containers of {redacted(self.what)}"

    def isolation(self, home: Home, team: str) -> Isolation:
        """How a team's tasks run.

        Raises:
            UsageError: they cannot.
        """
        if self.kind == CONTAINER:
            uid, gid = (_NOBODY, _NOBODY) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
            return Isolation(uid, gid, image=self.what)
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
        return Isolation(found.pw_uid, found.pw_gid, groups, user=name, hidden=_hidden(home))

    def check(self, home: Home, environ: Mapping[str, str]) -> str:
        """What is found when it is tried; nothing of a team is started.

        Raises:
            UsageError: it is not possible here.
        """
        if self.kind == USER:
            return _try_user(home)
        return _try_container(self.what, environ)


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
    tried = "" if found is None else f"{found.words} ({found.check(home, environ)})"
    if wanted is not None and keeps:
        keep(home, wanted)
    return tried


def keep(home: Home, text: str) -> LocalRuns | None:
    """Have a home run tasks of teams so from now on, whichever process drives them.

    Raises:
        UsageError: it means nothing.
    """
    wanted = LocalRuns.parse(text)
    if wanted is None:
        _file(home).unlink(missing_ok=True)
        return None
    draft = _file(home).with_name(f".local-runs-{os.getpid()}")
    draft.write_text(f"{wanted}\n", encoding="utf-8")
    draft.replace(_file(home))
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


def _try_user(home: Home) -> str:
    import subprocess

    from trainmaster.executors import sandbox

    _require_root()
    wanted = Isolation(_NOBODY, _NOBODY, hidden=_hidden(home)).sandbox()

    def tried(program: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        order = sandbox.order(asdict(wanted), "/", program, [program, *arguments], {})
        command = sandbox.command(sys.executable)
        return subprocess.run(command, input=order, capture_output=True, check=False, env={})

    done = tried("/bin/sh", "-c", ":")
    if done.returncode:
        raise UsageError(
            f"tasks cannot be run as other users here: {done.stderr.decode(errors='replace').strip()}",
            "It needs the right to mount (CAP_SYS_ADMIN), which a container usually has not.",
        )
    if tried(sys.executable, "-c", "").returncode:  # such as that of a pyenv in /root
        python = Path(sys.executable).resolve()
        return f"possible, but without Trainmaster's Python: {python} is closed to others than its owner"
    return "possible"


def _try_container(image: str, environ: Mapping[str, str]) -> str:
    from trainmaster.executors.engines import find_engine

    engine = find_engine(environ)
    where = "is here" if engine.image(image) is not None else "is fetched for the first run"
    return f"{engine.kind}; the image {redacted(image)} {where}"
