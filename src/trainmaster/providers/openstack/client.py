"""`OpenstackClient`: requests to Keystone's catalogue of services, with a token that is renewed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlencode

from trainmaster.providers.openstack.login import OpenstackLogin
from trainmaster.spec.errors import ProviderError, UsageError, fails_as
from trainmaster.spec.plain_json import parsed_json, typed
from trainmaster.transport.http_calls import (
    BusyPlace,
    HttpAnswer,
    HttpRefusedError,
    ProviderClock,
    Send,
    said_of,
    sender,
)

_TIMEOUT_S: Final = 60.0
#: Of Stein (2019): flavors and their properties in one answer, types of volumes.
_NOVA: Final = "2.67"
#: What a catalogue calls Cinder, if there is one.
VOLUMES: Final = ("volumev3", "block-storage")
#: What the address of a service must end with.
_SERVICES: Final = {"compute": "", "network": "/v2.0", "image": "/v2", **dict.fromkeys(VOLUMES, "")}
_BUSY: Final = BusyPlace("OpenStack", 6, 60.0, (413, 503))
_PAGE: Final = 500


class RefusedError(HttpRefusedError):
    """See `HttpRefusedError`."""

    place, page = "OpenStack", "openstack"

    @property
    def is_quota(self) -> bool:
        """Whether a quota is in the way: Nova's, or Neutron's, which is a conflict."""
        return self.status in (403, 409, 413) and "quota" in self.words.lower()


class OpenstackClient:
    """One project. Threads may share it.

    Args:
        login: who asks.
        send: carries requests; None for HTTP.
        sleep: waits, seconds.

    Attributes:
        login: as given.
        clock: of what answers.
    """

    def __init__(
        self, login: OpenstackLogin, send: Send | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.login, self._sleep, self.clock = login, sleep, ProviderClock(time.time)
        with fails_as(f"OpenStack: {login.authorities} cannot be read", "Correct `cacert` of the cloud."):
            self._send = send or sender(login.authorities, may_reach=login.may_reach)
        self._lock = threading.Lock()
        self._token = ""
        self._said: dict[str, Any] = {}

    @property
    def said(self) -> Mapping[str, Any]:
        """What Keystone says of the token: whose it is, and what is there."""
        self._signed_in("")
        return self._said

    def roles(self) -> list[str]:
        """What this login may be in its project."""
        return [str(each.get("name", "")) for each in self.said.get("roles", ())]

    def by(self, made: Mapping[str, Any]) -> OpenstackClient:
        """The same by an application credential that was made; see `OpenstackLogin.by`."""
        return OpenstackClient(self.login.by(made), self._send, self._sleep)

    def get(self, service: str, path: str, **query: str) -> dict[str, Any]:
        """What there is."""
        return self.call("GET", service, path + (f"?{urlencode(query)}" if query else ""))

    def listed(self, service: str, path: str, **query: str) -> list[dict[str, Any]]:
        """What a service lists in one answer, called there as in the path."""
        noun = path.rpartition("/")[2].replace("-", "_")
        return list(self.get(service, path, **query).get(noun, ()))

    def all(self, path: str, noun: str, **query: str) -> list[dict[str, Any]]:
        """Every one of a list of Nova's, page by page."""
        found: list[dict[str, Any]] = []
        while True:
            at = {"marker": str(found[-1]["id"])} if found else {}
            answer = self.get("compute", path, **query, **at, limit=str(_PAGE))
            found += answer.get(noun, [])
            if not answer.get(noun) or f"{noun}_links" not in answer:
                return found

    def call(self, method: str, service: str, path: str, body: Any = None) -> dict[str, Any]:  # noqa: ANN401 - JSON
        """One request; what it is answered with, empty if nothing.

        A token that is over is renewed, and what was one request too many is sent again when it may be.

        Raises:
            UsageError: this login, or what is asked for, will not do.
            RefusedError: OpenStack says no.
            ProviderError: it does not answer; what was asked may have been done.
        """
        data = None if body is None else json.dumps(body).encode()
        of_nova = {"OpenStack-API-Version": f"compute {_NOVA}", "X-OpenStack-Nova-API-Version": _NOVA}
        token = ""
        for _ in range(2):
            token = self._signed_in(token)
            headers = {"X-Auth-Token": token} | (of_nova if service == "compute" else {})
            answer = self._sent(method, self.address(service) + path, headers, data)
            if answer.status != 401:
                break
        return self._read(answer, f"{method} {path.partition('?')[0]}")

    def _sent(self, method: str, address: str, headers: Mapping[str, str], data: bytes | None) -> HttpAnswer:
        """What one request is answered with; what was one too many is sent again when it may be."""
        headers = {"Accept": "application/json", "Content-Type": "application/json", **headers}
        at, request = address.partition("?")[0], (method, address, headers, data, _TIMEOUT_S)
        return _BUSY.sent(self._send, at, request, self._sleep, self.clock)

    def _read(self, answer: HttpAnswer, what: str) -> dict[str, Any]:
        """What an answer says."""
        if 200 <= answer.status < 300:
            return _object(answer.text) if answer.text.strip() else {}
        words = said_of(answer.text)
        refused = RefusedError(answer.status, words)
        if answer.status == 401:
            raise UsageError(
                f"OpenStack does not take the login {self.login.name!r}: {words}",
                "Is it over? Make another, and write it into clouds.yaml.",
            )
        if answer.status == 403 and not refused.is_quota:
            raise UsageError(
                f"OpenStack does not let {self.login.name!r} do {what}: {words}",
                "Ask for the role `member` in the project.",
            )
        if answer.status == 406:
            raise UsageError(f"this Nova is older than Stein (2019): {words}", "A newer one is needed.")
        if answer.status == 400:
            raise UsageError(f"OpenStack refuses {what}: {words}", "Mend it in openstack.yaml.")
        raise refused

    def _signed_in(self, old: str) -> str:
        """A token that is not ``old``; empty takes the one that there is."""
        with self._lock:
            if self._token and self._token != old:
                return self._token
            data = json.dumps(self.login.body).encode()
            answer = self._sent("POST", f"{self.login.url}/auth/tokens", {}, data)
            if answer.status == 404 and "credential" in said_of(answer.text).lower():  # one that was deleted
                answer = replace(answer, status=401)
            said = self._read(answer, "POST /auth/tokens").get("token")
            self._token = answer.headers.get("x-subject-token", "")
            if not self._token or not isinstance(said, dict):
                raise UsageError(
                    f"what answers at {self.login.url} is no Keystone", "Correct auth_url of the cloud."
                )
            self._said = said
            return self._token

    def address(self, service: str) -> str:
        """Where a service is; Keystone is where the login says."""
        if service == "identity":
            return self.login.url
        end = _SERVICES[service]
        for entry in self.said.get("catalog", ()):
            if entry.get("type") != service:
                continue
            for each in entry.get("endpoints", ()):
                region = each.get("region_id") or each.get("region") or ""
                is_there = not self.login.region or region == self.login.region
                if each.get("interface") == self.login.interface and is_there:
                    url = str(each.get("url", "")).rstrip("/")
                    return url if url.endswith(end) else url + end
        where = f" in region {self.login.region}" if self.login.region else ""
        raise UsageError(
            f"OpenStack: {self.login.name} has no service {service!r}{where}",
            "Correct region_name or interface of the cloud in clouds.yaml.",
        )


def _object(text: str) -> dict[str, Any]:
    try:
        return typed(dict[str, Any], parsed_json(text))
    except ValueError:
        words = " ".join(text.split())[:200]
        raise ProviderError(
            f"what answers is no OpenStack: {words}", "Correct the cloud's address."
        ) from None
