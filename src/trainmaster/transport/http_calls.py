"""Requests over HTTP to the API of a place: with Python's own library, and never led elsewhere.

`ProviderClock`: how far a provider's clock is ahead of ours, as the dates of its answers tell.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Final

from trainmaster.dataclass import dataclass, field
from trainmaster.spec.errors import ProviderError
from trainmaster.spec.plain_json import parsed_json
from trainmaster.transport.checked_connection import MayReach, checked_request, has_proxy

_MOST_BYTES: Final = 32 << 20
#: Of what an error says, in characters.
_MOST_WORDS: Final = 2000
#: Dates name whole seconds, and a clock drifts: what differs by less is the same.
_SAME_S: Final = 2.0
#: Where answers have them, the best first.
_WORDS: Final = ("message", "detail", "error_description", "error", "faultstring", "title")


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What came back. headers: by names in small letters."""

    status: int
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)


class HttpRefusedError(ProviderError):
    """The API of a place says no.

    Attributes:
        place: its name. page: of docs.
        status: of HTTP.
        words: what it says.
    """

    place: ClassVar[str]
    page: ClassVar[str]

    def __init__(self, status: int, words: str) -> None:
        self.status, self.words = status, words
        super().__init__(f"{self.place} refuses ({status}): {words}", f"See docs/{self.page}.md.")

    @property
    def is_gone(self) -> bool:
        """Whether there is no such thing there, or none any more."""
        return self.status in (404, 410)


@contextlib.contextmanager
def gone_is_fine(*also: int) -> Iterator[None]:
    """What is asked of something need not be done if it is gone, or is refused with one of these."""
    try:
        yield
    except HttpRefusedError as refused:
        if not refused.is_gone and refused.status not in also:
            raise


def said_of(text: str) -> str:
    """What an error of an API says, on one line: its words, or those of what it holds, else all of it.

    >>> said_of('{"kind": "Status", "message": "no"}'), said_of('{"badRequest": {"message": "no"}}')
    ('no', 'no')
    >>> said_of('{"error": "no", "code": 401}'), said_of('{"errors": [{"detail": "no"}]}'), said_of('"no"')
    ('no', 'no', 'no')
    >>> said_of('{"error": "invalid_grant", "error_description": "it has expired"}')
    'it has expired'
    """
    with contextlib.suppress(ValueError):
        text = _words_of(parsed_json(text)) or text
    return " ".join(text.split())[:_MOST_WORDS] or "it does not say why"


def _words_of(told: object) -> str:
    if isinstance(told, str):
        return told
    said: list[Any] = told if isinstance(told, list) else []
    if isinstance(told, dict):
        deeper = (each for each in told.values() if isinstance(each, dict | list))
        said = [*filter(None, map(told.get, _WORDS)), *deeper]
    return next(filter(None, map(_words_of, said)), "")


def pause_before_retry_s(
    answer: HttpAnswer, attempt: int, most_s: float, busy: Collection[int]
) -> float | None:
    """How long to wait before the same is asked again; None if it is not to be.

    Args:
        answer: of the API.
        attempt: how often it was asked before.
        most_s: the longest pause.
        busy: statuses that mean as much as 429, too many requests, where they say how long to wait.
    """
    if answer.status != 429 and not (answer.status in busy and answer.headers.get("retry-after")):
        return None
    try:
        return min(max(float(answer.headers.get("retry-after", "")), 0.0), most_s)
    except ValueError:  # a date, or nothing
        return min(2.0**attempt, most_s)


