"""What becomes of paths and headers between a browser and an app. Pure."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit

from trainmaster.dataclass import dataclass, field

Headers = Sequence[tuple[bytes, bytes]]

#: Where apps lie: each is told this beginning of its paths, which are passed on as they are.
APPS: Final = "/apps/"
#: Where services lie: replicas get paths without this beginning.
SERVICES: Final = "/services/"
#: The first label of their host, where each app has a host of its own: tokens let in, no cookie does.
SERVICES_LABEL: Final = "services"
#: A browser is handed over here.
ENTER: Final = "/enter/"
_SERVICE: Final = re.compile(rb"/services/([a-z0-9-]{1,64})(/[^?]*)?(\?.*)?", re.DOTALL)
_ID: Final = re.compile(rb"/apps/([a-z0-9-]{1,64})([/?].*)?", re.DOTALL)
#: Of one connection, not of the message; `h11` writes those of the next one.
_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
#: What we say to the app instead of what the browser or a proxy before us says, or never send.
_OURS: Final = frozenset(
    {b"host", b"authorization", b"cookie", b"origin", b"referer", b"expect", b"forwarded", b"x-real-ip"}
)
#: These would hold for all apps of the origin.
_OF_ORIGIN: Final = frozenset(
    {
        b"alt-svc",
        b"clear-site-data",
        b"public-key-pins",
        b"refresh",
        b"service-worker-allowed",
        b"strict-transport-security",
        b"www-authenticate",  # what a browser answers to it would be no app's
    }
)
#: How names of our cookies begin, of the API's, too: cookies do not separate ports.
_OUR_COOKIE: Final = re.compile(r"(__Host-|__Secure-)?trainmaster", re.IGNORECASE)


Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


#: An app or a replica that accepts no connection for so long is given up.
CONNECT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class UpstreamTarget:
    """Where an app, or a replica of a service, listens.

    Attributes:
        app: its id, or the name of the service.
        port: on its machine's own address.
        authorization: what the app itself wants to be told; empty for nothing.
        base: `APPS` or `SERVICES`.
        replica: which one, of a service.
        connect: leads there; None if it is on this machine.
        connect_s: that takes no longer.
        is_bare: it knows nothing of its prefix, and gets paths without it.
        polls: a regular expression of how ``METHOD PATH`` begins that its pages ask for by themselves.
        answers: headers that we add to what it answers.
    """

    app: str
    port: int
    authorization: str = ""
    base: str = APPS
    replica: str = ""
    connect: Connect | None = field(default=None, compare=False)
    connect_s: float = field(default=CONNECT_S, compare=False)
    is_bare: bool = False
    polls: str = ""
    answers: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def host(self) -> str:
        """As the app knows itself."""
        return f"127.0.0.1:{self.port}"

    @property
    def prefix(self) -> str:
        """What its paths begin with."""
        return f"{self.base}{self.app}/"

    def is_poll(self, method: bytes, path: bytes) -> bool:
        """Whether its pages ask for that by themselves, which is no use; ``path`` is below the prefix."""
        words = f"{method.decode('latin-1')} {path.decode('latin-1')}"
        return bool(self.polls) and re.match(self.polls, words) is not None


def app_of_page(referer: str, origin: str) -> str:
    """The beginning of an app's paths, of the page from which something was asked for; empty if it is none's.

    >>> app_of_page("https://apps.org/apps/po-1/jobs?a=b", "https://apps.org")
    '/apps/po-1/'
    >>> app_of_page("https://evil.org/apps/po-1/", "https://apps.org")
    ''
    """
    if not referer.startswith(origin + APPS):
        return ""
    found = app_of(referer[len(origin) :].encode("latin-1", "replace"))
    return f"{APPS}{found[0]}/" if found is not None else ""


def app_of(target: bytes) -> tuple[str, bool] | None:
    """The app of a request's target, and whether a path in it is named; None if it is no app's.

    >>> app_of(b"/apps/tb-1/data?run=1"), app_of(b"/apps/tb-1"), app_of(b"/api/v1/runs")
    (('tb-1', True), ('tb-1', False), None)
    """
    found = _ID.fullmatch(target)
    return None if found is None else (found[1].decode(), (found[2] or b"").startswith(b"/"))


def service_of(target: bytes) -> tuple[str, bytes] | None:
    """The service of a request's target, and the target as a replica gets it; None if it is no service's.

    >>> service_of(b"/services/digits/v2/models?a=b"), service_of(b"/services/digits"), service_of(b"/apps/")
    (('digits', b'/v2/models?a=b'), ('digits', b'/'), None)
    """
    found = _SERVICE.fullmatch(target)
    return None if found is None else (found[1].decode(), (found[2] or b"/") + (found[3] or b""))


def header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str:
    """The first header of that name (in small letters); empty without one."""
    return next((value.decode("latin-1") for key, value in headers if key == name), "")


def cookies(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Names and values of all cookies of a request."""
    found = []
    for key, value in headers:
        if key == b"cookie":
            for part in value.decode("latin-1").split(";"):
                name, is_pair, text = part.strip().partition("=")
                if is_pair:
                    found.append((name, text))
    return found


def is_websocket(headers: Headers) -> bool:
    """Whether a request asks to go on as a websocket."""
    wanted = header(headers, b"connection").lower()
    return "upgrade" in wanted and header(headers, b"upgrade").lower() == "websocket"


