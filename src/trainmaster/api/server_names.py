"""`ServerNames`: the names under which a server answers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from trainmaster.dataclass import dataclass
from trainmaster.spec.addresses import is_loopback, name_of
from trainmaster.spec.errors import UsageError, fails_as

if TYPE_CHECKING:
    from datetime import datetime

    from cryptography.x509 import Certificate

_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")


@dataclass(frozen=True, slots=True)
class ServerNames:
    """Names and addresses of a server: a page under any other name that leads here is not ours.

    Names of the loopback interface and the address at which a connection arrived are always ours: no name
    that others give out is among them.

    Attributes:
        names: further ones, in small letters; ``*.example.org`` is any one label there.
        are_all: whatever is asked for; of a server that only this process reaches.
    """

    names: frozenset[str] = frozenset()
    are_all: bool = False

    def knows(self, host: str, arrived_at: str = "") -> bool:
        """Whether a ``Host`` is ours.

        Args:
            host: the header; empty if a request has none.
            arrived_at: our end of the connection.

        >>> hosts = ServerNames(frozenset({"tm.example.org", "*.apps.example.org"}))
        >>> [hosts.knows(host) for host in ("TM.example.org:8470", "x.apps.example.org", "[::1]:80", "")]
        [True, True, True, True]
        >>> [hosts.knows(host) for host in ("evil.org", "a.x.apps.example.org", "tm.example.org.evil.org")]
        [False, False, False]
        >>> hosts.knows("10.0.0.5", "10.0.0.5"), hosts.knows("10.0.0.6", "10.0.0.5")
        (True, False)
        """
        if self.are_all or not host:
            return True
        name = name_of(host)
        if not name:
            return False
        is_ours = _is_here(name) or name in self.names or name == name_of(arrived_at)
        return is_ours or self._is_below(name)

    def _is_below(self, name: str) -> bool:
        label, dot, rest = name.partition(".")
        return bool(dot) and f"*.{rest}" in self.names and _LABEL.fullmatch(label) is not None


def _is_here(name: str) -> bool:
    """Whether a browser asks this machine by it: names below ``localhost`` it gives to no resolver."""
    return is_loopback(name) or name_of(name).endswith(".localhost")


def origin_of(option: str, text: str, *, is_wildcard: bool = False) -> str:
    """Scheme, host and port of a URL that an option names.

    Args:
        option: that names it.
        text: the URL.
        is_wildcard: its first label may be ``*``.

    Raises:
        UsageError: it is no such URL, or its tokens would go over a network in clear.

    >>> origin_of("--url", "HTTPS://Tm.example.org:8443/")
    'https://tm.example.org:8443'
    """
    hint = f"Write {option} https://HOST, without a path."
    with fails_as(f"{option} {text}", hint, on=ValueError):
        found = urlsplit(text)
        port = found.port
    host, scheme = found.hostname or "", found.scheme.lower()
    plain = host.removeprefix("*.") if is_wildcard else host
    is_bare = found.path in ("", "/") and not (found.query or found.fragment or "@" in found.netloc)
    if scheme not in ("http", "https") or not is_bare or not name_of(plain):
        raise UsageError(f"{option} {text}: that is no address of a server", hint)
    if scheme == "http" and not _is_here(plain):
        raise UsageError(f"{option} {text}: tokens would go over the network in clear", hint)
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}" + (f":{port}" if port is not None else "")


def names_of_urls(urls: Iterable[str]) -> frozenset[str]:
    """The names in such origins."""
    hosts = [urlsplit(url).hostname or "" for url in urls]
    return frozenset(host if host.startswith("*.") else name_of(host) for host in hosts)


def names_of_certificate(pem: Path) -> frozenset[str]:
    """The names for which a certificate was made; none if it is none that we can read."""
    from cryptography import x509

    try:
        found = _read(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return frozenset()
    names = [name.lower() for name in found.get_values_for_type(x509.DNSName)]
    return frozenset([*names, *(str(each) for each in found.get_values_for_type(x509.IPAddress))])


def why_not_valid(pem: Path, now: datetime) -> str:
    """Why clients refuse a certificate at this time; empty if they do not, or compare its SHA-256 only."""
    certificate = _read(pem)
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if begins <= now <= ends or certificate.issuer == certificate.subject:
        return ""
    how = (
        f"is not valid before {begins:%Y-%m-%d %H:%M}"
        if now < begins
        else f"has ended on {ends:%Y-%m-%d %H:%M}"
    )
    return (
        f"{pem} {how} UTC, and this machine's clock says {now:%Y-%m-%d %H:%M} UTC: clients refuse it; "
        "give another one, or set the clock if it is wrong"
    )


def _read(pem: Path) -> Certificate:
    from cryptography.x509 import load_pem_x509_certificate

    return load_pem_x509_certificate(pem.read_bytes())
