"""Where a server keeps its files is told to its admins and its owner; members get names for these places."""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from trainmaster.control.task.layout import Home
    from trainmaster.service.users.caller import Caller

#: Answers that are words of ours; logs, recipes and files are what people have written, and stay as they are.
_OURS: Final = ("application/json", "application/problem+json", "text/event-stream", "text/html")
#: What a person has typed into a page, and what tasks have logged, stays as it is: in pages, and in streams.
_TYPED: Final = re.compile(
    rb"""(<textarea\b.*?</textarea>|<input\b[^>]*>|<div\b[^>]*(?:class="log\b|id="log").*?</div>"""
    rb"""|<pre tabindex.*?</pre>|^(?:id:[^\n]*\n)?event: log\n.*?\n\n)""",
    re.DOTALL | re.MULTILINE,
)
#: Header of an answer that is typed or logged as a whole; nobody is sent it.
TYPED: Final = "trainmaster-typed"
#: A home that lies directly below `/` has a name that paths of others may have: there only these are its own.
_OWN: Final = r"(?=/(?:runs|store|snapshots|uploads|trainmaster\.db))"


class HiddenPlaces:
    """Wraps the application. ``file:///srv/tm/store/models/x`` is ``store:/models/x`` to a team's member.

    A volume of the caller's team is its name alone, as one writes it.

    Args:
        app: what is wrapped.
        home: of the server.
    """

    def __init__(self, app: ASGIApp, home: Home) -> None:
        self._app = app
        self._store = home.store_url.rstrip("/") if home.store_url.startswith("file://") else ""
        store = unquote(self._store.removeprefix("file://"))
        folders = {"store:": store, "cache:": str(home.cache), "home:": str(home.root)}
        self._folders = [
            (re.compile(_pattern(place)), word.encode()) for word, place in folders.items() if place
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http" or scope["method"] == "HEAD" or scope["path"].startswith("/static/"):
            await self._app(scope, receive, send)
            return
        begun: Message | None = None
        is_hidden, body = False, b""

        async def told(message: Message) -> None:
            nonlocal begun, is_hidden, body
            caller = scope.get("state", {}).get("caller")
            if message["type"] == "http.response.start":
                headers = dict(message["headers"])
                is_typed = headers.pop(TYPED.encode(), None) is not None
                message = {**message, "headers": [each for each in message["headers"] if each[0] in headers]}
                is_hidden = not is_typed and _is_ours(headers) and (caller is None or not caller.sees_places)
                if is_hidden and b"content-length" in headers:
                    begun = message  # its length may change
                    return
            elif is_hidden and message["type"] == "http.response.body":
                body += message.get("body", b"")
                if begun is not None and message.get("more_body", False):
                    return
                message = {**message, "body": self._without(body, caller)}
                body = b""
                if begun is not None:
                    others = [each for each in begun["headers"] if each[0] != b"content-length"]
                    length = (b"content-length", str(len(message["body"])).encode())
                    await send({**begun, "headers": [*others, length]})
                    begun = None
            await send(message)

        await self._app(scope, receive, told)

    def _without(self, body: bytes, caller: Caller | None) -> bytes:
        if not any(pattern.search(body) for pattern, _ in self._folders):
            return body
        parts = _TYPED.split(body)
        for number in range(0, len(parts), 2):
            if caller is not None and caller.team and self._store:
                volumes = f"{self._store}/teams/{caller.team}/volumes/".encode()
                parts[number] = parts[number].replace(volumes, b"")
            for pattern, word in self._folders:
                parts[number] = pattern.sub(word, parts[number])
        return b"".join(parts)


def _pattern(place: str) -> bytes:
    """What finds a directory in texts, also within URLs, JSON and HTML; not one whose name begins so."""
    path = place.rstrip("/")
    written = {path, quote(path), json.dumps(path)[1:-1], html.escape(path)}
    after = _OWN if path.count("/") < 2 else r"(?![\w.-])"
    return f"(?:file://)?(?<![\\w.-])(?:{'|'.join(map(re.escape, sorted(written)))}){after}".encode()


def _is_ours(headers: dict[bytes, bytes]) -> bool:
    kind = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0]
    return kind in _OURS and b"content-disposition" not in headers
