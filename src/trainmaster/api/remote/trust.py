"""`certificate`: what a server shows before anybody trusts it."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from trainmaster.api.remote.connection import ServerUnreachableError, fingerprint_of

_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Certificate:
    """That of a server.

    Attributes:
        fingerprint: its SHA-256.
        is_trusted: an authority that this system trusts has signed it for this name.
    """

    fingerprint: str
    is_trusted: bool


def certificate(url: str) -> Certificate | None:
    """The certificate of a server; None without TLS.

    Raises:
        UnreachableError: the server does not answer.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        return None
    where = (parts.hostname, parts.port or 443)
    try:
        try:
            return Certificate(_seen(where, ssl.create_default_context()), is_trusted=True)
        except ssl.SSLCertVerificationError:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            return Certificate(_seen(where, context), is_trusted=False)
    except OSError as error:
        raise ServerUnreachableError(f"{url} does not answer: {error}", "Is the server up?") from error


def _seen(where: tuple[str, int], context: ssl.SSLContext) -> str:
    with (
        socket.create_connection(where, _WITHIN_S) as plain,
        context.wrap_socket(plain, server_hostname=where[0]) as secured,
    ):
        return fingerprint_of(secured)