class ProviderClock:
    """Translates times that a provider states into ours, and back. Threads may share it.

    Args:
        clock: ours: gives Unix seconds; never set back.

    Attributes:
        ahead_s: how far the provider's is ahead; 0 until it has answered.

    >>> clock = ProviderClock(lambda: 1767326645.5)
    >>> clock.heard("Fri, 02 Jan 2026 03:04:05 GMT", asked_at=1767326645.0)
    >>> clock.ahead_s, clock.now()
    (-3599.75, 1767323045.75)
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.ahead_s = 0.0

    def local_now(self) -> float:
        """Unix seconds by our clock."""
        return self._clock()

    def now(self) -> float:
        """Unix seconds by the provider's clock."""
        return self._clock() + self.ahead_s

    def heard(self, date: str, asked_at: float) -> None:
        """Take in the date of an answer; what is known stays as long as it may be true.

        Args:
            date: as the header of that name has it; what is none is left out.
            asked_at: when that was asked, Unix seconds by our clock.
        """
        try:
            stated = parsedate_to_datetime(date).timestamp()
        except (TypeError, ValueError):
            return
        # It was read at some time between the question and now.
        least, most = stated - self._clock(), stated + 1.0 - asked_at
        for known in (self.ahead_s, 0.0):
            if least - _SAME_S <= known <= most + _SAME_S:
                self.ahead_s = known
                return
        self.ahead_s = (least + most) / 2


#: Sends a request: method, address, headers, body, seconds.
Send = Callable[[str, str, Mapping[str, str], bytes | None, float], HttpAnswer]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Credentials go where the user has said, nowhere else."""

    def redirect_request(self, *_: object) -> None:
        """Go nowhere."""


def sender(
    authorities: str = "", context: ssl.SSLContext | None = None, may_reach: MayReach | None = None
) -> Send:
    """What sends requests, by HTTP and HTTPS only.

    Args:
        authorities: file with certificates of those that are believed, too; empty for the system's only.
        context: of connections, in place of all that.
        may_reach: which addresses may be connected to, unless a proxy does that; None for all. Then the
            seconds are for the whole answer.

    Raises:
        OSError: the file cannot be read.
    """
    if authorities:
        context = ssl.create_default_context()
        context.load_verify_locations(authorities)
    opener = urllib.request.OpenerDirector()  # without handlers for `file:`, `ftp:` and `data:`
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _NoRedirect(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=context),
    ):
        opener.add_handler(handler)

    def send(
        method: str, address: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float
    ) -> HttpAnswer:
        if may_reach is not None and not has_proxy(address):
            status, named, said = checked_request(
                method, address, headers, body, may_reach, timeout_s, context=context, most_bytes=_MOST_BYTES
            )
            return HttpAnswer(status, said.decode(errors="replace"), named)
        request = urllib.request.Request(address, body, dict(headers), method=method)  # noqa: S310 - http(s) only
        try:
            with opener.open(request, timeout=timeout_s) as answer:
                return _answer(answer.status, answer)
        except urllib.error.HTTPError as error:
            with error:
                return _answer(error.code, error)

    return send


@dataclass(frozen=True, slots=True)
class BusyPlace:
    """How a place is asked again that has too much to do.

    Attributes:
        place: its name.
        tries: how often it is asked. most_s, busy: see `pause_before_retry_s`.
    """

    place: str
    tries: int
    most_s: float
    busy: Collection[int]

    def sent(
        self,
        send: Send,
        at: str,
        request: tuple[str, str, Mapping[str, str], bytes | None, float],
        sleep: Callable[[float], None],
        clock: ProviderClock,
    ) -> HttpAnswer:
        """What it answers.

        Args:
            send: sends the request.
            at: where it is, for messages.
            request: see `Send`.
            sleep: waits, seconds.
            clock: its; hears what the answer says.

        Raises:
            ProviderError: it does not answer; what was asked may have been done.
        """
        for attempt in range(self.tries):
            began = clock.local_now()
            try:
                answer = send(*request)
            except (OSError, http.client.HTTPException) as error:
                raise ProviderError(
                    f"{self.place} does not answer at {at}: {why_unanswered(error)}",
                    "Is it up, and can this machine reach it?",
                ) from None
            waits_s = pause_before_retry_s(answer, attempt, self.most_s, self.busy)
            if waits_s is None or attempt == self.tries - 1:
                break
            sleep(waits_s)
        clock.heard(answer.headers.get("date", ""), began)
        return answer


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
