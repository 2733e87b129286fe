"""`serve`: a server on a socket, until it is told to stop."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import signal
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from trainmaster.api.server_names import (
    ServerNames,
    names_of_certificate,
    names_of_urls,
    origin_of,
    why_not_valid,
)
from trainmaster.dataclass import dataclass
from trainmaster.executors.supervisor.processes import raise_limit
from trainmaster.service.server_loops import is_passing
from trainmaster.spec.addresses import is_loopback, name_of
from trainmaster.spec.errors import MissingPartError, UsageError, fails_as, imports_of

if TYPE_CHECKING:
    from fastapi import FastAPI

    from trainmaster.service import Service

#: How long answers that are under way are waited for at the end, in seconds.
_END_S: Final = 5
_SAID_S: Final = 60.0
#: How a process reaches itself where it listens at all addresses.
_REACHED: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - it is not bound here
_INSTALL: Final = "Run: pip install 'trainmaster[server]'"
#: What the extra ``server`` brings; others may have brought a part of it.
MODULES: Final = (
    "authlib", "cronsim", "cryptography", "fastapi", "h11", "httpx2", "jinja2", "prometheus_client",
    "python_multipart", "uvicorn", "websockets",
)  # fmt: skip

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server listens.

    Attributes:
        host: address or name.
        port: 0 for any that is free.
        tls_cert: PEM file with the certificate chain.
        tls_key: PEM file with its private key.
        behind_proxy: address of the proxy in front that does TLS.
        apps_port: of the origin of apps; None for the next one, or any that is free.
        apps_url: how browsers reach that; empty for this host and that port. ``*`` as its first label is the
            app's: each has an origin of its own.
        urls: how others reach the server; links lead to the first one.
    """

    host: str = "127.0.0.1"
    port: int = 0
    tls_cert: str | None = None
    tls_key: str | None = None
    behind_proxy: str | None = None
    apps_port: int | None = None
    apps_url: str = ""
    urls: tuple[str, ...] = ()

    @property
    def is_private(self) -> bool:
        """Whether only this machine reaches it."""
        return self.behind_proxy is None and is_loopback(self.host)

    @property
    def is_secure(self) -> bool:
        """Whether browsers come by https."""
        return self.tls_cert is not None or self.behind_proxy is not None

    def checked(self) -> ServerAddress:
        """The same, with URLs as origins.

        Raises:
            UsageError: naming the option that would send tokens in clear over a network, or cannot be.
        """
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("--tls-cert and --tls-key belong together", "Give both.")
        if self.tls_cert is not None and self.tls_key is not None:
            _check_certificate(self.tls_cert, self.tls_key)
        if not self.is_private and self.tls_cert is None and self.behind_proxy is None:
            raise UsageError(
                f"--host {self.host}: tokens would go over the network in clear",
                "Add --tls-cert and --tls-key, --self-signed, or --behind-proxy ADDRESS if a proxy does TLS.",
            )
        urls = tuple(origin_of("--url", url) for url in self.urls)
        apps_url = origin_of("--apps-url", self.apps_url, is_wildcard=True) if self.apps_url else ""
        for option, url in [*(("--url", url) for url in urls), ("--apps-url", apps_url)]:
            if url.startswith("https:") and not self.is_secure:
                raise UsageError(
                    f"{option} {url}: the server does not speak TLS",
                    "Add --behind-proxy ADDRESS if a proxy does, --self-signed, or --tls-cert and --tls-key.",
                )
            if url.startswith("http:") and self.is_secure:
                raise UsageError(f"{option} {url}: browsers come by https", f"Write {option} https://HOST.")
        return replace(self, urls=urls, apps_url=apps_url)

    def hosts(self, bound: str) -> ServerNames:
        """The names under which it answers.

        Args:
            bound: the address that it listens at.
        """
        names = {name_of(each) for each in (bound, self.host, socket.gethostname())}
        if self.tls_cert is not None:
            names |= names_of_certificate(Path(self.tls_cert))
        return ServerNames(
            frozenset(names - {""}) | names_of_urls((*self.urls, *filter(None, [self.apps_url])))
        )

    def warnings(self) -> list[str]:
        """What those who start it should know."""
        told: list[str] = []
        if self.tls_cert is not None:
            told += filter(None, [why_not_valid(Path(self.tls_cert), datetime.now(UTC))])
        if self.behind_proxy is not None and not self.urls:
            told.append(
                "without --url the name under which the proxy has this server is not known: requests for it "
                "are answered with 421"
            )
        apps = urlsplit(self.apps_url).hostname or ""
        if not self.is_private and not apps.startswith("*."):
            own = {urlsplit(url).hostname or "" for url in self.urls} or {self.host}
            shared = ", at the host of the server" if apps in {"", *own} else ""
            told.append(
                f"all apps have one origin{shared}: a page of one can read what is in another that the same "
                "browser has open; give each a host of its own, as --apps-url 'https://*.apps.example.org'"
            )
        return told