def is_own_page(headers: Headers) -> bool:
    """Whether a page of the same host asks, or a person has it opened: not a part or a frame of another page.

    >>> is_own_page([(b"sec-fetch-site", b"same-site"), (b"sec-fetch-mode", b"no-cors")])
    False
    """
    if header(headers, b"sec-fetch-site") in ("", "same-origin", "none"):
        return True
    is_opened = header(headers, b"sec-fetch-mode") == "navigate"
    return is_opened and header(headers, b"sec-fetch-dest") == "document"


def to_app(headers: Headers, target: UpstreamTarget, origin: str, address: str) -> list[tuple[bytes, bytes]]:
    """Headers of a request as the app gets them: nothing that is ours, and its own name as host and origin.

    Args:
        headers: as they came, names in small letters.
        target: the app.
        origin: of the apps as browsers see it, such as ``https://apps.example.org``.
        address: of the client.
    """
    dropped = _HOP_BY_HOP | _OURS | _named(headers)
    own = f"http://{target.host}"
    out = [(b"host", target.host.encode())]
    out += [
        (key, value) for key, value in headers if key not in dropped and not key.startswith(b"x-forwarded-")
    ]
    theirs = "; ".join(f"{name}={text}" for name, text in cookies(headers) if not _OUR_COOKIE.match(name))
    scheme, _, host = origin.partition("://")
    for name, text in (
        (b"cookie", theirs),
        (b"origin", own if header(headers, b"origin") else ""),
        (b"referer", _referer(header(headers, b"referer"), target, origin)),
        (b"authorization", target.authorization),
        (b"x-forwarded-for", address),
        (b"x-forwarded-host", host),
        (b"x-forwarded-proto", scheme),
        (b"x-forwarded-prefix", target.prefix.rstrip("/")),
    ):
        if text:
            out.append((name, text.encode("latin-1")))
    if is_websocket(headers):
        out += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
    elif b"transfer-encoding" in {key for key, _ in headers}:
        out.append((b"transfer-encoding", b"chunked"))  # a body of unknown length
    return out


def to_browser(
    headers: Headers, target: UpstreamTarget, origin: str, *, switches: bool = False
) -> tuple[list[tuple[bytes, bytes]], str]:
    """Headers of an answer as the browser gets them, and where it was to be sent that is none of the app's.

    Args:
        headers: as the app gave them, names in small letters.
        target: the app.
        origin: of the apps as browsers see it.
        switches: it goes on as a websocket.
    """
    dropped = _HOP_BY_HOP | _OF_ORIGIN | _named(headers)
    out: list[tuple[bytes, bytes]] = []
    outside = ""
    for key, value in headers:
        if key in dropped:
            continue
        text = value.decode("latin-1")
        if key == b"set-cookie":
            if (cookie := _limited(text, target)) is not None:
                out.append((key, cookie.encode("latin-1")))
        elif key in (b"location", b"content-location"):
            path = location(text, target, origin)
            if path is not None:
                out.append((key, path.encode("latin-1")))
            elif key == b"location":
                outside = text
        else:
            out.append((key, value))
    if switches:
        out += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
    return out, outside


def location(text: str, target: UpstreamTarget, origin: str) -> str | None:
    """Where an app sends a browser, within the app; None if that is another host.

    >>> app = UpstreamTarget("tb-1", 6006)
    >>> location("/api/v1/runs", app, "https://apps.org"), location("/apps/tb-1/x?a=b", app, "")
    ('/apps/tb-1/api/v1/runs', '/apps/tb-1/x?a=b')
    >>> location("http://127.0.0.1:6006/apps/tb-2/", app, ""), location("//evil.org/", app, "")
    ('/apps/tb-1/apps/tb-2/', None)
    >>> location("/apps/tb-1/../tb-2/", app, "") is None
    True
    """
    if any(
        ord(letter) <= 32 or letter == "\\" for letter in text
    ):  # browsers read these in ways of their own
        return None
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    if parts.scheme or parts.netloc:
        if f"{parts.scheme or 'http'}://{parts.netloc}" not in (f"http://{target.host}", origin):
            return None
        text = text.split(parts.netloc, 1)[1] or "/"
        text = text if text.startswith("/") else f"/{text}"
    path = text.partition("?")[0].partition("#")[0]
    if re.search(r"(^|/)(\.|%2e){2}(/|$)", path, re.IGNORECASE):  # could lead out of the app
        return None
    if not text.startswith("/") or path.startswith(target.prefix):
        return text
    return target.prefix + text.lstrip("/")


def _named(headers: Headers) -> set[bytes]:
    """Headers that the header ``Connection`` names: they are of this connection only."""
    return {
        name.strip().lower() for key, value in headers if key == b"connection" for name in value.split(b",")
    }


def _referer(text: str, target: UpstreamTarget, origin: str) -> str:
    begin = f"{origin}{target.prefix}"
    return f"http://{target.host}{text[len(origin) :]}" if text.startswith(begin) else ""


def _limited(text: str, target: UpstreamTarget) -> str | None:
    """A cookie that an app sets, for its own paths only; None if it would be one of ours."""
    pair, *attributes = (part.strip() for part in text.split(";"))
    if "=" not in pair or _OUR_COOKIE.match(pair):
        return None
    path, kept = target.prefix, [pair]
    for attribute in attributes:
        name, _, value = attribute.partition("=")
        if name.strip().lower() == "path":
            is_own = (
                value.strip().startswith(target.prefix) and location(value.strip(), target, "") is not None
            )
            path = value.strip() if is_own else target.prefix
        elif name.strip().lower() != "domain":
            kept.append(attribute)
    return "; ".join([*kept, f"Path={path}"])
