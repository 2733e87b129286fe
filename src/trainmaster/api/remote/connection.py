"""`RestConnection`: requests to a server, its answers, and its errors as ours."""

from __future__ import annotations

import hashlib
import http.client
import json
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, Final
from urllib.parse import quote, urlencode, urlsplit

from trainmaster import __version__
from trainmaster.spec import errors
from trainmaster.spec.addresses import is_loopback
from trainmaster.spec.errors import (
    AccessError,
    Mistake,
    ProviderError,
    RecipeError,
    TrainmasterError,
    UsageError,
)

API: Final = "/api/v1"
#: How long an answer may begin to come, in seconds: a plan of hundreds of offers takes a few.
ANSWER_S: Final = 60.0
#: A stream says something each 15 seconds: one that is silent for so long is broken.
STREAM_SILENT_S: Final = 45.0
#: What may be sent twice is sent again after these pauses, in seconds: a server starts within them.
PAUSES_S: Final = (0.2, 0.5, 1.0, 2.0, 4.0)
#: Servers keep an idle socket for a few seconds.
_IDLE_S: Final = 1.0
_PIECE_BYTES: Final = 64 << 10
_BROKEN: Final = (OSError, http.client.HTTPException)
#: Answers of a server, or of a proxy before it, that is not ready.
_NOT_NOW: Final = (502, 503, 504)
#: Which error an answer without a body is.
_KINDS: Final = {401: AccessError, 403: AccessError, 404: errors.NotFoundError}

Answer = http.client.HTTPResponse


class ServerUnreachableError(ProviderError):
    """The server does not answer; what was asked for may have been done or not."""