@dataclass(frozen=True, slots=True)
class Ready:
    """Where a server is.

    Attributes:
        listens: where it takes connections.
        url: how others reach it.
        setup_url: logs the owner of the home in, once.
        apps_url: how others reach apps.
        apps_listen: where it takes connections to those.
    """

    listens: str
    url: str
    setup_url: str
    apps_url: str
    apps_listen: str


def serve(
    service: Service,
    environ: Mapping[str, str],
    where: ServerAddress,
    ready: Callable[[Ready], None],
    add_pages: Callable[[FastAPI], None],
    oidc: Path | None = None,
) -> None:
    """Serve a home until SIGINT or SIGTERM; its runs have processes of their own and go on.

    Args:
        service: of the home.
        environ: of the processes that drive runs.
        where: to listen.
        add_pages: adds web pages to the application.
        oidc: file with the settings of a single sign-on.
        ready: called once.

    Raises:
        UsageError: it cannot listen there, or must not.
        MissingPartError: the extra ``server`` is not installed.
    """
    where = where.checked()
    if missing := [name for name in MODULES if find_spec(name) is None]:
        raise MissingPartError(f"server: {', '.join(missing)}: not installed", _INSTALL)
    with imports_of("server", "a server"):
        import uvicorn

        from trainmaster.api.mcp.at_server import OwnAddress
        from trainmaster.api.proxy.grants import Grants
        from trainmaster.api.proxy.proxy import AppProxy
        from trainmaster.api.proxy.services import ServiceProxy
        from trainmaster.api.rest.app import make_app, make_state
        from trainmaster.api.rest.guards import RequestAudit
        from trainmaster.api.timed_protocol import TimedProtocol
        from trainmaster.service.apps.app_access import AppAccess
        from trainmaster.service.endpoints.endpoint_access import EndpointAccess
        from trainmaster.service.users.single_sign_on import SignOnSettings, SingleSignOn
    is_secure = where.is_secure
    state = make_state(service, environ, is_private=where.is_private, is_secure=is_secure)
    if oidc is not None:
        state = replace(state, single_sign_on=SingleSignOn(SignOnSettings.read(oidc), service.database))
    listener = _bound(where)
    host, port = listener.getsockname()[:2]
    name, scheme = f"[{host}]" if ":" in host else host, "https" if where.tls_cert else "http"
    url = f"{scheme}://{name}:{port}"
    own = OwnAddress(f"{scheme}://{_REACHED.get(host, name)}:{port}", _fingerprint(where.tls_cert))
    for_apps = _bound_for_apps(where, port)
    apps_port = for_apps.getsockname()[1]
    hosts, public = where.hosts(host), where.urls[0] if where.urls else ""
    state = replace(state, apps_port=apps_port, apps_url=where.apps_url, url=public, hosts=hosts)
    audit = RequestAudit(service.database)
    services = ServiceProxy(EndpointAccess(service, state.members, state.access))
    state = replace(state, services=services, own=own)
    gate = AppAccess(service, state.access, state.members)
    apps_host = urlsplit(where.apps_url).hostname or ""
    domain = apps_host[2:] if apps_host.startswith("*.") else ""
    grants = Grants(gate, is_secure=is_secure, refused=audit.note, domain=domain)
    proxy = AppProxy(grants, services, hosts=hosts)
    app = make_app(state)
    add_pages(app)
    config = uvicorn.Config(
        app,
        ssl_certfile=where.tls_cert,
        ssl_keyfile=where.tls_key,
        proxy_headers=where.behind_proxy is not None,
        forwarded_allow_ips=where.behind_proxy,
        server_header=False,
        http=TimedProtocol,
        ws="websockets-sansio",
        ws_per_message_deflate=False,  # what goes through is mostly encoded already
        log_level="warning",
        timeout_graceful_shutdown=_END_S,
    )
    code = secrets.token_urlsafe(32)
    state.setup.add(code)
    setup = f"{public or url}/setup?code={code}"

    class RestServer(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            asyncio.get_running_loop().set_exception_handler(_AcceptErrorLog())
            await super().startup(sockets=sockets)
            await proxy.start(for_apps, config.ssl)
            apps_listen = f"{scheme}://{name}:{apps_port}"
            ready(Ready(url, public or url, setup, state.url_of_apps(public or url), apps_listen))

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            state.hubs.end()  # else their streams are waited for
            await proxy.stop()
            await super().shutdown(sockets=sockets)

    raise_limit()  # a connection is an open file
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn sends itself once more what has ended it
        signal.signal(number, lambda *_: None)
    RestServer(config).run(sockets=[listener])


class _AcceptErrorLog:
    """Says once a minute that connections cannot be taken: asyncio does so 2048 times a second.

    Args:
        clock: gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said_at = -_SAID_S

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or not is_passing(error):
            loop.default_exception_handler(context)
        elif self._clock() - self._said_at >= _SAID_S:
            self._said_at = self._clock()
            log.warning("connections cannot be taken: %s", error)


def _check_certificate(cert: str, key: str) -> None:
    """Refuse files with which there is no TLS: `ssl` names neither the file nor what is wrong with it.

    Raises:
        UsageError: naming the option.
    """
    hint = "Give PEM files of a certificate and its key, or --self-signed."
    for option, file in (("--tls-cert", cert), ("--tls-key", key)):
        with fails_as(f"{option} {file}", hint):
            content = Path(file).read_bytes()
        if b"-----BEGIN " not in content:
            raise UsageError(f"{option} {file} is no PEM file", hint)
    if b"ENCRYPTED" in content:
        return  # its password is asked for once, when the server begins
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except ssl.SSLError as error:
        wrong = (
            "do not belong together" if error.reason == "KEY_VALUES_MISMATCH" else f"cannot be used: {error}"
        )
        raise UsageError(f"--tls-cert {cert} and --tls-key {key} {wrong}", hint) from None


def _fingerprint(cert: str | None) -> str:
    """SHA-256 of the certificate that the server shows, the first of its file; empty without one."""
    if cert is None:
        return ""
    text = Path(cert).read_text(encoding="ascii", errors="replace")
    end = "-----END CERTIFICATE-----"
    pem = text[text.index("-----BEGIN CERTIFICATE-----") : text.index(end) + len(end)]
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


def _bound_for_apps(where: ServerAddress, port: int) -> socket.socket:
    """The socket of the origin of apps: that port was asked for, or is as good as another one."""
    if where.apps_port is not None:
        return _bound(replace(where, port=where.apps_port))
    if where.port and port < 65535:
        with suppress(UsageError):
            return _bound(replace(where, port=port + 1))
    return _bound(replace(where, port=0))


def _bound(where: ServerAddress) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            where.host, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # asyncio turns Nagle's algorithm off for sockets that say that they are TCP: else 40 ms an answer.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, UnicodeError, OverflowError) as error:
        raise UsageError(
            f"cannot listen at {where.host}:{where.port}: {error}", "Give another --host or --port."
        ) from error
    return listener
