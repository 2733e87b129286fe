"""`KubeApi`: requests to a Kubernetes about one namespace."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from trainmaster.spec.clocks import steady_s
from trainmaster.spec.errors import ProviderError, UsageError
from trainmaster.spec.plain_json import parsed_json, typed
from trainmaster.transport.checked_connection import team_may_reach
from trainmaster.transport.http_calls import (
    BusyPlace,
    HttpAnswer,
    HttpRefusedError,
    ProviderClock,
    Send,
    said_of,
    sender,
)
from trainmaster.transport.kubernetes.login import KubeCredentials, KubeLogin

_TIMEOUT_S: Final = 30.0
_BUSY: Final = BusyPlace("Kubernetes", 5, 20.0, (500, 503, 504))
_PAGE: Final = 500


class KubeRefusedError(HttpRefusedError):
    """See `HttpRefusedError`."""

    place, page = "Kubernetes", "kubernetes"

    @property
    def is_quota(self) -> bool:
        """Whether a quota is in the way that may have room later."""
        passing = ("exceeded quota", "status unknown for quota")
        return self.status == 403 and any(each in self.words for each in passing)

    @property
    def is_right(self) -> bool:
        """Whether a right is lacking."""
        return self.status == 403 and "forbidden: User" in self.words


class KubeApi:
    """Threads share it.

    Args:
        login: who asks.
        namespace: about which.
        send: carries requests; None for HTTP.
        sleep: waits, seconds.
        clock: gives Unix seconds; never set back.

    Attributes:
        login, namespace: as given.
        clock: the server's.
        may_reach: which addresses may be connected to; None for all.
        is_exec_known: commands were taken once. One that has just started knows no rights for a while.
    """

    def __init__(
        self,
        login: KubeLogin,
        namespace: str,
        send: Send | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = steady_s,
    ) -> None:
        self.login, self.namespace, self.clock = login, namespace, ProviderClock(clock)
        self._is_known = self.is_exec_known = False
        self.may_reach = team_may_reach(login.environ)
        self._credentials = KubeCredentials(login)
        self._given = self._send = send
        self._sleep = sleep
        self._context: ssl.SSLContext | None = None
        self._opening = threading.Lock()

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,  # noqa: ANN401 - JSON
        *,
        kind: str = "application/json",
        query: Mapping[str, str] | None = None,
        has: str = "",
        timeout_s: float = _TIMEOUT_S,
    ) -> dict[str, Any]:
        """One request; what it is answered with.

        Args:
            method: of it.
            path: the same; one without a slash is of the namespace.
            body: the same.
            kind: of the body.
            query: of its address.
            has: a key without which it is no answer of a Kubernetes.
            timeout_s: for an answer.

        Raises:
            UsageError: this login will not do.
            KubeRefusedError: Kubernetes says no.
            ProviderError: it does not answer; what was asked may have been done.
        """
        answer = self._asked(method, path, body, kind, timeout_s, query or {})
        try:
            is_told = method == "GET" or answer.text.strip()
            told = typed(dict[str, Any], parsed_json(answer.text)) if is_told else {}
        except ValueError:
            raise ProviderError(
                f"Kubernetes at {self.login.server} says something that JSON is not", "Is it one?"
            ) from None
        if has and has not in told:
            raise ProviderError(f"Kubernetes at {self.login.server} does not say {has!r}", "Is it one?")
        return told

    def text(self, path: str, **query: str) -> str:
        """What there is, as text."""
        return self._asked("GET", path, None, "", _TIMEOUT_S, query).text

    def all(self, path: str, **query: str) -> list[dict[str, Any]]:
        """Every one of a list, page by page."""
        found: list[dict[str, Any]] = []
        at: dict[str, str] = {}
        while True:
            answer = self.call("GET", path, query={**query, **at, "limit": str(_PAGE)}, has="items")
            found += answer.get("items") or []
            at = {"continue": str((answer.get("metadata") or {}).get("continue") or "")}
            if not at["continue"]:
                return found

    def may(self, verb: str, resource: str, sub: str = "") -> bool:
        """Whether this login may do something in the namespace."""
        attributes = {"namespace": self.namespace, "verb": verb, "resource": resource, "subresource": sub}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = self.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
        return bool((answer.get("status") or {}).get("allowed"))

    def websocket(self, path: str, query: list[tuple[str, str]], *, is_refused: bool = False) -> tuple[
        str, dict[str, str], ssl.SSLContext | None
    ]:  # fmt: skip
        """Address, headers and encryption of a websocket."""
        address = "ws" + self._address(path).removeprefix("http") + f"?{urlencode(query)}"
        headers = self._credentials.headers(is_refused=is_refused)
        if is_refused:
            self._forget_encryption()
        return address, headers, self._encryption()

    # --- private -------------------------------------------------------------------------------------------

    def _address(self, path: str) -> str:
        if path.startswith("/"):
            return self.login.server + path
        return f"{self.login.server}/api/v1/namespaces/{quote(self.namespace)}/{path}"

    def _encryption(self) -> ssl.SSLContext | None:
        with self._opening:
            if self._context is None:
                self._context = self._credentials.context()
            return self._context

    def _forget_encryption(self) -> None:
        """Certificates may have been renewed."""
        with self._opening:
            self._context, self._send = None, self._given

    def _asked(
        self, method: str, path: str, body: object, kind: str, timeout_s: float, query: Mapping[str, str]
    ) -> HttpAnswer:
        data = None if body is None else json.dumps(body).encode()
        address = self._address(path) + (f"?{urlencode(query)}" if query else "")
        for is_refused in (False, True):
            headers = {**self._credentials.headers(is_refused=is_refused), "Accept": "application/json, */*"}
            if data is not None:
                headers["Content-Type"] = kind
            send = self._send = self._send or sender(context=self._encryption(), may_reach=self.may_reach)
            request = (method, address, headers, data, timeout_s)
            answer = _BUSY.sent(send, self.login.server, request, self._sleep, self.clock)
            if answer.status != 401:
                break
            self._forget_encryption()
        return self._checked(answer, f"{method} {path.partition('?')[0]}")

    def _checked(self, answer: HttpAnswer, what: str) -> HttpAnswer:
        if 200 <= answer.status < 300:
            self._is_known = True
            return answer
        refused = refused_of(answer.status, answer.text)
        name, space = self.login.name, self.namespace
        if answer.status == 401:
            raise UsageError(
                f"Kubernetes does not take the login {name!r}: {refused.words}",
                "Is its token over? Log in again, as for `kubectl`.",
            )
        if refused.is_right and not self._is_known:
            # A server that has just started knows of no rights for some seconds.
            raise UsageError(
                f"Kubernetes does not let {name!r} do {what} in namespace {space!r}: {refused.words}",
                "Ask for the role of docs/kubernetes.md, or name another `namespace`.",
            )
        raise refused


def refused_of(status: int, text: str) -> KubeRefusedError:
    """What an answer says that is no success."""
    return KubeRefusedError(status, said_of(text))
