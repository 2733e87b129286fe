"""Requests over HTTP to the API of a place: with Python's own library, and never led elsewhere."""

from __future__ import annotations

import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Final

_MOST_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What came back. headers: by names in small letters."""

    status: int
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)


def ahead_of(answer: HttpAnswer, began: float) -> float | None:
    """How far our clock is ahead of that of what answered, in seconds; None if it does not say its time.

    Dates name whole seconds: what clocks may differ by anyway is no difference.

    Args:
        answer: its.
        began: when it was asked, Unix seconds by our clock.
    """
    try:
        there = parsedate_to_datetime(answer.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return None
    return max(0.0, began - there - 1.0) + min(0.0, time.time() - there)


#: Sends a request: method, address, headers, body, seconds.
Send = Callable[[str, str, Mapping[str, str], bytes | None, float], HttpAnswer]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Credentials go where the user has said, nowhere else."""

    def redirect_request(self, *_: object) -> None:
        """Go nowhere."""


def sender(authorities: str = "", context: ssl.SSLContext | None = None) -> Send:
    """What sends requests.

    Args:
        authorities: file with certificates of those that are believed, too; empty for the system's only.
        context: of connections, in place of all that.

    Raises:
        OSError: the file cannot be read.
    """
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if authorities:
        context = ssl.create_default_context()
        context.load_verify_locations(authorities)
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    opener = urllib.request.build_opener(*handlers)

    def send(
        method: str, address: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float
    ) -> HttpAnswer:
        request = urllib.request.Request(address, body, dict(headers), method=method)  # noqa: S310 - http(s) only
        try:
            with opener.open(request, timeout=timeout_s) as answer:
                return _answer(answer.status, answer)
        except urllib.error.HTTPError as error:
            with error:
                return _answer(error.code, error)

    return send


#: Sends one to a service whose certificate the system's authorities vouch for; OSError: it does not answer.
send_request: Final = sender()


def why_unanswered(error: Exception) -> str:
    """Why nothing came back, in words on one line."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    why = (reason.strerror if isinstance(reason, OSError) else "") or str(reason)
    return " ".join(why.split()) or type(error).__name__


def _answer(status: int, answer: Any) -> HttpAnswer:  # noqa: ANN401 - http.client's, or what wraps it
    body = answer.read(_MOST_BYTES)
    if answer.length and len(body) < _MOST_BYTES:  # Python lets an end that comes too early pass
        raise http.client.IncompleteRead(body, answer.length)
    named = {name.lower(): value for name, value in answer.headers.items()}
    return HttpAnswer(status, body.decode(errors="replace"), named)