class RestConnection:
    """Asks one server; may be used by several threads, each of which has a socket of its own.

    Args:
        url: of the server.
        token: of the caller; empty before one has logged in.
        fingerprint: SHA-256 of the certificate that the server must have; empty: as the system trusts it.
        sleep: waits for so many seconds.
        is_own: the server is this process: what is sent to it goes over no network.

    Raises:
        UsageError: that is no URL of a server, or the token would go over a network in clear.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        fingerprint: str = "",
        sleep: Callable[[float], None] = time.sleep,
        *,
        is_own: bool = False,
    ) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                f"{url!r} is no URL of a server", "Write such as https://trainmaster.example.org."
            )
        if any(not 32 < ord(letter) < 127 for letter in token):
            raise UsageError("the token has characters that no token has", "Copy it once more, whole.")
        self._is_tls = parts.scheme == "https"
        self._is_own = is_own or is_loopback(parts.hostname)
        if not self._is_tls and token and not self._is_own:
            raise UsageError(
                f"{self.url}: the token would go over the network in clear",
                "Use the https URL of the server.",
            )
        self._host, self._port, self._prefix = parts.hostname, parts.port, parts.path
        self._token, self._fingerprint, self.sleep = token, fingerprint, sleep
        self._sockets: dict[int, http.client.HTTPConnection] = {}  # by thread
        self._used_at: dict[int, float] = {}
        weakref.finalize(self, _close, self._sockets)

    def close(self) -> None:
        """Give back sockets."""
        _close(self._sockets)

    def get(self, path: str, **query: object) -> dict[str, Any]:
        """The object that a path is answered with; parameters that are None are left out."""
        found: dict[str, Any] = self.ask("GET", path, query)
        return found

    def post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        key: str = "",
        repeats: bool = False,
        **query: object,
    ) -> Any:  # noqa: ANN401 - JSON
        """Ask for something to be done.

        Args:
            path: what.
            body: JSON.
            key: it is done once, however often it has to be sent.
            repeats: it may be done several times.
            query: parameters; those that are None are left out.
        """
        return self.ask("POST", path, query, json.dumps(body or {}).encode(), key=key, repeats=repeats)

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, object],
        body: bytes | IO[bytes] | None = None,
        *,
        key: str = "",
        repeats: bool = False,
        kind: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> Any:  # noqa: ANN401 - JSON
        """One request, again where that changes nothing; the answer's JSON, None without.

        Raises:
            UnreachableError: the server does not answer.
            TrainmasterError: what the server says, as the type that it has at home.
        """
        may_repeat = method != "POST" or repeats or bool(key)
        if not may_repeat and time.monotonic() - self._used_at.get(threading.get_ident(), 0.0) > _IDLE_S:
            self._drop()  # the other end may have closed it
        for pause_s in (*PAUSES_S, None):
            more = {**(headers or {}), **({"Idempotency-Key": key} if key else {})}
            if body is not None:
                more["Content-Type"] = kind
            try:
                answer = self._send(method, path, query, body, more, ANSWER_S)
                data = answer.read()
                self._used_at[threading.get_ident()] = time.monotonic()
            except _BROKEN as error:
                self._drop()
                if not may_repeat or pause_s is None or is_untrusted(error):
                    raise self.unreachable(error) from error
            else:
                if answer.status == 429 and pause_s is not None:  # nothing was done
                    self.sleep(float(answer.headers.get("retry-after") or pause_s))
                    continue
                if answer.status not in _NOT_NOW or not may_repeat or pause_s is None:
                    return self._read(answer, data)
            self.sleep(pause_s)
        raise AssertionError("the last pause is None")

    @contextmanager
    def open(
        self, path: str, query: Mapping[str, object], headers: Mapping[str, str] | None = None
    ) -> Iterator[Answer]:
        """An answer that is read as it comes, on a socket of its own.

        Raises:
            OSError, HTTPException: (also while it is read) it is broken, or the server asked too often.
            TrainmasterError: what the server says.
        """
        apart = RestConnection(self.url, self._token, self._fingerprint, self.sleep, is_own=self._is_own)
        try:
            answer = apart._send("GET", path, query, None, headers or {}, STREAM_SILENT_S)
            if answer.status in (*_NOT_NOW, 429):  # also where streams that broke are still counted
                raise http.client.HTTPException(f"it answers {answer.status} {answer.reason}")
            if answer.status >= 400:
                self._read(answer, answer.read())
            yield answer
        finally:
            apart._drop()

    def pieces(
        self, path: str, query: Mapping[str, object], *, is_same: bool = True, begin: int | None = None
    ) -> Iterator[bytes]:
        """The bytes of an answer; begun again behind what has come, if the connection breaks.

        Args:
            path: what is asked for.
            query: its parameters.
            is_same: it has the same bytes each time; else it is begun anew only while none has come.
            begin: the path takes a parameter of that name: the first byte of it that is wanted.

        Raises:
            UnreachableError: the server does not answer.
        """
        got = 0
        pauses = iter(PAUSES_S)
        while True:
            try:
                place = {} if begin is None else {"begin": begin + got}
                with self.open(path, {**query, **place}) as answer:
                    skipped = 0 if begin is None else got
                    while piece := answer.read1(_PIECE_BYTES):
                        new = piece[max(0, got - skipped) :]
                        skipped += len(piece)
                        got += len(new)
                        if new:
                            pauses = iter(PAUSES_S)  # it goes on: a long answer may break often
                            yield new
                    if answer.length:
                        raise http.client.IncompleteRead(b"", answer.length)
                    return
            except _BROKEN as error:
                pause_s = next(pauses, None)
                if pause_s is None or is_untrusted(error) or (got and not is_same):
                    raise self.unreachable(error) from error
                self.sleep(pause_s)

    @property
    def token(self) -> str:
        """The caller's."""
        return self._token

    @property
    def host(self) -> str:
        """Name and port, as in a header."""
        return urlsplit(self.url).netloc.rpartition("@")[2]

    def raw_socket(self, path: str, query: Mapping[str, object]) -> tuple[Any, str, dict[str, str]]:
        """A socket of its own to the server, whose certificate is proven; target and headers of a request.

        Raises:
            UnreachableError: the server does not answer.
            AccessError: the certificate is another one.
        """
        try:
            found = self._connected(ANSWER_S)
            if found.sock is None:
                found.connect()
        except OSError as error:
            raise self.unreachable(error) from error
        found.sock.settimeout(None)
        return found.sock, self._target(path, query), self._headers()

    # --- parts ------------------------------------------------------------------------------------------

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, object],
        body: bytes | IO[bytes] | None,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> Answer:
        found = self._sockets.get(threading.get_ident())
        if found is None or found.sock is None:  # one that was closed is checked again when it is opened
            found = self._sockets[threading.get_ident()] = self._connected(timeout_s)
        target, own = self._target(path, query), {**self._headers(), "Accept-Encoding": "identity"}
        if body is not None and not isinstance(body, bytes):
            body.seek(0)
        found.request(method, target, body, {**own, **headers})
        return found.getresponse()

    def _target(self, path: str, query: Mapping[str, object]) -> str:
        given = {key: value for key, value in query.items() if value not in (None, ())}
        target = f"{self._prefix}{'' if path.startswith('/device/') else API}{path}"
        return f"{target}?{urlencode(given, doseq=True)}" if given else target

    def _headers(self) -> dict[str, str]:
        known = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        return {"Trainmaster-Version": __version__, **known}

    def _connected(self, timeout_s: float) -> http.client.HTTPConnection:
        if not self._is_tls:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        context = ssl.create_default_context()
        if self._fingerprint:  # the server with this certificate is trusted, whatever authority signed it
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        found = http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=context)
        if self._fingerprint:
            found.connect()
            seen = fingerprint_of(found.sock)
            if seen != self._fingerprint:
                found.close()
                raise AccessError(
                    f"{self.url} has another certificate than when you logged in: {seen}, "
                    f"not {self._fingerprint}",
                    "Somebody may listen in. Ask who runs the server; if it is right, log in again.",
                )
            found.auto_open = 0  # by itself it would open another one, and check nothing
        return found

    def _drop(self) -> None:
        found = self._sockets.pop(threading.get_ident(), None)
        if found is not None:
            found.close()

    def _read(self, answer: Answer, data: bytes) -> Any:  # noqa: ANN401 - JSON
        kind = answer.headers.get_content_type()
        found = None
        if kind in ("application/json", "application/problem+json"):
            try:
                found = json.loads(data)
            except ValueError:
                found = None
        if answer.status < 400:
            if found is None and data and kind != "application/json":
                raise ServerUnreachableError(f"{self.url} is no Trainmaster server", "Look at the URL.")
            return found
        raise error_of(answer.status, found if isinstance(found, dict) else {}, self.url)

    def unreachable(self, error: Exception) -> TrainmasterError:
        """A connection that broke, or was given up, as an error for people."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return why_untrusted(self.url, error)
        return ServerUnreachableError(
            f"{self.url} does not answer: {error or type(error).__name__}",
            "Is the server up, and is this machine on its network? What runs there goes on.",
        )


def _close(sockets: dict[int, http.client.HTTPConnection]) -> None:
    while sockets:
        sockets.popitem()[1].close()


def quoted(text: str) -> str:
    """A text as a part of a path."""
    return quote(text, safe="")


def fingerprint_of(socket: Any) -> str:  # noqa: ANN401 - an SSL socket, or None
    """SHA-256 of the certificate at the other end."""
    return hashlib.sha256(socket.getpeercert(binary_form=True)).hexdigest()


def error_of(status: int, problem: Mapping[str, Any], url: str) -> TrainmasterError:
    """What a server has refused, as the error that it is at home."""
    title, hint = str(problem.get("title", "")), str(problem.get("hint", ""))
    mistakes = problem.get("mistakes")
    if problem.get("error") == "RecipeError" and mistakes:
        known = (Mistake(m["line"], m["column"], m["key"], m["message"]) for m in mistakes)
        return RecipeError("recipe", list(known))
    kind = getattr(errors, str(problem.get("error")), None)
    if not (isinstance(kind, type) and issubclass(kind, TrainmasterError)):
        kind = _KINDS.get(status, ProviderError if status >= 500 else UsageError)
    found = kind.__new__(kind)
    TrainmasterError.__init__(found, title or f"{url} has answered {status}", hint)
    if isinstance(found, errors.RunError):
        found.run = title.partition(":")[0]
    return found


#: What OpenSSL says of a certificate that is not valid yet, or no more (X509_V_ERR_...).
OFF_CLOCK: Final = (9, 10)


def why_untrusted(url: str, error: ssl.SSLCertVerificationError) -> AccessError:
    """A certificate that is not trusted, as an error for people."""
    why, hint = error.verify_message, "`trainmaster login` shows it and asks, if it has signed itself."
    if error.verify_code in OFF_CLOCK:
        why += f", by the clock of this machine ({time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC)"
        hint = "Set that clock, if it is wrong. If it is right, the server needs another certificate."
    return AccessError(f"{url}: its certificate is not trusted: {why}", hint)


def is_untrusted(error: Exception) -> bool:
    """Whether a connection was given up as nothing vouches for the server at its other end."""
    return isinstance(error, ssl.SSLCertVerificationError)
