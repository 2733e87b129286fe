"""Code that is no directory yet: wheels, and git repositories at a ref."""

import base64
import os
import re
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from trainmaster.artifacts.code_tree import LIMIT_BYTES
from trainmaster.objects.names import stays_inside
from trainmaster.spec.errors import UsageError, fails_as
from trainmaster.spec.redaction import redacted

if TYPE_CHECKING:
    from zipfile import ZipFile

_SCP = re.compile(r"[\w.-]+@[\w.-]+:(?!//).+")
_TRANSPORTS = ("https", "http", "ssh", "git", "file")
_COMMIT = re.compile(r"[0-9a-fA-F]{7,64}")
_GIT_TIMEOUT_S = 600


class GitSource(NamedTuple):
    """A repository and what of it is meant; an empty ref is the default branch."""

    url: str
    ref: str

    @property
    def shown(self) -> str:
        """The URL without a password, for messages."""
        return redacted(self.url) + (f"@{self.ref}" if self.ref else "")


def as_git(source: str) -> GitSource | None:
    """Reads ``URL@ref``; None if it is the name of a file or directory.

    >>> as_git("https://me:token@host/project.git@v1.2")
    GitSource(url='https://me:token@host/project.git', ref='v1.2')
    >>> as_git("git@github.com:me/project@feature/x").ref
    'feature/x'

    Raises:
        UsageError: it is a URL that git must not get, or the ref is none.
    """
    text = source.removeprefix("git+")
    scheme, mark, rest = text.partition("://")
    if mark:
        if scheme not in _TRANSPORTS:
            raise UsageError(
                f"code: {scheme}:// is no place for code.",
                f"Name a directory, a wheel (*.whl) or a git URL ({', '.join(_TRANSPORTS)}).",
            )
        host, slash, path = rest.partition("/")
        path, _, ref = path.partition("@")
        url = f"{scheme}://{host}{slash}{path}"
    elif _SCP.fullmatch(text) and not text.startswith("-"):
        host, _, path = text.partition(":")
        path, _, ref = path.partition("@")
        url = f"{host}:{path}"
        rest = host
    elif text != source:
        raise UsageError(f"code: {source} is no git URL.", "Write https://HOST/PROJECT@REF.")
    else:
        return None
    found = GitSource(url, ref)
    if rest.startswith("-") or host.rpartition("@")[2].startswith("-") or path.startswith("-"):
        raise UsageError(f"code: {found.shown}: no part of it may begin with '-'.", "Correct the URL.")
    if text.endswith("@") or ref.startswith("-") or re.search(r"[\s\0-\x1f~^:?*\[\\]|\.\.|@\{", ref):
        raise UsageError(
            f"code: {found.shown!r}: {ref!r} is no ref.", "Write a branch, a tag or a commit after the @."
        )
    return found


def cloned(source: GitSource, directory: Path) -> None:
    """Checks a repository out into an empty directory.

    Only what is needed is downloaded where the server allows it. Submodules are not.

    Raises:
        UsageError: git is not there, or says no.
    """
    target = os.fspath(directory)
    url, settings = _without_password(source.url)
    if not _COMMIT.fullmatch(source.ref):
        branch = ["--branch", source.ref] if source.ref else []
        problem = _git(
            ["clone", "--quiet", "--no-tags", "--depth", "1", *branch, "--", url, target], settings
        )
    else:
        # A commit cannot be cloned by name, and not every server gives it by itself.
        problem = _git(["clone", "--quiet", "--no-checkout", "--", url, target], settings)
        if not problem:
            checkout = ["-C", target, "checkout", "--quiet", "--detach"]
            problem = _git([*checkout, source.ref, "--"])
            if problem and not _git([*checkout, f"origin/{source.ref}", "--"]):
                problem = ""  # a branch whose name looks like a commit
    if problem:
        raise UsageError(
            f"code: {source.shown} cannot be had: {problem.replace(source.url, source.shown)}.",
            "Check the URL and the ref, and that `git clone` works for it without asking for a password.",
        )


def _without_password(url: str) -> tuple[str, dict[str, str]]:
    """Gives a URL for a command line, which everybody can read, and the rest as variables for git."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    if parts.scheme not in ("http", "https") or ":" not in user:
        return url, {}
    word = base64.b64encode(unquote(user).encode()).decode()
    count = os.environ.get("GIT_CONFIG_COUNT", "0")
    number = int(count) if count.isdecimal() else 0
    return urlunsplit(parts._replace(netloc=host)), {
        "GIT_CONFIG_COUNT": str(number + 1),
        f"GIT_CONFIG_KEY_{number}": f"http.{parts.scheme}://{host}/.extraHeader",
        f"GIT_CONFIG_VALUE_{number}": f"Authorization: Basic {word}",
    }


def _git(arguments: list[str], settings: Mapping[str, str] = MappingProxyType({})) -> str:
    """Runs git; gives what it complained of, or an empty text."""
    environment = {
        **os.environ,
        **settings,
        "GIT_TERMINAL_PROMPT": "0",  # there is no terminal
        "GIT_ALLOW_PROTOCOL": ":".join(_TRANSPORTS),
        "LC_ALL": "C",
    }
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        environment.pop(name, None)  # set when Trainmaster is called from a git hook
    try:
        result = subprocess.run(
            ["git", "-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise UsageError("code: git is not installed.", "Install git, or name a directory.") from None
    except subprocess.TimeoutExpired:
        return f"git took more than {_GIT_TIMEOUT_S} s"
    if result.returncode == 0:
        return ""
    lines = [line for line in result.stderr.decode(errors="replace").splitlines() if line.strip()]
    fatal = [line.removeprefix("fatal: ") for line in lines if line.startswith("fatal: ")]
    return " ".join(fatal or lines[-2:] or [f"git exited with {result.returncode}"]).rstrip(".")


def unpacked(wheel: Path, directory: Path) -> None:
    """Unpacks a wheel into an empty directory, if every name in it stays there.

    Raises:
        UsageError: it is no wheel, names something outside or twice, or is over 100 MB unpacked.
    """
    from zipfile import ZipFile

    from trainmaster.artifacts.unpacking import DAMAGE, TooLargeError, UnpackLimits, unpack_zip

    with fails_as(f"code: the wheel {wheel} cannot be read", "Build it first, or correct the name."):
        file = wheel.open("rb")
    try:
        with file, ZipFile(file) as archive:
            _check_members(archive, wheel)
            unpack_zip(archive, f"code: {wheel}", directory, UnpackLimits(LIMIT_BYTES))
    except TooLargeError as error:
        raise UsageError(
            f"code: {wheel} has more than {LIMIT_BYTES // 1_000_000} MB unpacked.",
            "Leave data sets out of it, and give them as `data:`.",
        ) from error
    except DAMAGE as error:
        raise UsageError(f"code: {wheel} is no wheel: {error}.", "Build it again.") from error


def _check_members(archive: "ZipFile", wheel: Path) -> None:
    seen: set[str] = set()
    for member in archive.infolist():
        name = member.filename.rstrip("/")
        kind = stat.S_IFMT(member.external_attr >> 16)
        if "\\" in name or not stays_inside(name) or kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise UsageError(
                f"code: {wheel} holds {member.filename!r}, which is no name for a file in a wheel.",
                "Nothing was unpacked; do not trust this wheel.",
            )
        files = {name} if not member.is_dir() else set()
        above = {name[:index] for index, char in enumerate(name) if char == "/"}
        if name in seen or above & seen:
            raise UsageError(f"code: {wheel} holds {name!r} twice.", "Build it again.")
        seen |= files
