"""`GitCode`: code that a server fetches from public git repositories, with nothing of its own.

git runs without configuration, credentials, hooks, filters and submodules, follows no redirect, and connects
to the address that was checked here: neither a name that changes its mind nor a URL reaches what is private.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from trainmaster.service.uploads.code_uploads import MAX_BYTES, CodeUploads
from trainmaster.service.users.caller import TooOftenError
from trainmaster.spec.addresses import address_of, is_public
from trainmaster.spec.errors import UsageError, fails_as

_TIMEOUT_S: Final = 120.0
#: Of what git says last.
_SAID_BYTES: Final = 64 << 10
_AT_ONCE: Final = 2
_REVISION: Final = re.compile(r"(?!-)(?!.*(\.\.|@\{|//))[A-Za-z0-9._/+-]{1,200}")
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
#: The first git that connects to an address it is told; others would look the name up again.
_OLDEST: Final = (2, 37)
_SETTINGS: Final = {
    "http.followRedirects": "false",
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "30",
    "fetch.unpackLimit": "1",  # one file, whose size is limited
    "transfer.fsckObjects": "true",
    "credential.helper": "",
}
#: Whom the administrator has servers trust, and nothing that a repository could say.
_AUTHORITIES: Final = ("GIT_SSL_CAINFO", "SSL_CERT_FILE")
#: Of all files, whatever the repository says of them: they come as they are.
_ATTRIBUTES: Final = "* -export-ignore -export-subst -filter -ident -text -working-tree-encoding\n"
_under_way = threading.BoundedSemaphore(_AT_ONCE)


class GitCode:
    """Fetches code.

    Args:
        uploads: of a team: keeps it.
        resolve: gives the addresses of a host and port.
        scheme: of URLs that are taken.
    """

    def __init__(
        self,
        uploads: CodeUploads,
        resolve: Callable[[str, int], list[str]] | None = None,
        scheme: str = "https",
    ) -> None:
        self._uploads = uploads
        self._resolve = resolve or _addresses
        self._scheme = scheme

    def add(self, url: str, revision: str = "HEAD") -> tuple[str, str]:
        """Keep the files of a revision.

        Args:
            url: of a public repository.
            revision: a branch, a tag, or a whole commit id.

        Returns:
            The digest of the code, and the commit.

        Raises:
            UsageError: it is not there, is private, or is too large.
            TooOftenError: others are fetched just now.
        """
        settings = {**_SETTINGS, **self._address_of(url)}
        if not _REVISION.fullmatch(revision):
            raise UsageError(f"revision: {revision[:80]!r}", "Write a branch, a tag, or a whole commit id.")
        with _one_of_few(), tempfile.TemporaryDirectory() as directory:
            git = _Git(Path(directory), settings, self._scheme)
            git.run("init", "--quiet", "--bare", "--template=", git.repository)
            info = Path(git.repository) / "info"
            info.mkdir()
            (info / "attributes").write_text(_ATTRIBUTES)
            git.run(
                "fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--", url, revision
            )
            commit = git.run("rev-parse", "--verify", "FETCH_HEAD^{commit}").strip()
            packed = Path(directory) / "code.tar"
            git.run("archive", "--format=tar", f"--output={packed}", commit)
            return self._uploads.add(packed, packed.name), commit

    def _address_of(self, url: str) -> dict[str, str]:
        """What tells git to connect to an address that was checked, and to no other."""
        hint = "Write https://HOST/PROJECT of a public repository."
        if not url.isprintable() or " " in url:
            raise UsageError(f"{url[:200]!r} is no URL", hint)
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port or 443
        except ValueError:
            raise UsageError(f"{url[:200]!r} is no URL", hint) from None
        if parts.scheme != self._scheme or parts.query or parts.fragment:
            raise UsageError(f"{url[:200]}: only {self._scheme}:// is fetched", hint)
        if self._scheme != "https":
            return {}
        if "@" in parts.netloc or not _HOST.fullmatch(host):
            raise UsageError(f"{url[:200]}: no user, password or address, but the name of a host", hint)
        with fails_as(f"{host} is not known", "Look at the URL."):
            found = self._resolve(host, port)
        if not found or not all(is_public(address_of(address)) for address in found):
            raise UsageError(
                f"{host} is not on the public internet", "Send the code itself: PUT /code/{sha256}."
            )
        shown = f"[{found[0]}]" if ":" in found[0] else found[0]
        return {"http.curloptResolve": f"{host}:{port}:{shown}"}


class _Git:
    """git without anything of this machine's."""

    def __init__(self, directory: Path, settings: dict[str, str], scheme: str) -> None:
        self.repository = str(directory / "repository")
        self._options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        self._environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": str(directory),
            "GIT_DIR": self.repository,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_ALLOW_PROTOCOL": scheme,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "true",
            "GIT_PROTOCOL_FROM_USER": "0",
            "LC_ALL": "C",
            **{name: os.environ[name] for name in _AUTHORITIES if name in os.environ},
        }
        version = re.search(r"(\d+)\.(\d+)", self.run("version"))
        if version is None or (int(version[1]), int(version[2])) < _OLDEST:
            raise UsageError(
                "the server's git is too old for this", "Send the code itself: PUT /code/{sha256}."
            )

    def run(self, *arguments: str) -> str:
        """What git prints.

        Raises:
            UsageError: git says no, or what comes is too large or slow.
        """
        # No file that git writes is larger: the pack, the archive, or what the other end has it say.
        # In blocks of 512 bytes.
        limited = ["sh", "-c", 'ulimit -f "$0" && exec git "$@"', str(2 * MAX_BYTES // 512)]
        with tempfile.TemporaryFile() as errors:
            try:
                done = subprocess.run(
                    [*limited, *self._options, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=self._environment,
                    timeout=_TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise UsageError(f"git took more than {_TIMEOUT_S:.0f} s", "Send the code itself.") from None
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - _SAID_BYTES))
            said = errors.read().decode(errors="replace").strip().splitlines()
        if done.returncode:
            fatal = [line for line in said if line.startswith("fatal: ")] or said[-1:]
            why = " ".join(fatal)[:300] or f"git exited with {done.returncode}; is it larger than it may be?"
            raise UsageError(f"git: {why}", "Is the repository public, and has it that revision?")
        return done.stdout.decode(errors="replace")


@contextmanager
def _one_of_few() -> Iterator[None]:
    if not _under_way.acquire(blocking=False):
        raise TooOftenError("the server fetches other code just now", 10.0)
    try:
        yield
    finally:
        _under_way.release()


def _addresses(host: str, port: int) -> list[str]:
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
