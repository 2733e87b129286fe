"""`Contexts`: the servers that were logged in to from a home, and the one in use; a file each, 0600."""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import NotFoundError, UsageError, fails_as
from trainmaster.spec.locking import locked

#: The home of who names none; its servers are kept with the user's configuration.
_DEFAULT_HOME: Final = "~/.trainmaster"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class ServerContext:
    """A server, and who asks it.

    Attributes:
        name: by which the user calls it; empty where variables name it.
        url: of the server.
        token: of the user.
        fingerprint: SHA-256 of the certificate that is trusted; empty: as the system trusts it.
    """

    name: str
    url: str
    token: str
    fingerprint: str = ""


class Contexts:
    """Those of a home: who names another one in the environment means that one, and no server of others.

    Args:
        environ: ``TRAINMASTER_URL`` and ``TRAINMASTER_TOKEN`` are the context in use, whatever the file says.

    Attributes:
        home: the one that ``TRAINMASTER_HOME`` names; None for the user's own.
        file: where they are kept.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        named = Path(self._environ.get("TRAINMASTER_HOME") or _DEFAULT_HOME).expanduser().absolute()
        self.home = None if named == Path(_DEFAULT_HOME).expanduser().absolute() else named
        base = Path(self._environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "trainmaster"
        self.file = (self.home or base) / "contexts.json"

    def current(self) -> ServerContext | None:
        """The one in use; None: this machine's home.

        Raises:
            UsageError: ``TRAINMASTER_URL`` has no token with it.
        """
        url = self._environ.get("TRAINMASTER_URL")
        if url:
            return self.of_url(url)
        found = self._read()
        return self._context(found, found["current"]) if found["current"] else None

    def of_url(self, url: str, token: str | None = None) -> ServerContext:
        """A server by its URL, with the token that is given, that of the variable, or that of the file.

        Of several logins there, the one in use counts first.

        Raises:
            UsageError: there is no token.
        """
        found = self._read()
        same = [n for n, each in found["contexts"].items() if each["url"] == url.rstrip("/")]
        same.sort(key=lambda name: name != found["current"])
        known = self._context(found, same[0]) if same else ServerContext("", url, "")
        given = token or self._environ.get("TRAINMASTER_TOKEN") or known.token
        if not given:
            raise UsageError(f"{url}: no token", "Set TRAINMASTER_TOKEN, or run `trainmaster login`.")
        return ServerContext(known.name, url, given, known.fingerprint)

    def all(self) -> tuple[list[ServerContext], str]:
        """Those of the file by name, and the name of the one in use."""
        found = self._read()
        return [self._context(found, name) for name in sorted(found["contexts"])], found["current"] or ""

    def add(self, context: ServerContext) -> None:
        """Keep one, and use it; another one of that name is replaced.

        Raises:
            UsageError: that is no name.
        """
        if not _NAME.fullmatch(context.name) or context.name == "local":
            raise UsageError(
                f"{context.name!r} is no name of a context",
                "Take letters, digits, '.', '_' and '-'; not `local`.",
            )

        def put(found: dict[str, Any]) -> None:
            kept = asdict(context)
            found["contexts"][kept.pop("name")] = kept
            found["current"] = context.name

        self._change(put)

    def use(self, name: str) -> None:
        """Use one from now on; ``local`` is this machine's home.

        Raises:
            NotFoundError: there is none of that name.
        """

        def put(found: dict[str, Any]) -> None:
            found["current"] = None if name == "local" else self._context(found, name).name

        self._change(put)

    def remove(self, name: str) -> None:
        """Forget one; if it was in use, this machine's home is from now on.

        Raises:
            NotFoundError: there is none of that name.
        """

        def put(found: dict[str, Any]) -> None:
            del found["contexts"][self._context(found, name).name]
            if found["current"] == name:
                found["current"] = None

        self._change(put)

    # --- the file ---------------------------------------------------------------------------------------

    def _context(self, found: Mapping[str, Any], name: str) -> ServerContext:
        if name not in found["contexts"]:
            names = ", ".join(["local", *sorted(found["contexts"])])
            raise NotFoundError(f"there is no context {name!r}", f"There are {names}.")
        kept = found["contexts"][name]
        return ServerContext(name, kept["url"], kept["token"], kept.get("fingerprint", ""))

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self.file.read_text(encoding="utf-8"))
            return {"current": found["current"], "contexts": dict(found["contexts"])}
        except (FileNotFoundError, NotADirectoryError):  # a home that is a file is told by whoever uses it
            return {"current": None, "contexts": {}}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{self.file} cannot be read: {error}", "Remove it, and log in again; or use --local."
            ) from None

    def _change(self, put: Callable[[dict[str, Any]], None]) -> None:
        with self._locked():
            from trainmaster.spec.private_files import write_private

            found = self._read()
            put(found)
            write_private(self.file, json.dumps(found, indent=1).encode())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        from trainmaster.spec.private_files import make_private

        make_private(self.file.parent)
        with locked(self.file.with_suffix("")):
            yield


_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Certificate:
    """That of a server.

    Attributes:
        fingerprint: its SHA-256.
        why_untrusted: empty: an authority that this system trusts has signed it for this name.
    """

    fingerprint: str
    why_untrusted: str = ""


def certificate(url: str) -> Certificate | None:
    """The certificate of a server; None without TLS.

    Raises:
        AccessError: it would be trusted at another time.
        UnreachableError: the server does not answer.
    """
    from trainmaster.api.remote.connection import OFF_CLOCK, ServerUnreachableError, why_untrusted

    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        return None
    where = (parts.hostname, parts.port or 443)
    with fails_as(f"{url} does not answer", "Is the server up?", ServerUnreachableError):
        try:
            return Certificate(_seen(where, ssl.create_default_context()))
        except ssl.SSLCertVerificationError as error:
            if error.verify_code in OFF_CLOCK:  # pinned, it would be trusted when it has ended, too
                raise why_untrusted(url, error) from None
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            return Certificate(_seen(where, context), error.verify_message)


def _seen(where: tuple[str, int], context: ssl.SSLContext) -> str:
    from trainmaster.api.remote.connection import fingerprint_of

    with (
        socket.create_connection(where, _WITHIN_S) as plain,
        context.wrap_socket(plain, server_hostname=where[0]) as secured,
    ):
        return fingerprint_of(secured)
